"""What the rows of a run must never show: columns that shrink, deliveries ahead of the slowest member.

Why raw memory: a look at a column costs 50 ns here, and there are many after each event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle_core.epoch import AREAS

if TYPE_CHECKING:
    from spindle_lab.sim.contracts import Life, World

AREA_HEADER_BYTES = 16
SUBGROUPS_WORD = (AREAS["trim"][0] + AREAS["trim"][1] + AREA_HEADER_BYTES) // 8  # layout.h: ROW_SUBGROUPS_OFFSET
LINE_WORDS = 8
PUBLISHED, RECEIVED, DELIVERED, PERSISTED = 0, 3, 4, 5


class RowWatch:
    """Looks into the rows as their owners have them."""

    def __init__(self, world: World, violated: Callable[[str, str], None]) -> None:
        self._world, self._violated = world, violated
        self._words: dict[int, memoryview] = {}  # by life number: its row of the installed epoch
        self._places: dict[int, dict[int, int]] = {}  # by life number and topic id: word of the topic's line
        self._members: dict[int, dict[int, list[int]]] = {}  # ... life numbers of its members
        self._seen: dict[int, list[int]] = {}
        self._views: dict[int, int] = {}  # by life number: id of its installed view

    def begin(self, life: Life) -> None:
        assert life.epoch is not None and life.view is not None
        number, view = life.number, life.view
        self._words[number] = memoryview(life.epoch.row).cast("Q")
        topics = [topic for topic in sorted(view.topics, key=lambda one: one.topic_id) if topic.members]
        self._places[number] = {
            topic.topic_id: SUBGROUPS_WORD + LINE_WORDS * place for place, topic in enumerate(topics)}
        world = self._world
        self._members[number] = {
            topic.topic_id: [world.life_of(member).number for member in view.members if member.node_id in topic.members]
            for topic in topics}
        self._seen[number] = []
        self._views[number] = view.view_id

    def check_monotone(self, life: Life) -> None:
        """R1, of the own row."""
        words = self._words.get(life.number)
        if words is None:
            return
        now: list[int] = []
        for word in self._places[life.number].values():
            now += words[word: word + 6].tolist()
        before = self._seen[life.number]
        if before and now != before:
            for old, new in zip(before, now, strict=True):
                if new < old:
                    self._violated("R1", f"{life}: a column went from {old} to {new}")
        self._seen[life.number] = now

    def check_stable(self, life: Life, topic_id: int, sequence: int) -> None:
        """D11: every member has received what this one has delivered. Members that are in a later view had it all."""
        number = life.number
        view_id, place = self._views[number], self._places[number][topic_id]
        for other in self._members[number][topic_id]:
            if self._views.get(other, -1) == view_id and self._words[other][place + RECEIVED] <= sequence:
                self._violated("D11", f"{life} delivers sequence {sequence} of topic {topic_id} and "
                                            f"{self._world.lives[other]} has received "
                                            f"{self._words[other][place + RECEIVED]}")

    def figures(self, life: Life) -> str:
        """For the trace: per topic published/received/delivered."""
        words = self._words.get(life.number)
        if words is None:
            return ""
        return " ".join(
            f"t{topic_id}:{words[word + PUBLISHED]}/{words[word + RECEIVED]}/{words[word + DELIVERED]}"
            for topic_id, word in self._places[life.number].items())
