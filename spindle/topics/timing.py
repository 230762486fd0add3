"""Who says in a topic's order what time it is, and when.

Messages may count for a time only (`timing` of the topic's specification), and keys that have ended be kept for a time
only (`cleanup_ns`). When that is over is decided in the order, by a message "it is now" that a node says in its own
name, so that all members find it at the same place. The core notes at each member when something will be over next;
here is the clock.

Rules:
- The members of a topic stand in a line: its senders by their ranks, then the others. The first says the time when it
  is due; each further one if nobody has for a while longer: the ones before it may be gone, slow, or not know of it, as
  members that came later don't know of what counted before.
- A topic in which nothing is due is silent, also one whose messages have counted for a time once. In a topic that
  nobody else could look at, nothing is said.
- A node that is no sender of the topic becomes one to say it, and ends that when nothing is due soon.
- The time is the node's own clock, whatever the timestamps of applications say, but never earlier than what was said.
- But the first of the line takes back what is far ahead of its own clock: it may be the one who said it, before its
  clock was set right. It does so when it has something to say, and when the core doubts what was said. The others
  don't, or two whose clocks differ would go on contradicting each other about every message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from spindle.errors import SpindleError

if TYPE_CHECKING:
    from spindle.group.view import View
    from spindle.topics.local_topic import LocalTopic
    from spindle.topics.ports import WriterPort
    from spindle_core.delivery import DeliveryLog
    from spindle_core.engine import Engine
    from spindle_core.timing import Timing

FIRST = 0  # place in the line
TURN_S = 0.1  # so much later than its predecessor each member of the line takes over
PERIOD_S = 0.01  # between two times that a node says in one topic
AGAIN_S = 1.0  # what was said and is not delivered by then is said again: delivery may be held up
VOICE_S = 2.0  # a voice stays open that long ahead of the next use, where opening one changes the view
LOOK_S = 3600.0  # the longest that a timer runs: clocks may be set
SOON_NS_MIN = 1_000_000  # what is wanted soon is said so much later, or
DUE_SHARE_BITS = 6  # after a share of the delay that is so many bits smaller, as in the core's timing.pxd
AHEAD_NS = 1_000_000_000  # a time that is so far ahead of this node's clock is worth a warning
BACK_NS = 31_000_000_000  # and one so far ahead is taken back: more than AHEAD_MAX_S of the core's timing.pxd
WARNING_S = 60.0  # between two of these
NS = 1_000_000_000
LOG = logging.getLogger("spindle.node")


class Timekeeper:
    """Of one node. `topics`: those that are here; `view`: the installed one. open_voice(name) gives a writer of the
    node's own, close_voice(port) ends it."""

    def __init__(self, engine: Engine, node_id: int, topics: Mapping[str, LocalTopic], view: Callable[[], View | None],
                 open_voice: Callable[[str], Awaitable[WriterPort]],
                 close_voice: Callable[[WriterPort], Awaitable[None]]) -> None:
        self._engine, self._node_id, self._topics, self._view = engine, node_id, topics, view
        self._open_voice, self._close_voice = open_voice, close_voice
        self._timer: asyncio.TimerHandle | None = None
        self._voices: dict[str, WriterPort] = {}
        self._waits: dict[str, tuple[DeliveryLog, int, int]] = {}  # log, number of the word, when
        self._said: dict[str, tuple[int, float]] = {}  # by topic: what this node has said last, and when (loop's time)
        self._doubts: dict[str, float] = {}  # by topic: since when what was said is doubted, though not by this clock
        self._tasks: dict[str, asyncio.Task[None]] = {}  # voices that are being opened or closed
        self._warned = -WARNING_S
        self._stopped = False

    def look(self) -> None:
        """Something may be due, or due earlier than it was, or not any more."""
        if self._stopped:
            return
        following, now_ns = LOOK_S, time.time_ns()
        for name, local in self._topics.items():
            timing = local.timing
            if timing is None or not local.member:
                continue
            if timing.said_ns > now_ns + AHEAD_NS:
                self._warn(name, timing.said_ns - now_ns)
            due_ns = min(filter(None, (timing.next_ns, *self._due_of_table(name, local, now_ns))), default=0)
            if due_ns or timing.doubted or name in self._voices:
                following = min(following, self._look_at(name, local, timing, due_ns, now_ns))
        for name in [one for one in self._voices if one not in self._topics or not self._topics[one].member]:
            del self._voices[name]  # with its topic, or with this node's part in it
        for name in [one for one, (log, _, _) in self._waits.items()
                     if one not in self._topics or self._topics[one].log is not log]:
            del self._waits[name]
        for name in [one for one in self._doubts if one not in self._topics]:
            del self._doubts[name]
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if following < LOOK_S:
            self._timer = asyncio.get_running_loop().call_later(following, self.look)

    def stop(self) -> None:
        """Nothing more is said. Idempotent."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks.values():
            task.cancel()

    def is_voice(self, port: WriterPort) -> bool:
        """True if this writer is the node's own."""
        return self._voices.get(port.topic) is port

    # --- one topic

    def _due_of_table(self, name: str, local: LocalTopic, now_ns: int) -> Iterator[int]:
        """When the time is to be said because of keys that are over: when one goes; and soon after one has come to be
        over, since its delay begins with that, but once for all of a small share of the delay."""
        log = local.log
        if log is None or not local.spec.cleanup_ns:
            return
        yield log.table_due_ns
        if waits := log.table_waits:
            known = self._waits.get(name)
            if known is None or known[:2] != (log, waits):
                soon_ns = max(SOON_NS_MIN, local.spec.cleanup_ns >> DUE_SHARE_BITS)
                known = self._waits[name] = log, waits, now_ns + soon_ns
            yield known[2]

    def _look_at(self, name: str, local: LocalTopic, timing: Timing, due_ns: int, now_ns: int) -> float:
        """Says what is to be said; returns when to look again, in s."""
        place = self._place(name, local) if due_ns or timing.doubted else None
        takes_back = place == FIRST and timing.said_ns > now_ns + BACK_NS
        if place is None:
            self._rest(name, local, LOOK_S)
            return LOOK_S
        left_s = (due_ns - now_ns) / NS + place * TURN_S if due_ns else LOOK_S
        if timing.doubted and takes_back:
            self._doubts.pop(name, None)
            left_s = self._say(name, local, 0, now_ns)
        elif left_s <= 0:
            left_s = self._say(name, local, due_ns, now_ns if takes_back else max(now_ns, timing.said_ns))
        else:
            self._rest(name, local, left_s)
        if timing.doubted and place == FIRST and not takes_back:
            left_s = min(left_s, self._settle(name, timing))
        return max(0.001, min(left_s, LOOK_S - 1))

    def _settle(self, name: str, timing: Timing) -> float:
        """By this node's clock there is nothing to doubt. But that clock may be set right in a moment: after a while
        the next message that is over as it comes has it looked at again. Returns when to look again, in s."""
        loop_s = asyncio.get_running_loop().time()
        left_s = self._doubts.setdefault(name, loop_s) + AGAIN_S - loop_s
        if left_s > 0:
            return left_s
        del self._doubts[name]
        with self._engine.parked():
            timing.settle()
        return LOOK_S

    def _place(self, name: str, local: LocalTopic) -> int | None:
        """How many others come before this node; None if there is nobody to hear it."""
        view = self._view()
        topic = None if view is None else view.topic(name)
        if topic is None or self._node_id not in topic.members:
            return None
        kept = local.spec.level.keeps_history and local.writers_wanted > (name in self._voices)
        if len(topic.members) == 1 and not local.readers_wanted and not kept:
            return None
        line = [*topic.senders, *(one for one in topic.members if one not in topic.senders)]
        return line.index(self._node_id)

    def _say(self, name: str, local: LocalTopic, due_ns: int, now_ns: int) -> float:
        """Says it, unless that was done; returns when to look again, in s."""
        loop_s = asyncio.get_running_loop().time()
        said_ns, at_s = self._said.get(name, (0, -AGAIN_S))
        wait_s = AGAIN_S if due_ns <= said_ns else PERIOD_S
        if loop_s < at_s + wait_s:
            return at_s + wait_s - loop_s
        if name in self._tasks:
            return AGAIN_S  # looks again when that is done
        voice = self._voices.get(name)
        if voice is None or voice.closed or voice not in local.writers:
            self._voices.pop(name, None)
            self._start(name, self._open(name))
            return AGAIN_S
        with self._engine.parked():
            voice.inbox.say(local.spec.time_tag, now_ns)
        self._said[name] = now_ns, loop_s
        return PERIOD_S

    def _rest(self, name: str, local: LocalTopic, left_s: float) -> None:
        """Nothing is to be said for a time: gives the part of a sender back that nobody else here needs."""
        voice = self._voices.get(name)
        if voice is not None and left_s > VOICE_S and name not in self._tasks and local.writers_wanted == 1 and (
                voice.inbox.acknowledged >= voice.inbox.committed):
            self._start(name, self._close(name, voice))

    def _start(self, name: str, what: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await what
            except SpindleError as error:
                LOG.info("topic %r: what time it is can't be said now: %s", name, error)
            finally:
                del self._tasks[name]
                asyncio.get_running_loop().call_soon(self.look)

        self._tasks[name] = asyncio.get_running_loop().create_task(run())

    async def _open(self, name: str) -> None:
        try:
            self._voices[name] = await self._open_voice(name)
        except SpindleError:
            self._said[name] = 0, asyncio.get_running_loop().time()
            raise

    async def _close(self, name: str, voice: WriterPort) -> None:
        self._voices.pop(name, None)
        await self._close_voice(voice)

    def _warn(self, name: str, ahead_ns: int) -> None:
        """Somebody's clock is ahead of ours: it makes samples go early."""
        loop_s = asyncio.get_running_loop().time()
        if loop_s - self._warned >= WARNING_S:
            self._warned = loop_s
            LOG.warning("a member of topic %r says a time that is %.1f s ahead of this host's clock: set the hosts' "
                        "clocks; samples with a lifespan go early until then, or until this one has got there",
                        name, ahead_ns / NS)


__all__ = ["Timekeeper"]
