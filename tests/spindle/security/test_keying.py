"""Goal: keys are those that the standard says. Method: the vectors for SHA-256 of RFC 5869, appendix A."""

from __future__ import annotations

import pytest

from spindle.security.keying import hkdf

LONG = bytes(range(0x00, 0x50)), bytes(range(0x60, 0xB0)), bytes(range(0xB0, 0x100))


@pytest.mark.parametrize(("secret", "salt", "info", "expected"), [
    (b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)),
     "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"),
    (*LONG, "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
            "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87"),
    (b"\x0b" * 22, b"", b"",
     "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"),
])
def test_vectors_of_the_standard(secret: bytes, salt: bytes, info: bytes, expected: str) -> None:
    assert hkdf(secret, info, len(expected) // 2, salt).hex() == expected


def test_a_length_is_a_prefix_and_another_purpose_another_key() -> None:
    assert hkdf(b"s" * 32, b"a", 100)[:31] == hkdf(b"s" * 32, b"a", 31)
    assert hkdf(b"s" * 32, b"a", 32) != hkdf(b"s" * 32, b"b", 32)
