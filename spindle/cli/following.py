"""A reader of a command that goes on at another node when its own goes away, where it stood in the order.

Why: who watches a topic in a terminal, or pipes it into a file, wants the topic, not a node. As for programs with
`reattach`, the next node is the same one started again, or any daemon of the host.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from spindle.cli.common import Target, note
from spindle.cli.ports import READER_QOS, announcement, open_reader
from spindle.errors import AccessDenied, NoDaemon, SpindleError
from spindle.group.levels import Level

if TYPE_CHECKING:
    from spindle.client import ReaderHandle, Session
    from spindle.group.position import Position
    from spindle.group.topics import TopicInfo
    from spindle_core.message import MessageInfo

ATTEMPT_S = 1.0  # for one node to answer
PAUSE_S = 0.2  # between two looks for a node


class Refusals:
    """Why the next nodes did not take a topic up, of which some may pass."""

    def __init__(self) -> None:
        self._said = ""

    def note(self, error: Exception, session: Session) -> None:
        """Raises what will not pass. What may is said once: a group whose other nodes are yet to be started, a node
        that is busy. One that goes itself may say anything last."""
        if not (session.gone or isinstance(error, (ConnectionError, TimeoutError))):
            raise error
        if isinstance(error, TimeoutError) and str(error) != self._said:
            self._said = str(error)
            note(f"{error}; asking again")


class Following:
    """Reads a topic from node to node; a context manager.

    target   where nodes are looked for
    again    go on when the node goes away; else that ends it with NodeGone
    lost     samples that were overwritten before they were taken, at all nodes
    """

    def __init__(self, target: Target, session: Session, info: TopicInfo, keep_all: bool, history: bool,
                 again: bool) -> None:
        self._target = target
        self._info = info
        self._keep_all = keep_all
        self._again = again
        self._reader = open_reader(session, info, keep_all, history)
        self._reader.log.goes_on = again
        self._places: dict[int, Position] = {}  # how far it was in each group that it has left
        self._lost_before = 0
        self._told: ReaderHandle | None = None  # of which it was said that its node has gone
        self._open = ExitStack()
        self._open.enter_context(self._reader)

    @property
    def lost(self) -> int:
        return self._lost_before + self._reader.log.lost

    def stay(self) -> None:
        """From now on, on any thread: the end of the node ends it."""
        self._again = False

    def batches(self, count_max: int, timeout_s: float | None) -> Iterator[list[tuple[bytes, MessageInfo]]]:
        """Samples with their infos, at most `count_max` at a time, until nothing came for `timeout_s`; None = for ever.
        Raises NodeGone if the node goes and it shall not go on; AccessDenied, TopicMismatch where it would go on."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        after: Position | None = None  # where the next node's reader goes on; the log has nothing later
        while True:
            log = self._reader.log
            try:
                pairs = log.take_pairs(count_max)
                if not pairs and after is None and log.wait(-1.0 if deadline is None else _left_s(deadline)):
                    continue
            except ConnectionError:
                if not self._again or after is not None:
                    raise
                after = self._freeze()
                continue
            if pairs:
                yield pairs
                deadline = None if timeout_s is None else time.monotonic() + timeout_s
            elif after is None:
                return
            elif self._go_on(after, deadline):
                after = None
            elif not log.read_on():
                return

    def _freeze(self) -> Position:
        try:
            return self._reader.freeze()
        except SpindleError:  # killed while it changed the log: its rest can't be read
            return self._reader.position

    def _go_on(self, after: Position, deadline: float | None) -> bool:
        """Open the reader at the next node that serves; False if there is none until `deadline`."""
        gone = self._reader
        if self._told is not gone:
            self._told = gone
            note(f"node {gone.session.node_id} has gone away; this goes on at the next node of the host")
        self._places |= {one.group_id: one for one in gone.passed(after)}
        earlier = [one for group, one in self._places.items() if group != after.group_id]
        refusals = Refusals()
        while True:
            for target in dict.fromkeys((self._target, dataclasses.replace(self._target, node=None))):
                try:
                    session = target.attach("spindle sub", ATTEMPT_S)
                except AccessDenied:
                    raise
                except (NoDaemon, OSError):
                    continue
                try:
                    session.declare_topic(self._info.spec)
                    reader = session.open_reader(
                        self._info.spec.name, keep_all=self._keep_all, after=after, earlier=earlier,
                        from_history=self._info.spec.level is not Level.UNORDERED, guid=os.urandom(16),
                        endpoint=announcement(READER_QOS))
                except (SpindleError, OSError) as error:
                    with session:
                        refusals.note(error, session)
                    continue
                if not reader.continued and gone.log.read_on():  # what is behind the hole comes first
                    session.close()
                    return True
                self._places[after.group_id] = after
                self._lost_before += gone.log.lost
                self._open.enter_context(session)
                self._reader = self._open.enter_context(reader)
                self._reader.log.goes_on = True
                missing = "" if reader.continued else "; something may be missing in between"
                note(f"goes on at node {session.node_id}{missing}")
                return True
            if deadline is not None and _left_s(deadline) == 0:
                return False
            time.sleep(PAUSE_S)

    def __enter__(self) -> Following:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.__exit__(None, None, None)


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


__all__ = ["Following"]
