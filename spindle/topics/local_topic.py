"""What one node has of one topic: log, readers, writers, journal, and what must be delivered before live messages.

Why apart from the node: a topic's memory outlives views, while subgroups come and go with them. The node says when a
view begins and ends; what that means for the topic's log and its readers is here.

Rules:
- A topic has a log while it has local readers, and, if its level keeps history, while the node is a member.
- What comes before live messages is appended here while the engine holds the topic's delivery: first the history that
  others give, then (the backlog) what a full log could not take at the end of an epoch. Then delivery is released.
- New readers are placed when the history is whole and before anything later, so that they miss nothing. A reader that
  goes on from elsewhere is placed where it stood. It is told that nothing is missing only if the log proves that: the
  log still holds a message from before that place, or everything since the node became a member before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from spindle.errors import NodeStopped, SpindleError, TopicLimit
from spindle.group.levels import Level
from spindle.group.position import Position
from spindle.group.topics import SLOT_OVERHEAD
from spindle.group.types import TYPES_BYTES_MAX, TYPES_MAX, KeptTypes
from spindle.restart.catching_up import CatchingUp, guides
from spindle.restart.chain import NOTHING, Holders, Life, Order, Successor
from spindle.restart.history import Donation, Message, local_reader
from spindle.restart.pieces import ENTRY_SAYS, entry_id
from spindle.restart.tables import TableState, become
from spindle.topics.journals import holding, look_at, open_journal, running
from spindle.topics.placing import Placed, is_whole, place_of
from spindle.topics.ports import ReaderPort, WriterPort

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.group.view import Topic, View
    from spindle.journal import Journal
    from spindle.restart.questions import Questions
    from spindle.topics.larges import LargeSamples
    from spindle_core.delivery import Cursor, DeliveryLog
    from spindle_core.engine import Engine
    from spindle_core.timing import Timing

LOG_MESSAGES_MIN = 4  # a log holds at least so many of the largest messages, whatever log_capacity says
ROOM_POLL_S = 0.002  # between two looks at a full log
APPEND_BYTES = 1 << 20  # copied into a log before others have their turn on the loop
DURABLE_WAIT_S = 1.0  # between two looks whether a thread that waits for the disk is still needed
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
NOTE_AGAIN_S = 1.0  # after which something that found no room on the disk is tried again
LOG = logging.getLogger("spindle.node")


class LocalTopic:
    """One topic on this node. Made with the first local interest in it; `drop()` ends it.

    Invariant: delivery of the topic is held in the engine while `busy`.
    """

    def __init__(self, engine: Engine, config: NodeConfig, node_id: int, topic: Topic,
                 on_failure: Callable[[Exception], None], questions: Questions, larges: LargeSamples) -> None:
        self._larges = larges
        self.engine, self.config, self.node_id, self._questions = engine, config, node_id, questions
        self._on_failure = on_failure  # of the journal; on the loop
        self.spec, self.topic_id, self.born = topic.spec, topic.topic_id, topic.born
        self.log: DeliveryLog | None = None
        self.timing: Timing | None = None  # what the order has said of time, since the node became a member
        self.on_noted: Callable[[], None] = lambda: None  # something was noted there that the engine has not delivered
        self.on_halt: Callable[[str, str], object] = lambda topic, reason: None  # the journal has no room; "": it has
        self.types = KeptTypes(topic.spec.name)  # of what is kept here; empty while the node is no member
        self.types_written: Callable[[], set[bytes]] = set  # keys of those that somebody may write
        self.writers: list[WriterPort] = []
        self.readers: list[ReaderPort] = []
        self.writers_wanted = 0  # open, opening and draining ones
        self.readers_wanted = 0
        self.journal_task: asyncio.Task[Journal] | None = None
        self._retiring: asyncio.Task[None] | None = None
        self.member = False  # in the installed view
        self._waiting: list[tuple[Cursor, Sequence[Position], asyncio.Future[Placed]]] = []  # readers to be placed
        self.lives: tuple[Life, ...] = ()  # of a logged topic: also groups that it was restored from
        self._group_id = 0  # whose order the log has
        self._history: deque[Message] = deque()
        self._history_bytes = 0  # of the payloads in it
        self._history_of: int | None = None  # view id whose history is still coming
        self.began_anew = False  # this membership's log: what was before it, if anything, no member has any more
        self._restoring = False  # the log's table of keys is becoming another member's
        self._table: TableState | None = None  # what is known of that beside its messages
        self.first_order: Order = NOTHING  # of this membership's log
        self.catching_up: CatchingUp | None = None  # while the topic isn't whole here
        self._noted: Holders | None = None  # whom the ledger is to name; None while this node isn't whole
        self._entered = -1  # view id with which the node became a member last
        self._backlog: deque[Message | Donation] = deque()
        self._pump: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """True while something must be delivered before live messages, or the table of keys isn't known to be whole."""
        return self._history_of is not None or self._restoring or bool(self._history or self._backlog)

    # --- what a view change does

    @property
    def whole(self) -> bool:
        """True if this node is a member and has all that came before it was one."""
        return self.member and self._history_of is None

    def enter(self, view: View, topic: Topic) -> None:
        """The node becomes a member with this view; before Engine.install."""
        self.member = True
        self._group_id = view.group_id
        self._begin_timing()
        if self.spec.level.keeps_history or self._waiting:
            self.make_log()
        self._entered = view.view_id
        self.first_order = NOTHING
        self.began_anew = topic.donor is None
        if self.spec.level is Level.LOGGED or topic.donor is not None:
            self.engine.hold_delivery(self.topic_id)
            self._history_of = view.view_id
            self._restore_table()
            self.catching_up = CatchingUp(self, self._questions, view, topic, entered=view.view_id, order=guides(topic))
        else:
            self._place_waiting()

    def _begin_timing(self) -> None:
        from spindle_core.timing import Timing

        if self.spec.timing:
            self.timing = Timing(self.spec.timing)
            self.engine.bind_timing(self.topic_id, self.timing)

    def view_changed(self, view: View, topic: Topic) -> None:
        """Another view is installed, in which this node is a member as before."""
        if self.catching_up is not None:
            self.catching_up.view_changed(view, topic)
        if self._noted is not None and self._noted.members != topic.members:
            self._note(Holders(view.view_id, topic.members))

    def filled(self, until_view: int) -> None:
        """The history is whole, up to the messages of view `until_view`. Live messages of earlier views, from members
        that are gone, are dropped: the topic has gone on without them."""
        kept, self._backlog = self._backlog, deque()
        for one in kept:
            if isinstance(one, Donation) or one.view_id >= until_view:
                self._backlog.append(one)
            else:
                self._let_go(one)
        self._history_of = self.catching_up = None
        if self.spec.level is Level.LOGGED:
            view, members = self._questions.holders(self.spec.name)
            self._note(Holders(view, members))
        self._start_pump()

    def keep(self, messages: Sequence[tuple[Any, ...]]) -> None:
        """Takes messages that the end of an epoch left to be delivered first in the next; before Engine.install."""
        self._backlog.extend(map(Message._make, messages))
        if self.busy:
            # This node owes its readers messages already: while one stands still, no view change may add to that.
            self.engine.hold_delivery(self.topic_id, receipt=bool(messages))
            self._start_pump()

    def donate(self) -> Donation:
        """The history up to here, for a fresh member; after the old epoch's last message, before Engine.install. Raises
        OSError or ValueError if it can't be kept."""
        assert self.log is not None
        donation = Donation(self.engine, self.topic_id, self.log)
        if self.busy:
            self._backlog.append(donation)
        else:
            donation.cut = self.log.delivered
        return donation

    # --- history and backlog

    def table_figures(self) -> dict[str, int]:
        """What is kept of each key: keys, messages and bytes of it, keys that are over, what found no room any more,
        and what went because of a limit. Empty without."""
        if self.log is None or not self.log.keeps_table:
            return {}
        with self.engine.parked():
            figures = self.log.table_figures()
        return {"keys": figures["keys"], "kept": figures["messages"], "kept_bytes": figures["bytes"],
                "kept_bytes_max": figures["bytes_max"], "given_up": figures["given_up"],
                "given_up_keys": figures["given_up_keys"], "limited": figures["limited"],
                "keys_over": figures["over"]}

    @property
    def fills_table(self) -> bool:
        """True if a history of it is what others keep of each key: it goes into the table, and not into the log."""
        return bool(self.spec.effects) and self.spec.level is Level.VOLATILE

    def _restore_table(self) -> None:
        """What comes is another member's table, from its beginning."""
        self._restoring, self._table = self.fills_table, None
        if self._restoring:
            self.make_log().restore_table()

    def note_history(self, messages: list[Message]) -> None:
        """Messages that come before all that will be in the log, in their order, for the table of keys."""
        self._larges.note(self.make_log(), self.spec, messages)

    def take_table(self, table: TableState) -> None:
        """The history is another member's table, of which this is known beside the messages. Takes effect when all of
        it is here, with filled()."""
        self._table = table
        (log := self.make_log()).say_time(max(table.said_ns, log.said_ns))  # that may be later by now

    def look_at_types(self) -> None:
        """Forgets types whose samples are not kept any more. What is kept of each key may be of any age."""
        log, journal = self.log, running(self.journal_task)
        if log is None or self.spec.effects:
            return
        oldest = log.oldest_index
        if self.spec.level is Level.LOGGED:
            oldest = 0 if journal is None else min(oldest, journal.durable)
        self.types.look(self.types_written(), None if self.busy else log.delivered, oldest)

    def keep_type(self, said: bytes) -> None:
        """Keeps a type of which samples are about to be written. Raises TopicLimit, ConfigError."""
        self.look_at_types()
        self._gave_up_types(self.types.keep(said, self.types_written()))

    def take_types(self, types: Iterable[bytes]) -> None:
        """Types of a history, before its messages. Raises ConfigError for what can be none."""
        written, given_up = self.types_written(), 0
        for said in types:
            try:
                given_up += self.types.keep(said, written)
            except TopicLimit:
                given_up += 1
        self._gave_up_types(given_up)

    def _gave_up_types(self, count: int) -> None:
        if count:
            LOG.warning("topic %r has samples of more types than it can keep (%d, of %d bytes together): the %d oldest "
                        "that nobody writes are forgotten, and late joiners with other types may not be able to read "
                        "them", self.spec.name, TYPES_MAX, TYPES_BYTES_MAX, count)

    def append_history(self, messages: list[Message]) -> None:
        """Messages that come before all that is delivered here, in their order."""
        self._history.extend(messages)
        self._history_bytes += sum(len(one.payload) for one in messages)
        relayed = [(one.relayed_writer, one.source_ns) for one in messages if one.relay]
        if relayed:
            with self.engine.parked():
                for writer, source_ns in relayed:
                    self.engine.relayed.note(writer, source_ns)
        if messages and self.first_order == NOTHING:
            self.first_order = messages[0].order
        self._start_pump()

    def forget_history(self) -> None:
        """Drops what is here of the history, as no node is left that has the rest of it or goes on from there: a hole
        would follow it. No reader has been placed. Donations are withdrawn; the nodes that they were for ask anew, and
        get what there is by then."""
        for one in self._backlog:
            if isinstance(one, Donation):
                one.withdraw()
        self._backlog = deque(one for one in self._backlog if not isinstance(one, Donation))
        self._larges.came_in_vain(self._history)
        self._history.clear()
        self._history_bytes = 0
        self.first_order = NOTHING
        if self.log is not None and self.log.delivered:
            self._close_log()
            self.make_log()
        self._restore_table()

    @property
    def history_waiting(self) -> int:
        """Bytes of the history that are not in the log yet."""
        return self._history_bytes

    def _start_pump(self) -> None:
        if self._pump is None or self._pump.done():
            self._pump = asyncio.get_running_loop().create_task(self._run_pump())
            self._pump.add_done_callback(self._pump_ended)

    def _pump_ended(self, pump: asyncio.Task[None]) -> None:
        """Without it the topic would stand still, and nobody would know why; if the node stops, that is known."""
        if not pump.cancelled() and (error := pump.exception()) is not None and not isinstance(error, NodeStopped):
            LOG.error("topic %r", self.spec.name, exc_info=error)
            self._on_failure(SpindleError(f"topic {self.spec.name!r}: what comes before live messages can't go into "
                                          f"its log: {type(error).__name__}: {error}"))

    async def _run_pump(self) -> None:
        """Appends history, places new readers, appends the backlog, releases delivery."""
        while self._history:
            await self._append(self._history)
        if self._history_of is not None:
            return  # the next chunk starts it again
        self._larges.say_absent(self.spec.name)
        if self._restoring:
            self.began_anew = self._table is None
            become(self.make_log(), self._table or TableState((0, 0)))
            self._restoring, self._table = False, None
        self._place_waiting()
        while self._backlog:
            if isinstance(self._backlog[0], Donation):
                donation = self._backlog.popleft()
                assert isinstance(donation, Donation) and self.log is not None
                donation.cut = self.log.delivered
            else:
                await self._append(self._backlog)
        self.engine.release_delivery(self.topic_id)
        self.on_noted()

    async def _append(self, queue: deque[Message] | deque[Message | Donation]) -> None:
        """Appends messages from the front of `queue` as far as there is room, then waits a little."""
        taken = 0
        from_history = queue is self._history
        while queue and not isinstance(queue[0], Donation):
            first = queue[0]
            message = await self._larges.with_bytes(self.spec, first) if from_history else first
            if from_history and not (queue and queue[0] is first):
                self._larges.came_in_vain([] if message is None else [message])  # it was forgotten meanwhile
                continue
            if message is None:
                pass  # nobody has its bytes any more
            elif from_history and self.fills_table:
                self.make_log().note(*message)
            elif self.log is None:
                if self.timing is not None:
                    said = message.payload[ENTRY_SAYS] if message.large else bytes(message.payload)
                    self.timing.note(said, message.tag, message.writer_id, message.source_ns)
            elif not self.log.append(*message):
                if message is not first:  # it was brought already
                    queue[0] = message
                    self._history_bytes -= len(first.payload) - len(message.payload)
                await asyncio.sleep(ROOM_POLL_S)
                return
            queue.popleft()
            if from_history:
                self._history_bytes -= len(first.payload)
            else:
                self._let_go(first)
            taken += len(first.payload) + SLOT_OVERHEAD
            if taken >= APPEND_BYTES:
                taken = 0
                await asyncio.sleep(0)  # others' turn on the loop

    def _let_go(self, message: Message | Donation) -> None:
        """It waits in the backlog no longer."""
        if isinstance(message, Message) and message.large:
            self.engine.larges.unuse(entry_id(message.payload))
            self._larges.look()

    # --- log and readers

    def make_log(self) -> DeliveryLog:
        """The topic's log, made and bound if there is none."""
        if self.log is None:
            from spindle_core.delivery import DeliveryLog

            spec = self.spec
            capacity = max(self.config.log_capacity, 0 if spec.effects else spec.history_bytes,
                           LOG_MESSAGES_MIN * (spec.size_max + SLOT_OVERHEAD))
            self.log = DeliveryLog(capacity=capacity, hot=min(self.config.log_hot, capacity),
                                   keep_history=spec.level.keeps_history, history_depth=spec.history_depth,
                                   effects=spec.effects, table_bytes=spec.table_bytes, timing=self.timing,
                                   samples_max=spec.samples_max, keys_max=spec.keys_max, cleanup_ns=spec.cleanup_ns,
                                   larges=self.engine.larges, large_max=self.config.large_capacity, ranks=spec.ranks)
            self.engine.bind_log(self.topic_id, self.log)
        return self.log

    def place_reader(self, cursor: Cursor, after: Sequence[Position] = ()) -> asyncio.Future[Placed]:
        """Places the cursor now, or when the node is a member and history is whole; the future tells.

        after: positions that the reader had reached on other nodes or in another life of this one, one for each group.
            Groups that a topic's journals outlive have one order: then the farthest position counts.
        """
        future: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        self._waiting.append((cursor, after, future))
        if self.member and self._history_of is None and not self._history:
            self._place_waiting()
        return future

    def _place_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for cursor, after, future in waiting:
            if future.done():  # given up meanwhile
                continue
            self.make_log()
            try:
                known = [place for one in after if (place := place_of(self.lives, self._group_id, one)) is not None]
                if after and self.spec.level is not Level.UNORDERED:
                    # A reader that comes from another order has had nothing of this one: it gets all that is kept.
                    cursor.after = max(known, default=(0, 0))
                cursor.since = max(self._entered, 0)
                self.engine.add_reader(self.topic_id, cursor)
                view_id, sequence = cursor.after or cursor.next or (max(self._entered, 0), 0)
                if cursor.table is not None:
                    view_id, sequence = cursor.after or (0, 0)  # all of the table is for it
                future.set_result(Placed(view_id, sequence, bool(known) and is_whole(cursor, self.spec, self._entered)))
            except ValueError as error:
                future.set_exception(TopicLimit(f"topic {self.spec.name!r}: {error}; close a reader first"))

    def remove_reader(self, port: ReaderPort) -> None:
        self.engine.remove_reader(self.topic_id, port.cursor)
        port.cursor.close()
        self.readers.remove(port)
        if not self.readers_wanted and not self.spec.level.keeps_history:
            self._close_log()

    def _close_log(self) -> None:
        if self.log is not None:
            self.engine.bind_log(self.topic_id, None)
            self.log.close()
            self.log = None
            self._larges.look()

    # --- journal

    @property
    def retained_bytes(self) -> tuple[int, int, int, int]:
        """Bytes of a history that the log can usefully take, and the bytes of each message beside its payload; the
        largest message that lies in the log itself, and the bytes of larger ones."""
        capacity = self.log.capacity if self.log is not None else self.config.log_capacity
        return capacity - capacity // 8, 2 * SLOT_OVERHEAD, self.spec.size_max, self.config.large_capacity

    def start_journal(self, group: str, held: Order) -> None:
        """Opens the journal, which holds everything up to `held`, in a thread of its own; `journal_task` ends when the
        journal runs, or with the error that prevented it. The log is empty so far."""
        from spindle_core.delivery import Cursor

        log = self.log
        assert log is not None
        cursor = Cursor(keep_all=True, from_history=True)
        self.engine.add_reader(self.topic_id, cursor)
        reader = local_reader(self.engine, log, cursor)
        reader.opener = self._larges.opener(self.spec.name)
        loop, config, ledger = asyncio.get_running_loop(), self.config, self._questions.ledger(self.spec.name)
        known, kept = self._questions.store(self.spec.name).known, self.types

        def on_durable(index: int) -> None:
            self.engine.set_durable(self.topic_id, index, log)  # the engine ignores it if the log is gone

        def on_failure(error: Exception) -> None:
            loop.call_soon_threadsafe(self._on_failure, error)

        def on_halt(reason: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: the node has stopped
                loop.call_soon_threadsafe(self.on_halt, self.spec.name, reason)

        def before_commit(view_id: int) -> None:
            # The holders first: once a message of their view is on disk, it may be acknowledged.
            noted = self._noted
            ledger.update(seen_view=view_id, **({} if noted is None else holding(noted)))

        def make() -> Journal:
            return open_journal(config, self.spec, self.node_id, reader, on_durable, on_failure, group=group,
                                held=held, before_commit=before_commit, known=known, types=lambda: kept.said,
                                on_halt=on_halt)

        async def start() -> Journal:
            return await loop.run_in_executor(None, make)

        self.journal_task = loop.create_task(start())
        self.journal_task.add_done_callback(look_at)

    async def end_journal(self) -> None:
        """Closes the journal, when it has written what is in the log, and drops the log: both begin anew, as the
        history does. No reader has been placed."""
        self._history.clear()
        log, self.log = self.log, None
        journal_task, self.journal_task = self.journal_task, None
        if log is not None:
            self.engine.bind_log(self.topic_id, None)
            self._retiring = asyncio.get_running_loop().create_task(self._retire(log, journal_task, None, None))
            await self.retired()
        self.forget_history()
        self.make_log()

    async def journal(self) -> Journal:
        """The journal, when it runs. Raises JournalError if it can't, SpindleError if this node has left the topic."""
        if self.journal_task is None:
            raise self._not_a_member()
        return await asyncio.shield(self.journal_task)

    def _not_a_member(self) -> SpindleError:
        return SpindleError(f"this node is no member of topic {self.spec.name!r} any more")

    async def journal_is_durable(self) -> None:
        """Returns when all that is in the log by now, or on its way there as history, is on disk."""
        while self._history:
            await asyncio.sleep(ROOM_POLL_S)
        journal = await self.journal()
        if self.log is None:
            raise self._not_a_member()
        index = self.log.delivered
        while not await asyncio.get_running_loop().run_in_executor(None, journal.wait_durable, index, DURABLE_WAIT_S):
            pass

    async def all_on_disk(self) -> None:
        """Returns when this member is whole, and all that it has delivered by now, with the backlog of past epochs, is
        on disk. Raises JournalError if it can't be, SpindleError if this node has left the topic."""
        while not self.whole or self.busy:
            if not self.member:
                raise self._not_a_member()
            await asyncio.sleep(ROOM_POLL_S)
        await self.journal_is_durable()

    def _note(self, holders: Holders, again: bool = False) -> None:
        """Has the ledger name the present members, now and before anything of theirs is acknowledged. `again`: if they
        still are."""
        if again and self._noted != holders:
            return
        self._noted = holders
        ledger = self._questions.ledger(self.spec.name)

        def write() -> None:
            if self._noted == holders:
                ledger.update(**holding(holders))

        def look(done: asyncio.Future[None]) -> None:
            if done.cancelled() or (error := done.exception()) is None:
                return
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                # Nothing of theirs is acknowledged meanwhile: the journal writes them down before its next commit.
                loop.call_later(NOTE_AGAIN_S, self._note, holders, True)
            else:
                self._on_failure(Exception(str(error)) if not isinstance(error, Exception) else error)

        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, write).add_done_callback(look)

    # --- the end

    def leave(self, next_view: View | None = None) -> None:
        """The installed view is without this node in the topic: forget what its membership had. Readers that are being
        opened stay, for the next time. `next_view`: the view of the nodes that go on, if this one left in order."""
        successor = self._successor(next_view)
        self.member, self._noted = False, None
        if self.catching_up is not None:
            self.catching_up.cancel()
            self.catching_up = None
        if self._pump is not None:
            self._pump.cancel()
        self._history.clear()
        self._history_bytes = 0
        while self._backlog:
            self._let_go(self._backlog.popleft())
        self._history_of = None
        self._restoring = False
        self.types = KeptTypes(self.spec.name)  # the journal still has the one before
        self.engine.forget_topic(self.topic_id)
        self._larges.left(self.spec.name)
        log, self.log = self.log, None
        if log is not None:
            rest = self._retire(log, self.journal_task, self._retiring, successor)
            self._retiring = asyncio.get_running_loop().create_task(rest)
        self.journal_task = None

    def _successor(self, next_view: View | None) -> Successor | None:
        """The nodes that hold the topic after this one left in order; None if none of them has all of it."""
        topic = next_view.topic(self.spec.name) if next_view is not None else None
        if self._noted is None or topic is None or next_view is None or topic.donor is None:
            return None
        return Successor(Holders(next_view.view_id, topic.members))

    async def _retire(self, log: DeliveryLog, journal_task: asyncio.Task[Journal] | None,
                      earlier: asyncio.Task[None] | None, successor: Successor | None) -> None:
        """Lets the journal write the rest, in a thread as the disk may take its time; then the log goes."""
        if earlier is not None:
            await asyncio.wait({earlier})
        log.stop()
        if journal_task is not None:
            try:
                journal = await journal_task
                await asyncio.get_running_loop().run_in_executor(None, journal.close)
                if successor is not None:
                    ledger = self._questions.ledger(self.spec.name)
                    await asyncio.get_running_loop().run_in_executor(None, lambda: ledger.update(successor=successor))
            except (SpindleError, OSError) as error:
                LOG.error("%s", error)
        log.close()
        self._larges.look()

    @property
    def retiring(self) -> bool:
        """True while what `leave` gave up is being closed."""
        return self._retiring is not None and not self._retiring.done()

    async def retired(self) -> None:
        """Waits until what `leave` gave up is closed."""
        if self._retiring is not None:
            await asyncio.wait({self._retiring})

    def fail_waiting(self, error: SpindleError) -> None:
        """The node stops: nobody waits for ever."""
        if self.catching_up is not None and not self.catching_up.done.done():
            self.catching_up.done.set_exception(error)
        waiting, self._waiting = self._waiting, []
        for _, _, future in waiting:
            if not future.done():
                future.set_exception(error)
