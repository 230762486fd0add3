"""Carries the questions and answers about external clients between nodes: the input and output of `handover`.

Where the answers come from: of a logged topic, the journal of the node that claims; of others, what the engines have
delivered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from spindle.errors import NodeStopped, SpindleError
from spindle.proto import node_pb2 as pb
from spindle.relay.handover import Action, Answer, Ask, Done, End, Handover, Query

if TYPE_CHECKING:
    from spindle.group.view import View
    from spindle.topics.local_topic import LocalTopic
    from spindle_core.engine import Engine

KINDS = ("relay_query", "relay_answer")
ELSEWHERE = "this application has turned to another node since"


class Relay(Protocol):
    """An application that this node relays for."""

    def __hash__(self) -> int:
        """By identity."""

    flushed: asyncio.Future[None]  # done when all that was taken from it is delivered everywhere

    def end(self, reason: SpindleError) -> None:
        """Takes no more from it, and tells it why."""


class RelayClaims:
    """See the module. send(node id, message) queues a message to a node; the engine knows what was delivered;
    local(name) is what this node has of a topic."""

    def __init__(self, node_id: int, send: Callable[[int, pb.PeerMessage], bool], engine: Engine,
                 local: Callable[[str], LocalTopic | None]) -> None:
        self._send = send
        self._local = local
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine = engine
        self._me = node_id
        self._handover = Handover(node_id)
        self._waiting: dict[int, asyncio.Future[int]] = {}  # by number of the claim
        self._stopped: SpindleError | None = None

    def _last_of(self, writer: int) -> int:
        with self._engine.parked():
            return int(self._engine.relayed.until(writer))

    def begin(self, client: bytes, turn: int, app: Relay) -> None:
        """An application begins its turn here. Raises NodeStopped if it is elsewhere by now."""
        actions = self._handover.begin(client, turn, app)
        if actions is None:
            raise NodeStopped(ELSEWHERE)
        app.flushed.add_done_callback(lambda _: self._do(self._handover.flushed(app)))
        self._do(actions)

    async def claim(self, client: bytes, turn: int, writer: int, topic: str, logged: bool) -> int:
        """Source timestamp up to which the group has what earlier turns have sent; no more of what they sent will be
        delivered. Of a logged topic it is on all disks; this node must be a member of it and stay one.

        Waits as long as a node of the view still has something of it. Raises NodeStopped, SpindleError.
        """
        if self._stopped is not None:
            raise self._stopped
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        number, actions = self._handover.claim(client, turn, writer, topic, logged)
        self._waiting[number] = future
        try:
            self._do(actions)
            return await future
        finally:
            del self._waiting[number]
            self._handover.give_up(number)

    def take(self, node_id: int, message: pb.PeerMessage) -> None:
        """A message of one of KINDS from a node."""
        if message.WhichOneof("body") == "relay_query":
            one = message.relay_query
            self._do(self._handover.asked(node_id, Query(
                one.number, one.client, one.turn, one.writer, one.group_id, one.view_id, one.topic,
                one.on_disk)))
        else:
            answer = message.relay_answer
            self._do(self._handover.answered(node_id, answer.number, answer.view_id, answer.sent_ns, answer.refusal))

    def installed(self, view: View) -> None:
        """A view is installed."""
        self._do(self._handover.installed(view.group_id, view.view_id, view.node_ids))

    def stop(self, error: SpindleError) -> None:
        """Nothing is claimed any more; who waits gets `error`."""
        self._stopped = error
        for task in self._tasks:
            task.cancel()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Ask):
                query = action.query
                self._send(action.node_id, pb.PeerMessage(relay_query=pb.RelayQuery(
                    number=query.number, client=query.client, turn=query.turn, writer=query.writer,
                    group_id=query.group_id, view_id=query.view_id, topic=query.topic, on_disk=query.on_disk)))
            elif isinstance(action, Answer):
                task = asyncio.get_running_loop().create_task(self._answer(action))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif isinstance(action, End):
                app: Relay = action.relay  # type: ignore[assignment]
                app.end(NodeStopped(ELSEWHERE))
            elif isinstance(action, Done):
                future = self._waiting.get(action.claim)
                if future is not None and not future.done():
                    if action.refusal:
                        future.set_exception(NodeStopped(action.refusal))
                    else:
                        future.set_result(action.sent_ns)

    async def _answer(self, answer: Answer) -> None:
        query, refusal, sent_ns = answer.query, answer.refusal, 0
        if not refusal and not query.on_disk:
            sent_ns = self._last_of(query.writer)
        elif not refusal:
            try:
                sent_ns = await self._on_disk(query)
            except SpindleError as error:
                if answer.node_id != self._me:
                    return  # this node stops, and the view without it asks anew
                refusal = str(error)
        if answer.node_id == self._me:
            self._do(self._handover.answered(self._me, query.number, answer.view_id, sent_ns, refusal))
        else:
            self._send(answer.node_id, pb.PeerMessage(relay_answer=pb.RelayAnswer(
                number=query.number, sent_ns=sent_ns, refusal=refusal, view_id=answer.view_id)))

    async def _on_disk(self, query: Query) -> int:
        """The writer's last timestamp in this node's journal of a logged topic, once all that the node has delivered by
        now is in there; 0 if it is no member. Raises SpindleError if the journal fails, as then the node stops."""
        local = self._local(query.topic)
        try:
            if local is not None and local.member:
                await local.all_on_disk()
                return (await local.journal()).relayed_until(query.writer)
        except SpindleError:
            if local is not None and local.member:
                raise
        return 0
