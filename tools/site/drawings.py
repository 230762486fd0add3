"""Drawings in mermaid's language, as SVG that was made before (`make docs-pictures`) and is committed.

Why: mermaid is a program for browsers, of 3 MB. The site is to be read without another host and without that, and made
without a browser. So each drawing is kept as it came out, once for light pages and once for dark ones, under a name
that its text gives; one whose text was changed since has no picture, and the build fails.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from drawn import THEMES, path_of
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

logger = logging.getLogger(__name__)


class Drawing(SphinxDirective):
    has_content = True

    def run(self) -> list[nodes.Node]:
        text = "\n".join(self.content)
        out: list[nodes.Node] = []
        for theme in THEMES:
            path = path_of(text, theme)
            self.env.note_dependency(path)
            if not path.exists():
                logger.warning("a drawing has no picture of its present text: run `make docs-pictures`",
                               location=self.get_location())
                return []
            svg = path.read_text(encoding="utf-8")
            out.append(nodes.raw("", f'<div class="drawing only-{theme}" tabindex="0">{svg}</div>',
                                 format="html"))
        return out


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("mermaid", Drawing)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
