"""Sphinx's configuration of the site. `make docs` runs it (tools/site/__main__.py) on the staged documents."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from spindle import __version__

project = "Spindle"
author = "the Spindle authors"
project_copyright = "the Spindle authors, Apache License 2.0"
release = version = __version__
html_title = f"Spindle {release}"
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "names", "drawings"]
root_doc = "index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

# Headings have the anchors that GitHub gives them: the documents are read there, too.
myst_heading_anchors = 6
myst_fence_as_directive = ["mermaid"]
# A link by a name alone must not be taken for one to a heading somewhere.
myst_ref_domains = ["std", "py"]

nitpicky = True
default_role = "code"
highlight_language = "text"
python_display_short_literal_types = True
maximum_signature_line_length = 80
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_inherit_docstrings = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = [str(Path(__file__).resolve().parent.parent.parent / "docs" / "site" / "static")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0b5d8a", "color-brand-content": "#0b5d8a"},
    "dark_css_variables": {"color-brand-primary": "#6cc5f0", "color-brand-content": "#6cc5f0"},
}
