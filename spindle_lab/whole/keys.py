"""Keys and certificates of a simulated site: the same in every run, so that what nodes send has the same length.

Why not those that `spindle keys` makes: the length of a signature on a NIST curve depends on chance, and a run in which
one more byte passes is another run. Signatures of Ed25519 have one length, and the nodes take any certificate that
their authority has signed.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import hashlib
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

START = datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)
END = datetime.datetime(2400, 1, 1, tzinfo=datetime.timezone.utc)


@dataclasses.dataclass(frozen=True)
class Keys:
    """The files of one end."""

    certificate: Path
    key: Path
    authority: Path


def _key(name: str) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(name.encode()).digest())


def _signed(name: str, by: str, uri: str) -> x509.Certificate:
    """A certificate of `name` signed by `by`; an authority's own if there is no `uri`."""
    own, signer = _key(name), _key(by)
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one)]) for one in (name, by)]
    builder = (
        x509.CertificateBuilder(
            subject_name=names[0], issuer_name=names[1], public_key=own.public_key(), not_valid_before=START,
            serial_number=int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"), not_valid_after=END)
        .add_extension(x509.BasicConstraints(ca=not uri, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if uri:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), False)
    return builder.sign(signer, None)


@functools.cache
def _pem(name: str, authority: str, uri: str) -> tuple[bytes, bytes, bytes]:
    as_pem = serialization.Encoding.PEM
    key = _key(name).private_bytes(as_pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return (_signed(name, authority, uri).public_bytes(as_pem), key,
            _signed(authority, authority, "").public_bytes(as_pem))


def written(directory: Path, name: str, authority: str, uri: str) -> Keys:
    """The files of an end that this authority certifies as what `uri` says (`spindle.security.identity`)."""
    directory.mkdir(exist_ok=True)
    paths = [directory / f"{name}.{authority}.{kind}" for kind in ("certificate", "key", "authority")]
    for path, content in zip(paths, _pem(name, authority, uri), strict=True):
        if not path.exists():
            path.touch(mode=0o600)
            path.write_bytes(content)
    return Keys(*paths)
