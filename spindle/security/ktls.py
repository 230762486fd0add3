"""Encrypts a data connection in the kernel: TLS 1.3 records, made and opened by it below send() and recv().

Why the kernel: the predicate thread sends and receives with plain system calls on ranges of rows, takes no lock and
runs no Python. Encrypted by the kernel, it is the same calls. Why no handshake: both ends have one secret already,
which one of them made and sent over their authenticated control connection, so keys of both directions follow from it.

Rules:
- `key_material` is secret, random, and good for one connection: used twice, two records would have the same key and
  number, which breaks the cipher.
- Both ends call `protect` at the same place of the stream: after the last plain byte was sent, before the first
  encrypted one is read. Nothing is to be queued in the socket by the caller, everything plain is to be read.
- A byte that was changed on the way ends the connection (EBADMSG). The end of the connection is not authenticated: it
  only ever means that the peer is gone.
- The kernel doesn't change keys by itself. AES-GCM is good for 2^24.5 records, 380 GB in full ones, with a wide margin,
  and every epoch has new connections.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import struct

from spindle.errors import ConfigError, WireError
from spindle.security.keying import hkdf

KEY_BYTES, NONCE_BYTES = 32, 12
MATERIAL_BYTES_MIN = 16

# linux/tcp.h, linux/socket.h, linux/tls.h
TCP_ULP = 31
SOL_TLS = 282
TLS_TX, TLS_RX = 1, 2
TLS_1_3_VERSION = 0x0304
TLS_CIPHER_AES_GCM_256 = 52
# struct tls12_crypto_info_aes_gcm_256: version, cipher; then iv, key, salt and the number of the first record. Salt and
# iv together are the nonce of TLS 1.3.
CRYPTO_INFO = struct.Struct("=HH8s32s4s8s")

NEEDED = ("[network] encrypt = true needs the TLS of the kernel (5.1 or later, CONFIG_TLS): `modprobe tls`, and for "
          "the next boot a line `tls` in /etc/modules-load.d/spindle.conf; or set encrypt = false on all nodes")


@dataclasses.dataclass(frozen=True)
class Keys:
    """Of one direction."""

    key: bytes
    nonce: bytes

    def crypto_info(self) -> bytes:
        """As the kernel takes them."""
        return CRYPTO_INFO.pack(TLS_1_3_VERSION, TLS_CIPHER_AES_GCM_256, self.nonce[4:], self.key, self.nonce[:4],
                                bytes(8))


def keys_of(key_material: bytes) -> tuple[Keys, Keys]:
    """Of what the connecting end sends, and of what the accepting one does."""
    assert len(key_material) >= MATERIAL_BYTES_MIN
    made = [hkdf(key_material, b"spindle data 1 " + end, KEY_BYTES + NONCE_BYTES) for end in (b"client", b"server")]
    client, server = (Keys(one[:KEY_BYTES], one[KEY_BYTES:]) for one in made)
    return client, server


def available() -> str:
    """Empty if this kernel can do it, else why not and what to do.

    Method: it encrypts a connection to itself. That the module is there is not enough: it may lack the cipher.
    """
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=1) as listener, \
                socket.create_connection(listener.getsockname(), timeout=1) as sock:
            _protect(sock, *keys_of(os.urandom(KEY_BYTES)))
    except OSError as error:
        return f"the kernel can't encrypt connections ({error.strerror or error}): {NEEDED}"
    return ""


def protect(sock: socket.socket, key_material: bytes, server_side: bool) -> None:
    """From here on everything on this connected TCP socket is encrypted. Raises ConfigError if the kernel can't, and
    WireError if the connection has broken meanwhile; it is to be closed then."""
    client, server = keys_of(key_material)
    sending, receiving = (server, client) if server_side else (client, server)
    try:
        _protect(sock, sending, receiving)
    except OSError as error:
        if error.errno in (errno.ENOTCONN, errno.ECONNRESET, errno.EPIPE):
            raise WireError(f"a data connection broke before it was encrypted: {error.strerror}") from error
        raise ConfigError(f"the kernel can't encrypt connections ({error.strerror}): {NEEDED}") from error


def _protect(sock: socket.socket, sending: Keys, receiving: Keys) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
    sock.setsockopt(SOL_TLS, TLS_TX, sending.crypto_info())
    sock.setsockopt(SOL_TLS, TLS_RX, receiving.crypto_info())
