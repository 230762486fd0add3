"""Who may look, and what they see: tokens, certificates, and where a request may come from.

Why a token on loopback too: every user of a host can connect to its TCP ports, and no kernel says who does. Why Host
and Origin: a page of somebody else in the same browser can send requests here as well (also under a name that it has
made point here); the browser says where such requests come from.

Rules:
- Who has the token has the rights of the user who runs this process: its session with the node has no others.
- Who shows a certificate of a node may see all; an application's is shown what [access] rules allow it.
- Acting needs [web] actions beside that, and is for the token and for nodes' certificates.
"""

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from spindle.config.settings import split_address
from spindle.errors import AccessDenied, ConfigError
from spindle.security.identity import NODE, Identity
from spindle.security.trust import is_loopback

if TYPE_CHECKING:
    import ssl

    from spindle.config.settings import NodeConfig

TOKEN_BYTES = 32
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


@dataclasses.dataclass(frozen=True)
class Viewer:
    """Somebody who may look. `application`: the name in his certificate, whose rules hold; None: no rule beside those
    for the session's own user."""

    name: str
    acts: bool
    application: str | None = None

    def may_see(self, config: NodeConfig, topic: str) -> bool:
        """True if he may know that the topic exists."""
        return self.application is None or config.may_publish(-1, (), topic, self.application) or self.may_read(
            config, topic)

    def may_read(self, config: NodeConfig, topic: str) -> bool:
        return self.application is None or config.may_subscribe(-1, (), topic, self.application)

    def sees_all(self, config: NodeConfig) -> bool:
        """True if no rule hides anything from him."""
        return self.application is None or not config.access_rules


class Entry:
    """The door. `address` is (host, port) as listened at."""

    def __init__(self, config: NodeConfig, address: tuple[str, int], tls: bool) -> None:
        self.config = config
        self.scheme = "https" if tls else "http"
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._host, self.port = address
        names = {name.lower() for name in config.web_hosts}
        if is_loopback(self._host):
            names.update(LOOPBACK_NAMES)
        else:
            names.add(os.uname().nodename.lower())
            if config.advertise:
                names.add(split_address(config.advertise)[0].lower())
        self._names = frozenset(names)

    @property
    def url(self) -> str:
        """Where a browser on this host finds the page, the token included: what is behind # stays in the browser."""
        host = self._host
        if host in ("0.0.0.0", "::"):
            host = os.uname().nodename
        return f"{self.scheme}://{f'[{host}]' if ':' in host else host}:{self.port}/#token={self.token}"

    def check_host(self, host: str, here: str) -> None:
        """Raises AccessDenied unless the Host header names this server; `here` is the connection's own address."""
        name, port = _host_and_port(host, 443 if self.scheme == "https" else 80)
        if port == self.port and (name in self._names or (_is_address(name) and name == here)):
            return
        raise AccessDenied(f"this server is not called {host!r}. If it should be, add the name to [web] hosts")

    def check_origin(self, origin: str | None, host: str) -> None:
        """Raises AccessDenied if another site's page asks. Programs that are no browsers say no origin."""
        if origin is None:
            return
        try:
            found = urlsplit(origin)
        except ValueError:
            found = urlsplit("")
        if found.scheme != self.scheme or found.netloc.lower() != host.lower():
            raise AccessDenied(f"a page of {origin!r} may not talk to this cockpit")

    def viewer(self, token: Any, certificate: dict[str, Any] | None) -> Viewer:
        """Who it is that has this token, or has shown this certificate. Raises AccessDenied."""
        if isinstance(token, str) and token.isascii() and hmac.compare_digest(token, self.token):
            return Viewer("token", self.config.web_actions)
        if token:
            raise AccessDenied("the token is not this cockpit's: open the address that it has printed, or which is in "
                               "its file")
        if certificate:
            identity = Identity.of(certificate)
            if identity.role == NODE:
                return Viewer(identity.name, self.config.web_actions)
            return Viewer(identity.name, False, identity.name)
        raise AccessDenied("a token is needed: open the address that `spindle cockpit` or the daemon's file says")

    def keep(self, path: Path) -> None:
        """Writes the address with the token into a file for this user alone; the token that is there already stays, so
        that open pages go on after a restart. Raises OSError."""
        self.token = _kept_token(path) or self.token
        partial = path.with_suffix(".new")
        partial.unlink(missing_ok=True)
        fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(self.url + "\n")
        partial.rename(path)


def tls_context(config: NodeConfig, host: str) -> ssl.SSLContext | None:
    """What browsers are met with on this address: None on loopback, else TLS with the group's certificates. Raises
    ConfigError where there are none."""
    if is_loopback(host):
        return None
    if config.certificate is None or config.certificate_key is None or config.authority is None:
        raise ConfigError(f"[web] listen on {host} can be reached from other hosts, which takes TLS: set certificate, "
                          "key and authority in [network] (`spindle keys` makes them), or listen on 127.0.0.1 and come "
                          "by `ssh -L`")
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL  # who shows none needs the token
    try:
        context.load_verify_locations(cafile=config.authority)
        context.load_cert_chain(config.certificate, config.certificate_key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"[network] certificate = \"{config.certificate}\": the cockpit can't use it: "
                          f"{error}") from None
    return context


def _kept_token(path: Path) -> str:
    """Of an earlier life of this cockpit; empty if the file isn't ours alone."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            found = os.fstat(file.fileno())
            text = file.read(1000).strip()
    except (OSError, UnicodeDecodeError):
        return ""
    token = text.rpartition("#token=")[2]
    ours = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return token if ours and len(token) >= TOKEN_BYTES and token.isascii() else ""


def _host_and_port(host: str, default: int) -> tuple[str, int]:
    try:
        found = urlsplit(f"//{host}")
        return (found.hostname or "").lower(), default if found.port is None else found.port
    except ValueError:
        return "", -1


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


__all__ = ["Entry", "Viewer", "tls_context"]
