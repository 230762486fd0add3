"""Gives histories to members that ask for them: volatile ones from the log, logged ones from the journal.

Rules:
- From a member that is whole a history brings what was delivered before the asker became a member; from disk, what the
  journal holds, whether the node is a member or not. The history of a volatile topic was pinned when the view with the
  asker was installed (`spindle.restart.history`); if it could not be pinned, the asker gets what is retained when it
  asks.
- All histories to one node take turns on its connection, and each is at most AHEAD_BYTES ahead of it
  (`spindle.restart.streams`). So memory holds one message and one chunk of each, and a bounded amount for each node.
- What is known of the types of its messages goes first (`spindle.group.types`).
- A history ends with its last chunk, with a problem, or when the asker stops it, or is out of the view or the topic.
  Then the log, the journal's file and the task are let go.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from spindle.errors import SpindleError, WireError
from spindle.group.levels import Level
from spindle.proto import node_pb2 as pb
from spindle.restart.archive import NO_JOURNALS, Archive, in_thread, plain
from spindle.restart.chain import NOTHING, Order, agreed_end
from spindle.restart.codec import lives_from_wire, lives_to_wire, order_from_wire, order_to_wire, relayed_to_wire
from spindle.restart.history import Donation
from spindle.restart.pieces import CHUNK_BYTES, Cutter, Message
from spindle.restart.streams import Unavailable, Window
from spindle.restart.tables import state_of, to_chunks

if TYPE_CHECKING:
    from spindle.group.topics import TopicSpec
    from spindle.group.view import View
    from spindle.restart.disk import Store
    from spindle.restart.topic import TopicHere

WHOLE_POLL_S = 0.005  # first pause between two looks whether a topic is whole; doubles up to the next
WHOLE_POLL_MAX_S = 0.1
LAG_POLL_S = 0.005  # between two looks at a log that has not reached the cut yet
ASKED_MAX = 1024  # histories that one node asks for at the same time; it has 255 topics
LOG = logging.getLogger("spindle.node")


class Pin(NamedTuple):
    """For whom a history of a volatile topic is kept: the member, and the view that it became one with."""

    topic: str
    node_id: int
    view_id: int


class Giving:
    """See the module. send(node id, message) queues a message when it is its turn, and returns whether the node is
    connected; local(name) and view() look up."""

    def __init__(self, archive: Archive, node_id: int, send: Callable[[int, pb.PeerMessage], Awaitable[bool]],
                 local: Callable[[str], TopicHere | None], view: Callable[[], View | None], log_capacity: int,
                 large_capacity: int) -> None:
        self._archive, self._me = archive, node_id
        self._send, self._local, self._view = send, local, view
        self._log_capacity, self._large_capacity = log_capacity, large_capacity
        self._pinned: dict[Pin, Donation] = {}
        self._given: dict[tuple[int, int], tuple[asyncio.Task[None], Window]] = {}  # by asker and number of the request

    # --- what is kept for fresh members

    def pin(self, pin: Pin, donation: Donation) -> None:
        """Keeps a history until its member has it, or isn't one any more."""
        self._pinned[pin] = donation

    def _unpin(self, pin: Pin) -> None:
        donation = self._pinned.pop(pin, None)
        if donation is not None:
            donation.close()

    @property
    def pinned(self) -> int:
        """Histories of volatile topics that members of the installed view have not got yet."""
        return len(self._pinned)

    def view_changed(self, view: View) -> None:
        """A view is installed: who isn't a member any more, or has become one anew, gets nothing more."""
        for pin in list(self._pinned):
            topic = view.topic(pin.topic)
            if topic is None or not {pin.node_id, self._me} <= set(topic.members) or (
                    pin.view_id < view.view_id and not {pin.node_id, self._me}.isdisjoint(topic.fresh)):
                self._unpin(pin)
        for (node_id, _), (task, _) in list(self._given.items()):
            if view.rank_of(node_id) is None:
                task.cancel()

    # --- what is asked

    def asked(self, node_id: int, request: pb.HistoryRequest) -> None:
        """A node asks for a history. Raises WireError if it may not."""
        key = (node_id, request.number)
        if key in self._given:
            raise WireError(f"node {node_id} used the number {request.number} twice for a history")
        if sum(1 for asker, _ in self._given if asker == node_id) >= ASKED_MAX:
            raise WireError(f"node {node_id} asks for more than {ASKED_MAX} histories at once")
        window = Window()
        task = asyncio.get_running_loop().create_task(self._give(node_id, request, window))
        self._given[key] = task, window

        def ended(_: object) -> None:
            del self._given[key]
            donation = self._pinned.get(pin := _pin_of(node_id, request))
            if donation is not None and (donation.asked or donation.withdrawn):
                self._unpin(pin)

        task.add_done_callback(ended)

    def more(self, node_id: int, more: pb.HistoryMore) -> None:
        """A node has taken something, or wants no more. Raises WireError if it lies."""
        task, window = self._given.get((node_id, more.number), (None, None))
        if task is None or window is None:
            return  # it is over already
        if more.stop:
            task.cancel()
        else:
            window.took(more.taken)

    async def _give(self, node_id: int, request: pb.HistoryRequest, window: Window) -> None:
        count = 0
        try:
            async with contextlib.aclosing(self._chunks(node_id, request)) as chunks:
                async for chunk in chunks:
                    await window.room()
                    window.sent(chunk)
                    chunk.number = request.number
                    count += sum(not one.missing for one in chunk.messages)
                    if not await self._send(node_id, pb.PeerMessage(history=chunk)):
                        return
            LOG.info("gave node %d %d messages of topic %r", node_id, count, request.topic)
        except Exception as error:  # whoever asked must hear something
            if isinstance(error, (SpindleError, OSError)):
                LOG.warning("topic %r: node %d gets no history from this node: %s", request.topic, node_id, error)
            else:
                LOG.exception("topic %r: node %d gets no history from this node", request.topic, node_id)
            problem = pb.HistoryChunk(number=request.number, problem=str(error) or type(error).__name__, last=True)
            await self._send(node_id, pb.PeerMessage(history=problem))

    async def _chunks(self, node_id: int, request: pb.HistoryRequest) -> AsyncGenerator[pb.HistoryChunk, None]:
        if request.from_disk:
            async for chunk in self._from_disk(request):
                yield chunk
            return
        source = await self._source(node_id, request)
        local = self._local(request.topic)
        for chunk in _of_types(local.types.said.values() if local is not None else ()):
            yield chunk
        if isinstance(source, Donation):
            begun = False
            try:
                async for chunk in _from_log(source):
                    begun = True
                    yield chunk
                return
            except Unavailable:
                if begun or not source.withdrawn:
                    raise
            source = await self._source(node_id, request)
            assert not isinstance(source, Donation)
        if source.spec.level is Level.LOGGED:
            async for chunk in self._from_journal(source, request):
                yield chunk
        elif source.fills_table:
            async for chunk in _from_table(source):
                yield chunk
        else:
            assert source.log is not None
            after = NOTHING if request.empty else order_from_wire(request.end)
            donation = Donation(source.engine, source.topic_id, source.log, source.log.delivered, after)
            try:
                if not donation.goes_on:
                    raise Unavailable(f"it keeps nothing of topic {request.topic!r} from as early as view {after[0]}, "
                                      f"sequence {after[1]}")
                async for chunk in _from_log(donation, after, (request.view_id, 0)):
                    yield chunk
            finally:
                donation.close()

    async def _source(self, node_id: int, request: pb.HistoryRequest) -> Donation | TopicHere:
        """The history kept for the asker; if there is none, the topic here, once its log has all that comes before the
        asker's membership."""
        pause = WHOLE_POLL_S
        while True:
            view = self._view()
            if view is not None and view.view_id >= request.view_id:
                donation = self._pinned.get(_pin_of(node_id, request))
                if donation is not None and not donation.asked and not donation.withdrawn:
                    donation.asked = True
                    return donation
                topic = view.topic(request.topic)
                if topic is None or self._me not in topic.members:
                    raise Unavailable(f"it is no member of topic {request.topic!r} any more")
                if node_id not in topic.members:
                    raise Unavailable(f"node {node_id} is no member of topic {request.topic!r}")
                local = self._local(request.topic)
                if local is not None and local.whole and not local.busy:
                    return local
            await asyncio.sleep(pause)
            pause = min(2 * pause, WHOLE_POLL_MAX_S)

    async def _from_journal(self, local: TopicHere, request: pb.HistoryRequest
    ) -> AsyncGenerator[pb.HistoryChunk, None]:
        """What this member has on disk beyond what the asker has, up to the asker's membership."""
        from spindle.restart.disk import first_message, messages_after, messages_from, relayed_before, types_from

        await local.journal_is_durable()
        lives = self._archive.ledger(request.topic).read().lives
        until_view = max(request.view_id, lives[-1].first_view if lives else 0)
        after, store = NOTHING, self._archive.store(request.topic)
        if request.empty:
            begin = await in_thread(_begin_for, store, local.spec, *local.retained_bytes)
            messages = map(plain, messages_from(store, begin, (until_view, -1)))
            if begin == NOTHING or begin[0] >= until_view:
                begin = until_view, -1
        else:
            journal = await local.journal()
            theirs = lives_from_wire(request.lives)
            after = agreed_end(lives, journal.last, theirs, order_from_wire(request.end))
            begin = await in_thread(first_message, store)
            after = _without_hole(after, begin)
            messages = map(plain, messages_after(store, after, (until_view, -1)))
        relayed = await in_thread(relayed_before, store, begin) if begin > after else {}
        for chunk in _of_types(await in_thread(types_from, store, max(begin, after))):
            yield chunk
        start = pb.HistoryStart(lives=lives_to_wire(lives), after=order_to_wire(after), until_view=until_view,
                                relayed=relayed_to_wire(relayed))
        yield pb.HistoryChunk(start=start)
        async for chunk in _in_chunks(messages):
            yield chunk

    async def _from_disk(self, request: pb.HistoryRequest) -> AsyncGenerator[pb.HistoryChunk, None]:
        from spindle.restart.disk import first_message, messages_after, messages_from, relayed_before, types_from

        if self._archive.directory is None:
            raise Unavailable(NO_JOURNALS)
        store, until = self._archive.store(request.topic), order_from_wire(request.until)
        if request.empty:
            spec, after = self._spec_of(request.topic), NOTHING
            size_max = spec.size_max if spec is not None else self._log_capacity
            begin = await in_thread(
                _begin_for, store, spec, self._log_capacity, 0, size_max, self._large_capacity)
            messages = map(plain, messages_from(store, begin, until))
            if begin == NOTHING or begin > until:
                begin = until[0], until[1] + 1
            relayed = await in_thread(relayed_before, store, begin)
        else:
            begin = await in_thread(first_message, store)
            after = _without_hole(order_from_wire(request.end), begin)
            messages = map(plain, messages_after(store, after, until))
            relayed = await in_thread(relayed_before, store, begin) if begin > after else {}
        for chunk in _of_types(await in_thread(types_from, store, max(begin, after))):
            yield chunk
        yield pb.HistoryChunk(start=pb.HistoryStart(relayed=relayed_to_wire(relayed), after=order_to_wire(after)))
        async for chunk in _in_chunks(messages):
            yield chunk

    def _spec_of(self, name: str) -> TopicSpec | None:
        """As the group has the topic."""
        view = self._view()
        topic = view.topic(name) if view is not None else None
        return topic.spec if topic is not None else None

    # --- the end

    def stop(self) -> None:
        """Nothing is given any more. Idempotent."""
        for task, _ in self._given.values():
            task.cancel()
        for pin in list(self._pinned):
            self._unpin(pin)

    async def ended(self) -> None:
        """After stop: returns when nothing of it runs."""
        if self._given:
            await asyncio.wait([task for task, _ in self._given.values()])

    async def all_given(self, timeout_s: float) -> None:
        """Returns when all members have what is kept for them, or after `timeout_s` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self._pinned and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(LAG_POLL_S)


def _without_hole(end: Order, begin: Order) -> Order:
    """After which order a journal that ends with `end` goes on from one that begins with `begin`. If the latter begins
    later, it lacks messages in between, so the former has to begin anew: NOTHING."""
    return NOTHING if begin > end else end


def _begin_for(store: Store, spec: TopicSpec | None, bytes_max: int, overhead: int, size_max: int, large_max: int
               ) -> Order:
    """Where the history begins for a node that has nothing of the journal: as far back as late readers are given of it;
    of a topic with keys at the beginning, for what is kept of each key follows from all messages, at whatever node."""
    from spindle.restart.disk import begin_of_end, first_message

    if spec is not None and spec.effects:
        return first_message(store)
    return begin_of_end(store, spec.history_depth if spec is not None else 0, bytes_max, overhead, size_max, large_max)


def _pin_of(node_id: int, request: pb.HistoryRequest) -> Pin:
    return Pin(request.topic, node_id, request.view_id)


def _of_types(types: Iterable[bytes]) -> Iterator[pb.HistoryChunk]:
    """Types in chunks of bounded size."""
    chunk, size = pb.HistoryChunk(), 0
    for said in types:
        if size and size + len(said) > CHUNK_BYTES:
            yield chunk
            chunk, size = pb.HistoryChunk(), 0
        chunk.types.append(said)
        size += len(said)
    if size:
        yield chunk


async def _from_log(donation: Donation, after: Order = NOTHING, before: Order | None = None
) -> AsyncGenerator[pb.HistoryChunk, None]:
    """All of a donation; or what is beyond `after` and before `before`."""

    def following() -> Message | None:
        while (message := donation.following()) is not None:
            if message.order > after and (before is None or message.order < before):
                break
        return message

    cutter, last = Cutter(following), False
    while not last:
        chunk = pb.HistoryChunk()
        last = not cutter.fill(chunk) and donation.over
        if donation.closed:
            raise Unavailable("whoever had the rest of it is gone" if donation.withdrawn else
                              "one of the two has left the topic")
        chunk.last = last
        if chunk.messages or last:
            yield chunk
        else:
            await asyncio.sleep(LAG_POLL_S)


async def _from_table(local: TopicHere) -> AsyncGenerator[pb.HistoryChunk, None]:
    """What is kept of each key here, as it is now. It stands for all that came before the asker's membership, and
    perhaps for more: whoever has this table, and then what comes after it, lacks nothing."""
    from spindle_core.table_copy import table_messages

    assert local.log is not None
    with local.engine.parked():
        copy = local.log.copy_table(shared=False)
        state = state_of(local.log, copy)
    for chunk in to_chunks(state):
        yield chunk
    async for chunk in _in_chunks(map(Message._make, table_messages(copy))):
        yield chunk


async def _in_chunks(messages: Iterator[Message]) -> AsyncGenerator[pb.HistoryChunk, None]:
    """`messages` is run on a thread."""
    cutter = Cutter(lambda: next(messages, None))
    last = False
    while not last:
        chunk = pb.HistoryChunk()
        last = chunk.last = not await in_thread(cutter.fill, chunk)
        yield chunk
