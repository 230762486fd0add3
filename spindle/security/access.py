"""Who is at the other end of a connection, and what the access list lets them do.

Why beside the rights of the socket's file: several users of a host may share one node, and which topics each may write
is not something that file rights can say. The kernel vouches for the peer's user and groups (SO_PEERCRED,
SO_PEERGROUPS), so there is nothing to forge and no password to keep. For those on other hosts no kernel vouches: they
have no user here, only an address and what their certificate says (`spindle.security.trust`).

Rules:
- The meaning of the rules stands in `spindle.config.settings` ([access]); here they are asked, once per connection for
  attaching and once per topic for publishing and subscribing.
- A decision holds as long as the connection: a user who leaves a group keeps what he has open.
- Whoever may neither write nor read a topic may not declare it and isn't told that it exists.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import socket
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from spindle.errors import AccessDenied
from spindle.security.identity import APPLICATION, NODE, Identity
from spindle.security.trust import is_loopback

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig

SO_PEERGROUPS = 59  # asm-generic/socket.h; Python's socket module has no name for it
PEER_GROUPS_MAX = 65536  # NGROUPS_MAX of Linux
_UCRED = struct.Struct("iii")  # struct ucred of unix(7): pid, uid, gid


@dataclasses.dataclass(frozen=True)
class PeerCredentials:
    """The process at the other end of a Unix socket, as the kernel saw it when it connected.

    pid is 0 if the process is in a pid namespace that this one can't see. groups has the primary group and the
    supplementary ones.
    """

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]

    @classmethod
    def of(cls, sock: socket.socket) -> PeerCredentials:
        """Credentials of the peer of `sock`, a connected Unix socket. Raises OSError if it is of another kind."""
        pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return cls(pid, uid, gid, frozenset(_peer_groups(sock)) | {gid})

    @property
    def local(self) -> bool:
        """True: it runs on this host, and descriptors reach it."""
        return True

    def __str__(self) -> str:
        return f"user {self.uid} (process {self.pid})"


@dataclasses.dataclass(frozen=True)
class NetworkPeer:
    """The other end of a TCP connection. Of process and user nothing is known, so no rule about users fits it.

    `address` is "host:port", with an IPv6 address in brackets; `identity` what its certificate says, None without TLS;
    `here` the own end's address.
    """

    address: str
    identity: Identity | None = None
    pid: int = 0
    uid: int = -1
    gid: int = -1
    groups: frozenset[int] = frozenset()
    here: str = ""

    @classmethod
    def of(cls, sock: socket.socket, identity: Identity | None = None) -> NetworkPeer:
        """The peer of `sock`, a connected TCP socket. Raises OSError if the connection has broken already."""
        return cls(address_text(sock.getpeername()), identity, here=address_text(sock.getsockname()))

    @functools.cached_property
    def host_user(self) -> int | None:
        """The user id of a peer without a certificate whose connection doesn't leave this host; -1 if it can't be told
        (any more). None for other peers."""
        if self.identity is not None or not self.here or not is_loopback(self.address):
            return None
        from spindle.security.loopback import user_at

        found = user_at(self.address, self.here)
        return -1 if found is None else found

    @property
    def local(self) -> bool:
        """False: descriptors can't reach it."""
        return False

    def __str__(self) -> str:
        return self.address if self.identity is None else f"{self.address} ({self.identity})"


Credentials = PeerCredentials | NetworkPeer


def address_text(name: Any) -> str:
    """What getpeername() gave, as "host:port"; an IPv6 address in brackets, a Unix socket as its path."""
    if not isinstance(name, tuple):
        return (os.fsdecode(name) if isinstance(name, bytes) else str(name)) or "a process of this host"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _peer_groups(sock: socket.socket) -> Iterable[int]:
    """Supplementary groups of the peer; none where the kernel doesn't tell (before Linux 4.13)."""
    for count in (64, PEER_GROUPS_MAX):
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, count * 4)
        except OSError as error:
            if error.errno == errno.ERANGE:  # more groups than there was room for
                continue
            return ()
        return struct.unpack(f"{len(raw) // 4}I", raw)
    return ()


class Permissions:
    """What one peer may do. Remembers its answers: a peer asks about the same few topics again and again."""

    def __init__(self, config: NodeConfig, peer: Credentials) -> None:
        """Raises AccessDenied if `peer` may not even attach."""
        self.peer = peer
        self._config = config
        self._publish: dict[str, bool] = {}
        self._subscribe: dict[str, bool] = {}
        self._application = ""
        self._everything = False
        if isinstance(peer, NetworkPeer):
            # `spindle.security.trust` has decided that it may be here at all. A node's certificate allows everything,
            # as whoever has it could run a node.
            if peer.identity is not None:
                self._application = peer.identity.name if peer.identity.role == APPLICATION else ""
                self._everything = peer.identity.role == NODE
        elif not config.admits(peer.uid, peer.groups):
            raise AccessDenied(
                f"{peer} may not attach to this node: it is run by user {os.geteuid()}, and [access] of its "
                f"configuration allows neither user {peer.uid} nor a group of {sorted(peer.groups)}. "
                "Add the user to allow_uids or users, or a group to allow_gids")

    def may_publish(self, topic: str) -> bool:
        if topic not in self._publish:
            self._publish[topic] = self._everything or self._config.may_publish(
                self.peer.uid, self.peer.groups, topic, self._application)
        return self._publish[topic]

    def may_subscribe(self, topic: str) -> bool:
        if topic not in self._subscribe:
            self._subscribe[topic] = self._everything or self._config.may_subscribe(
                self.peer.uid, self.peer.groups, topic, self._application)
        return self._subscribe[topic]

    @property
    def sees_all(self) -> bool:
        """True if no rule hides anything from the peer."""
        return self._everything or self._config.hides_nothing_from(self.peer.uid, self.peer.groups)

    def may_see(self, topic: str) -> bool:
        """True if the peer may know that `topic` exists."""
        return self.may_publish(topic) or self.may_subscribe(topic)

    def check_publish(self, topic: str) -> None:
        """Raise AccessDenied unless the peer may write to `topic`."""
        if not self.may_publish(topic):
            raise self._denied(f"may not publish topic {topic!r}", "publish")

    def check_subscribe(self, topic: str) -> None:
        """Raise AccessDenied unless the peer may read `topic`."""
        if not self.may_subscribe(topic):
            raise self._denied(f"may not subscribe to topic {topic!r}", "subscribe")

    def check_declare(self, topic: str) -> None:
        """Raise AccessDenied unless the peer may write or read `topic`."""
        if not self.may_see(topic):
            raise self._denied(f"may neither publish nor subscribe to topic {topic!r}, so it may not declare it",
                               "publish or subscribe")

    @property
    def may_operate(self) -> bool:
        """True if the peer may change who is in the group: whoever may run a node of it."""
        return self._everything or (self.peer.local and self._config.is_node_user(self.peer.uid))

    def check_operate(self, what: str) -> None:
        """Raise AccessDenied unless the peer may change who is in the group."""
        if not self.may_operate:
            raise AccessDenied(f"{self.peer} may not {what}: on this host the node's own user, root and those in "
                               "[access] nodes may, and from other hosts whoever has a node's certificate")

    @property
    def _kind(self) -> str:
        if self.peer.local:
            return "this user or its groups"
        return f"application {self._application!r}" if self._application else "a peer of another host without a name"

    def _denied(self, what: str, key: str) -> AccessDenied:
        return AccessDenied(f"{self.peer} {what}: no access rule about {self._kind} allows it. "
                            f"Add the topic to {key} of a rule in [access] rules of the node's configuration")
