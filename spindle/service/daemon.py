"""The daemon: one node as a process of its own, serving the applications of its host; or an edge in its place
(`spindle.service.edge`).

Why so little is here: a daemon and an embedded node are the same `serve()`; what a process adds is signals, log lines,
readiness and an exit code.

Rules:
- SIGTERM, SIGINT and SIGHUP make the node leave its group in order and end with 0; another SIGTERM or SIGINT, later
  than 0.5 s, ends the process at once. Started so that SIGHUP is ignored (nohup), it outlives its terminal.
- Readiness is one line on stdout, `spindle: node 1 ready, domain 0, view 3, members 1 2 3`, and READY=1 to systemd
  (`spindle.service.sd_notify`): from then on applications can attach.
- The log goes to stderr, one line per event, or with fields to the journal (`spindle.logs`).
- What ends the node is the last line of the log, said to every application, and the exit code: each class in
  `spindle.errors` has its own, 70 is a defect of Spindle.
- With [membership] rejoin, a node that was cast out or has no majority is followed by a new life of it: same id, new
  incarnation, another ready line. It pauses between attempts, longer each time, and ends only when it is told to or for
  another reason. Its applications' connections end with the old life.
- A start takes part in a budget of 300 ms: nothing slow is imported that this configuration doesn't use.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spindle.errors import CastOut, ConnectionEnded, JoinFailed, NodeIdTaken, NodeStopped, NoMajority, SpindleError
from spindle.logs import DAEMON_ENDS, NODE_LEAVES, NODE_STARTS, NODE_STARTS_ANEW, Outlet, about, start_log
from spindle.service.sd_notify import ServiceManager, Watchdog
from spindle.waiting import within
from spindle_core.memory import share_arenas

if TYPE_CHECKING:
    from spindle.applications.attachment import Attachments
    from spindle.config.settings import NodeConfig
    from spindle.group.events import Event
    from spindle.node.node import Node

EXIT_INTERNAL = 70  # EX_SOFTWARE of sysexits.h: a defect, please report it
LEAVE_TIMEOUT_S = 10.0  # for a clean leave; then the node goes without, and the others notice that it has gone
STATUS_TIMEOUT_S = 2.0  # for a scrape of the metrics
REJOIN_PAUSE_S, REJOIN_PAUSE_MAX_S = 0.05, 5.0  # before another life; doubles with every life that is short
REJOIN_SETTLED_S = 10.0  # a life that lasted so long was no failed attempt
NOT_YET = (ConnectionEnded, JoinFailed, NodeIdTaken, NodeStopped)  # a rejoining node waits until the others are ready
SAME_REQUEST_S = 0.5  # timeout(1) and some shells signal a process and then its group: that is one request, not two
ARENAS = 2  # of malloc, for all threads: one holds the interpreter's lock, and few others allocate at all
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # that make it leave
LOG = logging.getLogger("spindle.daemon")


def settle_collector() -> None:
    """Once a daemon is up: what it has by then stays, and the garbage collector need not look at it again.

    A full collection comes when what is new has grown to a quarter of all that it looks at, and holds the interpreter's
    lock meanwhile. Over all objects of a daemon these are 8,000 objects and 20 to 35 ms: what programs leave behind in
    cycles would add up to megabytes.
    """
    gc.collect()
    gc.freeze()


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop as nodes use it."""
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_daemon(config: NodeConfig) -> int:
    """Run a node until it is told to stop or fails; returns the exit code of the process. For the main thread."""
    face = Face(config)
    start_log(config.log_level, config.log_format, face.context)
    _raise_descriptor_limit()
    share_arenas(ARENAS)
    loop = new_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_run(config, face))
        return 0
    except SpindleError as error:
        LOG.error("%s", error, extra=_about_end(error, error.exit_code))
        return error.exit_code
    except OSError as error:
        LOG.error("the node can't run: %s", error, extra=_about_end(error, SpindleError.exit_code))
        return SpindleError.exit_code
    except Exception as error:
        LOG.exception("the node failed; this is a defect of Spindle, please report it with these lines",
                      extra=_about_end(error, EXIT_INTERNAL))
        return EXIT_INTERNAL
    finally:
        asyncio.set_event_loop(None)
        _heed_no_more()
        loop.close()
        _flush_or_drop()


def _heed_no_more() -> None:
    """The process ends by itself now: a signal that asks for it once more must not spoil the exit code. Closing the
    loop removes its handlers, and a signal would kill the process then; a blocked one stays pending until the end.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _flush_or_drop() -> None:
    """What nobody reads any more, as on a terminal that has gone, is dropped: else the interpreter, which flushes once
    more at its end, would put 120 in place of the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        except (AttributeError, ValueError):  # there was none from the start, or it is closed
            pass


def _about_end(error: Exception, exit_code: int) -> dict[str, Any]:
    return about(DAEMON_ENDS, error=type(error).__name__, exit_code=exit_code)


class Face:
    """What the outside sees of a daemon: the ready line, what systemd is told, and the fields of every log line."""

    def __init__(self, config: NodeConfig) -> None:
        self.context: dict[str, Any] = {"domain": config.domain_id, "node": config.node_id or None, "view": None}
        self.manager = ServiceManager()
        self._watchdog = Watchdog(self.manager)

    def starting(self, text: str) -> None:
        """No member yet, or not any more."""
        self.context["view"] = None
        self._watchdog.watch(None)
        self.manager.status(text)

    def ready(self, attachments: Attachments) -> None:
        """The node is a member and takes applications."""
        node = attachments.node
        view = node.view()
        members = " ".join(map(str, view.node_ids))
        self.context.update(node=node.node_id, view=view.view_id)
        _say(f"spindle: node {node.node_id} ready, domain {node.config.domain_id}, view {view.view_id}, "
             f"members {members}")
        self.manager.tell("READY=1", f"MAINPID={os.getpid()}", _status(node.node_id, view.view_id, members))
        self._watchdog.watch(node.engine)
        self._watchdog.start()
        node.add_listener(self._heard)
        if not gc.get_freeze_count():
            settle_collector()

    def edge_ready(self, path: Path) -> None:
        """The daemon is an edge and takes applications."""
        _say(f"spindle: edge ready, domain {self.context['domain']}, at {path}")
        self.manager.tell("READY=1", f"MAINPID={os.getpid()}", "STATUS=looking for a node")
        self._watchdog.start()
        settle_collector()

    def stopping(self, final: bool) -> None:
        """The node stops; `final`: the process ends with it."""
        self._watchdog.watch(None)
        if final:
            self._watchdog.stop()
            self.manager.tell("STOPPING=1", "STATUS=leaving the group")

    def _heard(self, event: Event) -> None:
        if event.view is not None:
            self.context["view"] = event.view.view_id
            members = " ".join(map(str, event.view.node_ids))
            self.manager.tell(_status(self.context["node"], event.view.view_id, members))


def _say(line: str) -> None:
    """On standard output. Whether somebody reads that doesn't matter to a daemon."""
    outlet = Outlet.of(sys.stdout)
    if outlet is None:  # none of the operating system's: the program in which the daemon runs has put it there
        print(line, flush=True)
        return
    try:
        why = "" if outlet.write(line + "\n") else "nobody reads it"
    except OSError as error:
        why = str(error.strerror)
    finally:
        outlet.close()
    if why:
        LOG.warning("standard output did not take the line \"%s\": %s", line, why)


def _status(node_id: int, view_id: int, members: str) -> str:
    return f"STATUS=node {node_id}, view {view_id}, members {members}"


async def _run(config: NodeConfig, face: Face) -> None:
    stopping = asyncio.Event()
    told_s: list[float] = []
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, _on_signal, number, stopping, told_s,
                                    "ending" if config.edge_nodes else "leaving the group")
    LOG.info("process %d starts %s of domain %d in %s", os.getpid(), "an edge" if config.edge_nodes else "a node",
             config.domain_id, config.runtime_dir, extra=about(NODE_STARTS))
    for unknown in config.unknown_names():
        LOG.warning("%s: this host knows none of that name, so nobody is meant", unknown)
    if config.edge_nodes:
        from spindle.service.edge import serve_edge

        await serve_edge(config, stopping, face)
        return
    if config.journal_dir is not None:
        from spindle.config.directories import check_journal_dir

        check_journal_dir(config.journal_dir)
    face.starting(f"looking for the group of domain {config.domain_id}")
    if config.rejoin:
        await _serve_lives(config, stopping, face)
    else:
        await serve(config, stopping, face.ready, lambda: face.stopping(final=True))


async def _serve_lives(config: NodeConfig, stopping: asyncio.Event, face: Face) -> None:
    """serve(), and again after every end that a new life of the node can mend."""
    loop, pause_s, was_member = asyncio.get_running_loop(), REJOIN_PAUSE_S, False

    def ready(attachments: Attachments) -> None:
        nonlocal config, was_member
        was_member = True
        # Its journals and its place in listings go with the id, so a later life keeps it.
        config = dataclasses.replace(config, node_id=attachments.node.node_id)
        face.ready(attachments)

    while True:
        started_s = loop.time()
        try:
            await serve(config, stopping, ready, lambda: face.stopping(final=stopping.is_set()))
            return
        except SpindleError as error:
            mendable = isinstance(error, (CastOut, NoMajority)) or (was_member and isinstance(error, NOT_YET))
            if stopping.is_set() or not mendable:
                raise
            if loop.time() - started_s > REJOIN_SETTLED_S:
                pause_s = REJOIN_PAUSE_S
            LOG.warning("%s", error)
            LOG.warning("[membership] rejoin: node %d starts anew in %g s", config.node_id, pause_s,
                        extra=about(NODE_STARTS_ANEW, pause_s=pause_s, error=type(error).__name__))
            face.starting(f"looking for the group of domain {config.domain_id} again: {error}")
        with contextlib.suppress(asyncio.TimeoutError):
            await within(pause_s, stopping.wait())
            return
        pause_s = min(2 * pause_s, REJOIN_PAUSE_MAX_S)


def _on_signal(number: signal.Signals, stopping: asyncio.Event, told_s: list[float], what: str) -> None:
    told_s.append(time.monotonic())
    if stopping.is_set():
        if told_s[-1] - told_s[0] < SAME_REQUEST_S or number == signal.SIGHUP:
            return  # a terminal that goes away sends more than one, and never in order to insist
        LOG.warning("%s again: ending at once, without leaving the group", number.name)
        os._exit(128 + number)
    LOG.info("%s: %s", number.name, what, extra=about(NODE_LEAVES, signal=number.name))
    stopping.set()


async def serve(config: NodeConfig, stopping: asyncio.Event, on_ready: Callable[[Attachments], None],
                on_stop: Callable[[], None] | None = None, *, embedded: bool = False) -> None:
    """Run a node: join, serve applications, and leave when `stopping` is set.

    `on_ready` is called once the node is a member and takes applications, `on_stop` when it begins to stop, for
    whatever reason. Raises what ended the node unasked.
    """
    from spindle.applications.attachment import Attachments
    from spindle.node.node import Node

    if config.web_listen is not None and not embedded:
        from spindle.service.web import check_installed

        check_installed()
    if embedded:  # the program's threads do the node's work, too, and it must not take the core from them meanwhile
        config = dataclasses.replace(config, realtime_priority=0)
    node = Node(config)
    attachments = Attachments(node, embedded=embedded)
    node.set_application_handler(attachments.admit)
    node.add_listener(attachments.tell)
    reason: SpindleError | None = None
    told: asyncio.Future[Any] = asyncio.ensure_future(stopping.wait())
    try:
        if not await _first_of(told, node.start()):
            return
        if not embedded:  # there the limit is the program's, and its own affair
            node.reserve_descriptors()
        with contextlib.ExitStack() as stack:
            _start_metrics(config, attachments, stack)
            on_ready(attachments)
            async with _cockpit(config, node, embedded):
                await _first_of(told, _until_over(node))
    except SpindleError as error:
        reason = error
        raise
    finally:
        told.cancel()
        if on_stop is not None:
            on_stop()
        await _stop(attachments, reason)


async def _until_over(node: Node) -> None:
    """Returns when the node has stopped, or an operator wants it to leave. Raises what has stopped it."""
    stopped = asyncio.ensure_future(node.wait_stopped())
    wanted = asyncio.ensure_future(node.operating.leave_wanted.wait())
    try:
        await asyncio.wait({stopped, wanted}, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            stopped.result()
    finally:
        for one in (stopped, wanted):
            one.cancel()


async def _first_of(told: asyncio.Future[Any], work: Coroutine[Any, Any, object]) -> bool:
    """True when `work` is done, False if `told` is done first, then `work` is cancelled. Raises what `work` raises."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({told, task}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
        return True
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return False


async def _stop(attachments: Attachments, reason: SpindleError | None) -> None:
    """Applications first, so that what they have committed is still sent; then leave the group."""
    node = attachments.node
    try:
        await within(LEAVE_TIMEOUT_S, attachments.close(reason))
        await within(LEAVE_TIMEOUT_S, node.stop())
    except asyncio.TimeoutError:
        error = NodeStopped(f"node {node.node_id} could not leave its group within {LEAVE_TIMEOUT_S:g} s; it ends "
                            "without, and the others go on without it")
        await node.abandon(error)
        if reason is None:
            raise error from None


def _start_metrics(config: NodeConfig, attachments: Attachments, stack: contextlib.ExitStack) -> None:
    if config.metrics_listen is None:
        return
    from spindle.service.metrics import serve_metrics

    node, loop = attachments.node, asyncio.get_running_loop()

    async def status() -> dict[str, Any]:
        return attachments.full_status()

    def ask() -> dict[str, Any]:  # on a thread of the endpoint
        return asyncio.run_coroutine_threadsafe(status(), loop).result(STATUS_TIMEOUT_S)

    server = serve_metrics(config.metrics_listen, config.domain_id, node.node_id, node.counters, ask)
    stack.callback(server.close)
    LOG.info("metrics on http://%s:%d/metrics", *server.address)


@contextlib.asynccontextmanager
async def _cockpit(config: NodeConfig, node: Node, embedded: bool) -> AsyncIterator[None]:
    if config.web_listen is None or embedded:
        yield
        return
    from spindle.service.web import CockpitProcess

    process = CockpitProcess(config, node.node_id)
    try:
        yield
    finally:
        await process.close()


def _raise_descriptor_limit() -> None:
    """A writer takes four descriptors here, a reader three: 1024, a usual soft limit, would be few for many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # then the limit stays; whatever reaches it reports that
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
