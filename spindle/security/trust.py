"""Whom a node believes: the keys and certificates of [network], and what the certificate of the other end says.

Three modes: "certificates" (an authority of the site signs one for each node), "secret" (a file that all nodes share;
see `spindle.security.authority` for how it turns into certificates), and "plain" (no keys: on loopback, or where
[network] plain allows it). In the first two both ends show a certificate, over TLS 1.3 and nothing older.

Rules:
- There is no check of host names or addresses: a certificate says which nodes may use it (`Identity`), whatever
  address they have. That it was signed by the authority, and for this purpose, is TLS's affair.
- `Trust.of` finds what is wrong with the files when the node starts, not when the first peer comes: it shakes hands
  with itself. Private files must be private, as ssh wants it.
- The files are read once. New ones are for the next start.
- Nothing of `ssl` or `cryptography` is imported in plain mode: a node without a network starts faster without them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spindle.errors import AccessDenied, ConfigError
from spindle.security.identity import APPLICATION, CERTIFICATES, NODE, PLAIN, SECRET, Identity

if TYPE_CHECKING:
    import ssl

    from spindle.config.settings import NodeConfig

SECRET_BITS_MIN = 128
SECRETS_MAX = 4
SECRET_DISTINCT_MIN = 8  # different bytes: 16 random ones have fewer once in 10^15 times
FILE_BYTES_MAX = 1 << 20
ENDS_SOON_S = 30 * 86400
REMIND_S = 86400.0  # between warnings that the certificate ends


class Trust:
    """What a node, or an application on a host without one, shows to others and wants to see of them.

    `identity` and `not_after` (seconds since 1970) are those of the own certificate; None in plain mode.
    """

    def __init__(self, mode: str, *, plain_anywhere: bool = False) -> None:
        self.mode = mode
        self.identity: Identity | None = None
        self.not_after: float | None = None
        self._plain_anywhere = plain_anywhere
        self._contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None = None  # as client, as server

    @classmethod
    def of(cls, config: NodeConfig, role: str = NODE) -> Trust:
        """As [network] says. Raises ConfigError with what is wrong with its files."""
        if config.certificate is not None and config.certificate_key is not None and config.authority is not None:
            trust = cls.of_certificates(config.certificate, config.certificate_key, config.authority, role)
            if config.node_id:
                try:
                    assert trust.identity is not None
                    trust.identity.check_node(config.node_id)
                except AccessDenied as error:
                    raise ConfigError(f"[network] certificate = \"{config.certificate}\": {error}") from None
            return trust
        if config.secret is not None:
            return cls.of_secret(config.secret)
        return cls(PLAIN, plain_anywhere=config.plain)

    @classmethod
    def of_certificates(cls, certificate: Path, key: Path, authority: Path, role: str = NODE) -> Trust:
        """From files. Raises ConfigError."""
        from spindle.security.contexts import contexts, show

        read_file(certificate, f"[network] certificate = \"{certificate}\"")
        read_file(key, f"[network] key = \"{key}\"", private=True)
        read_file(authority, f"[network] authority = \"{authority}\"")
        trust = cls(CERTIFICATES)
        trust._contexts = contexts(certificate, key, authority)
        own = show(*trust._contexts, CERTIFICATES, certificate, both_ways=role == NODE)
        trust._set_own(own, f"[network] certificate = \"{certificate}\"", role)
        return trust

    @classmethod
    def of_secret(cls, path: Path) -> Trust:
        """From the file that all nodes share. Raises ConfigError."""
        from spindle.security.authority import certificate_pem, of_secret
        from spindle.security.contexts import contexts

        secrets = read_secrets(path, f"[network] secret = \"{path}\"")
        authorities, leaf = of_secret(secrets)
        trust = cls(SECRET)
        own_pem = certificate_pem(leaf.certificate) + leaf.key_pem
        with _as_file(own_pem) as own, _as_file(b"".join(map(certificate_pem, authorities))) as authority_file:
            trust._contexts = contexts(own, own, authority_file)
        trust.identity = Identity("", NODE)
        return trust

    def _set_own(self, certificate: Mapping[str, Any], where: str, role: str) -> None:
        import ssl

        try:
            self.identity = Identity.of(certificate)
        except AccessDenied as error:
            raise ConfigError(f"{where}: {error}") from None
        if self.identity.role != role:
            raise ConfigError(f"{where}: it is for {_a(self.identity.role)}, and this is {_a(role)}; make another: "
                              f"`spindle keys {role}`")
        self.not_after = ssl.cert_time_to_seconds(certificate["notAfter"])

    def context(self, server_side: bool) -> ssl.SSLContext:
        """For one end of a connection. Not in plain mode."""
        assert self._contexts is not None, "plain mode has no keys"
        return self._contexts[server_side]

    def identify(self, certificate: Mapping[str, Any] | None) -> Identity:
        """Who showed this certificate, which TLS has verified. Raises AccessDenied."""
        if not certificate:
            raise AccessDenied("no certificate was shown")
        identity = Identity.of(certificate)
        return Identity("", identity.role, identity.node_ids) if self.mode == SECRET else identity

    def check_plain(self, address: str) -> None:
        """Raises ConfigError unless one may talk with this address ("host:port" or a host), or listen there, without
        keys; AccessDenied if there are keys, which then hold everywhere."""
        if self.mode != PLAIN:
            keys = "secret" if self.mode == SECRET else "certificate, key and authority"  # read at both ends
            raise AccessDenied(f"{address} talks without keys, which this group doesn't allow; in the [network] of "
                               f"that node {keys} must be set")
        if not self._plain_anywhere and not is_loopback(address):
            raise ConfigError(f"{address} is not on this host, and [network] has neither certificates nor a secret: "
                              "whoever reaches the port could do everything. `spindle keys` makes what is missing; "
                              "if the network itself is private to the group, set [network] plain = true on all nodes")

    def ends_soon(self, now: float | None = None) -> str:
        """A line for the log if the own certificate ends within 30 days, or has ended; else empty."""
        left_s = float("inf") if self.not_after is None else self.not_after - (time.time() if now is None else now)
        if left_s > ENDS_SOON_S:
            return ""
        assert self.not_after is not None
        day = time.strftime("%Y-%m-%d", time.gmtime(self.not_after))
        ends = f"ends on {day}, in {int(left_s // 86400)} days" if left_s > 0 else f"has ended on {day}"
        role = NODE if self.identity is None else self.identity.role
        return (f"{self.identity or 'the certificate'} {ends}: then no node lets this one in any more. Make a new one "
                f"(`spindle keys {role}`) and start the {'node' if role == NODE else 'edge'} anew with it")


def is_loopback(address: str) -> bool:
    """True if "host:port" or a host can't be reached from elsewhere. A name other than localhost might."""
    with_port = re.fullmatch(r"\[(.*)\](?::[0-9]*)?|([^:]*):[0-9]*", address)
    host = (address if with_port is None else with_port[1] or with_port[2] or "").partition("%")[0]
    if host == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def read_secrets(path: Path, where: str) -> list[bytes]:
    """The secrets in a file, each a line of hexadecimal digits: what this node shows is made from the first one, and it
    takes all, so that one can replace the other while nodes run. Raises ConfigError, which `where` opens, if one may
    be guessed."""
    lines = [line.strip() for line in read_file(path, where, private=True).splitlines() if line.strip()]
    if len(lines) > SECRETS_MAX:
        raise ConfigError(f"{where}: has {len(lines)} lines, at most {SECRETS_MAX} secrets may be in use at once")
    return [_secret(line, where) for line in lines or [b""]]


def _secret(text: bytes, where: str) -> bytes:
    make = "`spindle keys secret` makes one of 256 bits"
    if not re.fullmatch(rb"(?:[0-9A-Fa-f]{2})+", text):
        raise ConfigError(f"{where}: must be hexadecimal digits, two for a byte, in one line: a password could be "
                          f"guessed by whoever reaches the port. {make}")
    secret = bytes.fromhex(text.decode())
    if len(secret) * 8 < SECRET_BITS_MIN:
        raise ConfigError(f"{where}: has {len(secret) * 8} bits, but must have {SECRET_BITS_MIN} at least, as whoever "
                          f"reaches the port can try guesses at leisure. {make}")
    if len(set(secret)) < SECRET_DISTINCT_MIN:
        raise ConfigError(f"{where}: has only {len(set(secret))} different bytes, so it isn't random. {make}")
    return secret


def read_file(path: Path, where: str, private: bool = False) -> bytes:
    """Content of a file. Raises ConfigError, which `where` opens; also if it is `private` and others may read it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe in its place must not hang the start
        with open(fd, "rb") as file:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{where}: is not a file")
            if private:
                _check_private(found, where, path)
            content = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(f"{where}: there is no such file; `spindle keys` makes such files") from None
    except OSError as error:
        raise ConfigError(f"{where}: can't be read by user {os.geteuid()}: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{where}: is longer than {FILE_BYTES_MAX} bytes, so it is something else")
    return content


def _check_private(found: os.stat_result, where: str, path: Path) -> None:
    """As services keep keys: the user's own and nobody else's, or root's and readable by the service's group."""
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{where}: belongs to user {found.st_uid}, but must belong to user {os.geteuid()}, who runs "
                          "the node, or to root")
    wrong = stat.S_IRWXO | (stat.S_IWGRP | stat.S_IXGRP if found.st_uid == 0 else stat.S_IRWXG)
    if found.st_mode & wrong:
        raise ConfigError(f"{where}: other users may read or write it (mode {stat.S_IMODE(found.st_mode):04o}); "
                          f"chmod 600 {path}, and make a new one if somebody may have read it")


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    """A path to these bytes that exists in this process only and leaves nothing on a disk: OpenSSL reads files."""
    fd = os.memfd_create("spindle-keys", os.MFD_CLOEXEC)
    try:
        os.write(fd, content)
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)


def _a(role: str) -> str:
    return "an application" if role == APPLICATION else "a node"
