"""What the simulator finds."""

from __future__ import annotations


class Violation(Exception):
    """A promise was broken: `name` is the property."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name, self.text = name, text
