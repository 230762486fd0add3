"""attach(): finding a node of this host and being admitted by it.

Rules: sockets are tried in the order of node ids; one that nobody listens at is skipped, it is a dead node's and the
next node that starts removes it. So is a node that doesn't answer, or goes meanwhile: each has its share of the time
that is left, so that one that hangs leaves enough to those behind it. Nodes embedded in other applications are not
taken unless named or asked for: they go when their application goes. Where there is no node, but an edge
(`spindle.edge`), it brings the session to a node of another host.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spindle.client.channel import Channel
from spindle.client.introducing import check_opening, parse, release
from spindle.client.session import Session
from spindle.errors import (
    AccessDenied,
    CastOut,
    ConnectionEnded,
    JournalError,
    MembershipError,
    NoDaemon,
    NodeSilent,
    NodeStopped,
    NoMajority,
    SpindleError,
    WireError,
    error_from_wire,
    shortage,
)
from spindle.transport.local import connect_waiting
from spindle.transport.opening import MAGIC
from spindle.transport.wire import BlockingConnection

_SOCKET_NAME = re.compile(r"node-([0-9]+)\.sock")
_NOT_SERVING = (NodeStopped, CastOut, NoMajority, JournalError, MembershipError)  # why a node refuses that ends


def attach(domain_id: int = 0, *, runtime_dir: str | os.PathLike[str] | None = None, node_id: int | None = None,
           name: str = "", timeout_s: float = 5.0, embedded: bool = False,
           patience_s: float | None = 0.0) -> Session:
    """A session with a node of this host, or through its edge.

    runtime_dir: where the nodes' sockets are; None = as the nodes' own default ($SPINDLE_RUNTIME_DIR and so on).
    node_id: the node wanted; None = $SPINDLE_NODE_ID, or else the daemon with the lowest id.
    name: of this application in listings; empty = the name of the program.
    timeout_s: for the nodes' answers, in all. A node that does not exist is not waited for.
    embedded: take a node that is embedded in another application if there is no daemon.
    patience_s: of a session through the edge, as attach_remote has it.
    Raises NoDaemon, AccessDenied, ProtocolMismatch; NodeSilent, which is a TimeoutError, if a node hangs and no other
    one serves, NodeStopped or why the node ends if one is going.
    """
    from spindle.config.settings import EDGE_SOCKET, default_runtime_dir

    if node_id is None and os.environ.get("SPINDLE_NODE_ID"):
        node_id = _node_id_from_environment()
    base = default_runtime_dir() if runtime_dir is None else Path(runtime_dir)
    deadline = time.monotonic() + timeout_s
    second_choice: Session | None = None
    tried: dict[int, str] = {}
    failed: dict[int, SpindleError] = {}
    edge = base / f"domain-{domain_id}" / EDGE_SOCKET
    by_edge = node_id is None and os.path.exists(edge)
    sockets = list(_sockets(base, domain_id, node_id))
    while sockets:
        silent: list[tuple[int, Path]] = []
        for place, (number, path) in enumerate(sockets):
            share_s = _left_s(deadline) / (len(sockets) - place + by_edge)
            try:
                session = _open_at(path, number, domain_id, name, share_s, tried)
            except _NOT_SERVING as error:
                tried[number], failed[number] = str(error), error
                if isinstance(error, NodeSilent):
                    silent.append((number, path))
                continue
            if session is None:
                continue
            if node_id is not None or not session.embedded:
                if second_choice is not None:
                    second_choice.close()
                return session
            tried[number] = f"node {number} is embedded in another application (process {session.node_pid})"
            if embedded and second_choice is None:
                second_choice = session
            else:
                session.close()
        if by_edge or second_choice is not None or not _left_s(deadline):
            break
        sockets = silent  # theirs is the time that the others didn't need
    if second_choice is not None:
        return second_choice
    if by_edge:
        from spindle.client.remote import attach_remote

        return attach_remote([os.path.abspath(edge)], domain_id, name=name, patience_s=patience_s,
                             timeout_s=max(0.1, _left_s(deadline)))
    if failed:
        raise _why(list(failed.values()), list(tried.values()), f"domain {domain_id} in {base}")
    wanted = "node" if node_id is None else f"node {node_id}"
    details = f" ({'; '.join(tried.values())})" if tried else ""
    raise NoDaemon(f"no {wanted} of domain {domain_id} takes applications in {base}{details}: start one with "
                   "`spindle daemon`, check domain and $SPINDLE_RUNTIME_DIR, or use an embedded node")


def open_session(sock: socket.socket, domain_id: int, name: str, timeout_s: float, *, label: str,
                 on_close: Callable[[], None] | None = None) -> Session:
    """Introduce ourselves on a connected socket and return the session. Closes `sock` if that fails, or takes longer.

    Raises what the node refuses with, ProtocolMismatch, TimeoutError, WireError, NoResources.
    """
    from spindle.group.codec import PROTOCOL_VERSION
    from spindle.proto import attach_pb2 as pb
    from spindle.proto import opening_pb2

    name = name or os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    deadline = time.monotonic() + timeout_s
    conn = BlockingConnection(sock, label=label)
    try:
        opening = opening_pb2.Opening(
            magic=MAGIC, role=opening_pb2.APPLICATION, protocol=PROTOCOL_VERSION, domain_id=domain_id,
            name=name[:128], release=release())
        conn.send(opening.SerializeToString(), timeout_s=_left_s(deadline))
        reply = conn.receive(_left_s(deadline))
        check_opening(parse(opening_pb2.OpeningReply, reply, label), PROTOCOL_VERSION, label)
        frame = conn.receive(_left_s(deadline))
        message = parse(pb.NodeFrame, frame, label)
        if message.WhichOneof("body") == "refusal":
            raise error_from_wire(message.refusal.kind, message.refusal.text)
        if message.WhichOneof("body") != "welcome":
            raise WireError(f"{label} did not begin with a welcome")
        channel = Channel(conn, sock, f"{label} (process {message.welcome.pid})")
        session = Session(channel, message.welcome, frame, name, on_close)
        channel.start()
        return session
    except BaseException as error:
        conn.close()
        short = None if isinstance(error, SpindleError) else shortage(error, f"an attachment to {label}")
        if short is None:
            raise
        raise short from error


def _open_at(path: Path, number: int, domain_id: int, name: str, timeout_s: float, tried: dict[int, str]
             ) -> Session | None:
    """A session with the node at this socket, or None with the reason in `tried`. Raises NodeSilent, NodeStopped, and
    as open_session()."""
    deadline = time.monotonic() + timeout_s
    label = f"node {number}"
    try:
        sock = _connect(path, number, timeout_s, tried)
        return None if sock is None else open_session(sock, domain_id, name, _left_s(deadline), label=label)
    except ConnectionEnded as error:
        raise NodeStopped(
            f"{label} went while this program attached to it ({error}); attach again once it runs") from None
    except TimeoutError:
        raise NodeSilent(f"{label} did not answer within {round(timeout_s, 2):g} s") from None


def _why(failed: list[SpindleError], tried: list[str], where: str) -> SpindleError:
    """What to raise where nodes are there, and none of them serves."""
    silent = any(isinstance(error, NodeSilent) for error in failed)
    kind = NodeSilent if silent else type(failed[0]) if len(failed) == 1 else NodeStopped
    text = tried[0] if len(tried) == 1 else f"no node of {where} serves: {'; '.join(tried)}"
    if silent:
        text += (". A node that is silent hangs, or its host is overloaded: let its process go on, or kill it and "
                 "start it again; -n, node_id or $SPINDLE_NODE_ID names another node")
    return kind(text)


def _left_s(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _node_id_from_environment() -> int:
    text = os.environ["SPINDLE_NODE_ID"]
    if not text.isdecimal():
        raise SpindleError(f"$SPINDLE_NODE_ID is {text!r}: it must be the number of a node")
    return int(text)


def _sockets(base: Path, domain_id: int, node_id: int | None) -> Iterator[tuple[int, Path]]:
    """Number and path of every node's socket in the domain, lowest number first."""
    _check_owner(base)
    directory = base / f"domain-{domain_id}"
    if node_id is not None:
        yield node_id, directory / f"node-{node_id}.sock"
        return
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    except PermissionError:
        raise AccessDenied(f"{directory} may not be read by user {os.getuid()}: the nodes of this domain are run by "
                           "another user, whose configuration must admit you ([access])") from None
    found = sorted((int(match[1]), name) for name in names if (match := _SOCKET_NAME.fullmatch(name)))
    for number, name in found:
        yield number, directory / name


def _check_owner(base: Path) -> None:
    """In a directory where everybody may create names, a stranger may have created our directory before us."""
    try:
        parent, own = os.stat(base.parent), os.lstat(base)
    except OSError:
        return
    shared = parent.st_mode & stat.S_ISVTX and parent.st_mode & stat.S_IWOTH
    if shared and base.name == f"spindle-{os.getuid()}" and own.st_uid not in (0, os.getuid()):
        raise AccessDenied(f"{base} belongs to user {own.st_uid}, not to you: remove it, or set $SPINDLE_RUNTIME_DIR")


def _connect(path: Path, number: int, timeout_s: float, tried: dict[int, str]) -> socket.socket | None:
    """A connected socket, or None with the reason in `tried`. Raises TimeoutError, AccessDenied."""
    try:
        return connect_waiting(path, timeout_s)
    except FileNotFoundError:
        pass
    except ConnectionRefusedError:
        tried[number] = f"{path.name} is left over from a dead node"
    except PermissionError:
        raise AccessDenied(f"{path} may not be opened by user {os.getuid()}: the node is run by another user, whose "
                           "configuration must admit you ([access])") from None
    except BlockingIOError:
        raise TimeoutError(f"{path} accepts no connection: its node hangs or is overloaded") from None
    except OSError as error:
        tried[number] = f"{path.name}: {error.strerror or error}"
    return None
