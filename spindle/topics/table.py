"""The topics of a node for its applications: declaring, opening and closing readers and writers.

Why one table: openings of many applications meet here and become one wish per topic (a member? a sender?), which the
membership machine carries to the group; a view that is installed fulfils them.

Rules:
- A wish follows from counts of wanted readers and writers, so openings and closings may overlap in any order.
- If an earlier wish of this node for a smaller part is still under way, an opening first waits for that.
- An opening returns when a view with the wanted part is installed (and, for a reader, the history is whole; for a
  logged topic, the journal runs), or raises why not; then nothing of it is left.
- A writer is closed when what it had committed by then is delivered everywhere: a node that is no sender any more could
  not send it again after a view change.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from spindle.errors import (
    ConfigError,
    GroupSilent,
    NodeStopped,
    SpindleError,
    TopicLimit,
    TopicMismatch,
    TopicUnknown,
    error_from_wire,
    shortage,
)
from spindle.group.endpoints import RELAY_SHIFT
from spindle.group.leases import Lease
from spindle.group.levels import Level
from spindle.group.position import Position
from spindle.group.topics import TopicInfo, TopicSpec, choose_inbox_slots, is_given_up
from spindle.group.view import Renewal, different
from spindle.membership.machine import Phase
from spindle.membership.messages import Deletion, Rejected, Role
from spindle.membership.plan import fulfilled as is_fulfilled
from spindle.proto import node_pb2 as pb
from spindle.restart.giving import Pin
from spindle.restart.pieces import Message
from spindle.restart.questions import Questions
from spindle.topics.journals import check_fits, check_room, keeps_any
from spindle.topics.larges import LargeSamples
from spindle.topics.leases import Leases
from spindle.topics.local_topic import LocalTopic
from spindle.topics.placing import ends_of
from spindle.topics.ports import ReaderPort, WriterPort
from spindle.topics.timing import Timekeeper
from spindle.topics.types import Types
from spindle.waiting import within

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.group.view import Topic, View
    from spindle.membership.machine import Machine
    from spindle_core.engine import Engine

DRAIN_POLL_S = 0.001  # first pause between two looks at a closing writer's inbox; doubles up to the next
DRAIN_POLL_MAX_S = 0.05
TAKEN_BACK_MAX = 256  # deleted topics whose roles were taken back: a leader hears of that long before so many follow
CLOSE_WAIT_S = 2.0  # close_writer returns after this, the rest goes on by itself
OWN_WRITER_ID = 0  # of the node's own writers
WRITER_ID_MAX = 0x7FFF  # those above belong to relayed writers, see spindle.relay
LOG = logging.getLogger("spindle.node")


@dataclasses.dataclass(eq=False)
class _Waiter:
    """Somebody who waits for a view in which `fulfilled` holds."""

    topic: str
    fulfilled: Callable[[View], bool]
    future: asyncio.Future[None]
    request_id: int = 0  # of a declaration or deletion; 0: waits for a role in the topic


class TopicTable:
    """See the module. `drive` steps the machine after a wish; `on_failure` hears of a journal that can't go on."""

    def __init__(self, engine: Engine, config: NodeConfig, node_id: int, machine: Machine, drive: Callable[[], None],
                 on_failure: Callable[[Exception], None], send: Callable[[int, pb.PeerMessage], bool],
                 send_in_turn: Callable[[int, pb.PeerMessage], Awaitable[bool]],
                 connected: Callable[[], dict[int, int]], keeps_types: Callable[[int], bool]) -> None:
        self._engine, self._config, self._node_id = engine, config, node_id
        self._machine, self._drive, self._on_failure = machine, drive, on_failure
        self.local: dict[str, LocalTopic] = {}
        self.questions = Questions(config, node_id, send, send_in_turn, self.local.get, self._installed_view)
        self.types = Types(node_id, send, connected, keeps_types, self.local.get, self._installed_view,
                           config.open_timeout_s)
        self._installed: View | None = None
        self._ends: dict[int, int] = {}  # by topic id: how many messages of a sender the trim leaves, at most
        self._deleted: list[LocalTopic] = []  # deleted topics whose logs are still being closed
        self._waiters: list[_Waiter] = []
        self._asked: dict[TopicSpec | Deletion, int] = {}  # wishes that are not answered yet, with their numbers
        self._wished: dict[str, tuple[Role, int]] = {}  # last role that was wished for, and its request id
        self._writer_ids = 0
        self.leases = Leases(engine)
        self.larges = LargeSamples(engine, config, node_id, self._installed_view)
        self.timekeeper = Timekeeper(engine, node_id, self.local, self._installed_view, self._open_voice,
                                     self.close_writer)
        self.on_halt: Callable[[str, str], object] = lambda topic, reason: None  # see LocalTopic
        self._closing: set[asyncio.Task[None]] = set()
        self._leaving = False
        self._stopped: SpindleError | None = None

    # --- for applications

    async def declare(self, spec: TopicSpec) -> TopicInfo:
        """The agreed topic. Raises TopicMismatch if the group, or this node's journal, has it otherwise, TopicLimit if
        it can't be had."""
        self._check_running()
        if spec.level is Level.LOGGED and self._view().topic(spec.name) is None:
            try:
                await check_fits(self._config, spec, self._node_id)
            except TopicMismatch:
                if await self.known(spec.name) is None:  # else the group goes by that, or awaits this declaration
                    raise
            self._check_running()
        while (topic := self._view().topic(spec.name)) is None or not topic.is_declared:
            await self._agree(spec, spec.name, lambda view: view.declares(spec.name))  # again, if it is deleted by then
            self._check_running()
        topic.spec.check_same(spec)
        return topic.info

    async def delete(self, name: str, renews: bool = False) -> None:
        """Returns when the group has no such topic any more; with `renews`, of a logged one, when whoever declares it
        next says what it is. Raises TopicUnknown, TopicInUse."""
        while True:
            topic = await self.known(name)
            if topic is None and not (renews and await keeps_any(self._config, name, self._node_id)):
                raise TopicUnknown(f"topic {name!r} is not declared in domain {self._config.domain_id}"
                                   + (f", and node {self._node_id} has no journal of it" if renews else ""))
            if topic is None and self._view().topic(name) is not None:
                continue  # it was declared while the disk was looked at
            deletion = Deletion(name, topic.born if topic is not None else (0, 0), renews, topic is None)
            await self._agree(deletion, name, functools.partial(is_fulfilled, node_id=self._node_id, wish=deletion))
            self._check_running()
            now = self._view().topic(name)
            if not deletion.undeclared or now is None or now.renewal is not Renewal.NONE:
                return  # else somebody was faster, and declared it as what the journals have

    async def open_writer(self, name: str, slots: int, relayed: int = 0, within: bool = False,
                          farewell: int = 0, lease: Lease | None = None, own: bool = False,
                          type_: bytes = b"") -> WriterPort:
        """A new inbox of `slots` slots (0: chosen) that this node sends from. `relayed`, `farewell`, `lease`: see
        WriterPort. `within`: the application is in this process. `own`: it is the node's own, which no application's
        can pretend to be. `type_`: of its samples, which all members know by then; empty: nothing is said of it."""
        from spindle_core.inbox import Inbox

        local = await self._entry(name)
        await self._until_settled(local, sender=True)
        local.writers_wanted += 1
        key = b""
        try:
            await self._until_member(local, sender=True)
            if type_ and local.spec.level.keeps_history:
                key = await self.types.hold(local, type_)
            slots = slots or self._config.inbox_slots or choose_inbox_slots(local.spec.size_max)
            if own:
                writer_id = OWN_WRITER_ID
            else:
                self._writer_ids = self._writer_ids % WRITER_ID_MAX + 1
                writer_id = (relayed & WRITER_ID_MAX) + WRITER_ID_MAX + 1 if relayed else self._writer_ids
            try:
                inbox = Inbox(local.spec.size_max, slots, writer_id, relayed >> RELAY_SHIFT, within)
                self._engine.add_inbox(local.topic_id, inbox)
            except ValueError as error:
                raise TopicLimit(f"topic {name!r}: {error}") from error
            except OSError as error:
                raise shortage(error, f"a writer of topic {name!r}") or SpindleError(
                    f"a writer of topic {name!r} can't be made: {error.strerror}") from error
        except BaseException:
            if key:
                self.types.release(local, key)
            local.writers_wanted -= 1
            self._wish(local)
            raise
        port = WriterPort(name, local.topic_id, inbox, slots, relayed, farewell, lease, key)
        local.writers.append(port)
        if lease is not None:
            self.leases.watch(port, lease)
        if not own:
            self.timekeeper.look()  # what it keeps for those who come counts for a time, too
        return port

    async def open_reader(self, name: str, keep_all: bool, from_history: bool, start_index: int,
                          after: Sequence[Position] = (), within: bool = False) -> ReaderPort:
        """A new cursor in the topic's delivery log; goes on from one of `after` if that is given. `within`: the
        application is in this process."""
        from spindle_core.delivery import Cursor

        local = await self._entry(name)
        await self._until_settled(local, sender=False)
        local.readers_wanted += 1
        try:
            cursor = Cursor(keep_all=keep_all, from_history=from_history, start_index=start_index, within=within,
                            with_table=bool(local.spec.effects))
        except OSError as error:
            local.readers_wanted -= 1
            raise shortage(error, f"a reader of topic {name!r}") or SpindleError(
                f"a reader of topic {name!r} can't be made: {error.strerror}") from error
        try:
            waiting = local.place_reader(cursor, after)
            try:
                await self._until_member(local, sender=False)
                placed = await waiting
            finally:
                waiting.cancel()
        except BaseException:
            local.readers_wanted -= 1
            self._engine.remove_reader(local.topic_id, cursor)
            cursor.close()
            self._wish(local)
            raise
        assert local.log is not None
        start = Position(self._view().group_id, placed.view_id, placed.sequence)
        port = ReaderPort(name, local.topic_id, cursor, local.log.mapping, start, placed.continued,
                          local.log.said_ns, ends_of(local.lives), self.types.kept(local))
        local.readers.append(port)
        self.timekeeper.look()  # while nobody listened, nothing was said of what is over by now
        return port

    async def close_writer(self, port: WriterPort) -> None:
        """Sends what the writer had committed, then forgets it. Returns when done, or after CLOSE_WAIT_S while the rest
        goes on. Idempotent."""
        if port.closed or self._stopped is not None:
            return
        port.closed = True
        task = port.draining = asyncio.get_running_loop().create_task(self._drain(port))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        await asyncio.wait({task}, timeout=CLOSE_WAIT_S)

    async def _drain(self, port: WriterPort) -> None:
        local = self.local[port.topic]
        self.leases.forget(port)
        with self._engine.parked():
            port.inbox.finish(port.farewell)  # later commits come from an application that writes on after closing
        pause = DRAIN_POLL_S
        while not port.inbox.is_finished:
            await asyncio.sleep(pause)
            pause = min(2 * pause, DRAIN_POLL_MAX_S)
        self._engine.remove_inbox(port.topic_id, port.inbox)
        self.larges.writer_ended(port)
        port.inbox.close()
        local.writers.remove(port)
        if port.type_key:
            self.types.release(local, port.type_key)
        local.writers_wanted -= 1
        self._wish(local)
        self.timekeeper.look()

    async def _open_voice(self, name: str) -> WriterPort:
        return await self.open_writer(name, slots=1, within=True, own=True)

    def close_reader(self, port: ReaderPort) -> None:
        """Forgets the reader. Idempotent."""
        if port.closed or self._stopped is not None:
            return
        port.closed = True
        local = self.local[port.topic]
        local.readers_wanted -= 1
        local.remove_reader(port)
        self._wish(local)
        self.timekeeper.look()

    # --- wishes

    async def known(self, name: str, anew: bool = False) -> Topic | None:
        """The topic, also if this node is only about to hear that it was declared, or with `anew` that it was declared
        anew; None if it was not."""
        self._check_running()
        topic = self._view().topic(name)
        if (topic is None or anew) and (self._machine.phase is not Phase.STABLE or self._machine.in_minority):
            # The node of the declarer may already have a view, or a revision of one, that this node is about to get. Or
            # this node is in a minority, and what it knows is out of date because the others have gone on.
            await self._until(name, lambda _: True)
            topic = self._view().topic(name)
        return topic

    async def _entry(self, name: str) -> LocalTopic:
        topic = await self.known(name)
        if topic is None:
            raise TopicUnknown(f"topic {name!r} is not declared in domain {self._config.domain_id}; declare it first")
        if not topic.is_declared:
            raise is_given_up(name)
        if topic.spec.level is Level.LOGGED:
            await check_room(self._config, name)
            self._check_running()
        return self._local(topic)

    def _local(self, topic: Topic) -> LocalTopic:
        local = self.local.get(topic.spec.name)
        if local is None:
            local = LocalTopic(self._engine, self._config, self._node_id, topic, self._on_failure, self.questions,
                               self.larges)
            local.on_noted = self.timekeeper.look
            local.on_halt = self.on_halt
            local.types_written = functools.partial(self.types.written, topic.spec.name)
            self.local[topic.spec.name] = local
        return local

    def _wish(self, local: LocalTopic) -> None:
        """Tells the group what part this node wants in the topic, if that changed."""
        present = self.local.get(local.spec.name)  # another one, if it was deleted and declared anew
        if present is None:
            return
        local = present
        role = Role(local.spec.name, bool(local.readers_wanted or local.writers_wanted), bool(local.writers_wanted))
        if self._stopped is None and not self._leaving and self._wished.get(role.topic, (None, 0))[0] != role:
            self._wished[role.topic] = (role, self._machine.take_role(role))
            self._drive()

    async def _until_settled(self, local: LocalTopic, sender: bool) -> None:
        """Waits while the group still carries out our wish to be no member any more; a sender also waits while it
        carries out our wish to be no sender.

        This node still has the part in the installed view, but may have lost it in the next one: an opening that
        relied on the installed view would then lose its log. The wish is not taken back instead, as nobody here knows
        whether the leader has planned with it already.
        """
        name, node_id = local.spec.name, self._node_id

        def settled(view: View) -> bool:
            role, _ = self._wished.get(name, (None, 0))
            topic = view.topic(name)
            if role is None or topic is None:
                return True
            return (role.member or node_id not in topic.members) and (
                not sender or role.sender or node_id not in topic.senders)

        while not settled(self._view()):
            await self._until(name, settled)
        self._check_running()

    async def _until_member(self, local: LocalTopic, sender: bool) -> None:
        """Waits until this node is a member of the topic (a sender), and the journal of a logged one runs. A reader
        waits for all that the topic keeps."""
        name, node_id = local.spec.name, self._node_id

        def fulfilled(view: View) -> bool:
            topic = view.topic(name)
            return topic is not None and node_id in (topic.senders if sender else topic.members)

        self._wish(local)
        self._check_there(local)  # that may have taken a view further
        if not fulfilled(self._view()):
            await self._until(name, fulfilled)
        self._check_there(local)
        if local.spec.level is Level.LOGGED or not sender:
            await self._until_whole(local)

    async def _until_whole(self, local: LocalTopic) -> None:
        """Waits until this node has all that the topic had before. On a logged topic writers wait, too, as their
        messages come after that."""
        while (catching_up := local.catching_up) is not None:
            before = catching_up.progress
            await asyncio.wait({catching_up.done}, timeout=self._config.open_timeout_s)
            self._check_running()
            if catching_up.done.cancelled():
                raise GroupSilent(f"topic {local.spec.name!r}: this node is no member of it any more; try again")
            if catching_up.done.done():
                catching_up.done.result()
            elif catching_up.progress == before:
                raise GroupSilent(f"topic {local.spec.name!r} could not be taken up within "
                                  f"{self._config.open_timeout_s:g} s: it waits for {catching_up.awaiting()}")

    async def _agree(self, wish: TopicSpec | Deletion, name: str, fulfilled: Callable[[View], bool]) -> None:
        """Returns when the group has carried out the wish. Raises what it was refused with."""
        request_id = self._asked.get(wish)
        if request_id is None:  # the leader keeps one wish of a kind per node and topic, and answers only that
            request_id = self._machine.declare(wish) if isinstance(wish, TopicSpec) else self._machine.delete(wish)
            self._asked[wish] = request_id
        try:
            await self._until(name, fulfilled, request_id)
        finally:
            if all(waiter.request_id != request_id or waiter.future.done() for waiter in self._waiters):
                self._answered(request_id)

    async def _until(self, name: str, fulfilled: Callable[[View], bool], request_id: int = 0) -> None:
        waiter = _Waiter(name, fulfilled, asyncio.get_running_loop().create_future(), request_id)
        self._waiters.append(waiter)
        try:
            self._drive()
            await within(self._config.open_timeout_s, waiter.future)
        except asyncio.TimeoutError:
            raise GroupSilent(
                f"topic {name!r}: the group has not agreed within {self._config.open_timeout_s:g} s; it waits for "
                f"{self._machine.awaiting() or 'its leader'}. A member hangs: see `spindle status`, stop it or let it "
                "go on, then try again") from None
        finally:
            self._waiters.remove(waiter)

    def rejected(self, action: Rejected) -> None:
        """The group refused a wish of ours."""
        topic = next((name for name, (_, number) in self._wished.items() if number == action.request_id), None)
        error = error_from_wire(action.kind, action.text)
        self._answered(action.request_id)
        for waiter in self._waiters:
            meant = waiter.request_id == action.request_id or (waiter.request_id == 0 and waiter.topic == topic)
            if meant and not waiter.future.done():
                waiter.future.set_exception(error)
        if topic is not None:
            self._wished.pop(topic, None)

    def _answered(self, request_id: int) -> None:
        """Nothing more is heard of this number: the same wish from now on is a request of its own."""
        self._asked = {wish: number for wish, number in self._asked.items() if number != request_id}

    def _installed_view(self) -> View | None:
        return self._installed

    def _view(self) -> View:
        if self._machine.view is None:
            raise NodeStopped("the node is not a member yet")
        return self._machine.view

    def _check_running(self) -> None:
        if self._stopped is not None:
            raise self._stopped
        if self._leaving:
            raise NodeStopped(f"node {self._node_id} is leaving the group")

    # --- views

    def deliver_to_trim(self, view: View, trims: dict[int, tuple[int, ...]]) -> None:
        """The end of an epoch: every topic's last messages, to its log or, where that has no room, to its backlog."""
        self._ends = {topic_id: max(counts, default=0) for topic_id, counts in trims.items()}
        for topic_id in self._engine.deliver_trims(trims):
            topic = next(topic for topic in view.topics if topic.topic_id == topic_id)
            rest = self._engine.take_undelivered(topic_id, trims.get(topic_id, ()))
            self._local(topic).keep([
                Message(payload, sender, sequence, view.view_id, source_ns, writer_id, 0, relay, tag, key, large)
                for payload, sender, sequence, source_ns, writer_id, relay, tag, key, large in rest
            ])

    def _say_who_departed(self, before: View, view: View) -> None:
        """Behind the last message of each topic that wants it, at every member that stays, the senders that have gone.
        Only the view tells all members of it in the same place."""
        alive = {member.life for member in view.members}
        gone = {member.node_id for member in before.members if member.life not in alive}
        if not gone:
            return
        for topic in different(before.topics, view.topics):
            after = view.topic(topic.spec.name)
            if (not topic.spec.departure or self._node_id not in topic.members or after is None
                    or after.born != topic.born or self._node_id not in after.members):
                continue
            first = self._ends.get(topic.topic_id, 0) * len(topic.senders)
            departed = [Message(b"", node_id, first + rank, before.view_id, 0, 0, 0, 0, topic.spec.departure)
                        for rank, node_id in enumerate(topic.senders) if node_id in gone]
            if departed:
                self._local(topic).keep(departed)

    def before_install(self, view: View) -> None:
        """Between two epochs: logs and cursors for what begins, and what is kept for fresh members."""
        if self._installed is not None:
            self._say_who_departed(self._installed, view)
        # A topic that is unchanged has no fresh members.
        for topic in view.topics if self._installed is None else different(view.topics, self._installed.topics):
            if self._node_id not in topic.members:
                continue
            local = self._local(topic)
            if self._node_id in topic.fresh:
                local.enter(view, topic)
                self.types.entered(local)
            # Of a logged topic the fresh members ask for what they lack, and get it from the journal. A table of keys
            # is given as it is when it is asked for.
            if topic.donor == self._node_id and topic.spec.level is Level.VOLATILE and not topic.spec.effects:
                for node_id in topic.fresh:
                    self._keep_for(node_id, local, view)

    def _keep_for(self, node_id: int, local: LocalTopic, view: View) -> None:
        try:
            self.questions.giving.pin(Pin(local.spec.name, node_id, view.view_id), local.donate())
        except (OSError, ValueError) as error:
            # What runs out here must not hold up the group: the node gets what is still retained when it asks.
            LOG.warning("topic %r: the history for node %d can't be kept as it is now: %s", local.spec.name, node_id,
                        error)

    def installed(self, view: View) -> None:
        """The new epoch runs: forget topics that this node is out of, answer who waited."""
        before, self._installed = self._installed, view
        self.questions.view_changed(view)
        self.types.view_changed(view)
        changed = self._changed(before, view)
        catching_up = [name for name, local in self.local.items() if local.catching_up is not None]
        for name in dict.fromkeys([*changed, *catching_up]):
            topic, local = view.topic(name), self.local.get(name)
            if local is None:
                continue
            if local.member and (topic is None or self._node_id not in topic.members):
                local.leave(view)
            elif local.member and topic is not None and self._node_id not in topic.fresh:
                local.view_changed(view, topic)
        self._drop_deleted(changed, view)
        self._answer(view)
        self.timekeeper.look()

    def revised(self, view: View) -> None:
        """Topics without members have come or gone."""
        before, self._installed = self._installed, view
        self._drop_deleted(self._changed(before, view), view)
        self._answer(view)

    def _changed(self, before: View | None, view: View) -> list[str]:
        """Names of topics that are not what they were; most are idle at most changes."""
        if before is None:
            return list(self.local)
        return [topic.spec.name for topic in [*different(before.topics, view.topics),
                                              *different(view.topics, before.topics)]]

    def _drop_deleted(self, changed: Iterable[str], view: View) -> None:
        """Drops what is here of deleted topics, also if another topic has the name by now."""
        for name in changed:
            topic, local = view.topic(name), self.local.get(name)
            if local is not None and (topic is None or topic.born != local.born):
                del self.local[name]
                self._deleted.append(local)
                self.questions.closes(local)
                self._give_up_opening(name)
        self._deleted = [local for local in self._deleted if local.retiring]

    def _check_there(self, local: LocalTopic) -> None:
        if self.local.get(local.spec.name) is not local:
            raise TopicUnknown(f"topic {local.spec.name!r} was deleted meanwhile; declare it again")

    def _give_up_opening(self, name: str) -> None:
        """Takes back a role wish for a deleted topic: it must not count for another topic of that name. Where the
        leader has given that one the role already, openings of it wait until the role is taken back
        (`_until_settled`)."""
        role, _ = self._wished.pop(name, (None, 0))
        if role is not None and role.member:
            none = Role(name, False, False)
            self._wished[name] = (none, self._machine.take_role(none))
            gone = [one for one in self._wished if one not in self.local and self._view().topic(one) is None]
            for one in gone[:-TAKEN_BACK_MAX]:
                del self._wished[one]
        for waiter in self._waiters:
            if waiter.topic == name and not waiter.request_id and not waiter.future.done():
                waiter.future.set_exception(TopicUnknown(f"topic {name!r} was deleted meanwhile; declare it again"))

    def _answer(self, view: View) -> None:
        for waiter in self._waiters:
            if not waiter.future.done() and waiter.fulfilled(view):
                waiter.future.set_result(None)

    # --- the end

    async def flush(self, timeout_s: float) -> None:
        """Closes all writers: what they have committed is delivered, as far as that works within `timeout_s`. The node
        leaves then, so our wishes don't change any more: the leave ends them all."""
        self._leaving = True
        ports = [port for local in self.local.values() for port in local.writers if not port.closed]
        tasks = [asyncio.ensure_future(self.close_writer(port)) for port in ports]
        waiting = set(tasks) | self._closing
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)

    def stop(self, error: SpindleError) -> None:
        """Nothing can be opened any more; who waits gets `error`."""
        if self._stopped is not None:
            return
        self._stopped = error
        self.leases.stop()
        self.timekeeper.stop()
        self.larges.stop()
        self.questions.stop()
        self.types.stop(error)
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(error)
        for local in self.local.values():
            local.fail_waiting(error)
        for task in self._closing:
            task.cancel()

    async def close(self, left: bool = False) -> None:
        """Closes logs, journals, inboxes and cursors, after the engine has stopped. `left`: the node left in order."""
        following = self._machine.next_view if left else None
        for local in self.local.values():
            for writer in local.writers:
                writer.inbox.close()
            for reader in local.readers:
                reader.cursor.close()
            local.leave(following)
        await self.questions.ended()
        await asyncio.gather(*(local.retired() for local in [*self.local.values(), *self._deleted]))


def check_start_index(start_index: int) -> None:
    """ConfigError unless it is an index, or -1 for none."""
    if start_index < -1:
        raise ConfigError(f"start index {start_index} must be an index, or -1 for none")
