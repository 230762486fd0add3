"""Makes keys and certificates: those of a site's own authority, and those that nodes with a shared secret make up.

Why an authority of one's own: nodes are known by number, not by a name that a public authority could vouch for; and a
site of three hosts should not need a product for it. Why the shared secret ends in certificates too: then there is one
way in which nodes know each other, and one piece of code that can be wrong.

A certificate says who may use it in URIs among its subject alternative names:

    spindle:node:3              node 3, and no other; there may be several of these
    spindle:node:any            any node
    spindle:application:NAME    an application on a host without a node; never a node

Rules:
- Keys are EC P-256. A node's certificate serves both ends of a connection, an application's only the one that connects.
- From one secret every node derives the same authority and signs a leaf of its own with it, in memory. Whoever knows
  the secret can do so at any time, so these never expire: clocks have no part in it.
- `cryptography` is imported here only, and this module only where keys are made.
"""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spindle.security.keying import hkdf

CLOCKS_DIFFER = datetime.timedelta(hours=1)  # a certificate is used at once, on hosts whose clocks may be behind
SECRET_NAME = "Spindle shared secret"
_SECRET_INFO = b"spindle authority 1"
_LONG_AGO = datetime.datetime(2000, 1, 1, tzinfo=datetime.timezone.utc)
_NEVER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.timezone.utc)  # RFC 5280: it has no end
_P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


@dataclasses.dataclass(frozen=True)
class Pair:
    """A certificate and its private key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def key_pem(self) -> bytes:
        """Without a password: a node has to start by itself."""
        return self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                      serialization.NoEncryption())


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """As files have it."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def make_authority(name: str, days: int) -> Pair:
    """A new authority, which signs itself."""
    start = _now() - CLOCKS_DIFFER
    return _authority(name, ec.generate_private_key(ec.SECP256R1()), start, start + datetime.timedelta(days=days))


def make_node(authority: Pair, name: str, node_ids: Sequence[int], days: int) -> Pair:
    """A node's certificate; for any node if there are no ids."""
    uris = [f"spindle:node:{one}" for one in node_ids] or ["spindle:node:any"]
    return _leaf(authority, name, uris, days, [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


def make_application(authority: Pair, name: str, days: int) -> Pair:
    """An application's certificate."""
    return _leaf(authority, name, [f"spindle:application:{name}"], days, [ExtendedKeyUsageOID.CLIENT_AUTH])


def of_secret(secrets: Sequence[bytes]) -> tuple[list[x509.Certificate], Pair]:
    """The authorities that everybody with these secrets has, and a fresh leaf of the first that any node may use."""
    authorities = [_authority_of(secret) for secret in secrets]
    leaf = _leaf(authorities[0], SECRET_NAME, ["spindle:node:any"], None,
                 [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    return [one.certificate for one in authorities], leaf


def _authority_of(secret: bytes) -> Pair:
    # 128 bits more than the order has: the remainder is as good as evenly distributed.
    number = int.from_bytes(hkdf(secret, _SECRET_INFO, 48), "big") % (_P256_ORDER - 1) + 1
    return _authority(SECRET_NAME, ec.derive_private_key(number, ec.SECP256R1()), _LONG_AGO, _NEVER, serial=1)


def load_pair(certificate_pem: bytes, key_pem: bytes) -> Pair:
    """An authority from its files. Raises ValueError or TypeError if they aren't what they should be."""
    key = serialization.load_pem_private_key(key_pem, password=None)
    certificate = x509.load_pem_x509_certificate(certificate_pem)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the key is not one of an elliptic curve")
    if key.public_key() != certificate.public_key():
        raise ValueError("the key does not belong to the certificate")
    return Pair(certificate, key)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _authority(name: str, key: ec.EllipticCurvePrivateKey, start: datetime.datetime, end: datetime.datetime,
               serial: int | None = None) -> Pair:
    builder = (
        x509.CertificateBuilder(subject_name=_named(name), issuer_name=_named(name), public_key=key.public_key(),
                                serial_number=serial or x509.random_serial_number(), not_valid_before=start,
                                not_valid_after=end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Pair(builder.sign(key, hashes.SHA256()), key)


def _leaf(authority: Pair, name: str, uris: Sequence[str], days: int | None,
          purposes: Sequence[x509.ObjectIdentifier]) -> Pair:
    """`days` None: as long as the authority. Nothing outlives its authority, as nobody would take it then."""
    key = ec.generate_private_key(ec.SECP256R1())
    by = authority.certificate
    start, end = by.not_valid_before_utc, by.not_valid_after_utc
    if days is not None:
        start = max(start, _now() - CLOCKS_DIFFER)
        end = min(end, _now() + datetime.timedelta(days=days))
    builder = (
        x509.CertificateBuilder(subject_name=_named(name), issuer_name=by.subject, public_key=key.public_key(),
                                serial_number=x509.random_serial_number(), not_valid_before=start, not_valid_after=end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri) for uri in uris]),
                       critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
    )
    return Pair(builder.sign(authority.key, hashes.SHA256()), key)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False)
