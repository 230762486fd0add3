"""The web server: files for everybody, a WebSocket for those who may look.

Rules: every request says by its Host that it means this server, and by its Origin that none of another site's pages
makes it (`entry`). Browsers are told to load nothing from elsewhere and to show the page in nobody's frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiohttp import http_exceptions, web

from spindle import __version__
from spindle.cockpit import picture
from spindle.cockpit.acting import Actions
from spindle.cockpit.connection import MESSAGE_BYTES_MAX, Connection
from spindle.cockpit.entry import Entry, Viewer, tls_context
from spindle.cockpit.observing import Observer
from spindle.cockpit.recording import Recordings
from spindle.cockpit.sampling import Sampling
from spindle.config.settings import split_address
from spindle.errors import AccessDenied, SpindleError

if TYPE_CHECKING:
    from dds import DomainParticipant
    from spindle.client import Session
    from spindle.config.settings import NodeConfig

BROWSERS_MAX = 64
STRANGERS_MAX = 32  # that have not said who they are; the oldest makes room
CONNECTIONS_MAX = 256  # with those that load files, or say nothing
HEARTBEAT_S = 20.0
STATIC = Path(__file__).parent / "static"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
         ".txt": "text/plain", "": "text/plain"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
                               "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin",
}
LOG = logging.getLogger("spindle.cockpit")


class Cockpit:
    """One server, from start() to close(). Raises SpindleError from start() if it can't listen.

    config       its [web], [network] keys and [access] rules; of the node that it is for, if it is a daemon's
    attach       a session with a node: this one, or 0: the one that the cockpit is for
    participant  the same for the DDS layer
    """

    refusal_pause_s = 0.5  # before somebody with a wrong token hears so

    def __init__(self, config: NodeConfig, attach: Callable[[int], Session],
                 participant: Callable[[int], DomainParticipant], record_options: list[str]) -> None:
        self.config = config
        self.look: picture.Look | None = None
        self.entry: Entry
        self.observer = Observer(lambda: attach(0), self._on_look)
        self.sampling = Sampling(attach, participant)
        self.actions = Actions(self.observer, Recordings(
            config.web_recordings, record_options,
            lambda topic, text: self.observer.happenings.say("record", "bad", text, topic=topic)))
        self._connections: dict[Connection, None] = {}  # the oldest first
        self._encoded: dict[tuple[Any, ...], str] = {}
        self._encoded_of: picture.Look | None = None
        self._before: picture.Look | None = None
        self._tasks: set[asyncio.Future[Any]] = set()
        self._runner: web.AppRunner | None = None
        self._loop: asyncio.AbstractEventLoop
        self._files = _files()

    # --- life

    async def start(self, listen: str) -> None:
        self._loop = asyncio.get_running_loop()
        host, port = split_address(listen)
        context = tls_context(self.config, host)
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/live", self._live)
        app.router.add_get("/{name:.*}", self._file)
        # No body is of use here: so nobody is waited for who announces one and doesn't send it.
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, logger=_requests_log(), lingering_time=0)
        await self._runner.setup()
        sock = _bound(host, port, listen)
        self.entry = Entry(self.config, (host, sock.getsockname()[1]), context is not None)
        await web.SockSite(self._runner, sock, ssl_context=context, shutdown_timeout=1.0).start()
        self.observer.start()
        self.spawn(self._watch_connections())

    async def close(self) -> None:
        """Idempotent."""
        for connection in list(self._connections):
            connection.cut()
        for task in self._tasks:
            task.cancel()
        if self._runner is not None:
            await self._runner.cleanup()
        for end in (self.observer.close, self.sampling.close, self.actions.close):
            await asyncio.get_running_loop().run_in_executor(None, end)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch_connections(self) -> None:
        """Who opens connections and says nothing takes descriptors of this process."""
        while True:
            await asyncio.sleep(2.0)
            server = self._runner.server if self._runner is not None else None
            if server is not None and len(server.connections) > CONNECTIONS_MAX:
                live = {id(one.transport) for one in self._connections}
                LOG.warning("%d connections, more than %d: those that show nothing are closed", len(server.connections),
                            CONNECTIONS_MAX)
                for handler in list(server.connections):
                    if handler.transport is not None and id(handler.transport) not in live:
                        handler.transport.abort()

    # --- what is shown

    def _on_look(self, look: picture.Look) -> None:
        """On the observer's thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._take_look, look)

    def _take_look(self, look: picture.Look) -> None:
        self._before, self.look = self.look, look
        for connection in self._connections:
            connection.tell()

    def encoded(self, look: picture.Look, viewer: Viewer, kind: str) -> str:
        """A "state", all "figures", or the "delta" to the look before; made once for all who see the same."""
        if self._encoded_of is not look:
            self._encoded, self._encoded_of = {}, look
        key = kind, viewer.application
        found = self._encoded.get(key)
        if found is None:
            sees_all = viewer.sees_all(self.config)
            seen: Callable[[str], bool] = (
                (lambda _: True) if sees_all else (lambda topic: viewer.may_see(self.config, topic)))
            if kind == "state":
                made = picture.state(look, seen, sees_all)
            else:
                made = picture.figures(look, self._before if kind == "delta" else None, seen)
                made["recordings"] = [one for one in self.actions.recorded() if seen(one["topic"])]
            found = self._encoded[key] = json.dumps(made, separators=(",", ":"))
        return found

    def may_hear(self, viewer: Viewer, entry: dict[str, Any]) -> bool:
        """Whether a line of the time line is for him: lines of the log may name any topic."""
        if viewer.sees_all(self.config):
            return True
        if "topic" in entry:
            return viewer.may_see(self.config, entry["topic"])
        return not entry.get("log")

    @property
    def is_full(self) -> bool:
        return sum(one.is_known for one in self._connections) >= BROWSERS_MAX

    def about(self) -> dict[str, Any]:
        from spindle_core.counters import COUNTER_HELP, COUNTER_NAMES
        from spindle_core.delivery import LATENCY_LIMITS_NS

        return {"release": __version__,
                "counters": [{"name": name, "help": COUNTER_HELP[name]} for name in COUNTER_NAMES],
                "bounds": list(LATENCY_LIMITS_NS), "time": time.time()}

    # --- requests

    @web.middleware
    async def _guard(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        here = request.transport.get_extra_info("sockname") if request.transport is not None else None
        try:
            self.entry.check_host(request.headers.get("Host", ""), here[0] if here else "")
            self.entry.check_origin(request.headers.get("Origin"), request.headers.get("Host", ""))
        except AccessDenied as error:
            LOG.warning("a request of %s is refused: %s", request.remote, error)
            return web.Response(status=403, text=f"{error}\n", headers=HEADERS)
        found: web.StreamResponse = await handler(request)
        return found

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"] or "index.html"
        found = self._files.get(name)
        if found is None:
            return web.Response(status=404, text="there is no such file\n", headers=HEADERS)
        body, kind = found
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=HEADERS)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        strangers = [one for one in self._connections if not one.is_known and not one.is_cut]
        if len(strangers) >= STRANGERS_MAX:
            strangers[0].cut()
        if self.is_full:
            return web.Response(status=503, text=f"{BROWSERS_MAX} pages look already\n", headers=HEADERS)
        socket_ = web.WebSocketResponse(
            heartbeat=HEARTBEAT_S, max_msg_size=MESSAGE_BYTES_MAX, compress=False, timeout=2.0)
        await socket_.prepare(request)
        connection = Connection(self, request, socket_)
        self._connections[connection] = None
        self.observer.watched.set()
        self.observer.look_now()
        try:
            await connection.serve()
        finally:
            del self._connections[connection]
            if not self._connections:
                self.observer.watched.clear()
        return socket_


def _requests_log() -> logging.Logger:
    """Where the HTTP server says what went wrong in its requests."""
    log = logging.getLogger("spindle.cockpit.requests")
    log.addFilter(_one_line_for_strangers)
    return log


def _one_line_for_strangers(record: logging.LogRecord) -> bool:
    """What isn't HTTP is the fault of who sent it: one line says so, without the server's traceback and without
    anything that was sent. Failures of ours keep theirs."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, http_exceptions.HttpProcessingError):
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        sender = record.args[0] if isinstance(record.args, tuple) and record.args else "somebody"
        record.msg = "a request of %s is refused: this server can't read it as HTTP (%s)"
        record.args = sender, type(error).__name__
        record.exc_info = record.exc_text = None
    return True


def _files() -> dict[str, tuple[bytes, str]]:
    """All that is served, by name: what isn't here when the server starts can't be had from it."""
    found = {str(path.relative_to(STATIC)): (path.read_bytes(), TYPES[path.suffix])
             for path in STATIC.rglob("*") if path.is_file() and path.suffix in TYPES}
    return {**found, "f": found["flight.html"]}  # an address that fits a line of a terminal with its token


def _bound(host: str, port: int, listen: str) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=64)
    except OSError as error:
        raise SpindleError(
            f"the cockpit can't listen on {listen}: {error.strerror or error}; choose another [web] listen") from error


__all__ = ["Cockpit"]
