"""Where an application on a host without a node finds nodes, and what it shows them: addresses and keys.

It comes from arguments, the environment, or a file:

    SPINDLE_NODES             host:port of nodes, comma between; any of them will do; a path is that of an edge's socket
    SPINDLE_CERTIFICATE, SPINDLE_KEY, SPINDLE_AUTHORITY   files, as `spindle keys application` makes them
    SPINDLE_SECRET            or the file of the site's secret
    SPINDLE_PLAIN             1: without keys, also beyond this host
    SPINDLE_CLIENT_CONFIG     a TOML file with these names in lower case, without their first word

Rules: an argument goes before the environment, the environment before the file. Keys are one set: whoever names a
certificate doesn't get the secret of the file. Errors are found here, before anything is connected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spindle.errors import AccessDenied, ConfigError, ConnectionEnded, SpindleError, shortage
from spindle.security.access import address_text
from spindle.transport.frames import notice_vanished
from spindle.transport.local import connect_waiting
from spindle.transport.wire import BlockingConnection, Limits

if TYPE_CHECKING:
    from spindle.security.trust import Trust
    from spindle.transport.names import HostNames

FRAME_BYTES_MAX = 80 << 20  # a batch, or a message of up to 64 MiB
PREAMBLE_PLAIN = b"SPNC"  # see spindle.transport.network
UNANSWERED_MS = 10_000
_KEYS = ("certificate", "key", "authority", "secret")


@dataclasses.dataclass(frozen=True)
class NodeAddresses:
    """Nodes that will do, and the keys for them. `trust` is made once."""

    addresses: tuple[str, ...]
    certificate: Path | None = None
    key: Path | None = None
    authority: Path | None = None
    secret: Path | None = None
    plain: bool = False

    def __post_init__(self) -> None:
        if not self.addresses:
            raise ConfigError("no node is named: give nodes = [\"host:7402\", ...], or $SPINDLE_NODES")
        together = (self.certificate, self.key, self.authority)
        if any(together) and not all(together):
            raise ConfigError("certificate, key and authority belong together: give all three, as `spindle keys "
                              "application` prints them")
        if self.certificate is not None and self.secret is not None:
            raise ConfigError("there is a certificate and a secret: give one of them")

    def trust(self) -> Trust:
        """Raises ConfigError with what is wrong with the files. At an edge alone none is needed, nor read."""
        from spindle.security.identity import APPLICATION, PLAIN
        from spindle.security.trust import Trust

        if all(map(is_edge, self.addresses)):
            return Trust(PLAIN)
        if self.certificate is not None and self.key is not None and self.authority is not None:
            return Trust.of_certificates(self.certificate, self.key, self.authority, APPLICATION)
        if self.secret is not None:
            return Trust.of_secret(self.secret)
        return Trust(PLAIN, plain_anywhere=self.plain)


def nodes_wanted(nodes: Sequence[str] | str | None = None, **keys: str | os.PathLike[str] | bool | None
                 ) -> NodeAddresses | None:
    """What arguments, environment and file say; None if none of them names a node. Raises ConfigError."""
    file = _client_file()
    wanted: Any = nodes if nodes is not None else os.environ.get("SPINDLE_NODES") or file.get("nodes")
    if not wanted:
        return None
    addresses = [one.strip() for one in (wanted.split(",") if isinstance(wanted, str) else wanted)]
    given = {name: keys.get(name) for name in _KEYS}
    for source in ({name: os.environ.get(f"SPINDLE_{name.upper()}") for name in _KEYS}, file):
        if not any(given.values()):
            given = {name: source.get(name) for name in _KEYS}
    plain = keys.get("plain")
    if plain is None:
        plain = os.environ.get("SPINDLE_PLAIN") == "1" if "SPINDLE_PLAIN" in os.environ else bool(file.get("plain"))
    return NodeAddresses(tuple(_with_port(one) for one in addresses if one),
                         **{name: Path(value) if value else None for name, value in given.items()},  # type: ignore[arg-type]
                         plain=bool(plain))


def nodes_in_file() -> str | None:
    """The nodes of $SPINDLE_CLIENT_CONFIG, comma between; None if there is no such file or it names none. Raises
    ConfigError."""
    nodes = _client_file().get("nodes")
    return nodes if nodes is None or isinstance(nodes, str) else ",".join(nodes)


def _client_file() -> dict[str, Any]:
    path = os.environ.get("SPINDLE_CLIENT_CONFIG")
    if not path:
        return {}
    from spindle.config.loading import parse_toml

    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"$SPINDLE_CLIENT_CONFIG = {path}: can't be read: {error}") from None
    found = parse_toml(text, path)
    known = {"nodes", "plain", *_KEYS}
    if unknown := sorted(set(found) - known):
        raise ConfigError(f"{path}: unknown: {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    for name, value in found.items():
        texts = value if isinstance(value, list) and name == "nodes" else [value]
        if not all(isinstance(one, bool if name == "plain" else str) for one in texts):
            must = {"nodes": "a list of \"host:port\"", "plain": "true or false"}.get(name, "the name of a file")
            raise ConfigError(f"{path}: {name} = {value!r}: must be {must}")
    return found


def _with_port(address: str) -> str:
    from spindle.config.keys import DEFAULT_PORT, split_address

    if is_edge(address):  # an edge of this host
        return address
    text = address
    if ":" not in address or address.endswith("]"):
        text = f"{address}:{DEFAULT_PORT}"
    elif address.count(":") > 1 and not address.startswith("["):
        text = f"[{address}]:{DEFAULT_PORT}"
    if not 0 < split_address(text)[1] < 65536:
        raise ConfigError(f"node {address!r}: must be host:port, or a host's name or address for port "
                          f"{DEFAULT_PORT}")
    return text


def connect(address: str, names: HostNames, trust: Trust, timeout_s: float) -> BlockingConnection:
    """A connection to the node at host:port, authenticated but not introduced, or to the edge at a path. Raises
    SpindleError."""
    from spindle.security.identity import PLAIN

    label = label_of(address)
    if is_edge(address):
        return _at_edge(address, label, timeout_s)
    deadline = time.monotonic() + timeout_s
    sock = _connected(address, names, label, timeout_s)
    try:
        notice_vanished(sock, UNANSWERED_MS)
        limits = Limits(frame_bytes_max=FRAME_BYTES_MAX, fds_max=0)
        if trust.mode == PLAIN:
            trust.check_plain(address_text(sock.getpeername()))
            sock.sendall(PREAMBLE_PLAIN)
            return BlockingConnection(sock, label=label, limits=limits)
        from spindle.security.tls import secured_blocking

        stream, _ = secured_blocking(sock, trust, timeout_s=max(0.1, deadline - time.monotonic()), label=label)
        return BlockingConnection(sock, label=label, limits=limits, stream=stream)
    except OSError as error:
        sock.close()
        if isinstance(error, SpindleError):
            raise
        raise ConnectionEnded(f"the connection to {label} broke: {error}") from None
    except BaseException:
        sock.close()
        raise


def is_edge(address: str) -> bool:
    """True of the path of an edge's socket."""
    return address.startswith("/")


def label_of(address: str) -> str:
    """What is there, for people."""
    return f"the edge at {address}" if is_edge(address) else f"the node at {address}"


def _at_edge(path: str, label: str, timeout_s: float) -> BlockingConnection:
    try:
        sock = connect_waiting(path, timeout_s)
    except BlockingIOError:
        raise ConnectionEnded(f"{label} accepts no connection: it hangs or is overloaded") from None
    except PermissionError:
        raise AccessDenied(f"{label} may not be used by user {os.getuid()}: it is run by another user, whose "
                           "configuration must admit you ([access])") from None
    except OSError as error:
        raise ConnectionEnded(f"{label} cannot be reached: {error.strerror or error}") from None
    return BlockingConnection(sock, label=label, limits=Limits(frame_bytes_max=FRAME_BYTES_MAX, fds_max=0))


def _connected(address: str, names: HostNames, label: str, timeout_s: float) -> socket.socket:
    deadline = time.monotonic() + timeout_s
    problem = ""
    for family, kind, protocol, _, where in names.found(address, timeout_s):
        left = deadline - time.monotonic()
        try:
            sock = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
        except OSError as error:
            raise shortage(error, f"a connection to {label}") or ConnectionEnded(
                f"{label} cannot be reached: {error.strerror}") from None
        try:
            sock.settimeout(max(left, 0.01))
            sock.connect(where)
            sock.settimeout(None)
            return sock
        except TimeoutError:
            problem = f"{label} doesn't answer within {timeout_s:g} s"
        except OSError as error:
            problem = f"{label} cannot be reached: {error.strerror or error}"
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise ConnectionEnded(problem)


def close_quietly(conn: BlockingConnection) -> None:
    """Closes the connection, whatever state it is in."""
    with contextlib.suppress(OSError, SpindleError):
        conn.close()
