"""Large samples of a node: their way from a writer into the order, and from other members to this one.

A sample that is larger than its topic's slots lies in memory of its own that nobody can change (spindle/large); in the
order stands its entry (spindle_core/large.pxi). Here the two meet: who makes one gets memory within the topic's bounds;
what a predicate waits for is brought; and what nobody names any more is given back.

Rules:
- The order decides who waits for whom. A member that lacks the bytes of a sample delivers nothing behind it, and nobody
  else does; so bytes are brought in the order of the topics, and the first of a topic always has room.
- Of one topic, samples of up to `large_capacity` bytes are on their way from this node's writers, or one that is
  larger; whoever makes another waits, first come, first served (large_room.py).
- Bytes that came in vain are given up with the view: those of a sender that the new view doesn't have, if the order has
  not named them.
- What a writer's sample has lain in is kept for its next ones for a while, up to `large_capacity` of a topic.

On the node's event loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from spindle.errors import NoResources, SampleMissing, SampleUnfit, SpindleError, TopicLimit, TopicUnknown, shortage
from spindle.group.levels import Level
from spindle.large import memory
from spindle.large.spare import KEEP_S, Patience
from spindle.restart.pieces import ENTRY_SIZE, JOURNAL_SAMPLE_MAX, entry_id
from spindle.topics.ports import WriterPort

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.group.topics import TopicSpec
    from spindle.group.view import Topic, View
    from spindle.large.bringing import Bringing, Brought
    from spindle.large.service import NodeLarge
    from spindle.large.spare import SpareMemory
    from spindle.large.store import Spare, Store
    from spindle.restart.pieces import Message
    from spindle.topics.large_room import LargeRoom, Unfilled
    from spindle_core.delivery import DeliveryLog
    from spindle_core.engine import Engine

SWEEP_S = 0.5  # between two looks for samples that every reader has taken, while none comes or goes
SWEEP_SOON_S = 0.02  # the same, after one has come or gone: its memory is wanted again, by its writer or the system
SWEEP_AGAIN_S = 0.005  # between two looks because a writer wants memory
SPARE_LOOK_S = 0.001  # between two looks whether memory is free that readers are about to let go of
CLEARED_BYTES_PER_S = 4 << 30  # by the kernel, before new memory can be filled
AGAIN_S = 0.2  # after a sample could not be had
HISTORY_PATIENCE_S = 10.0  # until a sample is lost to late readers here whose bytes are there, and can't be reached
SPARE = 256  # places of the node's table that are left to what others send
BEGIN_SIZE, END_SIZE = 8, 16  # bytes of the beginning and the end of a sample that its entry has
LOG = logging.getLogger("spindle.node")


class LargeSamples:
    """See the module's text. `view`: the installed one."""

    def __init__(self, engine: Engine, config: NodeConfig, node_id: int, view: Callable[[], View | None]) -> None:
        self._engine, self._config, self._node_id, self._view = engine, config, node_id, view
        self._larges = engine.larges
        self.service: NodeLarge | None = None  # set before the node is a member
        self._next_id = secrets.randbits(64) or 1
        self._own: dict[int, tuple[str, int]] = {}  # of this node's writers, not delivered yet: topic and bytes, by id
        self._made = 0  # that are being filled
        # Of unordered topics, which this node delivers before others have it: their writers, and how many messages of
        # these all members must have delivered before the sample may go; -1: it isn't delivered here.
        self._held: dict[int, tuple[WriterPort, int]] = {}
        self._brought: dict[int, tuple[str, int]] = {}  # topic and sender of those from other nodes, by id
        self._bringing: dict[int, tuple[str, int, asyncio.Task[None]]] = {}  # topic and sender
        self._absent: dict[str, tuple[int, int, str]] = {}  # of histories: how many, their bytes, the last why
        self._missed: set[int] = set()  # those that could not be had so far, and of which the log says so
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_s = SWEEP_SOON_S
        self._swept_s = -math.inf  # when that was last done
        self._patience: dict[WriterPort, Patience] = {}
        self._stopped = False

    # --- from writers of this node

    @functools.cached_property
    def room(self) -> LargeRoom:
        """Of those that are on their way, and that are being made."""
        from spindle.topics.large_room import LargeRoom  # a node that makes none does without

        return LargeRoom(self._config.large_capacity)

    def new_id(self) -> int:
        """Of a sample, different from all others of the group."""
        self._next_id = self._next_id % ((1 << 64) - 1) + 1
        return self._next_id

    def spec_of(self, topic: str) -> TopicSpec:
        """Raises TopicUnknown."""
        view = self._view()
        agreed = view.topic(topic) if view is not None else None
        if agreed is None:
            raise TopicUnknown(f"topic {topic!r} is not declared")
        return agreed.spec

    def check_size(self, spec: TopicSpec, size: int) -> None:
        """Raises TopicLimit, with the limit, unless a writer may have a sample of this size."""
        if spec.size_max < ENTRY_SIZE:
            raise TopicLimit(f"topic {spec.name!r}: a sample of {size} bytes; {spec.size_max} are the most, its "
                             f"size_max (with one of {ENTRY_SIZE} bytes or more it would take larger samples)")
        limit, why = self.size_max(spec), "[topics] large_sample_max in the node's configuration"
        if limit < self._config.large_sample_max:
            why = "what a journal takes"
        if not END_SIZE <= size <= limit:
            raise TopicLimit(f"topic {spec.name!r}: a sample of {size} bytes; {limit} are the most, {why}, and "
                             f"{END_SIZE} the least that doesn't go into a slot")

    def size_max(self, spec: TopicSpec) -> int:
        """Bytes of the largest sample that a writer may have."""
        limit = self._config.large_sample_max
        return min(limit, JOURNAL_SAMPLE_MAX) if spec.level is Level.LOGGED else limit

    async def make(self, port: WriterPort, user: int | None, spec: TopicSpec, size: int, timeout_s: float,
                   holder: object) -> Unfilled | None:
        """Memory for a sample of this writer, of a program of this user (None: the node fills it), which counts for the
        topic until hand_over() or give_up(), or others need its room (LargeRoom; `holder` is the program); its
        descriptor must not be shared with anybody else. None if there was no room in time. Raises TopicLimit,
        NoResources."""
        self.check_size(spec, size)
        deadline = self._now_s() + timeout_s
        if not await self.room.take(spec.name, size, timeout_s, holder):
            return None
        try:
            if self._is_used_again(user):
                await self._await_spare(port, size, deadline)
            # Now: who has filled it has no way back.
            if self._larges.room <= self._made + SPARE:
                raise NoResources(f"topic {spec.name!r}: nearly as many large samples are at this node as there may be "
                                  f"({self._larges.count}); write on when some are delivered")
            fd = self._memory_for(port, user, size)
        except BaseException:
            self.room.give(spec.name, size)
            raise
        self._made += 1
        return self.room.begin(spec.name, size, holder, fd)

    async def _await_spare(self, port: WriterPort, size: int, deadline: float) -> None:
        """Waits for memory of an earlier sample, which readers may be about to let go of, for as long as the kernel
        takes to clear new memory. That would cost a core the same time, and then there would be one memory more."""
        until = min(self._now_s() + size / CLEARED_BYTES_PER_S, deadline)
        if until - self._now_s() < SPARE_LOOK_S or port.inbox.ring.fd < 0:
            return
        patience, capacity = self._patience.setdefault(port, Patience()), memory.capacity_of(size)
        if not patience.asked():
            return
        waited = False
        while self._spare.waiting(port.topic, port, capacity):
            waited = True
            if self._now_s() >= until:
                patience.told(True)
                return
            await asyncio.sleep(SPARE_LOOK_S)
            if self._stopped:
                return
            self._sweep_now()
        if waited:
            patience.told(False)

    def _is_trusted(self, user: int | None) -> bool:
        """A program of this user may have memory that isn't sealed: see spindle/large/memory.py."""
        return user in (None, os.geteuid(), 0)

    def _memory_for(self, port: WriterPort, user: int | None, size: int) -> int:
        """Of an earlier sample of this writer, if one is free. Raises NoResources."""
        if size < memory.REUSED_MIN or not self._is_used_again(user):
            return memory.make(size)
        capacity = memory.capacity_of(size)
        fd = self._spare.take(port.topic, port, capacity)
        if fd < 0 and self._store.bytes_held and self._now_s() - self._swept_s >= SWEEP_AGAIN_S:
            self._sweep_now()
            fd = self._spare.take(port.topic, port, capacity)
        return fd if fd >= 0 else self._spare.make(size)

    def _is_used_again(self, user: int | None) -> bool:
        """What a program of this user fills is closed; else it is sealed at once, as others may have to get it so."""
        return self._is_trusted(user) and self._config.is_for_its_user_alone

    def hand_over(self, port: WriterPort, user: int | None, number: int, filled: Unfilled) -> None:
        """The memory that a writer has filled goes into the order when its slot comes, which names it by `number`.
        Takes over the descriptor, and the room. Raises SampleUnfit (it is still mapped to be written), NoResources."""
        self._made -= 1
        fd, size = filled.fd, filled.size
        try:
            self.room.filled(filled)
        except NoResources:
            os.close(fd)
            raise
        try:
            if size >= memory.REUSED_MIN and self._is_used_again(user):
                closed, again = memory.close(fd)
            else:
                closed, again = memory.sealed(fd), False
            spare = self._spare_of(port.topic, port, size) if again else None
            large_id, entry = self._keep(closed, size, port.topic, spare)
        except BaseException:
            self.room.give(port.topic, size)
            raise
        if not self._engine.hand_over_large(port.inbox, number, large_id, entry):
            self._larges.drop(large_id)
            self._store.drop(large_id)
            self.room.give(port.topic, size)
            raise NoResources(f"topic {port.topic!r}: too many large samples wait at this node, or of this writer; "
                              "write on when some are delivered")
        self._own[large_id] = port.topic, size
        if self.spec_of(port.topic).level is Level.UNORDERED and self._larges.hold(large_id):
            self._held[large_id] = port, -1

    def _spare_of(self, topic: str, writer: WriterPort | Bringing, size: int) -> Spare:
        """Keeps the memory of such a sample for the next one of its writer here, or from other hosts."""
        def keep(fd: int) -> None:
            if self._stopped or (isinstance(writer, WriterPort) and writer.inbox.ring.fd < 0):
                os.close(fd)
            else:
                self._spare.keep(topic, writer, fd, memory.capacity_of(size), self._now_s())

        return keep

    def give_up(self, unfilled: Unfilled) -> None:
        """Memory that is not handed over."""
        self._made -= 1
        os.close(unfilled.fd)
        self.room.dropped(unfilled)

    def writer_ended(self, port: WriterPort) -> None:
        """What it handed over and never named in a slot goes; all else of it is delivered everywhere."""
        for large_id in [one for one, (held, _) in self._held.items() if held is port]:
            del self._held[large_id]
            self._larges.unuse(large_id)
        for large_id in port.inbox.larges_waiting:
            if large_id in self._own and self._larges.drop(large_id):
                self._forget(large_id)
        self._spare.writer_ended(port)
        self._patience.pop(port, None)

    def keep(self, topic: str, payload: bytes) -> tuple[int, bytes]:
        """Puts a sample beside the order that came as bytes, from a journal or another member's: its id, and its entry.
        Raises NoResources."""
        fd = memory.make(len(payload))
        try:
            with memory.filling(fd, len(payload)) as view:
                view[:] = payload
            memory.seal(fd)
        except BaseException:
            os.close(fd)
            raise
        large_id, entry = self._keep(fd, len(payload), topic)
        if not self._larges.add(large_id):
            self._store.drop(large_id)
            raise NoResources(f"topic {topic!r}: too many large samples are at this node")
        return large_id, entry

    def beside(self, spec: TopicSpec, message: Message) -> Message:
        """A message of a history; one that is too large for a slot becomes a large sample. Raises NoResources."""
        if message.large or len(message.payload) <= spec.size_max:
            return message
        return message._replace(payload=self.keep(spec.name, message.payload)[1], large=True)

    def note(self, log: DeliveryLog, spec: TopicSpec, messages: Sequence[Message]) -> None:
        """Messages of a history that come before all that the log will have, for its table of keys. Raises
        NoResources."""
        for one in messages:
            message = self.beside(spec, one)
            log.note(*message)
            if message.large and self._larges.drop(entry_id(message.payload)):  # the table has no use for it
                self._forget(entry_id(message.payload))
        self.look()  # nor for what it had until now, perhaps

    def _keep(self, fd: int, size: int, topic: str, spare: Spare | None = None) -> tuple[int, bytes]:
        """Stores what nobody can change: its id, and what stands in the order. Takes over the descriptor, and in the
        end `spare` does. Raises SampleUnfit."""
        from spindle_core.larges import make_entry

        try:
            if size < END_SIZE:
                raise SampleUnfit(f"topic {topic!r}: a large sample has {END_SIZE} bytes at least, not {size}")
            first, last = os.pread(fd, BEGIN_SIZE, 0), os.pread(fd, END_SIZE, size - END_SIZE)
        except BaseException:
            os.close(fd)
            raise
        large_id = self.new_id()
        self._store.put(large_id, fd, size, topic, spare)
        self._sweep_s = SWEEP_SOON_S
        return large_id, make_entry(large_id, size, first, last)

    @property
    def _store(self) -> Store:
        assert self.service is not None
        return self.service.store

    @property
    def _spare(self) -> SpareMemory:
        assert self.service is not None
        return self.service.spare

    # --- from other nodes

    def look(self) -> None:
        """After the predicate thread has told of something: what is wanted, delivered, or no longer named."""
        if self._stopped or self.service is None:
            return
        for large_id in self._larges.take_released():
            self._forget(large_id)
        if self._own:
            undelivered = self._larges.undelivered(self._own)
            for large_id in [one for one in self._own if one not in undelivered]:
                self._delivered(large_id)
        self._let_go_held()
        wants = self._larges.wants()
        if wants:
            self._want(wants)
        if self._sweep is None and (self._store.bytes_held or self._spare.bytes_kept):
            self._sweep = asyncio.get_running_loop().call_later(self._sweep_s, self._sweep_in_time)
            self._sweep_s = min(2 * self._sweep_s, SWEEP_S)

    def _let_go_held(self) -> None:
        for large_id, (port, until) in list(self._held.items()):
            if until < 0 and large_id not in self._own:
                until = port.inbox.consumed
                self._held[large_id] = port, until
            if 0 <= until <= port.inbox.acknowledged or port.inbox.ring.fd < 0:
                del self._held[large_id]
                self._larges.unuse(large_id)

    def _want(self, wants: Sequence[tuple[int, int, int, int, int]]) -> None:
        view = self._view()
        if view is None:
            return
        first: dict[int, int] = {}
        for topic_id, _, _, _, sequence in wants:
            first[topic_id] = min(sequence, first.get(topic_id, sequence))
        topics = {topic.topic_id: topic for topic in view.topics}
        for topic_id, large_id, size, sender, sequence in wants:
            topic = topics.get(topic_id)
            if large_id in self._bringing or topic is None:
                continue
            self._bringing[large_id] = topic.spec.name, sender, asyncio.get_running_loop().create_task(
                self._bring(topic, large_id, size, sender, self._sources(view, topic, sender, size),
                            urgent=sequence == first[topic_id]))

    def _sources(self, view: View, topic: Topic, sender: int, size: int) -> list[int]:
        """From whom to get it: see spindle/large/routes.py. At last from any other member."""
        from spindle.large.routes import sources_for

        hosts: dict[bytes, list[int]] = {}
        for member in view.members:
            if member.node_id in topic.members:
                hosts.setdefault(member.host, []).append(member.node_id)
        sources = sources_for(self._node_id, sender, list(hosts.values()), size)
        return sources + [one for one in topic.members if one not in (*sources, self._node_id)]

    async def _bring(self, topic: Topic, large_id: int, size: int, sender: int, sources: Sequence[int],
                     urgent: bool) -> None:
        assert self.service is not None
        try:
            if self._store.find(large_id) is None:
                self._put(large_id, size, topic.spec.name,
                          await self.service.bring(large_id, size, topic.spec.name, sources, urgent))
                self._brought[large_id] = topic.spec.name, sender
            if not self._engine.add_large(large_id):
                raise NoResources("as many large samples are here as there may be")
            self._missed.discard(large_id)
        except (SpindleError, OSError) as error:
            if large_id not in self._missed:
                self._missed.add(large_id)
                LOG.warning("topic %r: a large sample of %d bytes of node %d can't be had, holds the topic up here and "
                            "is tried again: %s", topic.spec.name, size, sender, error)
            await asyncio.sleep(AGAIN_S)
            self._larges.forget_want(large_id)
            with self._engine.parked():
                pass  # the predicates look again, and want it anew if it still matters
        finally:
            self._bringing.pop(large_id, None)

    def _put(self, large_id: int, size: int, topic: str, brought: Brought) -> None:
        """Stores what was brought. Raises SpindleError."""
        assert self.service is not None
        spare = self._spare_of(topic, self.service.bringing, size) if brought.again else None
        self._store.put(large_id, brought.fd, size, topic, spare)
        self._sweep_s = SWEEP_SOON_S

    async def with_bytes(self, spec: TopicSpec, message: Message) -> Message | None:
        """A message of a history, when this node has the bytes of a large sample; one that is too large for a slot
        becomes such a sample, as soon as that can be made. If nobody has the bytes any more, its place tells readers
        that it is lost; a table of keys has no use for that: None."""
        said, until_s = False, math.inf
        while True:
            try:
                if not message.large:
                    return self.beside(spec, message)
                here = self._larges.has(entry_id(message.payload))
                last = asyncio.get_running_loop().time() >= until_s
                if here or await self._bring_of_history(spec.name, message.payload, last) or not spec.effects:
                    return message
                return None
            except SampleMissing as error:
                until_s = min(until_s, asyncio.get_running_loop().time() + HISTORY_PATIENCE_S)
                LOG.info("topic %r: a large sample of its history is asked for again: %s", spec.name, error)
            except NoResources as error:
                if not said:
                    LOG.warning("topic %r: a large sample of its history can't be kept, holds the topic up here and is "
                                "tried again: %s", spec.name, error)
                said = True
            await asyncio.sleep(AGAIN_S)

    def came_in_vain(self, messages: Iterable[Message]) -> None:
        """These of a history will not be appended: gives up the bytes that are here for that alone."""
        for one in messages:
            large_id = entry_id(one.payload) if one.large else 0
            _, sender = self._brought.get(large_id, ("", -1))
            if sender < 0 and large_id not in self._own and self._larges.has(large_id) and self._larges.drop(large_id):
                self._forget(large_id)

    async def _bring_of_history(self, topic: str, entry: bytes, last: bool) -> bool:
        """The bytes of a sample of a history that another member gives; False if nobody has them any more. Raises
        NoResources; SampleMissing if they could not be reached, unless this is the last try."""
        from spindle_core.larges import entry_of

        assert self.service is not None
        view = self._view()
        agreed = view.topic(topic) if view is not None else None
        members = () if agreed is None else agreed.members
        donor = None if agreed is None else agreed.donor
        sources = sorted((one for one in members if one != self._node_id), key=lambda one: one != donor)
        large_id, size = entry_of(entry)
        try:
            if self._store.find(large_id) is None:
                self._put(large_id, size, topic,
                          await self.service.bring(large_id, size, topic, sources, delivered=True))
                self._brought[large_id] = topic, -1
            if not self._larges.add(large_id):
                raise NoResources("as many large samples are here as there may be")
            return True
        except (SpindleError, OSError) as error:
            if (short := shortage(error, f"a large sample of {size} bytes")) is not None:
                raise short from error
            if isinstance(error, SampleMissing) and not error.refused and not last:
                raise
            count, total, _ = self._absent.get(topic, (0, 0, ""))
            self._absent[topic] = count + 1, total + size, str(error)
            return False

    def say_absent(self, topic: str) -> None:
        """A history is in: one word on all large samples in it that can't be had."""
        count, size, why = self._absent.pop(topic, (0, 0, ""))
        if count:
            LOG.warning("topic %r: nobody gives %d large samples of its history (%d bytes), and readers count them as "
                        "lost: [topics] large_capacity bounds how many bytes are kept. Of the last one: %s",
                        topic, count, size, why)

    # --- for readers

    def open(self, topic: str, large_id: int, user: int | None = None) -> tuple[int, int] | None:
        """A descriptor to read a sample of this topic, and its size; None if the node has it no more. `user`: whose
        program gets it, if not one of the node's own. Raises NoResources, SampleUnfit."""
        held = self._store.find(large_id)
        if held is None or held.topic != topic:
            return None
        opening = held.open if self._is_trusted(user) else held.open_sealed
        try:
            try:
                return opening(), held.size
            except NoResources:
                self._spare.clear()  # which has descriptors
                return opening(), held.size
        except SampleMissing:
            return None

    def opener(self, topic: str) -> Callable[[int], int]:
        """Opens samples for a reader in this process; for any thread."""
        def opened(large_id: int) -> int:
            found = self.open(topic, large_id)
            return -1 if found is None else found[0]

        return opened

    # --- views, and the end

    def installed(self, view: View) -> None:
        """Gives up what came in vain from members that have gone, or would."""
        self._missed.clear()
        for name, sender, task in list(self._bringing.values()):
            topic = view.topic(name)
            if topic is None or self._node_id not in topic.members or sender not in topic.senders:
                task.cancel()  # those that are left would ask each other for it until their patience is over
        for large_id, (name, sender) in list(self._brought.items()):
            topic = view.topic(name)
            if (topic is None or self._node_id not in topic.members or sender not in topic.senders) and sender >= 0 \
                    and large_id not in self._bringing and self._larges.drop(large_id):
                self._forget(large_id)
        self.look()

    def left(self, topic: str) -> None:
        """The node is no member of this topic any more: nothing of it will come in the order."""
        for large_id in [one for one, (port, _) in self._held.items() if port.topic == topic]:
            del self._held[large_id]
            self._larges.unuse(large_id)
        for large_id in self._store.ids() if self.service is not None else ():
            held = self._store.find(large_id)
            if held is not None and held.topic == topic and self._larges.drop(large_id):
                self._forget(large_id)
        if self.service is not None:
            self._spare.topic_ended(topic)

    def _delivered(self, large_id: int) -> None:
        """Of an own one: it is on its way no more."""
        owned = self._own.pop(large_id, None)
        if owned is not None:
            self.room.give(*owned)

    def _forget(self, large_id: int) -> None:
        self._delivered(large_id)
        self._brought.pop(large_id, None)
        self._store.drop(large_id)
        self._sweep_s = SWEEP_SOON_S

    def _sweep_in_time(self) -> None:
        self._sweep = None
        if not self._stopped:
            self._spare.let_go(self._now_s() - KEEP_S)
            self._sweep_now()

    def _sweep_now(self) -> None:
        self._swept_s = self._now_s()
        self._engine.sweep_larges()
        self.look()

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()

    def stop(self) -> None:
        """Idempotent."""
        self._stopped = True
        if self._sweep is not None:
            self._sweep.cancel()
        for _, _, task in self._bringing.values():
            task.cancel()
        if "room" in vars(self):
            self.room.stop()

    def status(self) -> dict[str, Any]:
        """Fit for JSON."""
        here = self.service is not None
        over_tcp, over_rdma = self.service.bytes_read if self.service is not None else (0, 0)
        return {"bytes": self._store.bytes_held if here else 0, "samples": len(self._store.ids()) if here else 0,
                "spare_bytes": self._spare.bytes_kept if here else 0, "bringing": len(self._bringing),
                "on_the_way": self.room.used, "read_over_tcp": over_tcp, "read_over_rdma": over_rdma}
