"""The ways into a group, from which a participant takes one.

- `HostNode`: the daemon of this host. What a participant takes of itself.
- `EmbeddedNode`: a node inside this process (`DomainParticipant.embedded`).
- `DistantNode`: a node on another host (`DomainParticipant.remote`).

Rules: a way is a value: it can be taken again, when the node at its end has gone. Participants of one process and
domain share the embedded node unless they name one of their own.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from dds.exceptions import DDSException, DDSNodeLost, translate
from spindle.locks import free_after_fork

if TYPE_CHECKING:
    from spindle.client import Session
    from spindle.config.settings import NodeConfig

_configs: dict[int, tuple[NodeConfig, object]] = {}  # for embedded nodes, each with what withdraws it
_shared_lock = free_after_fork(threading.RLock())
_shared: dict[int, tuple[Session, int]] = {}  # embedded node of each domain, and how many participants use it


class Way(Protocol):
    """How a participant comes to a session with a node."""

    def attach(self, domain_id: int, name: str, timeout_s: float, patience_s: float | None) -> Session:
        """A session; raises what spindle.client raises. `patience_s`: how long to look for another node, if ever."""

    def release(self, domain_id: int, session: Session) -> None:
        """The participant needs the session no more."""

    def refusal(self, error: Exception) -> DDSException:
        """What the program is told of an error of attach()."""


@dataclasses.dataclass(frozen=True)
class HostNode:
    """The daemon of this host: with this id, or any; its sockets in this directory, or where they usually are. If there
    is none, but an edge, a node on another host through that."""

    node_id: int | None = None
    runtime_dir: str | os.PathLike[str] | None = None

    def attach(self, domain_id: int, name: str, timeout_s: float, patience_s: float | None) -> Session:
        from spindle.client import attach

        return attach(domain_id, runtime_dir=self.runtime_dir, node_id=self.node_id, name=name, timeout_s=timeout_s,
                      patience_s=patience_s)

    def release(self, domain_id: int, session: Session) -> None:
        session.close()

    def refusal(self, error: Exception) -> DDSException:
        if type(error).__name__ == "NoDaemon":
            return DDSNodeLost(
                f"{error}. Either start a daemon (`spindle daemon`), or run a node inside this program with "
                "DomainParticipant.embedded() or the environment variable SPINDLE_EMBED=1")
        return translate(error, "attaching to the daemon")


@dataclasses.dataclass(frozen=True)
class FirstNode(HostNode):
    """The daemon with this id, while there is one; else any other of this host."""

    def attach(self, domain_id: int, name: str, timeout_s: float, patience_s: float | None) -> Session:
        from spindle.errors import NoDaemon

        deadline = time.monotonic() + timeout_s
        try:
            return super().attach(domain_id, name, timeout_s / 2, patience_s)  # one that hangs leaves time for another
        except (NoDaemon, ConnectionError):
            left_s = max(0.0, deadline - time.monotonic())
            return HostNode(None, self.runtime_dir).attach(domain_id, name, left_s, patience_s)


@dataclasses.dataclass(frozen=True)
class EmbeddedNode:
    """A node inside this process: the one that its participants of the domain share, or one with an id of its own, or
    in another runtime directory."""

    node_id: int | None = None
    runtime_dir: str | os.PathLike[str] | None = None

    @property
    def _is_shared(self) -> bool:
        return self.node_id is None and self.runtime_dir is None

    def attach(self, domain_id: int, name: str, timeout_s: float, patience_s: float | None) -> Session:
        if not self._is_shared:
            return self._embed(domain_id, name)
        with _shared_lock:
            session, users = _shared.get(domain_id, (None, 0))
            if session is None or session.gone:
                session, users = self._embed(domain_id, name), 0
            _shared[domain_id] = session, users + 1
            return session

    def _embed(self, domain_id: int, name: str) -> Session:
        from pathlib import Path

        from spindle.client import embed
        from spindle.config.settings import NodeConfig

        config, _ = _configs.get(domain_id) or (NodeConfig(domain_id=domain_id), None)
        if self.runtime_dir is not None:
            config = dataclasses.replace(config, runtime_dir=Path(self.runtime_dir))
        return embed(domain_id, node_id=self.node_id, config=config, name=name)

    def release(self, domain_id: int, session: Session) -> None:
        if self._is_shared:
            with _shared_lock:
                current, users = _shared.get(domain_id, (None, 0))
                if current is session and users > 1:
                    _shared[domain_id] = session, users - 1
                    return
                if current is session:
                    del _shared[domain_id]
        session.close()

    def refusal(self, error: Exception) -> DDSException:
        return translate(error, "starting an embedded node")


@dataclasses.dataclass(frozen=True)
class DistantNode:
    """A node on another host: any of `nodes`, "host:port" or "host", or the path of an edge's socket; None: as
    SPINDLE_NODES says. The others are files, see spindle.client.nodes; None: as the environment says."""

    nodes: Sequence[str] | str | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    authority: str | os.PathLike[str] | None = None
    secret: str | os.PathLike[str] | None = None

    def attach(self, domain_id: int, name: str, timeout_s: float, patience_s: float | None) -> Session:
        from spindle.client.remote import attach_remote

        return attach_remote(
            self.nodes, domain_id, name=name, timeout_s=timeout_s, patience_s=patience_s, certificate=self.certificate,
            key=self.key, authority=self.authority, secret=self.secret)

    def release(self, domain_id: int, session: Session) -> None:
        session.close()

    def refusal(self, error: Exception) -> DDSException:
        return translate(error, "attaching to a node of another host")


def from_environment(node_id: int | None, runtime_dir: str | os.PathLike[str] | None) -> Way:
    """The way of a participant that names none: SPINDLE_EMBED decides, else SPINDLE_NODES unless a node of this host or
    a directory is given, else the host's daemon."""
    if switch("SPINDLE_EMBED"):
        return EmbeddedNode(node_id, runtime_dir)
    if node_id is None and runtime_dir is None and (
            os.environ.get("SPINDLE_NODES") or os.environ.get("SPINDLE_CLIENT_CONFIG")):
        return DistantNode()
    return HostNode(node_id, runtime_dir)


def switch(variable: str) -> bool:
    """A switch in the environment: 1 or 0, off if it isn't there. Raises DDSException (BAD_PARAMETER)."""
    text = os.environ.get(variable, "")
    if text not in ("", "0", "1"):
        raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER, f"{variable} is {text!r}: it must be 0 or 1")
    return text == "1"


def configure(domain_id: int, config: NodeConfig) -> object | None:
    """What embedded nodes of a domain go by from now on. Returns what withdraws it; None if the one that is shared runs
    already, which keeps what it has."""
    with _shared_lock:
        if domain_id in _shared:
            return None
        token = object()
        _configs[domain_id] = config, token
        return token


def withdraw(domain_id: int, token: object) -> None:
    """Embedded nodes that are yet to start go by the configuration with this token no more, if they still did."""
    with _shared_lock:
        if domain_id in _configs and _configs[domain_id][1] is token:
            del _configs[domain_id]


__all__ = ["DistantNode", "EmbeddedNode", "FirstNode", "HostNode", "Way", "configure", "from_environment", "switch",
           "withdraw"]
