"""One topic of one node on its way from having become a member to being whole: having all that came before.

The member that it asks is its *guide*: the first by rank of those that were members before it; when they are gone, the
first of those that became members with it. When that is the node itself, the topic is restarted here (logged topics),
or begins with what comes live (volatile ones: a beginning of the history without the rest would leave a hole). The
guide serves as soon as it is whole itself. Since members only ask ones that come before them in this order, nobody
waits in a circle; and when a guide dies, the next view has another one, which goes on after the last message that has
come. So nobody waits for ever.

A logged topic is filled through its delivery log: first the end of the own journal, as far as late readers would still
get it, then what the guide has beyond. The journal reads the log like any other reader, and leaves out what it holds.

Rules:
- Before the first message is taken, the journal is made a prefix of what the guide has: what conflicts is cut off and
  kept beside, and the ledger says so first.
- Whole means: all of it is on disk here, and the ledger says that this node is one of the holders.
- Delivery of the topic is held all the while; `LocalTopic` releases it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from spindle.errors import ConfigError, JournalError, SpindleError, WireError
from spindle.group.levels import Level
from spindle.proto import node_pb2 as pb
from spindle.restart.archive import in_thread, plain
from spindle.restart.chain import (
    NOTHING,
    Holders,
    Life,
    Order,
    Standing,
    Summary,
    agreed_end,
    began_after,
    supersedes,
)
from spindle.restart.codec import lives_from_wire, lives_to_wire, order_from_wire, order_to_wire, relayed_from_wire
from spindle.restart.pieces import Gatherer, message_max
from spindle.restart.questions import Questions
from spindle.restart.restorer import Ask, Fill, Follow, Record, Restorer, Settle, Step
from spindle.restart.streams import Refused, Stream, Unavailable
from spindle.restart.tables import TableState, add, begun_by
from spindle.waiting import within

if TYPE_CHECKING:
    from spindle.group.view import Topic, View
    from spindle.journal.reading import JournalMessage
    from spindle.restart.disk import TakenUp
    from spindle.restart.history import Message
    from spindle.restart.topic import TopicHere

WAITING_MAX = 1 << 20  # bytes that wait for room in the log before the next chunk is taken
TAIL_AT_ONCE = 64  # messages of the own journal's end that are put into the log before a look at what waits
KEYED_AT_ONCE = 512  # the same of a topic with keys, of which all of the journal is read
BEYOND_ALL: Order = (1 << 64, 0)
ROOM_POLL_S = 0.002
ASK_AGAIN_S = 0.25  # before a node is asked again whose disk failed or had no room; doubles up to the next
ASK_AGAIN_MAX_S = 8.0
LOG = logging.getLogger("spindle.node")


def guides(topic: Topic) -> tuple[int, ...]:
    """Whom the fresh members of this view can get the topic from, in order, themselves among them."""
    return tuple(sorted(topic.members, key=lambda node_id: node_id in topic.fresh))


def still_there(order: tuple[int, ...], topic: Topic) -> tuple[int, ...]:
    """Those of `order` that stayed members all along. A node that came back comes after them, and may ask them."""
    return tuple(node_id for node_id in order if node_id in topic.members and node_id not in topic.fresh)


class CatchingUp:
    """See the module. Runs from the moment it is made. `done` ends when the topic is whole, or with why it can't be.

    entered  view with which the node became a member
    order    whom to ask, in this order, this node among them: see `guides`
    """

    def __init__(self, local: TopicHere, questions: Questions, view: View, topic: Topic, *, entered: int,
                 order: tuple[int, ...]) -> None:
        self.local, self._questions, self._me = local, questions, local.node_id
        self._entered = entered
        self._view, self._topic = view, topic
        self._order = order
        self._follow: int | None = None  # a whole member that the order lacks
        self._moved = asyncio.Event()
        self._stream: Stream | None = None
        self._restorer: Restorer | None = None
        self._inputs: asyncio.Queue[Callable[[Restorer], None]] = asyncio.Queue()
        self._ask_again_s = ASK_AGAIN_S
        self._found: TakenUp | None = None
        self._looked = self._to_look()  # done when the journal is in order, with its error if it can't be
        self._lives: tuple[Life, ...] = ()
        self._conformed = False
        self._damaged = False  # what the journal has is of an earlier definition, and can't be read whole
        self._tail: Iterator[JournalMessage] | None = None  # of the own journal: what is not in the log yet
        self._tail_begin: Order = NOTHING  # messages before that are for the table of keys alone
        self._reading: asyncio.Future[list[Message]] | None = None  # the next part of it
        self._cutting: asyncio.Future[None] | None = None  # the own journal
        self._problem = ""
        self.last: Order = NOTHING  # message that this node has, in its journal or on its way there
        self.until_view = entered  # messages of this view and later ones come live
        self.progress = 0  # grows while messages come
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._task = asyncio.get_running_loop().create_task(self._run())

    # --- what others tell

    def view_changed(self, view: View, topic: Topic) -> None:
        """A newer view is installed, in which this node is a member of the topic still."""
        before = self._guide
        self._view, self._topic = view, topic
        self._order = still_there(self._order, topic)
        if self._follow is not None and not still_there((self._follow,), topic):
            self._follow = None
        if self._guide != before and self._stream is not None:
            self._stream.put(None)
        self._moved.set()
        self._inputs.put_nowait(
            lambda restorer: restorer.begin(self._group, view.view_id, view.node_ids, topic.members,
                                            topic.renewed_since))

    def heard(self, node_id: int, view_id: int, summary: Summary) -> None:
        """A node has said what is in its journal."""
        self._inputs.put_nowait(lambda restorer: restorer.heard(node_id, view_id, summary))

    def recorded(self, node_id: int, view_id: int) -> None:
        """A node has written down who goes on."""
        self._inputs.put_nowait(lambda restorer: restorer.recorded(node_id, view_id))

    def awaiting(self) -> str:
        """For people: what the topic waits for, to be said behind "waits for"."""
        if self._restorer is not None and self._restorer.step is not Step.DONE:
            return self._restorer.awaiting()
        guide = self._guide
        what = f"messages from node {guide}" if guide != self._me else "a look at its journal"
        return what + (f" ({self._problem})" if self._problem else "")

    async def summary(self) -> Summary:
        """What this node has on disk, while it isn't whole."""
        try:
            found: TakenUp = await asyncio.shield(self._looked)
        except (JournalError, OSError) as error:
            return await in_thread(self._questions.damaged, self.local.spec.name, error)
        if not self._conformed:
            return dataclasses.replace(found.summary, standing=self._questions.ledger(self.local.spec.name).read())
        await self.local.journal_is_durable()
        journal = await self.local.journal()
        begin = found.begin if found.begin != NOTHING else self.local.first_order
        return Summary(self._questions.ledger(self.local.spec.name).read(), begin, journal.last,
                       int(str(journal.status()["position"])),
                       type=(self.local.spec.type_name, self.local.spec.type_hash))

    def cancel(self) -> None:
        """The node is no member of the topic any more."""
        self._task.cancel()
        if self._cutting is not None:
            self._cutting.cancel()
        self.done.cancel()

    @property
    def _group(self) -> str:
        return f"{self._view.group_id:016x}"

    @property
    def _guide(self) -> int:
        if self._follow is not None:
            return self._follow
        return next(iter(self._order), self._me)

    # --- the way

    async def _run(self) -> None:
        logged = self.local.spec.level is Level.LOGGED
        try:
            if logged:
                await self._look()
            whole = False
            while not whole:
                self._moved.clear()
                guide = self._guide
                try:
                    if guide != self._me:
                        whole = await self._ask(guide)
                    elif logged:
                        whole = await self._restore()
                    else:
                        self.local.forget_history()
                        whole = True
                    continue
                except Unavailable as error:
                    self._problem = str(error)
                    LOG.info("topic %r: no history from node %d: %s", self.local.spec.name, guide, error)
                    if isinstance(error, Refused) and not logged:
                        self._without(guide, error)
                        continue
                await self._moved.wait()
            self.local.filled(self.until_view)
            if not self.done.done():
                self.done.set_result(None)
        except Exception as error:
            if not isinstance(error, (SpindleError, OSError)):
                LOG.exception("topic %r", self.local.spec.name)
            failure = error if isinstance(error, SpindleError) else JournalError(
                f"topic {self.local.spec.name!r} cannot be taken up: {error}")
            if not self._looked.done():
                self._looked.set_exception(failure)
            if not self.done.done():
                self.done.set_exception(failure)
            LOG.error("%s", failure)

    def _without(self, guide: int, error: Refused) -> None:
        """The guide refuses the history of a volatile topic. If a part has come already, the guide may only be unable
        to go on from there: the part is dropped, and the guide is asked for all that it has, which has no hole. Else
        the next member is asked. If none has the history, the topic goes on all the same."""
        if self.last != NOTHING:
            LOG.warning("topic %r: %s; what has come of its history is dropped", self.local.spec.name, error)
            self.local.forget_history()
            self.last = NOTHING
            return
        LOG.warning("topic %r: %s; the next member is asked", self.local.spec.name, error)
        self._order = tuple(node_id for node_id in self._order if node_id != guide)

    @staticmethod
    def _to_look() -> asyncio.Future[TakenUp]:
        future: asyncio.Future[TakenUp] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        return future

    async def _look(self) -> None:
        from spindle.journal.errors import JournalCorrupt
        from spindle.restart.disk import take_up

        name = self.local.spec.name
        await self._questions.retired(name)  # the journal of an earlier membership has its last commits to write
        async with self._questions.lock(name):
            try:
                found = await in_thread(take_up, self._questions.store(name), self._questions.ledger(name))
            except JournalCorrupt as error:
                self._lives = self._questions.ledger(name).read().lives
                if not self._is_given_up():
                    raise
                self._damaged = True
                self._looked.set_exception(error)
                return
        self._found, self._damaged = found, False
        self.last, self._lives = found.end, found.standing.lives
        self._looked.set_result(found)

    def _is_given_up(self) -> bool:
        """True if the topic has been declared anew since the messages that this node has."""
        since = self._topic.renewed_since
        return since is not None and not began_after(self._lives, self._view.group_id, since)

    async def _ask(self, guide: int) -> bool:
        """Takes what the guide has; False if it has to be asked again."""
        await self._cut_whole()
        if self.local.fills_table and self.last != NOTHING:
            # A part of another's table: what another node keeps begins anew.
            self.local.forget_history()
            self.last = NOTHING
        request = pb.HistoryRequest(
            topic=self.local.spec.name, view_id=self._entered, empty=self.last == NOTHING,
            lives=lives_to_wire(self._lives), end=order_to_wire(self.last))
        gatherer = Gatherer(self.local.spec.name, message_max(self.local.spec))
        table: TableState | None = None
        stream = self._questions.stream(guide, request)
        with stream:
            self._stream = stream
            try:
                while True:
                    chunk = await stream.take()
                    self._take_types(chunk, guide)
                    if chunk.start.HasField("table"):
                        table = self._begin_table(chunk.start, guide)
                        self.local.take_table(table)
                    elif chunk.HasField("start"):
                        agreed = order_from_wire(chunk.start.after)
                        if self.last > agreed or self._damaged:
                            await self._cut(agreed, lives_from_wire(chunk.start.lives))
                            return False
                        await self._conform(lives_from_wire(chunk.start.lives))
                        await self._learn(chunk.start)
                        self.until_view = chunk.start.until_view
                    self._take_over(table, chunk, guide)
                    await self._feed(gatherer, chunk, guide)
                    if chunk.last:
                        break
            finally:
                self._stream = None
        if self.local.spec.level is Level.LOGGED:
            await self.local.journal_is_durable()
            await self._update(holders=self._holders(), whole=True, successor=None)
        return True

    def _begin_table(self, start: pb.HistoryStart, node_id: int) -> TableState:
        """The table whose messages follow. Raises Refused for nonsense."""
        try:
            return begun_by(start.table)
        except WireError as error:
            raise Refused(f"node {node_id}: {error}") from error

    def _take_over(self, table: TableState | None, chunk: pb.HistoryChunk, node_id: int) -> None:
        """Which keys of the table are over, if a chunk says so. Raises Refused for nonsense."""
        try:
            if table is not None:
                add(table, chunk, self.local.spec.table_bytes)
        except WireError as error:
            raise Refused(f"node {node_id}: {error}") from error

    def _holders(self) -> Holders:
        return Holders(self._view.view_id, self._topic.members)

    async def _update(self, **changes: Any) -> None:
        ledger = self._questions.ledger(self.local.spec.name)
        await in_thread(lambda: ledger.update(**changes))

    async def _cut(self, agreed: Order, lives: tuple[Life, ...] = ()) -> None:
        """Ends the own journal with `agreed` or a little before; the rest is kept beside it. Goes on when a newer view
        ends what called for it; see _cut_whole(). `lives`: of whoever has the topic whole."""
        self._cutting = asyncio.ensure_future(self._cut_now(agreed, lives))
        self._cutting.add_done_callback(lambda done: done.cancelled() or done.exception())
        await self._cut_whole()

    async def _cut_whole(self) -> None:
        """Nothing else is done with the journal before a cut of it has ended."""
        if self._cutting is not None:
            await asyncio.shield(self._cutting)
            self._cutting = None

    async def _cut_now(self, agreed: Order, lives: tuple[Life, ...]) -> None:
        from spindle.restart.disk import ASIDE_SUFFIX, FORKED_SUFFIX, cut_after, take_up

        name, renewed = self.local.spec.name, self._is_given_up()
        self._looked = self._to_look()
        if self._found is not None and not self._damaged and supersedes(
                lives, self._found.begin, self._questions.ledger(name).read()):
            await self._update(lives=lives)
        else:
            await self._update(whole=False)
        if self._conformed:
            await self._begin_anew(f"node {self._guide} can't go on from what has come of it")
        store = self._questions.store(name)
        count, kept = await in_thread(cut_after, store, agreed, ASIDE_SUFFIX if renewed else FORKED_SUFFIX)
        LOG.warning("topic %r: %s; they are kept in %s", name,
                    f"it was declared anew, so all messages of this node's journal ({count}) count no more" if renewed
                    else f"the last {count} messages of this node's journal conflict with what the group went on with",
                    ", ".join(map(str, kept)))
        self._found = await in_thread(take_up, store, self._questions.ledger(name))
        self._damaged = False
        self._looked.set_result(self._found)
        self.last = self._found.end

    async def _begin_anew(self, why: str) -> None:
        """The journal goes on already, and what follows has to come from a member that can't go on from there: its own
        journal begins later, or it and others have agreed on something else. No reader has been placed."""
        LOG.warning("topic %r: %s: it is taken up anew", self.local.spec.name, why)
        if self._reading is not None:
            await asyncio.wait({self._reading})
        self._tail = self._reading = None
        self._conformed = False
        await self.local.end_journal()

    async def _conform(self, lives: tuple[Life, ...]) -> None:
        """The journal is a prefix of what has these lives: goes on with it, its end first into the log."""
        self._lives = lives
        await self._update(lives=lives)
        self.local.lives = lives
        if not self._conformed:
            await self._begin_journal()
        await self._append_tail()

    async def _begin_journal(self) -> None:
        from spindle.restart.disk import begin_of_end, messages_after, messages_from, types_from

        store, spec = self._questions.store(self.local.spec.name), self.local.spec
        end = self.last
        begin = NOTHING if end == NOTHING else await in_thread(
            begin_of_end, store, spec.history_depth, *self.local.retained_bytes)
        whole = NOTHING if spec.effects else begin  # of a topic with keys all of it counts
        if end != NOTHING:
            self.local.take_types(await in_thread(types_from, store, whole))
        self.local.start_journal(self._group, end)
        self._conformed = True
        self._tail, self._tail_begin = messages_from(store, begin, end), begin
        if spec.effects:  # what is kept of each key follows from all of the journal
            self._tail = messages_after(store, NOTHING, end)
            self._tail_begin = begin if begin != NOTHING else BEYOND_ALL

    async def _append_tail(self) -> None:
        """Puts the end of the own journal into the log. If a newer view cancels this in the middle, the next attempt
        takes the rest, and first what is being read just then."""
        tail = self._tail
        if tail is None:
            return
        await self.local.journal()  # who reads the log is there, or the log would fill and stay full
        at_once = KEYED_AT_ONCE if self.local.spec.effects else TAIL_AT_ONCE
        while True:
            await self._room()
            if self._reading is None:
                self._reading = asyncio.ensure_future(
                    in_thread(lambda: [plain(one) for one in itertools.islice(tail, at_once)]))
                self._reading.add_done_callback(lambda done: done.cancelled() or done.exception())
            part = await asyncio.shield(self._reading)
            self._reading = None
            if not part:
                self._tail = None
                return
            older = sum(one.order < self._tail_begin for one in part) if self.local.spec.effects else 0
            if older:
                self.progress += 1
                self.local.note_history(part[:older])
            if older < len(part):
                self._append(part[older:])

    async def _learn(self, start: pb.HistoryStart) -> None:
        """Tells the own journal how far relayed writers had got in the other one before the messages that come."""
        if start.relayed:
            (await self.local.journal()).learn(relayed_from_wire(start.relayed))

    def _take_types(self, chunk: pb.HistoryChunk, node_id: int) -> None:
        """Takes the types of what follows. Raises Refused for what can be none."""
        try:
            self.local.take_types(chunk.types)
        except ConfigError as error:
            raise Refused(f"node {node_id}: {error}") from error

    async def _feed(self, gatherer: Gatherer, chunk: pb.HistoryChunk, node_id: int) -> None:
        """Takes what is new of a chunk. Raises Refused if the chunk is malformed."""
        self.progress += 1
        try:
            messages = gatherer.take(chunk)
        except WireError as error:
            raise Refused(f"node {node_id}: {error}") from error
        await self._room()
        new = [one for one in messages if one.order > self.last]
        if new:
            self.last = new[-1].order
            self._append(new)

    async def _room(self) -> None:
        """Waits for room in the log, before anything more is taken: an attempt that a newer view cancels while it waits
        has taken nothing, and the next attempt waits as well."""
        while self.local.history_waiting > WAITING_MAX:
            await asyncio.sleep(ROOM_POLL_S)
            self.progress += self.local.history_waiting <= WAITING_MAX

    def _append(self, messages: list[Message]) -> None:
        self.progress += 1
        self.local.append_history(messages)

    # --- the restart

    async def _restore(self) -> bool:
        """Restarts the topic here; False if somebody is whole after all."""
        view, topic = self._view, self._topic
        restorer = self._restorer = Restorer(self._me, self._questions.config.journal_restart)
        self._inputs, self._ask_again_s = asyncio.Queue(), ASK_AGAIN_S
        restorer.begin(self._group, view.view_id, view.node_ids, topic.members, topic.renewed_since)
        filling: asyncio.Task[None] | None = None
        said = ""
        try:
            while True:
                for action in restorer.take_actions():
                    if isinstance(action, Follow):
                        self._follow = action.node_id
                        return False
                    if isinstance(action, Ask):
                        self._questions.ask(action.node_id, self.local.spec.name, action.view_id)
                    elif isinstance(action, Record):
                        self._questions.record(action.node_id, self.local.spec.name, action.view_id, action.successor)
                    elif isinstance(action, Settle):
                        standing = action.standing
                        await (self._renew if action.renews else self._settle)(standing)
                        restorer.settled()
                        self._go_on(standing.lives)
                        return True
                    elif isinstance(action, Fill):
                        if filling is not None:
                            filling.cancel()
                        filling = asyncio.get_running_loop().create_task(self._fill(action))
                if restorer.step is Step.WAITING and said != restorer.awaiting():
                    said = restorer.awaiting()
                    LOG.warning("topic %r waits for %s", self.local.spec.name, said)
                (await self._next_input(restorer))(restorer)
                while not self._inputs.empty():  # a newer view among them ends what an older one called for
                    self._inputs.get_nowait()(restorer)
        finally:
            if filling is not None:
                filling.cancel()

    async def _settle(self, standing: Standing) -> None:
        await self._update(lives=standing.lives, holders=standing.holders, whole=True, successor=None,
                           seen_view=standing.seen_view)

    async def _renew(self, standing: Standing) -> None:
        """Settles without what there is on disk, which is put aside: the topic has been declared anew."""
        from spindle.restart.disk import ASIDE_SUFFIX, cut_after

        await self._cut_whole()
        name = self.local.spec.name
        self._looked = self._to_look()
        if self._conformed:
            await self._begin_anew("it was declared anew, and what has come since counted at too few nodes")
        await self._settle(standing)
        if self._damaged:
            _, kept = await in_thread(cut_after, self._questions.store(name), NOTHING, ASIDE_SUFFIX)
            LOG.warning("topic %r was declared anew: what this node had of it, which is damaged, is kept in %s", name,
                        ", ".join(map(str, kept)))
        await self._look()
        await self._conform(standing.lives)

    async def _next_input(self, restorer: Restorer) -> Callable[[Restorer], None]:
        """The next input of the restorer; meanwhile nodes whose disk failed are asked again."""
        while True:
            try:
                return await within(self._ask_again_s if restorer.troubled else None, self._inputs.get())
            except asyncio.TimeoutError:
                self._ask_again_s = min(2 * self._ask_again_s, ASK_AGAIN_MAX_S)
                for node_id in restorer.troubled:
                    self._questions.ask(node_id, self.local.spec.name, restorer.view_id)

    def _go_on(self, lives: tuple[Life, ...]) -> None:
        self._lives = self.local.lives = lives
        self.until_view = max(self._entered, lives[-1].first_view)
        if lives[-1].after != NOTHING:
            LOG.warning("topic %r goes on after view %d, sequence %d, as its journals hold it", self.local.spec.name,
                        *lives[-1].after)

    async def _fill_from(self, action: Fill) -> bool:
        """Takes what the source of a decision has beyond the own journal; False if something may be missing between."""
        decision = action.decision
        assert decision.source is not None
        request = pb.HistoryRequest(
            topic=self.local.spec.name, view_id=action.view_id, from_disk=True, empty=self.last == NOTHING,
            end=order_to_wire(self.last), until=order_to_wire(decision.end))
        gatherer = Gatherer(self.local.spec.name, message_max(self.local.spec))
        with self._questions.stream(decision.source, request) as stream:
            last = False
            while not last:
                chunk = await stream.take()
                self._take_types(chunk, decision.source)
                if chunk.HasField("start"):
                    if chunk.start.HasField("after") and self.last > order_from_wire(chunk.start.after):
                        return False
                    await self._conform(decision.lives[:-1])
                await self._learn(chunk.start)
                await self._feed(gatherer, chunk, decision.source)
                last = chunk.last
        return True

    async def _fill(self, action: Fill) -> None:
        """Makes the own journal end with the decision's end."""
        from spindle.journal.fitting import check_type

        decision, view_id = action.decision, action.view_id

        def tell(tell_it: Callable[[Restorer], None]) -> None:
            self._inputs.put_nowait(tell_it)

        try:
            if decision.type[0]:
                check_type(self.local.spec, *decision.type, f"node {decision.source}")
            await self._cut_whole()
            agreed = agreed_end(decision.lives, decision.end, self._lives, self.last)
            if self.last > agreed or self._damaged:
                await self._cut(agreed)
            if self.last < decision.end and not await self._fill_from(action):  # the source's journal began later
                await self._cut(NOTHING)
                await self._fill_from(action)
            await self._conform(decision.lives[:-1])
            if self.last < decision.end:
                raise Unavailable(f"its journal ends with view {self.last[0]}, sequence {self.last[1]} after all")
            await self.local.journal_is_durable()
            tell(lambda restorer: restorer.filled(view_id))
        except Unavailable as error:
            reason = str(error)
            tell(lambda restorer: restorer.failed(view_id, reason))
        except (SpindleError, OSError) as error:
            failure = error

            def give_up(_: Restorer) -> None:
                raise failure

            tell(give_up)
