"""A run for people: one line per event, one column per node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle_lab.sim.events import Event
    from spindle_lab.sim.world import World

COLUMN = 34


class Tracer:
    """Prints what happens; `watch` and `listen` go into a run."""

    def __init__(self, write: Callable[[str], None], begin: int = 0) -> None:
        self._write, self._begin = write, begin
        self._last: dict[int, str] = {}
        self._notes: list[str] = []

    def listen(self, text: str) -> None:
        self._notes.append(text)

    def watch(self, world: World, event: Event) -> None:
        """One line; a node's column is empty where nothing has changed."""
        if world.steps < self._begin:
            self._notes.clear()
            return
        columns = []
        for node_id in range(1, max(world.current, default=0) + 1):
            life = world.current.get(node_id)
            text = "" if life is None else f"{life.state()} {world.check.rows.figures(life)}".strip()
            columns.append("" if self._last.get(node_id) == text else text)
            self._last[node_id] = text
        line = " | ".join(f"{text:{COLUMN}}" for text in columns)
        self._write(f"{world.steps:6} {_brief(event):34} | {line}".rstrip())
        for note in self._notes:
            self._write(f"       {note}")
        self._notes.clear()

    def finish(self) -> None:
        """What was said after the last event, as of one that failed."""
        for note in self._notes:
            self._write(f"       {note}")
        self._notes.clear()


def _brief(event: Event) -> str:
    return " ".join(str(part) for part in event)[:34]
