"""A writer of a command that goes on at another node when its own goes away.

What the node that went away had not acknowledged was delivered to everybody or to nobody, and nobody can tell which.
Such messages are published again: who pipes something into a topic would rather have a message twice than miss one.
They are counted, and said.
"""

from __future__ import annotations

import dataclasses
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from spindle.cli.common import Target, note
from spindle.cli.following import ATTEMPT_S, PAUSE_S, Refusals
from spindle.cli.ports import open_writer
from spindle.errors import AccessDenied, GroupSilent, NoDaemon, NodeStopped, SpindleError
from spindle_core.errors import NodeGone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spindle.client import Session, WriterHandle
    from spindle.group.topics import TopicInfo


class Sending:
    """Writes a topic from node to node; a context manager.

    target   where nodes are looked for, for `wait_s` at the most without one
    again    go on when the node goes away; else that ends it with NodeGone
    writer   the present one
    resent   messages that were published again
    """

    def __init__(self, target: Target, session: Session, info: TopicInfo, again: bool, wait_s: float) -> None:
        self._target, self._info, self._again, self._wait_s = target, info, again, wait_s
        self.writer: WriterHandle = open_writer(session, info, keep_unacknowledged=again)
        self.resent = 0
        self._open = ExitStack()
        self._open.enter_context(self.writer)

    def write(self, batch: Sequence[bytes], timeout_s: float) -> None:
        """Writes all of them. Raises MessageTooLarge, WriteTimeout and KeyboardInterrupt, whose `written` says how many
        are written; NodeGone, NodeStopped if there is no node to go on at."""
        done = 0
        while True:
            try:
                self.writer.inbox.write_many(batch[done:], timeout_s=timeout_s)
                return
            except NodeGone as error:
                if not self._again:
                    raise
                done += int(getattr(error, "written", 0))
                self._go_on(timeout_s)
            except BaseException as error:
                error.written = done + int(getattr(error, "written", 0))  # type: ignore[attr-defined]
                raise

    def wait_acknowledged(self, timeout_s: float) -> bool:
        """True once all is delivered everywhere; False after the timeout. Raises as write()."""
        while True:
            try:
                return bool(self.writer.inbox.wait_acknowledged(timeout_s))
            except NodeGone:
                if not self._again:
                    raise
                self._go_on(timeout_s)

    def _go_on(self, timeout_s: float) -> None:
        """At the next node, with what is in doubt first."""
        gone = self.writer
        doubts = [one.payload for one in gone.unacknowledged() if one.payload is not None]
        note(f"node {gone.session.node_id} has gone away; this goes on at the next node of the host")
        deadline = time.monotonic() + self._wait_s
        refusals = Refusals()
        while True:
            for target in dict.fromkeys((self._target, dataclasses.replace(self._target, node=None))):
                try:
                    session = target.attach("spindle pub", ATTEMPT_S)
                except AccessDenied:
                    raise
                except (NoDaemon, OSError):
                    continue
                try:
                    info = session.declare_topic(self._info.spec)
                    writer = open_writer(session, info, keep_unacknowledged=True)
                except (SpindleError, OSError) as error:
                    with session:
                        refusals.note(error, session)
                    if isinstance(error, GroupSilent):  # a node is there, and waits for the others
                        deadline = time.monotonic() + self._wait_s
                    continue
                self._open.enter_context(session)
                self.writer = self._open.enter_context(writer)
                self.resent += len(doubts)
                again = f"; {len(doubts)} messages that may have been delivered are published again" if doubts else ""
                note(f"goes on at node {session.node_id}{again}")
                self.write(doubts, timeout_s)
                return
            if time.monotonic() >= deadline:
                raise NodeStopped(f"node {gone.session.node_id} has gone away, and no other one was there within "
                                  f"{self._wait_s:g} s" + (f"; {len(doubts)} messages may not have been delivered"
                                                           if doubts else ""))
            time.sleep(PAUSE_S)

    def __enter__(self) -> Sending:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.__exit__(None, None, None)


__all__ = ["Sending"]
