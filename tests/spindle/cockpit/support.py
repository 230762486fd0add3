"""Daemons with a cockpit, and a client of its WebSocket, for tests."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from tests.spindle.daemons import READY_TIMEOUT_S, Daemon
from tests.support import wait_until

T = TypeVar("T")
TIMEOUT_S = 20.0
WEB = ("--set", "web.listen=127.0.0.1:0")


def url_of(runtime_dir: Path, node_id: int = 1, domain: int = 0) -> str:
    """The address with the token, once the daemon's cockpit has written it."""
    path = runtime_dir / f"domain-{domain}" / f"cockpit-{node_id}.url"
    return wait_until(lambda: path.exists() and path.read_text().strip(), READY_TIMEOUT_S, "the cockpit's address")


@contextmanager
def group(runtime_dir: Path, count: int, *first: str, each: tuple[str, ...] = ()) -> Iterator[tuple[str, list[Daemon]]]:
    """Nodes 1 to `count`, the first one with a cockpit, whose address comes with them. `first`: further arguments of
    that node, `each` of all."""
    started: list[Daemon] = []
    try:
        for node_id in range(1, count + 1):
            more = (*WEB, *first) if node_id == 1 else ()
            started.append(Daemon(node_id, *each, *more, runtime_dir=runtime_dir))
            started[-1].wait_ready()
        yield url_of(runtime_dir), started
    finally:
        for daemon in reversed(started):
            daemon.stop()


@contextmanager
def command(*arguments: object, errors: Path | None = None) -> Iterator[str]:
    """`spindle cockpit`; its address. What it says on stderr goes into the file `errors`."""
    with open(errors, "w") if errors is not None else nullcontext(subprocess.PIPE) as said:
        process = subprocess.Popen([sys.executable, "-m", "spindle.cli", "cockpit", *map(str, arguments)],
                                   stdout=subprocess.PIPE, stderr=said, text=True)
    assert process.stdout is not None
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()), daemon=True)
    reader.start()
    try:
        wait_until(lambda: lines or process.poll() is not None, READY_TIMEOUT_S, "the cockpit's line")
        assert lines, process.stderr.read() if process.stderr is not None else "see its errors"
        yield lines[0].split()[-1]
    finally:
        process.terminate()
        process.wait(10)
        reader.join(5)
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 60))


class Page:
    """What a browser knows that has said hello. `told` has the last message of each type."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket
        self.told: dict[str, dict[str, Any]] = {}
        self.topics: dict[str, list[Any]] = {}  # figures by topic id
        self.happened: list[dict[str, Any]] = []
        self.samples: dict[str, list[dict[str, Any]]] = {}
        self._asked = 0

    async def say(self, **message: Any) -> None:
        await self.socket.send_str(json.dumps(message))

    async def hear(self) -> dict[str, Any]:
        """The next message."""
        received = await asyncio.wait_for(self.socket.receive(), TIMEOUT_S)
        assert received.type is aiohttp.WSMsgType.TEXT, f"the connection has ended: {received}"
        message: dict[str, Any] = json.loads(received.data)
        self.told[message["type"]] = message
        if message["type"] == "figures":
            self.topics = {**({} if message["all"] else self.topics), **message["topics"]}
        elif message["type"] == "happened":
            self.happened += message["entries"]
        elif message["type"] == "samples":
            self.samples.setdefault(message["key"], []).extend(message["rows"])
        return message

    async def until(self, condition: Callable[[], T], what: str, timeout_s: float = TIMEOUT_S) -> T:
        """Hears until the condition holds."""
        async def wait() -> T:
            while not (found := condition()):
                await self.hear()
            return found

        try:
            return await asyncio.wait_for(wait(), timeout_s)
        except asyncio.TimeoutError:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; told last: {self.told}") from None

    @property
    def state(self) -> dict[str, Any]:
        return self.told.get("state", {})

    @property
    def members(self) -> list[int]:
        return [one["node_id"] for one in self.state.get("members", ())]

    @property
    def title(self) -> str:
        return str(self.told.get("figures", {}).get("whole", {}).get("title"))

    def topic(self, name: str) -> dict[str, Any]:
        return next((one for one in self.state.get("topics", ()) if one["name"] == name), {})

    def figures(self, name: str) -> list[Any]:
        return self.topics.get(str(self.topic(name).get("id")), [None] * 7)

    async def act(self, action: str, **what: Any) -> dict[str, Any]:
        self._asked += 1
        await self.say(ask="act", id=self._asked, action=action, **what)
        return await self.until(
            lambda: (found := self.told.get("answer", {})).get("id") == self._asked and found, f"an answer to {action}")


@asynccontextmanager
async def page(url: str, token: str | None = None, **options: Any) -> AsyncIterator[Page]:
    """A client that has said hello with the address's token, or this one."""
    base, _, kept = url.partition("/#token=")
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"{base}/live", **options) as socket:
            made = Page(socket)
            await made.say(hello=kept if token is None else token)
            yield made
            with suppress(ConnectionError):
                await socket.close()
