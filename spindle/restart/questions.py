"""Answers other nodes about journals and histories, and carries the questions of this one: the post office of restarts.

Why for the whole node: a node that has a journal is asked about it whether it is a member of the topic or not.

Rules:
- Everything runs on the node's event loop; disks are read on threads.
- What a node is asked to write down it tries until it has done so, or another view is installed.
- What a node says of a topic holds for the view that it is asked about: it answers when it has installed that.
- A history that this node asks for ends with its last chunk, with a problem, or when either end is out of the view.
  Nobody waits for the dead. What this node gives to others is in `spindle.restart.giving`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from spindle.errors import JournalError
from spindle.proto import node_pb2 as pb
from spindle.restart.archive import NO_JOURNALS, Archive, in_thread
from spindle.restart.chain import Successor, Summary, knows
from spindle.restart.codec import successor_from_wire, successor_to_wire, summary_from_wire, summary_to_wire
from spindle.restart.giving import Giving
from spindle.restart.streams import Stream, Unavailable
from spindle.restart.witness import Witness

if TYPE_CHECKING:
    from pathlib import Path

    from spindle.config.settings import NodeConfig
    from spindle.group.view import View
    from spindle.restart.disk import Store
    from spindle.restart.ledger import Ledger
    from spindle.restart.topic import TopicHere

KINDS = (
    "history", "history_request", "history_more", "restart_query", "restart_summary", "restart_record",
    "restart_recorded",
)
RETRY_S = 0.05  # between two tries to write something down; doubles up to the next
RETRY_MAX_S = 2.0
LOG = logging.getLogger("spindle.node")


class Questions:
    """See the module. send(node id, message) queues a message to a connected node, send_in_turn one that is behind all
    that wait for their turn; local(name) and view() look up."""

    def __init__(self, config: NodeConfig, node_id: int, send: Callable[[int, pb.PeerMessage], bool],
                 send_in_turn: Callable[[int, pb.PeerMessage], Awaitable[bool]],
                 local: Callable[[str], TopicHere | None], view: Callable[[], View | None]) -> None:
        self.config, self.node_id = config, node_id
        self._send, self._local, self._view = send, local, view
        self._archive = Archive(config.journal_dir, node_id)
        self.giving = Giving(self._archive, node_id, send_in_turn, local, view, config.log_capacity,
                             config.large_capacity)
        self._witness = Witness(node_id, self.ask, self._note)
        self._locks: dict[str, asyncio.Lock] = {}
        self._closing: dict[str, asyncio.Task[None]] = {}  # journals of topics that were deleted
        self._numbers = itertools.count(1)
        self._streams: dict[int, Stream] = {}
        self._installed = asyncio.Event()  # set with the next view
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    # --- what this node has

    @property
    def directory(self) -> Path | None:
        return self.config.journal_dir

    def ledger(self, topic: str) -> Ledger:
        """The one ledger of this node for the topic."""
        return self._archive.ledger(topic)

    def store(self, topic: str) -> Store:
        """Where this node keeps the topic's journal."""
        return self._archive.store(topic)

    async def summary(self, topic: str) -> Summary:
        """What there is on disk, said to somebody who restarts the topic."""
        if self.directory is None:
            return Summary(problem=NO_JOURNALS)
        local = self._local(topic)
        if local is not None and local.whole and local.catching_up is None:
            return Summary(self.ledger(topic).read(), serving=True)
        return self._witness.completed(topic, await self._on_disk(topic, local))

    async def _on_disk(self, topic: str, local: TopicHere | None) -> Summary:
        if local is not None and local.catching_up is not None:
            return await local.catching_up.summary()
        await self.retired(topic)
        async with self.lock(topic):
            return await in_thread(self._look, topic)

    def closes(self, local: TopicHere) -> None:
        """This topic was deleted, and another may have its name soon: what is here of it is being closed still."""
        name, earlier = local.spec.name, self._closing.get(local.spec.name)

        async def closed() -> None:
            if earlier is not None:
                await asyncio.wait({earlier})
            await local.retired()

        def forget(task: asyncio.Task[None]) -> None:
            if self._closing.get(name) is task:
                del self._closing[name]

        task = self._closing[name] = asyncio.get_running_loop().create_task(closed())
        task.add_done_callback(forget)

    async def retired(self, topic: str) -> None:
        """Waits until the journal of an earlier membership is closed, also of an earlier topic of this name."""
        while (earlier := self._closing.get(topic)) is not None:
            await asyncio.wait({earlier})
        local = self._local(topic)
        if local is not None:
            await local.retired()

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
        """Has a node's summary brought to the topic that catches up here."""
        if node_id == self.node_id:
            self._spawn(self._answer_query(node_id, topic, view_id))
        else:
            self._send(node_id, pb.PeerMessage(restart_query=pb.RestartQuery(topic=topic, view_id=view_id)))

    def record(self, node_id: int, topic: str, view_id: int, successor: Successor) -> None:
        """Has a node (this one too) write down who goes on with the topic; what catches up here hears of it."""
        record = pb.RestartRecord(topic=topic, view_id=view_id, successor=successor_to_wire(successor))
        if node_id == self.node_id:
            self._spawn(self._write_down(node_id, record))
        else:
            self._send(node_id, pb.PeerMessage(restart_record=record))

    def stream(self, node_id: int, request: pb.HistoryRequest) -> Stream:
        """Asks a node for a history. Raises Unavailable if it is not connected."""
        request.number = next(self._numbers)

        def tell(more: pb.HistoryMore) -> None:
            self._send(node_id, pb.PeerMessage(history_more=more))

        def forget(number: int) -> None:
            self._streams.pop(number, None)

        stream = self._streams[request.number] = Stream(node_id, request.number, tell, forget)
        if not self._send(node_id, pb.PeerMessage(history_request=request)):
            forget(request.number)
            raise Unavailable(f"node {node_id} is not connected")
        return stream

    # --- what comes in

    def take(self, node_id: int, message: pb.PeerMessage) -> None:
        """A message of one of KINDS from a node. Raises WireError if it makes no sense."""
        if self._stopped:  # peers are heard until they get Farewell, and an answer may wait for what never comes now
            return
        kind = message.WhichOneof("body")
        if kind == "history":
            stream = self._streams.get(message.history.number)
            if stream is not None and stream.node_id == node_id:
                stream.put(message.history)
        elif kind == "history_request":
            self.giving.asked(node_id, message.history_request)
        elif kind == "history_more":
            self.giving.more(node_id, message.history_more)
        elif kind == "restart_query":
            self._spawn(self._answer_query(node_id, message.restart_query.topic, message.restart_query.view_id))
        elif kind == "restart_record":
            self._spawn(self._write_down(node_id, message.restart_record))
        elif kind == "restart_summary":
            summary = message.restart_summary
            self._heard(summary.topic, node_id, summary.view_id, summary_from_wire(summary))
        elif kind == "restart_recorded":
            local = self._local(message.restart_recorded.topic)
            if local is not None and local.catching_up is not None:
                local.catching_up.recorded(node_id, message.restart_recorded.view_id)

    def _heard(self, topic: str, node_id: int, view_id: int, summary: Summary) -> None:
        local = self._local(topic)
        if local is not None and local.catching_up is not None:
            local.catching_up.heard(node_id, view_id, summary)
        self._witness.heard(topic, node_id, view_id, summary)

    async def _until_installed(self, view_id: int) -> None:
        while (view := self._view()) is None or view.view_id < view_id:
            await self._installed.wait()

    async def _answer_query(self, node_id: int, topic: str, view_id: int) -> None:
        await self._until_installed(view_id)  # that view may put this node out of the topic
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

        def wanted() -> bool:
            view = self._view()
            return view is not None and view.view_id == message.view_id

        if await _written(write, wanted, f"topic {message.topic!r}: cannot write down that {successor.holders} go on "
                                         "with it"):
            self._send(node_id, pb.PeerMessage(restart_recorded=pb.RestartRecorded(
                topic=message.topic, view_id=message.view_id)))

    def view_changed(self, view: View) -> None:
        """A view is installed: nodes outside it ask and answer nothing any more. Of logged topics that this node has no
        part in it finds out who holds them, in case it is among the first to come back one day."""
        if self.directory is not None:
            self._witness.view_changed(view)
        nodes = set(view.node_ids)
        for stream in list(self._streams.values()):
            if stream.node_id not in nodes:
                stream.put(None)
        self.giving.view_changed(view)
        self._installed.set()
        self._installed = asyncio.Event()

    def _note(self, topic: str, successor: Successor) -> None:
        self._spawn(self._write_note(topic, successor))

    async def _write_note(self, topic: str, successor: Successor) -> None:
        await self.retired(topic)  # an earlier membership that ends writes down its successor itself
        ledger = self.ledger(topic)

        def write() -> None:
            if not knows(ledger.read(), successor.holders):
                ledger.update(successor=successor)

        await _written(write, lambda: self._witness.wanted(topic, successor),
                       f"topic {topic!r}: cannot write down that {successor.holders} hold it")

    # --- the end

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._stopped:
            work.close()
            return
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Nothing is asked or answered any more. Idempotent."""
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        self.giving.stop()
        for stream in self._streams.values():
            stream.put(None)

    async def ended(self) -> None:
        """After stop: returns when nothing of it runs."""
        await self.giving.ended()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def _written(write: Callable[[], None], wanted: Callable[[], bool], problem: str) -> bool:
    """Writes to a ledger, on a thread, again and again while the disk has no room or fails: others wait for it, and a
    disk may get better. False if it isn't wanted any more."""
    pause = RETRY_S
    while True:
        try:
            await in_thread(write)
            return True
        except (JournalError, OSError) as error:
            if pause == RETRY_S:
                LOG.error("%s, and tries again: %s", problem, error)
        await asyncio.sleep(pause)
        pause = min(2 * pause, RETRY_MAX_S)
        if not wanted():
            return False
