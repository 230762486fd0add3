"""What OpenSSL is told of a node's keys, and a look at them as others will see them.

Why a look: what is wrong with the files must come out when the node starts, not when the first peer comes.
"""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path
from typing import Any

from spindle.errors import ConfigError
from spindle.security import tls_errors

ALPN = "spindle"


def contexts(certificate: Path, key: Path, authority: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What OpenSSL needs for connecting and for being connected to. Raises ConfigError."""
    return (_context(ssl.PROTOCOL_TLS_CLIENT, certificate, key, authority),
            _context(ssl.PROTOCOL_TLS_SERVER, certificate, key, authority))


def _context(protocol: int, certificate: Path, key: Path, authority: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # a certificate is for a node, wherever that runs
    context.verify_mode = ssl.CERT_REQUIRED
    context.set_alpn_protocols([ALPN])  # so that no other service with the same authority can be taken for a node
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # a session that is resumed would show no certificate
    try:
        load_authorities(authority, context)
    except ValueError as error:
        raise ConfigError(f"[network] authority = \"{authority}\": {error}") from None

    def password() -> str:
        raise ConfigError(f"[network] key = \"{key}\": needs a password, but a node starts by itself; take it off "
                          f"(openssl pkey -in {key})")

    try:
        context.load_cert_chain(certificate, key, password)
    except (ssl.SSLError, OSError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"[network] key = \"{key}\": does not belong to the certificate {certificate}; they are "
                              "made together") from None
        raise ConfigError(f"[network] certificate = \"{certificate}\", key = \"{key}\": OpenSSL can't read them "
                          f"({error}); they must be PEM") from None
    return context


def load_authorities(path: Path, context: ssl.SSLContext | None = None) -> None:
    """Has OpenSSL read a file with the certificates of authorities. Raises ValueError where it refuses any of them."""
    try:
        (context or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)).load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        raise ValueError(f"has no certificate that OpenSSL can read, or one that is torn ({error}); it must be PEM, "
                         "and each certificate begin on a line of its own") from None


def show(client_context: ssl.SSLContext, server_context: ssl.SSLContext, mode: str, certificate: Path,
         both_ways: bool) -> dict[str, Any]:
    """Shows the own certificate to oneself, as the others will see it; returns what it says. Raises ConfigError.

    `both_ways`: it must do for being connected to as well. `mode` is that of the keys, for the words of a refusal.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_context.verify_mode = ssl.CERT_REQUIRED if both_ways else ssl.CERT_NONE
    try:
        client = client_context.wrap_bio(to_client, to_server)
    finally:
        client_context.verify_mode = ssl.CERT_REQUIRED
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    try:
        for end in (client, server, client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
        found = server.getpeercert()
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(f"[network] certificate = \"{certificate}\": "
                          f"{tls_errors.unverified(error, 'it', mode)}") from None
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"[network] certificate = \"{certificate}\": can't be used: {error}") from None
    assert found
    return found
