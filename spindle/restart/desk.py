"""Answers other nodes about journals and histories, and carries the questions of this one: the post office of restarts.

Why for the whole node: a node that has a journal is asked about it whether it is a member of the topic or not.

Rules:
- Everything runs on the node's event loop; disks are read on threads.
- Who asks for a history takes it in chunks and says so; the other end is never more than CHUNKS_AHEAD ahead, so neither
  holds more than that in memory.
- A stream ends with its last chunk, with a problem, or when either end is out of the view. Nobody waits for the dead.
- From a member that is whole a stream brings what was delivered before the asker became a member; from disk, what the
  journal holds, whether the node is a member or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from spindle.errors import JournalError, SpindleError, WireError
from spindle.group.levels import Level
from spindle.proto import node_pb2 as pb
from spindle.restart.chain import NOTHING, Holders, Order, Successor, Summary, agreed_end, knows
from spindle.restart.codec import (
    lives_from_wire,
    lives_to_wire,
    order_from_wire,
    order_to_wire,
    relayed_to_wire,
    successor_from_wire,
    successor_to_wire,
    summary_from_wire,
    summary_to_wire,
)
from spindle.restart.history import CHUNK_BYTES, CHUNK_MESSAGES, Donation, Message, received

if TYPE_CHECKING:
    from pathlib import Path

    from spindle.config.settings import NodeConfig
    from spindle.group.view import View
    from spindle.restart.disk import Store
    from spindle.restart.ledger import Ledger
    from spindle.restart.topic import TopicHere

CHUNKS_AHEAD = 16
WHOLE_POLL_S = 0.005  # first pause between two looks whether a topic is whole; doubles up to the next
WHOLE_POLL_MAX_S = 0.1
NO_JOURNALS = "it has no journal directory ([journal] dir)"
KINDS = ("history_request", "history_more", "restart_query", "restart_summary", "restart_record", "restart_recorded")
LOG = logging.getLogger("spindle.node")
T = TypeVar("T")


class Unavailable(SpindleError):
    """A node can't give the history that it was asked for, or not any more."""


class Stream:
    """A history on its way in. Iterate over its chunks; leave the context to stop it."""

    def __init__(self, desk: Desk, node_id: int, number: int) -> None:
        self._desk, self.node_id, self._number = desk, node_id, number
        self._chunks: asyncio.Queue[pb.HistoryChunk | None] = asyncio.Queue()
        self._ended = False

    def put(self, chunk: pb.HistoryChunk | None) -> None:
        """A chunk has come; None: none will come any more."""
        self._chunks.put_nowait(chunk)

    async def take(self) -> pb.HistoryChunk:
        """The next chunk. Raises Unavailable."""
        chunk = await self._chunks.get()
        if chunk is None:
            raise Unavailable(f"node {self.node_id} is gone")
        if chunk.problem:
            self._ended = True
            raise Unavailable(f"node {self.node_id}: {chunk.problem}")
        self._ended = chunk.last
        if not chunk.last:
            self._desk.send_more(self.node_id, self._number, 1)
        return chunk

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self._desk.forget(self._number)
        if not self._ended:
            self._desk.send_more(self.node_id, self._number, 0)


class Desk:
    """See the module. send(node id, message) queues a message to a connected node; local(name) and view() look up."""

    def __init__(self, config: NodeConfig, node_id: int, send: Callable[[int, pb.PeerMessage], bool],
                 local: Callable[[str], TopicHere | None], view: Callable[[], View | None]) -> None:
        self.config, self.node_id = config, node_id
        self._send, self._local, self._view = send, local, view
        self._ledgers: dict[str, Ledger] = {}
        # Of topics that this node is no member of: who was asked whether it is whole, in which view, and the answers.
        self._asked: dict[str, tuple[int, tuple[int, ...], dict[int, bool]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._numbers = itertools.count(1)
        self._streams: dict[int, Stream] = {}
        self._serving: dict[tuple[int, int], asyncio.Task[None]] = {}  # by node id and number of the request
        self._credit: dict[tuple[int, int], asyncio.Semaphore] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    # --- what this node has

    @property
    def directory(self) -> Path | None:
        return self.config.journal_dir

    def ledger(self, topic: str) -> Ledger:
        """The one ledger of this node for the topic."""
        from spindle.restart.ledger import Ledger

        assert self.directory is not None
        if topic not in self._ledgers:
            self._ledgers[topic] = Ledger(self.directory, topic, self.node_id)
        return self._ledgers[topic]

    def store(self, topic: str) -> Store:
        """Where this node keeps the topic's journal."""
        from spindle.restart.disk import Store

        assert self.directory is not None
        return Store(self.directory, topic, self.node_id)

    async def summary(self, topic: str) -> Summary:
        """What there is on disk, said to somebody who restarts the topic."""
        if self.directory is None:
            return Summary(problem=NO_JOURNALS)
        local = self._local(topic)
        if local is not None and local.filling is not None:
            return await local.filling.summary()
        if local is not None and local.whole:
            return Summary(self.ledger(topic).read(), serving=True)
        if local is not None:
            await local.retired()
        async with self.lock(topic):
            return await in_thread(self._look, topic)

    def lock(self, topic: str) -> asyncio.Lock:
        """Held while the topic's journal is put in order, so that questions about it don't meet."""
        return self._locks.setdefault(topic, asyncio.Lock())

    def holders(self, topic: str) -> tuple[int, tuple[int, ...]]:
        """Id of the installed view, and the topic's members in it."""
        view = self._view()
        assert view is not None
        found = view.topic(topic)
        return view.view_id, found.members if found is not None else ()

    def _look(self, topic: str) -> Summary:
        from spindle.restart.disk import take_up

        try:
            return take_up(self.store(topic), self.ledger(topic)).summary
        except (JournalError, OSError) as error:
            return self.damaged(topic, error)

    def damaged(self, topic: str, error: Exception) -> Summary:
        """The summary for a journal that can't be taken up; who held the topic may be known all the same."""
        with contextlib.suppress(JournalError, OSError):
            return Summary(self.ledger(topic).read(), problem=str(error))
        return Summary(problem=str(error))

    # --- questions of this node

    def ask(self, node_id: int, topic: str, view_id: int) -> None:
        """Has a node's summary brought to the topic's filling here."""
        if node_id == self.node_id:
            self._spawn(self._answer_query(node_id, topic, view_id))
        else:
            self._send(node_id, pb.PeerMessage(restart_query=pb.RestartQuery(topic=topic, view_id=view_id)))

    def record(self, node_id: int, topic: str, view_id: int, successor: Successor) -> None:
        """Has a node (this one too) write down who goes on with the topic; the filling here hears when another has."""
        record = pb.RestartRecord(topic=topic, view_id=view_id, successor=successor_to_wire(successor))
        if node_id == self.node_id:
            self._spawn(self._write_down(node_id, record))
        else:
            self._send(node_id, pb.PeerMessage(restart_record=record))

    def stream(self, node_id: int, request: pb.HistoryRequest) -> Stream:
        """Asks a node for a history. Raises Unavailable if it is not connected."""
        request.number = next(self._numbers)
        stream = self._streams[request.number] = Stream(self, node_id, request.number)
        if not self._send(node_id, pb.PeerMessage(history_request=request)):
            self.forget(request.number)
            raise Unavailable(f"node {node_id} is not connected")
        return stream

    def forget(self, number: int) -> None:
        self._streams.pop(number, None)

    def send_more(self, node_id: int, number: int, chunks: int) -> None:
        self._send(node_id, pb.PeerMessage(history_more=pb.HistoryMore(number=number, chunks=chunks)))

    # --- what comes in

    def take(self, node_id: int, message: pb.PeerMessage) -> None:
        """A message of one of KINDS, or a history chunk with a number, from a node."""
        kind = message.WhichOneof("body")
        if kind == "history":
            stream = self._streams.get(message.history.number)
            if stream is not None and stream.node_id == node_id:
                stream.put(message.history)
        elif kind == "history_request":
            self._serve(node_id, message.history_request)
        elif kind == "history_more":
            self._more(node_id, message.history_more)
        elif kind == "restart_query":
            self._spawn(self._answer_query(node_id, message.restart_query.topic, message.restart_query.view_id))
        elif kind == "restart_record":
            self._spawn(self._write_down(node_id, message.restart_record))
        elif kind == "restart_summary":
            summary = message.restart_summary
            self._heard(summary.topic, node_id, summary.view_id, summary_from_wire(summary))
        elif kind == "restart_recorded":
            local = self._local(message.restart_recorded.topic)
            if local is not None and local.filling is not None:
                local.filling.recorded(node_id, message.restart_recorded.view_id)

    def _heard(self, topic: str, node_id: int, view_id: int, summary: Summary) -> None:
        local = self._local(topic)
        if local is not None and local.filling is not None:
            local.filling.heard(node_id, view_id, summary)
        asked_in, members, answers = self._asked.get(topic, (-1, (), {}))
        if view_id == asked_in and node_id in members:
            answers[node_id] = summary.serving
            whole = tuple(one for one in members if answers.get(one))
            if whole and len(answers) == len(members):
                self._spawn(self._note(topic, Holders(view_id, whole)))

    async def _answer_query(self, node_id: int, topic: str, view_id: int) -> None:
        try:
            summary = await self.summary(topic)
        except Exception as error:  # whoever asked must hear something
            summary = Summary(problem=f"{type(error).__name__}: {error}")
        if node_id == self.node_id:
            self._heard(topic, node_id, view_id, summary)
        else:
            self._send(node_id, pb.PeerMessage(restart_summary=summary_to_wire(summary, topic, view_id)))

    async def _write_down(self, node_id: int, message: pb.RestartRecord) -> None:
        if self.directory is None:
            return
        ledger, successor = self.ledger(message.topic), successor_from_wire(message.successor)

        def write() -> None:
            if not knows(ledger.read(), successor.holders):
                ledger.update(successor=successor)

        try:
            await in_thread(write)
        except (JournalError, OSError) as error:
            LOG.error("topic %r: cannot write down that %s go on with it: %s", message.topic, successor.holders, error)
            return
        self._send(node_id, pb.PeerMessage(restart_recorded=pb.RestartRecorded(
            topic=message.topic, view_id=message.view_id)))

    def view_changed(self, view: View) -> None:
        """A view is installed: who isn't in it asks and answers nothing any more. Who holds the topics that this node
        has no part in is worth knowing, should it be among the first to come back one day: those members that are
        whole. One that isn't yet acknowledges nothing, and keeps the others from it."""
        for topic in view.topics if self.directory is not None else ():
            name = topic.spec.name
            if topic.spec.level is not Level.LOGGED or self.node_id in topic.members:
                self._asked.pop(name, None)
            elif topic.donor is not None:
                _, members, answers = self._asked.get(name, (-1, (), {}))
                if members != topic.members or not all(answers.get(one) for one in members):
                    self._asked[name] = view.view_id, topic.members, {}
                    for node_id in topic.members:
                        self.ask(node_id, name, view.view_id)
        nodes = set(view.node_ids)
        for stream in list(self._streams.values()):
            if stream.node_id not in nodes:
                stream.put(None)
        for (node_id, _), task in list(self._serving.items()):
            if node_id not in nodes:
                task.cancel()

    async def _note(self, topic: str, holders: Holders) -> None:
        local = self._local(topic)
        if local is not None:
            await local.retired()  # which says the same about its own leave
        ledger = self.ledger(topic)

        def write() -> None:
            if not knows(ledger.read(), holders):
                ledger.update(successor=Successor(holders))

        try:
            await in_thread(write)
        except (JournalError, OSError) as error:
            LOG.warning("topic %r: cannot write down that %s hold it: %s", topic, holders, error)

    # --- giving histories

    def _serve(self, node_id: int, request: pb.HistoryRequest) -> None:
        key = (node_id, request.number)
        if key in self._serving:
            raise WireError(f"node {node_id} used the number {request.number} twice for a history")
        self._credit[key] = asyncio.Semaphore(CHUNKS_AHEAD)
        task = self._serving[key] = self._spawn(self._run_stream(node_id, request))

        def forget(_: object) -> None:
            self._serving.pop(key, None)
            self._credit.pop(key, None)

        task.add_done_callback(forget)

    def _more(self, node_id: int, more: pb.HistoryMore) -> None:
        key = (node_id, more.number)
        credit, task = self._credit.get(key), self._serving.get(key)
        if credit is not None and more.chunks == 1:
            credit.release()
        elif task is not None:
            task.cancel()

    async def _run_stream(self, node_id: int, request: pb.HistoryRequest) -> None:
        key, count = (node_id, request.number), 0
        try:
            async for chunk in self._chunks(node_id, request):
                await self._credit[key].acquire()
                chunk.number = request.number
                count += len(chunk.messages)
                if not self._send(node_id, pb.PeerMessage(history=chunk)):
                    return
            LOG.info("gave node %d %d messages of topic %r", node_id, count, request.topic)
        except (SpindleError, OSError) as error:
            LOG.warning("topic %r: node %d gets no history from this node: %s", request.topic, node_id, error)
            problem = pb.HistoryChunk(number=request.number, problem=str(error), last=True)
            self._send(node_id, pb.PeerMessage(history=problem))

    async def _chunks(self, node_id: int, request: pb.HistoryRequest) -> AsyncIterator[pb.HistoryChunk]:
        if request.from_disk:
            async for chunk in self._from_disk(request):
                yield chunk
            return
        local = await self._until_whole(request)
        if local.spec.level is Level.LOGGED:
            async for chunk in self._from_journal(local, request):
                yield chunk
            return
        assert local.log is not None
        donation = Donation(local.engine, local.topic_id, local.log, request.view_id, node_id)
        donation.cut = local.log.delivered
        after, done = order_from_wire(request.end), False
        try:
            while not done:
                messages, done = donation.take()
                new = [one for one in messages if after < (one.view_id, one.sequence) < (request.view_id, 0)]
                yield pb.HistoryChunk(messages=new, last=done)
        finally:
            donation.close()

    async def _until_whole(self, request: pb.HistoryRequest) -> TopicHere:
        """The topic here, when all is in its log that comes before the asker's membership."""
        pause = WHOLE_POLL_S
        while True:
            view = self._view()
            if view is not None and view.view_id >= request.view_id:
                topic = view.topic(request.topic)
                if topic is None or self.node_id not in topic.members:
                    raise Unavailable(f"it is no member of topic {request.topic!r} any more")
                local = self._local(request.topic)
                if local is not None and local.whole and not local.busy:
                    return local
            await asyncio.sleep(pause)
            pause = min(2 * pause, WHOLE_POLL_MAX_S)

    async def _from_journal(self, local: TopicHere, request: pb.HistoryRequest) -> AsyncIterator[pb.HistoryChunk]:
        """What this member has on disk beyond what the asker has, up to the asker's membership."""
        from spindle.restart.disk import first_message, last_messages, messages_after, relayed_before

        await local.journal_is_durable()
        lives = self.ledger(request.topic).read().lives
        until_view = max(request.view_id, lives[-1].first_view if lives else 0)
        after, store = NOTHING, self.store(request.topic)
        if request.empty:
            found = await in_thread(lambda: last_messages(store, local.spec.history_depth, *local.retained_bytes))
            found = [one for one in found if one.view_id < until_view]
            messages: Iterable[Message] = map(plain, found)
            begin = (found[0].view_id, found[0].sequence) if found else (until_view, -1)
        else:
            journal = await local.journal()
            theirs = lives_from_wire(request.lives)
            after = agreed_end(lives, journal.last, theirs, order_from_wire(request.end))
            messages = map(plain, messages_after(store, after, (until_view, -1)))
            begin = await in_thread(first_message, store)
        relayed = await in_thread(relayed_before, store, begin) if begin > after else {}
        start = pb.HistoryStart(lives=lives_to_wire(lives), after=order_to_wire(after), until_view=until_view,
                                relayed=relayed_to_wire(relayed))
        yield pb.HistoryChunk(start=start)
        async for chunk in in_chunks(iter(messages)):
            yield chunk

    async def _from_disk(self, request: pb.HistoryRequest) -> AsyncIterator[pb.HistoryChunk]:
        from spindle.restart.disk import first_message, last_messages, messages_after, relayed_before

        local = self._local(request.topic)
        if self.directory is None:
            raise Unavailable(NO_JOURNALS)
        store, until = self.store(request.topic), order_from_wire(request.until)
        if request.empty:
            depth, capacity = (local.spec.history_depth if local is not None else 0), self.config.log_capacity
            found = await in_thread(lambda: last_messages(store, depth, capacity, 0))
            found = [one for one in found if (one.view_id, one.sequence) <= until]
            messages: Iterable[Message] = map(plain, found)
            begin = (found[0].view_id, found[0].sequence) if found else (until[0], until[1] + 1)
            relayed = await in_thread(relayed_before, store, begin)
        else:
            after = order_from_wire(request.end)
            messages = map(plain, messages_after(store, after, until))
            begin = await in_thread(first_message, store)
            relayed = await in_thread(relayed_before, store, begin) if begin > after else {}
        yield pb.HistoryChunk(start=pb.HistoryStart(relayed=relayed_to_wire(relayed)))
        async for chunk in in_chunks(iter(messages)):
            yield chunk

    # --- the end

    def _spawn(self, work: object) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def stop(self) -> None:
        """Nothing is asked or answered any more. Idempotent."""
        for task in self._tasks:
            task.cancel()
        for stream in self._streams.values():
            stream.put(None)


async def in_thread(work: Callable[..., T], *arguments: object) -> T:
    """The result of what blocks."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


def plain(message: object) -> Message:
    """A journal's message as it goes into a delivery log."""
    one = message
    return (one.payload, one.sender, one.sequence, one.view_id, one.publish_time,  # type: ignore[attr-defined]
            one.writer & 0xFFFF, one.log_time, one.writer >> 16 & 0xFFFFFFFF)  # type: ignore[attr-defined]


def order_of(message: Message) -> Order:
    return message[3], message[2]


async def in_chunks(messages: Iterator[Message]) -> AsyncIterator[pb.HistoryChunk]:
    """Chunks of bounded size, the last marked; `messages` is run on a thread."""

    def take() -> pb.HistoryChunk:
        chunk, size = pb.HistoryChunk(), 0
        while size < CHUNK_BYTES and len(chunk.messages) < CHUNK_MESSAGES:
            message = next(messages, None)
            if message is None:
                chunk.last = True
                break
            payload, sender, sequence, view_id, source_ns, writer_id, reception_ns, relay = message
            size += len(payload)
            chunk.messages.add(payload=payload, sender=sender, sequence=sequence, view_id=view_id,
                               source_ns=source_ns, writer_id=writer_id, reception_ns=reception_ns, relay=relay)
        return chunk

    last = False
    while not last:
        chunk = await in_thread(take)
        last = chunk.last
        yield chunk


__all__ = ["KINDS", "Desk", "Stream", "Unavailable", "in_thread", "order_of", "plain", "received"]
