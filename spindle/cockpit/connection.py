"""One browser: what it asks for, and what it is sent.

Rules: nothing is queued for it. Whenever what was sent before has gone out, it is sent what is new since: so a slow one
gets fewer and newer messages. One that takes nothing for SEND_TIMEOUT_S, says nothing that makes sense, or doesn't say
who it is in HELLO_TIMEOUT_S, is cut off.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import WSCloseCode, WSMsgType, web

from spindle.cockpit import picture
from spindle.cockpit.sampling import Feed, Source
from spindle.errors import AccessDenied, SpindleError
from spindle.waiting import within

if TYPE_CHECKING:
    from spindle.cockpit.acting import Actions
    from spindle.cockpit.entry import Entry, Viewer
    from spindle.cockpit.observing import Observer
    from spindle.cockpit.sampling import Sampling
    from spindle.config.settings import NodeConfig

HELLO_TIMEOUT_S = 10.0
SEND_TIMEOUT_S = 10.0
MESSAGE_BYTES_MAX = 16 << 10  # of what a browser says
ROWS_MAX = 200  # samples in one message
WATCHES_MAX = 12  # topics that one browser reads
HZ_MAX = 30.0  # messages with samples in a second
HZ = 5.0
DETAIL_S = 0.5
LOG = logging.getLogger("spindle.cockpit")


class Server(Protocol):
    """What all connections have in common, see `spindle.cockpit.serving`."""

    config: NodeConfig
    look: picture.Look | None
    entry: Entry
    observer: Observer
    sampling: Sampling
    actions: Actions
    refusal_pause_s: float

    @property
    def is_full(self) -> bool:
        """No more browsers may look."""

    def about(self) -> dict[str, Any]:
        """What everybody is told at first."""

    def encoded(self, look: picture.Look, viewer: Viewer, kind: str) -> str:
        """A "state", all "figures", or the "delta" to the look before, as JSON."""

    def may_hear(self, viewer: Viewer, entry: dict[str, Any]) -> bool:
        """Whether a line of the time line is for him."""

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Runs it in the background."""


@dataclasses.dataclass
class Watch:
    """A topic that a browser reads."""

    feed: Feed
    limit: int  # samples in one message, the newest
    sent: int = 0  # number of the last
    said: tuple[Any, ...] = ()


class Connection:
    """Of one browser, from hello on."""

    def __init__(self, cockpit: Server, request: web.Request, socket: web.WebSocketResponse) -> None:
        self._cockpit = cockpit
        self._socket = socket
        self._request = request
        self._viewer: Viewer | None = None
        self._news = asyncio.Event()
        self._watches: dict[str, Watch] = {}
        self._hz = HZ
        self._topic = ""  # whose page is open
        self._section = ""  # which page is open
        self._look: picture.Look | None = None
        self._version = -1
        self._happening = 0
        self._detail_s = self._storage_s = 0.0
        self._history_sent = ""

    @property
    def who(self) -> str:
        viewer = self._viewer
        return f"{'a browser' if viewer is None else viewer.name} at {self._request.remote}"

    @property
    def is_known(self) -> bool:
        """True once it has said who it is."""
        return self._viewer is not None

    @property
    def transport(self) -> asyncio.Transport | None:
        return self._request.transport

    @property
    def is_cut(self) -> bool:
        """True once its connection has ended, though what served it may not have."""
        return self.transport is None or self.transport.is_closing()

    def tell(self) -> None:
        """There is something new."""
        self._news.set()

    def cut(self) -> None:
        """Ends it without waiting for anything."""
        if self._request.transport is not None:
            self._request.transport.abort()

    async def serve(self) -> None:
        """Until it ends."""
        sender: asyncio.Task[None] | None = None
        try:
            await self._hello()
            if self._viewer is None:
                return
            LOG.info("%s looks", self.who)
            sender = asyncio.ensure_future(self._send_all())
            async for message in self._socket:
                if message.type is not WSMsgType.TEXT:
                    break
                await self._heard(message.data)
        except ValueError as error:
            LOG.warning("%s is cut off: %s", self.who, error)
            self.cut()
        finally:
            for watch in self._watches.values():
                self._cockpit.sampling.leave(watch.feed)
            if sender is not None:
                sender.cancel()
                await asyncio.wait({sender})  # one that nobody holds is destroyed where it waits, and the log says so

    async def _hello(self) -> None:
        """It is known then, or has been told why not."""
        try:
            message = await within(HELLO_TIMEOUT_S, self._socket.receive())
        except asyncio.TimeoutError:
            self.cut()
            return
        if message.type is not WSMsgType.TEXT:
            return
        transport = self._request.transport
        certificate = transport.get_extra_info("peercert") if transport is not None else None
        try:
            viewer = self._cockpit.entry.viewer(_object(message.data).get("hello"), certificate)
        except AccessDenied as error:
            LOG.warning("%s is refused: %s", self.who, error)
            await asyncio.sleep(self._cockpit.refusal_pause_s)
            await self._send(json.dumps({"type": "refused", "text": str(error)}))
            await self._socket.close(code=4401, message=b"refused")
            return
        if self._cockpit.is_full:  # others who came at the same time have said hello before
            await self._socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"too many pages look already")
            return
        self._viewer = viewer
        await self._send(json.dumps({
            "type": "welcome", "viewer": viewer.name, "acts": viewer.acts, "records": self._cockpit.actions.records,
            **self._cockpit.about()}))

    # --- what it asks for

    async def _heard(self, text: str) -> None:
        asked = _object(text)
        kind = asked.get("ask")
        if kind == "page":
            self._section, self._topic = str(asked.get("section", "")), str(asked.get("topic", ""))
            self._detail_s = self._storage_s = 0.0
            self._history_sent = ""
            self.tell()
        elif kind == "watch":
            self._watch(str(asked.get("key", ""))[:100], asked)
        elif kind == "leave":
            watch = self._watches.pop(str(asked.get("key", "")), None)
            if watch is not None:
                self._cockpit.sampling.leave(watch.feed)
        elif kind == "act":
            await self._act(asked)
        else:
            raise ValueError("it asks for what nobody knows")

    def _watch(self, key: str, asked: dict[str, Any]) -> None:
        assert self._viewer is not None
        node, limit, hz = asked.get("node", 0), asked.get("rows", ROWS_MAX), asked.get("hz", HZ)
        if not isinstance(node, int) or not isinstance(limit, int) or not isinstance(hz, (int, float)):
            raise ValueError("node, rows and hz must be numbers")
        source = Source(str(asked.get("topic", "")), str(asked.get("order", "")), node)
        try:
            if not self._viewer.may_read(self._cockpit.config, source.node_topic):
                raise AccessDenied(f"no access rule lets {self._viewer.name} subscribe to {source.node_topic!r}")
            if key in self._watches:
                raise SpindleError(f"{key!r} is watched already")
            if len(self._watches) >= WATCHES_MAX:
                raise SpindleError(f"a page may read {WATCHES_MAX} topics at one time")
            feed = self._cockpit.sampling.watch(source)
        except SpindleError as error:
            refusal = {"type": "samples", "key": key, "state": str(error), "rows": []}
            self._cockpit.spawn(self._send(json.dumps(refusal)))
            return
        self._watches[key] = Watch(feed, max(1, min(limit, ROWS_MAX)))
        self._hz = max(1.0, min(hz, HZ_MAX))
        self.tell()

    async def _act(self, asked: dict[str, Any]) -> None:
        assert self._viewer is not None
        try:
            text, ok = await self._cockpit.actions.act(self._viewer, self.who, asked), True
        except (SpindleError, OSError) as error:
            text, ok = str(error), False
        await self._send(json.dumps({"type": "answer", "id": asked.get("id"), "ok": ok, "text": text}))

    # --- what it is sent

    async def _send_all(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await within(1.0 / self._hz if self._watches else None, self._news.wait())
            except asyncio.TimeoutError:
                pass
            self._news.clear()
            for text in self._new(loop.time()):
                if not await self._send(text):
                    return

    def _new(self, now_s: float) -> list[str]:
        cockpit, viewer = self._cockpit, self._viewer
        assert viewer is not None
        look, before = cockpit.look, self._look
        found = []
        if look is not None and look is not before:
            happened = cockpit.observer.happenings.after(self._happening)
            if happened:
                self._happening = happened[-1]["number"]
                shown = [one for one in happened if cockpit.may_hear(viewer, one)]
                found.append(json.dumps({"type": "happened", "entries": shown}))
            if look.version != self._version:
                found.append(cockpit.encoded(look, viewer, "state"))
            follows = before is not None and before.number == look.number - 1 and look.version == self._version
            found.append(cockpit.encoded(look, viewer, "delta" if follows else "figures"))
            self._look, self._version = look, look.version
            found += self._of_page(look, now_s)
        found += [text for key, watch in self._watches.items() if (text := _samples(key, watch))]
        return found

    def _of_page(self, look: picture.Look, now_s: float) -> list[str]:
        cockpit, viewer, found = self._cockpit, self._viewer, []
        assert viewer is not None
        if self._topic and viewer.may_see(cockpit.config, self._topic) and now_s - self._detail_s >= DETAIL_S:
            self._detail_s = now_s
            rates = cockpit.observer.rates.get(self._topic)
            found.append(json.dumps({
                **picture.topic_detail(look, self._topic),
                "latencies": [[bound, count] for bound, count in rates.latencies.counts if bound != float("inf")]
                if rates is not None else []}))
            if rates is not None and self._history_sent != self._topic:
                self._history_sent = self._topic
                found.append(json.dumps({"type": "history", "of": "topic", "topic": self._topic,
                                         "columns": rates.history.columns()}))
        if self._section and self._history_sent != self._section and not self._topic:
            self._history_sent = self._section
            history = cockpit.observer.history if self._section == "overview" else (
                cockpit.observer.counters if self._section == "counters" else None)
            if history is not None:
                found.append(json.dumps({"type": "history", "of": self._section, "columns": history.columns()}))
        if self._section == "overview" and now_s - self._storage_s >= 1.0:
            self._storage_s = now_s
            found.append(json.dumps(picture.storage(
                look.status, lambda topic: viewer.may_see(cockpit.config, topic), bool(look.node.get("beside")))))
        return found

    async def _send(self, text: str) -> bool:
        """False if it doesn't take it; then it is cut off."""
        try:
            await within(SEND_TIMEOUT_S, self._socket.send_str(text))
            return True
        except asyncio.TimeoutError:
            LOG.warning("%s has taken nothing for %g s and is cut off", self.who, SEND_TIMEOUT_S)
        except (ConnectionError, RuntimeError):  # RuntimeError: it is closing
            pass
        self.cut()
        return False


def _object(text: str) -> dict[str, Any]:
    """Raises ValueError."""
    try:
        found = json.loads(text)
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise ValueError("it doesn't send JSON objects")
    return found


def _samples(key: str, watch: Watch) -> str:
    """What is new of a topic that is read; "" if nothing is."""
    feed = watch.feed
    said = (feed.state, feed.lost, feed.type_text)
    if feed.count == watch.sent and said == watch.said:
        return ""
    rows, watch.sent, skipped = feed.after(watch.sent, watch.limit)
    watch.said = said
    about = json.dumps({"type": "samples", "key": key, "state": feed.state, "lost": feed.lost, "of": feed.type_text,
                        "count": watch.sent, "skipped": skipped})
    return f"{about[:-1]},\"rows\":[{','.join(rows)}]}}"


__all__ = ["Connection"]
