"""Goal: a data connection that the kernel encrypts carries what is sent, and nothing else; one that it can't encrypt is
refused with what to do.

Method: what `protect` gives to the kernel is taken by a model of TLS 1.3's records (RFC 8446, 5.2), built on another
library's cipher, and where the kernel has the module, by the kernel: two of its ends with each other, and one with the
model.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
import termios
import threading
from collections.abc import Iterator

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from spindle.errors import ConfigError, WireError
from spindle.security import ktls

MATERIAL = bytes(range(32))
APPLICATION_DATA = 23
TAG_BYTES = 16

needs_kernel = pytest.mark.skipif(bool(ktls.available()), reason=f"this kernel can't: {ktls.available()[:60]}")


class Model:
    """One direction of a connection, from the struct that the kernel would have got."""

    def __init__(self, crypto_info: bytes) -> None:
        version, cipher, iv, key, salt, first = struct.unpack("=HH8s32s4s8s", crypto_info)
        assert (version, cipher) == (0x0304, 52)
        self._cipher = AESGCM(key)
        self._nonce = int.from_bytes(salt + iv, "big")
        self._number = int.from_bytes(first, "big")

    def _next(self) -> bytes:
        nonce = (self._nonce ^ self._number).to_bytes(12, "big")
        self._number += 1
        return nonce

    def seal(self, data: bytes) -> bytes:
        header = struct.pack(">BHH", APPLICATION_DATA, 0x0303, len(data) + 1 + TAG_BYTES)
        return header + self._cipher.encrypt(self._next(), data + bytes([APPLICATION_DATA]), header)

    def open(self, record: bytes) -> bytes:
        inner = self._cipher.decrypt(self._next(), record[5:], record[:5]).rstrip(b"\0")
        assert inner[-1] == APPLICATION_DATA
        return inner[:-1]


class Recorder:
    """A socket that remembers its options."""

    def __init__(self, error: int = 0) -> None:
        self.options: dict[tuple[int, int], bytes] = {}
        self._error = error

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        if self._error:
            raise OSError(self._error, os.strerror(self._error))
        self.options[level, option] = value


def given(server_side: bool, material: bytes = MATERIAL) -> tuple[bytes, bytes]:
    """What the kernel gets for sending and for receiving."""
    recorder = Recorder()
    ktls.protect(recorder, material, server_side)  # type: ignore[arg-type]
    assert next(iter(recorder.options)) == (socket.IPPROTO_TCP, 31)
    assert recorder.options[socket.IPPROTO_TCP, 31] == b"tls"
    return recorder.options[282, 1], recorder.options[282, 2]


def test_each_end_reads_what_the_other_writes_with_keys_that_nothing_else_has() -> None:
    client_sends, client_receives = given(server_side=False)
    server_sends, server_receives = given(server_side=True)
    assert client_sends == server_receives and server_sends == client_receives
    assert client_sends != server_sends
    assert not {client_sends, server_sends} & set(given(False, os.urandom(32)))
    one, other = Model(client_sends), Model(server_receives)
    for data in (b"a", b"x" * 16384, b"", b"last"):
        assert other.open(one.seal(data)) == data
    with pytest.raises(InvalidTag):
        Model(server_receives).open(Model(server_sends).seal(b"reflected"))


@pytest.mark.parametrize(("error", "kind", "word"), [
    (errno.ENOENT, ConfigError, "modprobe tls"),
    (errno.EINVAL, ConfigError, "encrypt = false on all nodes"),
    (errno.ENOTCONN, WireError, "broke before"),
])
def test_what_the_kernel_refuses_is_an_error_that_says_what_to_do(error: int, kind: type, word: str) -> None:
    with pytest.raises(kind, match=word):
        ktls.protect(Recorder(error), MATERIAL, True)  # type: ignore[arg-type]


def test_available_says_why_not() -> None:
    why = ktls.available()
    assert why == "" or "modprobe tls" in why


@pytest.mark.skipif(not ktls.available(), reason="this kernel can")
def test_a_kernel_without_the_module_refuses_in_these_words() -> None:
    with tcp() as (one, _), pytest.raises(ConfigError, match="modprobe tls"):
        ktls.protect(one, MATERIAL, False)


@contextlib.contextmanager
def tcp() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as one:
        other, _ = listener.accept()
        with other:
            one.settimeout(20)
            other.settimeout(20)
            yield one, other


def received(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        assert more
        data += more
    return data


@needs_kernel
def test_two_kernels_ends_carry_what_is_sent_both_ways() -> None:
    with tcp() as (one, other):
        one.sendall(b"plain")
        ktls.protect(one, MATERIAL, server_side=False)
        one.sendall(b"first")  # before the other end has its keys
        assert received(other, 5) == b"plain"
        ktls.protect(other, MATERIAL, server_side=True)
        assert received(other, 5) == b"first"
        big = os.urandom(3_000_000)
        sender = threading.Thread(target=one.sendall, args=(big,))
        sender.start()
        assert received(other, len(big)) == big
        sender.join()
        other.sendmsg([b"three ", b"pieces ", b"back"])
        assert received(one, 17) == b"three pieces back"
        one.close()
        assert other.recv(1) == b""


@needs_kernel
def test_the_kernel_and_the_model_understand_each_other_and_the_wire_shows_nothing() -> None:
    sends, receives = given(server_side=True)
    with tcp() as (one, other):
        ktls.protect(one, MATERIAL, server_side=False)
        secret = b"nobody may read this"
        one.sendall(secret)
        record = received(other, 5)
        record += received(other, int.from_bytes(record[3:5], "big"))
        assert secret not in record and Model(receives).open(record) == secret
        other.sendall(Model(sends).seal(b"answer"))
        assert received(one, 6) == b"answer"


@needs_kernel
def test_a_byte_that_was_changed_on_the_way_ends_the_connection() -> None:
    sends, _ = given(server_side=True)
    with tcp() as (one, other):
        ktls.protect(one, MATERIAL, server_side=False)
        changed = bytearray(Model(sends).seal(b"pay 10"))
        changed[8] ^= 1
        other.sendall(changed)
        with pytest.raises(OSError) as caught:
            one.recv(100)
        assert caught.value.errno == errno.EBADMSG


@needs_kernel
def test_the_calls_of_the_fabric_do_on_it_what_they_do_elsewhere() -> None:
    """Not blocking, several parts in one call, sent until the socket is full; epoll tells when there is more to do."""
    with tcp() as (one, other):
        ktls.protect(one, MATERIAL, server_side=False)
        ktls.protect(other, MATERIAL, server_side=True)
        for sock in (one, other):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        parts = [os.urandom(size) for size in (8, 16384, 1, 70_000)]
        whole = b"".join(parts) * 40
        left, got = memoryview(whole), bytearray()
        full = 0
        with select.epoll() as epoll:
            epoll.register(one, select.EPOLLOUT)
            epoll.register(other, select.EPOLLIN)
            while len(got) < len(whole):
                for fd, events in epoll.poll(10):
                    if fd == one.fileno() and events & select.EPOLLOUT:
                        try:
                            while left:
                                sent = one.sendmsg([left[:8], left[8:16392], left[16392:86393]], [],
                                                   socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
                                left = left[sent:]
                            epoll.modify(one, 0)
                        except BlockingIOError:
                            full += 1
                    elif fd == other.fileno():
                        into = [bytearray(24), bytearray(50_000)]
                        count = os.readv(fd, into)
                        got += b"".join(into)[:count]
        assert got == whole and full
        waiting = array.array("i", [-1])
        fcntl.ioctl(one, termios.TIOCOUTQ, waiting)
        assert waiting[0] >= 0
        one.shutdown(socket.SHUT_RDWR)
        assert os.readv(other.fileno(), [bytearray(1)]) == 0
