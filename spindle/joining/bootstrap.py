"""Finding the group of a domain on this host: the runtime directory, its sockets, and the lock for newcomers.

Why a lock and files: a node that starts must either find a live member or be the one that forms the group; two that
start at once must not both form one. While it looks, joins or forms, a node holds the lock of the domain's directory.
The kernel lets go of the lock when the process dies, so nothing can be left locked. Whoever can open a file can lock
it, so only those who may be nodes can open the lock's file.

Rules: a node's socket is `node-<id>.sock`. A socket that refuses connections is a leftover: one of our own user is
removed, one of another user is never touched. Nothing here knows views.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import socket
import stat
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from spindle.errors import AccessDenied, ConfigError, JoinFailed, NodeIdTaken, SpindleError
from spindle.group.view import SHM, TCP, VERBS
from spindle.transport.local import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from spindle.config.settings import NodeConfig

SOCKET_PATH_MAX = 107  # bytes, of sockaddr_un
NODE_ID_MAX = 65535
LOCK_POLL_S = 0.005
LISTEN_BACKLOG = 1024  # accepted many at a time, so it fills only while the node hangs or is flooded
_SOCKET_NAME = re.compile(r"node-(\d{1,5})\.sock")


def socket_path(config: NodeConfig, node_id: int) -> Path:
    """Where the node listens. ConfigError if the path is too long for a Unix socket."""
    path = config.domain_dir / f"node-{node_id}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        raise ConfigError(f"{path} is too long for a Unix socket ({SOCKET_PATH_MAX} bytes); choose a shorter "
                          "[node] runtime_dir")
    return path


def prepare_directory(config: NodeConfig) -> None:
    """Makes the domain's directory, private unless the access rules admit other users. Raises AccessDenied if it isn't
    a node user's, or if everybody could put sockets into it."""
    mode = 0o755 if config.admits_others else 0o700
    for path in (config.runtime_dir, config.domain_dir):
        try:
            path.mkdir(parents=True, exist_ok=True)
            found = path.stat()
        except OSError as error:
            raise AccessDenied(f"cannot make the directory {path}: {error.strerror}; choose another [node] runtime_dir "
                               "or give this user the right to it") from error
        if not config.is_node_user(found.st_uid):
            raise AccessDenied(f"{path} belongs to uid {found.st_uid}, this node runs as uid {os.geteuid()}; choose "
                               "another [node] runtime_dir")
        # The sticky bit keeps users off each other's files, but not from taking the names of sockets and lock first.
        if found.st_mode & stat.S_IWOTH and not (found.st_mode & stat.S_ISVTX and path != config.domain_dir):
            raise AccessDenied(f"{path} can be written by everybody; remove that right (chmod o-w {path})")
    found = config.domain_dir.stat()
    if found.st_uid == os.geteuid():
        # Several node users share the directory by a group's right to put sockets there: the site gives that right.
        config.domain_dir.chmod(mode | (found.st_mode & (stat.S_ISGID | stat.S_IRWXG) if config.node_users else 0))
        if config.runtime_dir.stat().st_uid == os.geteuid() and config.admits_others:
            config.runtime_dir.chmod(config.runtime_dir.stat().st_mode | 0o055)


def host_mark(config: NodeConfig) -> bytes:
    """Alike for nodes that reach each other's sockets and memory: one kernel, one directory of the domain."""
    from hashlib import sha256

    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            boot = file.read()
    except OSError:
        boot = os.urandom(16)  # then no two nodes share memory here
    found = config.domain_dir.stat()
    return sha256(boot + struct.pack("<QQ", found.st_dev, found.st_ino)).digest()[:16]


def fabrics_of(config: NodeConfig) -> tuple[tuple[str, ...], str]:
    """By which fabrics this node can be reached, and the network of its RDMA device ("": none). Raises ConfigError
    if RDMA is asked for and isn't there."""
    network = ""
    # What goes over RDMA is never encrypted, so a node that must encrypt gets TCP.
    if config.fabric == VERBS or (config.fabric == "auto" and config.listen is not None and not config.encrypt):
        from spindle.rdma.network import rdma_network

        network = rdma_network(config.rdma_device)
    if network or config.fabric == VERBS:
        try:
            import spindle_core.fabric.verbs  # noqa: F401 (is it built, and is the library there?)
        except ImportError as error:
            if config.fabric == VERBS:
                raise ConfigError(f'[network] fabric = "verbs": {error}; build where libibverbs-dev is') from error
            network = ""
    if config.fabric == VERBS and not network:
        raise ConfigError(f'[network] fabric = "verbs": no active RDMA device {config.rdma_device or "was found"}; see '
                          "`spindle doctor`")
    if config.fabric != "auto":
        return (config.fabric,), network
    wide = ((VERBS,) if network else ()) + ((TCP,) if config.listen is not None else ())
    return (SHM, *wide), network


def _open_lock(directory: Path) -> int:
    """A descriptor of the lock's file, which only those may open who may put sockets into the directory. Raises
    AccessDenied."""
    path = directory / "bootstrap.lock"
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise AccessDenied(f"{path} can't be opened by uid {os.geteuid()}: {error.strerror}; run all nodes of a domain "
                           "as one user, or let a group of theirs write in the directory") from error
    try:
        found, around = os.fstat(fd), directory.stat()
        shared = bool(around.st_mode & stat.S_IWGRP)
        mode = 0o660 if shared else 0o600
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(fd, 0o600)  # before a group gets anything
            if shared:
                os.fchown(fd, -1, around.st_gid)
            os.fchmod(fd, mode)
        if os.geteuid() == 0 and found.st_uid != around.st_uid:  # the directory's user may have nodes, too
            os.fchown(fd, around.st_uid, -1)
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextlib.asynccontextmanager
async def newcomer_lock(directory: Path, timeout_s: float) -> AsyncIterator[None]:
    """Held by one starting node of the domain at a time. Raises JoinFailed after `timeout_s` seconds, AccessDenied."""
    fd = _open_lock(directory)
    try:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if loop.time() > deadline:
                    raise JoinFailed(
                        f"other nodes have been starting in {directory} for {timeout_s:g} s; see what hangs there "
                        f"(fuser {directory}/bootstrap.lock), or raise [membership] join_timeout_s") from None
                await asyncio.sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(fd)


@dataclasses.dataclass
class LiveSocket:
    """A live socket in the domain's directory: somebody accepts on it. `sock` is connected, until it is taken."""

    node_id: int
    sock: socket.socket | None

    def take(self) -> socket.socket:
        """Hands the socket over to the caller."""
        assert self.sock is not None
        sock, self.sock = self.sock, None
        return sock

    def close(self) -> None:
        """Closes the socket if nobody took it."""
        if self.sock is not None:
            self.sock.close()


def scan(config: NodeConfig, own_id: int = 0) -> list[LiveSocket]:
    """All live nodes of the domain on this host but `own_id`, by id; leftovers of our own user are removed. Hold the
    lock."""
    found: list[LiveSocket] = []
    try:
        for entry in sorted(os.scandir(config.domain_dir), key=lambda one: one.name):
            match = _SOCKET_NAME.fullmatch(entry.name)
            if match is None or int(match[1]) == own_id:
                continue
            try:
                found.append(LiveSocket(int(match[1]), connect(entry.path)))
            except OSError as error:
                _not_there(entry, error)
    except BaseException:
        for one in found:
            one.close()
        raise
    return sorted(found, key=lambda one: one.node_id)


def _not_there(entry: os.DirEntry[str], error: OSError) -> None:
    if error.errno == errno.ENOENT:
        return
    if error.errno == errno.ECONNREFUSED:
        with contextlib.suppress(FileNotFoundError):
            if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                os.unlink(entry.path)
        return
    if error.errno in (errno.EACCES, errno.EPERM):
        raise AccessDenied(f"{entry.path} is a node of another user who does not admit uid {os.geteuid()}; use another "
                           "domain, or let its configuration admit this user") from error
    raise SpindleError(f"{entry.path} cannot be reached: {error.strerror}; is the node hanging?") from error


def lowest_free_id(found: list[LiveSocket], taken: set[int]) -> int:
    """The least node id that no live socket has and that is not in `taken`."""
    used = {one.node_id for one in found} | taken
    for node_id in range(1, NODE_ID_MAX + 1):
        if node_id not in used:
            return node_id
    raise NodeIdTaken(f"all {NODE_ID_MAX} node ids of the domain are taken")


def listen(config: NodeConfig, node_id: int) -> socket.socket:
    """The listening socket of the node. Hold the lock. Raises AccessDenied if another user's file is in its place."""
    return listen_at(config, socket_path(config, node_id))


def listen_at(config: NodeConfig, path: Path) -> socket.socket:
    """As `listen`, at this path."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.bind(os.fspath(path))
        path.chmod(0o666 if config.admits_others else 0o600)
        sock.listen(LISTEN_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno != errno.EADDRINUSE:
            raise AccessDenied(f"cannot listen on {path}: {error.strerror}") from error
        owner = path.stat().st_uid
        raise AccessDenied(f"{path} is in the way and belongs to uid {owner}, so it is not removed; choose another "
                           "node id or directory, or remove it as that user") from error
    return sock
