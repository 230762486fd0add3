"""What nodes tell each other of themselves, so that one status of the whole group can be had at any of them.

Why asked for, and not in the rows: nobody but people needs it, and then all of it, as JSON of some 100 KB.

Rules:
- A node is asked one thing of a kind at a time: who asks for the same meanwhile gets the same answer. So applications
  that ask often cost the other nodes no more than one that asks.
- An answer goes out piece by piece, when little else waits for the asker, and nobody waits for it longer than
  TIMEOUT_S.
- A node of an earlier version isn't asked, and named as such.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine
from typing import Any

from spindle.errors import NodeStopped, ProtocolMismatch, SpindleError, WireError
from spindle.proto import node_pb2 as pb
from spindle.transport.peers import Peers

KINDS = ("status_query", "status_part")
TIMEOUT_S = 1.0  # for another node's answer
PIECE_BYTES = 128 << 10
ANSWER_BYTES_MAX = 64 << 20


class Telling:
    """Of one node. `status(figures)` gives what it says of itself; `spawn` runs a coroutine in the background."""

    def __init__(self, peers: Peers, status: Callable[[bool], dict[str, Any]],
                 spawn: Callable[[Coroutine[Any, Any, None]], Any]) -> None:
        self._peers, self._status, self._spawn = peers, status, spawn
        self._numbers = itertools.count(1)
        self._asked: dict[tuple[int, bool], int] = {}  # by node and kind: the number of the query under way
        self._waiting: dict[int, tuple[int, asyncio.Future[dict[str, Any]], bytearray]] = {}  # by number: who is asked
        self._answering: set[tuple[int, bool]] = set()  # whose query is being answered

    async def ask(self, node_id: int, figures: bool = False) -> dict[str, Any]:
        """What another node says of itself. Raises NodeStopped, ProtocolMismatch, TimeoutError; each says which."""
        number = self._asked.get((node_id, figures))
        if number is None:
            number = self._begin(node_id, figures)
        done = self._waiting[number][1]
        try:
            return await asyncio.wait_for(asyncio.shield(done), TIMEOUT_S)
        except (TimeoutError, asyncio.TimeoutError):
            self._forget(number)
            raise TimeoutError(f"node {node_id} did not say anything of itself within {TIMEOUT_S:g} s") from None

    def _begin(self, node_id: int, figures: bool) -> int:
        if node_id not in self._peers.connected:
            raise NodeStopped(f"node {node_id} is not connected")
        if not self._peers.tells_status(node_id):
            raise ProtocolMismatch(f"node {node_id} is of an earlier version, which tells others nothing of itself")
        number = next(self._numbers)
        self._asked[node_id, figures] = number
        self._waiting[number] = node_id, asyncio.get_running_loop().create_future(), bytearray()
        self._peers.send(node_id, pb.PeerMessage(status_query=pb.StatusQuery(number=number, figures=figures)))
        return number

    def _forget(self, number: int) -> None:
        if self._waiting.pop(number, None) is not None:
            self._asked = {key: one for key, one in self._asked.items() if one != number}

    def take(self, node_id: int, message: pb.PeerMessage) -> None:
        """One of KINDS. Raises WireError for an answer that none can be."""
        if message.WhichOneof("body") == "status_query":
            query = message.status_query
            if (node_id, query.figures) not in self._answering:  # who asks again before the answer gets that one
                self._answering.add((node_id, query.figures))
                self._spawn(self._answer(node_id, query.number, query.figures))
            return
        part = message.status_part
        asked, done, body = self._waiting.get(part.number, (None, None, bytearray()))
        if asked != node_id or done is None:
            return  # too late
        body += part.json
        if len(body) > ANSWER_BYTES_MAX:
            raise WireError(f"node {node_id} says more than {ANSWER_BYTES_MAX >> 20} MiB of itself")
        if part.last:
            self._forget(part.number)
            if not done.done():
                done.set_result(_parsed(node_id, bytes(body)))

    async def _answer(self, node_id: int, number: int, figures: bool) -> None:
        try:
            body = json.dumps(self._status(figures)).encode()
            for begin in range(0, len(body), PIECE_BYTES):
                if not await self._peers.send_in_turn(node_id, pb.PeerMessage(status_part=pb.StatusPart(
                        number=number, json=body[begin:begin + PIECE_BYTES], last=begin + PIECE_BYTES >= len(body)))):
                    return
        finally:
            self._answering.discard((node_id, figures))

    def gone(self, node_id: int) -> None:
        """The connection to a node has ended."""
        self._end(node_id, NodeStopped(f"node {node_id} has gone"))

    def stop(self, error: SpindleError) -> None:
        """This node stops."""
        for node_id in {asked for asked, _, _ in self._waiting.values()}:
            self._end(node_id, error)

    def _end(self, node_id: int, error: SpindleError) -> None:
        for number, (asked, done, _) in list(self._waiting.items()):
            if asked == node_id:
                self._forget(number)
                if not done.done():
                    done.set_exception(error)
                    done.exception()  # whoever waits takes it; perhaps nobody does any more


def _parsed(node_id: int, body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError as error:
        raise WireError(f"what node {node_id} says of itself can't be read: {error}") from None
    if not isinstance(found, dict):
        raise WireError(f"what node {node_id} says of itself is no object")
    return found


__all__ = ["KINDS", "Telling"]
