"""A cockpit as a process: of a daemon, whose child it is, or by itself.

Rules: the child of a daemon ends when its standard input does, so it never outlives the daemon, however that ends. Its
address with the token is kept in a file that this user alone can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spindle.errors import ConfigError, SpindleError

if TYPE_CHECKING:
    from dds import DomainParticipant
    from spindle.client import Session
    from spindle.config.settings import NodeConfig

NAME = "spindle cockpit"
ATTACH_TIMEOUT_S = 3.0
DEFAULT_PORT, PORTS = 7480, 10
LOG = logging.getLogger("spindle.cockpit")


class Ways:
    """How this cockpit reaches nodes: those of this host, or `nodes` on others. node_id None: any."""

    def __init__(self, domain_id: int, node_id: int | None, runtime_dir: Path | None, nodes: str | None = None) -> None:
        self.domain_id, self.node_id, self.runtime_dir, self.nodes = domain_id, node_id, runtime_dir, nodes

    def attach(self, node_id: int = 0) -> Session:
        """A session with this node; 0: the one that the cockpit is for."""
        if self.nodes:
            if node_id:
                raise SpindleError("a cockpit of nodes on other hosts shows one of them, as it finds it")
            from spindle.client.remote import attach_remote

            return attach_remote(self.nodes, self.domain_id, name=NAME, timeout_s=ATTACH_TIMEOUT_S)
        from spindle.client.attaching import attach

        return attach(self.domain_id, runtime_dir=self.runtime_dir, node_id=node_id or self.node_id, name=NAME,
                      timeout_s=ATTACH_TIMEOUT_S, embedded=True)

    def participant(self, node_id: int) -> DomainParticipant:
        """The same for the DDS layer."""
        import dds
        from dds.nodes.ways import DistantNode, HostNode

        way = DistantNode(self.nodes) if self.nodes else HostNode(node_id, self.runtime_dir)
        return dds.DomainParticipant(self.domain_id, qos=dds.Qos(dds.Policy.EntityName(NAME)), way=way, reattach=False)

    def record_options(self) -> list[str]:
        """Of `spindle record`."""
        options = ["--domain", str(self.domain_id)]
        if self.runtime_dir is not None:
            options += ["--runtime-dir", str(self.runtime_dir)]
        return options + (["--nodes", self.nodes] if self.nodes else [])


def run(config: NodeConfig, ways: Ways, listen: str | None, address_file: Path | None,
        on_ready: Callable[[str], None], ends_with_stdin: bool = False) -> int:
    """Serves until it is told to end; returns the exit code. listen None: DEFAULT_PORT of loopback, or one of the next
    if that is taken. Raises SpindleError."""
    import uvloop

    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_serve(config, ways, listen, address_file, on_ready, ends_with_stdin))
        return 0
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        asyncio.set_event_loop(None)
        loop.close()


async def _serve(config: NodeConfig, ways: Ways, listen: str | None, address_file: Path | None,
                 on_ready: Callable[[str], None], ends_with_stdin: bool) -> None:
    from spindle.cockpit.serving import Cockpit

    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup: outlives its terminal
            loop.add_signal_handler(number, ending.set)
    if ends_with_stdin:
        _on_end_of_stdin(lambda: loop.call_soon_threadsafe(ending.set))
    cockpit = Cockpit(config, ways.attach, ways.participant, ways.record_options())
    places = [listen] if listen is not None else [f"127.0.0.1:{DEFAULT_PORT + more}" for more in range(PORTS)]
    try:
        for place in places:
            try:
                await cockpit.start(place)
                break
            except ConfigError:
                raise
            except SpindleError:
                if place == places[-1]:
                    raise
        if address_file is not None:
            cockpit.entry.keep(address_file)
        on_ready(cockpit.entry.url)
        await ending.wait()
    finally:
        await cockpit.close()


def _on_end_of_stdin(tell: Callable[[], object]) -> None:
    def wait() -> None:
        with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: the loop has ended by itself
            while os.read(0, 4096):
                pass
        with contextlib.suppress(RuntimeError):
            tell()

    threading.Thread(target=wait, name="spindle cockpit's daemon", daemon=True).start()


def child_main() -> int:
    """The child of a daemon: a line of JSON on stdin says what it is for, `spindle.service.web` writes it."""
    from spindle.config.loading import parse_config
    from spindle.logs import start_log

    line = _first_line()
    if not line:
        return 0  # the daemon has ended already
    told: dict[str, Any] = json.loads(line)
    config = parse_config(told["config"], "the daemon's configuration")
    node_id = int(told["node_id"])
    start_log(config.log_level, config.log_format, {"domain": config.domain_id, "node": node_id})
    ways = Ways(config.domain_id, node_id, config.runtime_dir)
    path = config.domain_dir / f"cockpit-{node_id}.url"

    def ready(url: str) -> None:
        LOG.info("the cockpit is at %s; the address with its token is in %s", url.partition("#")[0], path)

    try:
        return run(config, ways, config.web_listen, path, ready, ends_with_stdin=True)
    except SpindleError as error:
        LOG.error("no cockpit: %s", error)
        return error.exit_code


def _first_line() -> bytes:
    """Of stdin, without reading ahead."""
    found = b""
    while not found.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            return b""
        found += part
    return found


__all__ = ["DEFAULT_PORT", "Ways", "child_main", "run"]
