"""Carries the questions and answers about external clients between nodes: the input and output of `turning`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle.errors import NodeStopped, SpindleError
from spindle.proto import node_pb2 as pb
from spindle.relay.turning import Action, Answer, Ask, Done, End, Query, Turning

if TYPE_CHECKING:
    from spindle.relay.served import RelayedApplication
    from spindle.view import View
    from spindle_core.engine import Engine

KINDS = ("relay_query", "relay_answer")
ELSEWHERE = "this application has turned to another node since"


class RelayDesk:
    """See the module. send(node id, message) queues a message to a node; the engine knows what was delivered."""

    def __init__(self, node_id: int, send: Callable[[int, pb.PeerMessage], bool], engine: Engine) -> None:
        self._send = send
        self._engine = engine
        self._turning = Turning(node_id, self._last_of)
        self._waiting: dict[int, asyncio.Future[int]] = {}  # by number of the claim
        self._stopped: SpindleError | None = None

    def _last_of(self, writer: int) -> int:
        with self._engine.parked():
            return int(self._engine.relayed.until(writer))

    def begin(self, client: bytes, turn: int, app: RelayedApplication) -> None:
        """An application begins its turn here. Raises NodeStopped if it is elsewhere by now."""
        actions = self._turning.begin(client, turn, app)
        if actions is None:
            raise NodeStopped(ELSEWHERE)
        app.flushed.add_done_callback(lambda _: self._do(self._turning.flushed(app)))
        self._do(actions)

    async def claim(self, client: bytes, turn: int, writer: int) -> int:
        """Source timestamp up to which the group has, or will never have, what earlier turns have sent.

        Waits as long as a node of the view still has something of it. Raises NodeStopped.
        """
        if self._stopped is not None:
            raise self._stopped
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        number, actions = self._turning.claim(client, turn, writer)
        self._waiting[number] = future
        try:
            self._do(actions)
            return await future
        finally:
            del self._waiting[number]
            self._turning.give_up(number)

    def take(self, node_id: int, message: pb.PeerMessage) -> None:
        """A message of one of KINDS from a node."""
        if message.WhichOneof("body") == "relay_query":
            one = message.relay_query
            self._do(self._turning.asked(node_id, Query(
                one.number, one.client, one.turn, one.writer, one.group_id, one.view_id)))
        else:
            answer = message.relay_answer
            self._do(self._turning.answered(node_id, answer.number, answer.sent_ns, answer.refusal))

    def installed(self, view: View) -> None:
        """A view is installed."""
        self._do(self._turning.installed(view.group_id, view.view_id, view.node_ids))

    def stop(self, error: SpindleError) -> None:
        """Nothing is claimed any more; who waits gets `error`."""
        self._stopped = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Ask):
                query = action.query
                self._send(action.node_id, pb.PeerMessage(relay_query=pb.RelayQuery(
                    number=query.number, client=query.client, turn=query.turn, writer=query.writer,
                    group_id=query.group_id, view_id=query.view_id)))
            elif isinstance(action, Answer):
                self._send(action.node_id, pb.PeerMessage(relay_answer=pb.RelayAnswer(
                    number=action.number, sent_ns=action.sent_ns, refusal=action.refusal)))
            elif isinstance(action, End):
                app: RelayedApplication = action.relay  # type: ignore[assignment]
                app.end(NodeStopped(ELSEWHERE))
            elif isinstance(action, Done):
                future = self._waiting.get(action.claim)
                if future is not None and not future.done():
                    if action.refusal:
                        future.set_exception(NodeStopped(action.refusal))
                    else:
                        future.set_result(action.sent_ns)
