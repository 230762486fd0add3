"""Keys from secrets: HKDF with SHA-256 (RFC 5869).

Why not from a library: it is a few lines over the standard library's HMAC, and a node that encrypts messages must not
need more than the kernel for it.

Rules: `secret` has full entropy already (random bytes, never a password); whoever derives two keys from one secret
gives each its own `info`.
"""

from __future__ import annotations

import hashlib
import hmac

HASH_BYTES = 32
LENGTH_MAX = 255 * HASH_BYTES


def hkdf(secret: bytes, info: bytes, length: int, salt: bytes = b"") -> bytes:
    """`length` bytes for the purpose that `info` names."""
    assert 0 < length <= LENGTH_MAX
    extracted = hmac.digest(salt or bytes(HASH_BYTES), secret, hashlib.sha256)
    made = block = b""
    for number in range(1, -(-length // HASH_BYTES) + 1):
        block = hmac.digest(extracted, block + info + bytes([number]), hashlib.sha256)
        made += block
    return made[:length]
