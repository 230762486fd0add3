"""L5: the time that the order of a topic says, where messages count for a time only.

All readers are told the same time at the same place, none that is later than it is, none where nothing counts, or is
kept, for a time only; and in the end each has been told that whatever it took counts no more.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from spindle.group.topics import CLEANUP_NEVER, TIMING_FOR, TIMING_WORD
from spindle_lab.whole.tags import ENDS, TIME, TIMED, tag_of
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle_lab.whole.programs import Reading

SPANS_MS = (1, 5, 40, 300, 1500)
SPAN_BYTES = 8
LONGEST_NS = SPANS_MS[-1] * 1_000_000
TIMING = bytes({TIMED: TIMING_FOR, TIME: TIMING_WORD}.get(tag, 0) for tag in range(256))


def with_span(data: bytes, span_ms: int) -> bytes:
    """The message, of the same size, as one that counts for so long, if it has room for that and the tag."""
    room = data.partition(b" ")[2]
    if tag_of(data) != TIMED or len(room) <= SPAN_BYTES:
        return data
    return data[:-SPAN_BYTES] + (span_ms * 1_000_000).to_bytes(SPAN_BYTES, "little")


class Times:
    """Of one run."""

    def __init__(self) -> None:
        self._said: dict[tuple[int, str, int, int], int] = {}  # group, topic, place in its order -> UTC ns
        self._timed: set[str] = set()  # topics in which something counts for a time only
        self._ended: set[str] = set()  # topics in which a key may have ended

    def writes(self, topic: str, data: bytes, bound: bool) -> None:
        """A program is about to write this. `bound`: the end of its writer may end its key."""
        if tag_of(data) == TIMED:
            self._timed.add(topic)
        if bound or tag_of(data) == ENDS:
            self._ended.add(topic)

    def took(self, reading: Reading, payload: bytes, info: Any) -> None:
        """A reader has taken a message that counts for a time only."""
        span = int.from_bytes(payload[-SPAN_BYTES:], "little")
        if 0 < span <= LONGEST_NS and len(payload) >= SPAN_BYTES:
            reading.until_ns = max(reading.until_ns, info.source_timestamp + span)

    def told(self, reading: Reading, info: Any, *, anybody: bool) -> None:
        """A reader was told the time. `anybody`: liars may have written to the topic."""
        said_ns, world = info.source_timestamp, reading.program.world
        known = self._said.setdefault((reading.group_id, reading.topic, info.view_id, info.sequence), said_ns)
        if known != said_ns and reading.ordered:
            raise Violation("L5", f"{reading} is told that it is {said_ns} where others are told {known}")
        if said_ns > time.time_ns():
            raise Violation("L5", f"{reading} is told that it is {said_ns}, and it is {time.time_ns()}")
        keeps = 0 < reading.handle.topic.spec.cleanup_ns < CLEANUP_NEVER and reading.topic in self._ended
        if reading.topic not in self._timed and not keeps and not anybody:
            raise Violation("L5", f"{reading} is told the time, and nothing there counts for a time only")
        if reading.handle.log.said_ns < said_ns:
            raise Violation("L5", f"{reading} is told {said_ns}, and its log shows {reading.handle.log.said_ns}")
        world.met("a reader is told what time it is")

    def lacking(self, reading: Reading) -> str:
        """A message of which this reader must have been told by now that it counts no more. Not asked of programs
        without a node: what they took at one node, the next may never have had."""
        if not reading.open or reading.program.outside or reading.handle.session.gone:
            return ""
        if 0 < reading.until_ns > reading.handle.log.said_ns:
            return f"{reading} was not told that it is later than {reading.until_ns}"
        return ""


__all__ = ["TIMING", "Times", "with_span"]
