"""Where the picture of a drawing is: named by the drawing's text, so that one whose text was changed has none."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "docs" / "pictures" / "drawings"
THEMES = ("light", "dark")
DRAWING = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def path_of(text: str, theme: str) -> Path:
    return FOLDER / f"{hashlib.sha256(text.strip().encode()).hexdigest()[:16]}-{theme}.svg"


def wanted() -> dict[Path, tuple[str, str]]:
    """The pictures of all drawings in the documents, each with the drawing's text and the theme."""
    texts = [text for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
             for text in DRAWING.findall(path.read_text(encoding="utf-8"))]
    return {path_of(text, theme): (text, theme) for text in texts for theme in THEMES}
