"""L4: what readers are told of writers that give no sign of life.

Of a writer that gives signs in time nobody is told that it gives none; of one that gives none for long, everybody is
told who hears of it, all at one place (D6). Not asked of writers on a host without a node: their signs may be held up
on the way. Two lapses may follow each other: what the node would have said in between need not go any more.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from spindle_lab.whole.tags import LAPSE
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle_lab.whole.programs import Reading, Writing

PATIENCE_NS = 2_000_000_000  # beyond two leases, until a lapse has come to everybody


class Lapses:
    """Of one run; `writings` are all that there were."""

    def __init__(self, writings: list[Writing]) -> None:
        self._writings = writings
        self._by_name: dict[bytes, Writing] = {}
        self._said: dict[tuple[int, str, int, int], int] = {}  # group, topic, place in its order -> tag

    def _writing(self, name: bytes | None) -> Writing | None:
        if name is None:
            return None
        while len(self._by_name) < len(self._writings):
            writing = self._writings[len(self._by_name)]
            self._by_name[writing.name.encode()] = writing
        return self._by_name.get(name)

    def took(self, reading: Reading, info: Any) -> None:
        """A reader was told of a lapse, or of a revival. Its place was looked at already."""
        if reading.ordered:
            known = self._said.setdefault((reading.group_id, reading.topic, info.view_id, info.sequence), info.tag)
            if known != info.tag:
                raise Violation("D6", f"{reading} takes tag {info.tag} where others take {known}")
        name = reading.names.get((info.sender, info.relay, info.writer))
        writing = self._writing(name)
        if name is None or writing is None:
            return  # it has had nothing of this writer
        if info.tag != LAPSE:
            reading.lapsed.discard(name)
            reading.program.world.met("a reader is told that a writer lives again")
            return
        reading.program.world.met("a reader is told that a writer gives no sign of life")
        if writing.program.outside:
            return
        if not writing.lease_ns and (not writing.node.alive or writing.node.result is not None):
            return  # said of a writer of the node's next life, which has the same number
        reading.lapsed.add(name)
        now_ns = reading.program.world.system.now_ns
        shown = writing.shown_ns(reading.last_of.get(name, -1))
        times = [at for at in writing.signs if at >= shown] + [now_ns]
        longest = max((later - at for at, later in itertools.pairwise(times)), default=0)
        if not writing.lease_ns or longest < writing.lease_ns:
            raise Violation("L4", f"{reading} is told that {writing} gives no sign of life for {writing.lease_ns} ns; "
                                  f"its longest silence was {longest} ns")

    def lacking(self, reading: Reading) -> str:
        """A writer of which this reader must have been told by now that it gives no sign of life."""
        if not reading.open or not reading.keep_all or not reading.ordered or reading.lost():
            return ""
        now_ns = reading.program.world.system.now_ns
        for name in reading.names.values():
            writing = self._writing(name)
            if writing is None or not writing.lease_ns or writing.program.outside or not writing.open:
                continue
            if name in reading.lapsed or not writing.node.alive or writing.node.result is not None or (
                    writing.group_id != reading.group_id or not writing.certain):
                continue
            if now_ns - writing.signs[-1] > 2 * writing.lease_ns + PATIENCE_NS:
                return f"{reading} was not told that {writing} gives no sign of life"
        return ""


__all__ = ["Lapses"]
