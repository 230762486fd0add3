"""A site for tests: an authority, certificates and secrets in files, and what a node makes of them.

`Site.trust` refuses what `Trust.of` refuses; `Site.reckless` is a node that doesn't look at its own certificate, so
that the others have something to refuse.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from spindle.security import authority
from spindle.security.authority import Pair, certificate_pem
from spindle.security.contexts import contexts
from spindle.security.identity import CERTIFICATES, NODE
from spindle.security.trust import Trust


@contextlib.contextmanager
def days_from_now(days: float) -> Iterator[None]:
    """Certificates that are made meanwhile are made then."""
    then = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0) + datetime.timedelta(days=days)
    with mock.patch.object(authority, "_now", lambda: then):
        yield


class Site:
    """An authority and files in `directory`."""

    def __init__(self, directory: Path, name: str = "site") -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        with days_from_now(-1000):  # old enough for certificates that have expired
            self.authority = authority.make_authority(name, 3650)
        self.authority_file = self.write("authority.crt", certificate_pem(self.authority.certificate), 0o644)

    def write(self, name: str, content: bytes, mode: int = 0o600) -> Path:
        path = self.directory / name
        path.write_bytes(content)
        path.chmod(mode)
        return path

    def files(self, name: str, pair: Pair) -> tuple[Path, Path]:
        """Certificate and key."""
        return self.write(f"{name}.crt", certificate_pem(pair.certificate)), self.write(f"{name}.key", pair.key_pem)

    def node(self, *ids: int) -> Pair:
        return authority.make_node(self.authority, f"node-{ids[0]}" if ids else "any", ids, 730)

    def application(self, name: str = "plotter") -> Pair:
        return authority.make_application(self.authority, name, 365)

    def settings(self, *ids: int) -> dict[str, Any]:
        """Of NodeConfig, for a node with a certificate for these ids (for any, if none)."""
        certificate, key = self.files(f"node-{'-'.join(map(str, ids)) or 'any'}", self.node(*ids))
        return {"certificate": certificate, "certificate_key": key, "authority": self.authority_file}

    def trust(self, pair: Pair | None = None, role: str = NODE) -> Trust:
        certificate, key = self.files(f"{id(pair)}", pair or self.node())
        return Trust.of_certificates(certificate, key, self.authority_file, role)

    def reckless(self, pair: Pair) -> Trust:
        certificate, key = self.files(f"{id(pair)}", pair)
        trust = Trust(CERTIFICATES)
        trust._contexts = contexts(certificate, key, self.authority_file)
        return trust

    def secret_file(self, name: str = "secret", secret: bytes = b"") -> Path:
        return self.write(name, (secret or os.urandom(32)).hex().encode() + b"\n")
