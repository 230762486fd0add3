"""Goal: a browser that leaves leaves nothing behind in the process. Method: a connection with a stand-in for the
server, and one for the WebSocket, which says when the browser goes."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import WSMessage, WSMsgType

from spindle.cockpit.connection import Connection

STATE = "the first look"
TIMEOUT_S = 20.0


class Socket:
    """Of a browser that says hello, takes what it is sent, and goes: while it is sent something (`early`), or in the
    moment in which it has taken that."""

    def __init__(self, early: bool) -> None:
        self._early = early
        self._gone = asyncio.Event()
        self.taken: list[str] = []

    async def receive(self) -> WSMessage:
        return WSMessage(WSMsgType.TEXT, json.dumps({"hello": "token"}), None)

    async def send_str(self, text: str) -> None:
        self.taken.append(text)
        if text == STATE:
            if self._early:
                asyncio.get_running_loop().call_soon(self._gone.set)
                await asyncio.sleep(TIMEOUT_S)  # until it is cancelled
            self._gone.set()

    def __aiter__(self) -> Socket:
        return self

    async def __anext__(self) -> WSMessage:
        await self._gone.wait()
        raise StopAsyncIteration


def server() -> Any:
    look = SimpleNamespace(version=1, number=1)
    return SimpleNamespace(
        look=look, config=None, is_full=False, about=dict, encoded=lambda look, viewer, kind: STATE,
        entry=SimpleNamespace(viewer=lambda token, certificate: SimpleNamespace(name="somebody", acts=False)),
        actions=SimpleNamespace(records=False),
        observer=SimpleNamespace(happenings=SimpleNamespace(after=lambda number: [])))


@pytest.mark.parametrize("early", [True, False])
def test_nothing_runs_on_when_a_browser_has_left(early: bool) -> None:
    """Also if it leaves just when a message has gone out: before Python 3.12 asyncio.wait_for forgets then that its
    task was cancelled."""
    async def look() -> None:
        socket: Any = Socket(early)
        request: Any = SimpleNamespace(remote="here", transport=None)
        connection = Connection(server(), request, socket)
        connection.tell()
        await asyncio.wait_for(connection.serve(), TIMEOUT_S / 2)
        assert STATE in socket.taken
        left = asyncio.all_tasks() - {asyncio.current_task()}
        while any(not one.done() for one in left):
            for one in left:
                one.cancel()
            await asyncio.sleep(0)
        assert not left

    asyncio.run(look())
