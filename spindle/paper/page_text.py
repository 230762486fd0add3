"""What docs/paper.md says besides figures: its opening, and where each parameter comes from."""

from __future__ import annotations

OPENING = ""
ENDING = ""


def parameter_table() -> str:
    return ""
