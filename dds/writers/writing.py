"""What write() of one writer does, made once for the inbox that the writer has at the moment.

Why apart from `dds.pub`: the function that a program calls for each sample has all that it needs at hand, and nothing
more. It knows the writer's link, not the writer, so that the writer can be forgotten.

A writer whose Qos has readers know something with each sample, or that somebody watches, takes another way, which
costs it a copy more (`bind_told_write`).

Source timestamps of writers whose samples come in the order of these (DestinationOrder, DDS 1.4, 2.2.3.17): a sample
from the far future would keep all others of its instance out until then, at every reader. So a writer with that policy
refuses it, by the clock of its host. Readers refuse nothing for that: each would go by a clock of its own, and they
would differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dds.codecs.loan import Loan
from dds.codecs.types import contiguous
from dds.exceptions import DDSException, closed, not_enabled, of_topic
from dds.internal import source_stamp
from dds.messages.operations import ANNOUNCES_QOS, KEYLESS_HANDLE, WRITES
from dds.waiting.wake import Deadline, park
from dds.writers.outlet import through, write_error
from dds.writers.written import Written

if TYPE_CHECKING:
    from dds.contracts import AVigil
    from dds.writers.limits import WriterLimits
    from dds.writers.link import WriterLink

AHEAD_MAX_NS = 30_000_000_000  # hosts' clocks may differ by as much


def bind_write(codec: Any, link: WriterLink, timeout_s: float, written: Written | None) -> Callable[..., None]:
    """write(sample, timestamp=None). If the inbox's node is gone, the sample goes to the next one (`through`)."""
    put = link.handle.inbox.write
    if link.doubtful:
        def put(data: Any, timestamp: int, timeout_s: float, tag: int = 0, key: int = 0) -> None:
            inbox = link.handle.inbox  # before the check, as in through()
            link.check()
            inbox.write(data, timestamp, timeout_s, tag, key)

    if codec.kind == "bytes":
        def write(sample: Any, timestamp: int | None = None) -> None:
            at = 0 if timestamp is None else source_stamp(timestamp)
            try:
                put(sample, at, timeout_s)
            except Exception as error:
                if isinstance(error, ConnectionError):
                    write_through(link, sample, at, Deadline.after(timeout_s))
                    return
                # A buffer that isn't contiguous is copied into one that is; TypeError for what has no buffer.
                if not isinstance(error, (BufferError, ValueError)) or memoryview(sample).c_contiguous:
                    raise write_error(error, link) from error
                put(contiguous(sample), at, timeout_s)
    elif written is not None and link.spec.effects:
        encode = codec.encode

        def write(sample: Any, timestamp: int | None = None) -> None:
            at = 0 if timestamp is None else source_stamp(timestamp)
            try:
                data = encode(sample)
                key, handle = written.key_and_handle(sample)
            except Exception as error:
                raise of_topic(error, link.spec.name) from error
            try:
                put(data, at, timeout_s, 0, handle)
            except ConnectionError:
                write_through(link, data, at, Deadline.after(timeout_s), 0, handle)
            except Exception as error:
                raise write_error(error, link) from error
            written.keep(key, handle, data)
    else:
        encode = codec.encode

        def write(sample: Any, timestamp: int | None = None) -> None:
            at = 0 if timestamp is None else source_stamp(timestamp)
            try:
                data = encode(sample)
            except Exception as error:
                raise of_topic(error, link.spec.name) from error
            try:
                put(data, at, timeout_s)
            except ConnectionError:
                write_through(link, data, at, Deadline.after(timeout_s))
            except Exception as error:
                raise write_error(error, link) from error
            if written is not None:
                written.add(sample, data)
    return write


def write_through(link: WriterLink, data: Any, timestamp: int | None, deadline: Deadline, tag: int = 0,
                  key: int = 0) -> None:
    """One message, through this node or the next; `key` is the handle of its instance. Raises as a write."""
    through(link, lambda inbox, left_s: inbox.write(data, timestamp or 0, left_s, tag, key), deadline)


def bind_told_write(codec: Any, put: Callable[[bytes, int, int | None, int], None], written: Written | None,
                    inline: bytes, key_mask: int, vigil: AVigil | None, limits: WriterLimits | None,
                    inbox: Callable[[], Any], topic: str) -> Callable[..., None]:
    """The same with `inline` Qos behind each sample, a `vigil` that hears of each, and limits on instances.
    put(data, tag, timestamp, key); key_mask: see InlineQos; inbox() is the present one."""
    tag = WRITES | ANNOUNCES_QOS if inline else 0

    def write(sample: Any, timestamp: int | None = None) -> None:
        at = None if timestamp is None else source_stamp(timestamp)
        try:
            data = bytes(contiguous(sample) if codec.kind == "bytes" else codec.encode(sample))
            key, instance = (None, KEYLESS_HANDLE) if written is None else written.key_and_handle(sample)
        except Exception as error:
            raise of_topic(error, topic) from error
        if limits is not None:
            limits.admit(sample, inbox())
        put(data + inline, tag, at, (0 if written is None else instance) ^ key_mask)
        if written is not None:
            written.keep(key, instance, data)
        if vigil is not None:
            vigil.written(instance)
        if limits is not None:
            limits.written(instance, inbox())
    return write


def bind_closed_write(writer: str) -> Callable[..., None]:
    """write() of a writer that is closed."""
    def write(sample: Any, timestamp: int | None = None) -> None:
        park()
        raise closed(writer)
    return write


def bind_disabled_write(writer: str) -> Callable[..., None]:
    """write() of a writer that is not enabled."""
    def write(sample: Any, timestamp: int | None = None) -> None:
        raise not_enabled(writer)
    return write


def check_stamp(timestamp: int) -> None:
    """DDSException (BAD_PARAMETER) for a source timestamp, UTC ns, that is too far in the future."""
    if timestamp > time.time_ns() + AHEAD_MAX_NS:
        raise DDSException(
            DDSException.DDS_RETCODE_BAD_PARAMETER,
            f"source timestamp {timestamp} is {(timestamp - time.time_ns()) / 1e9:.1f} s in the future: with "
            f"DestinationOrder.BySourceTimestamp {AHEAD_MAX_NS // 10**9} s are the most, as it would keep out all that "
            "is written until then; set the clock, or give a timestamp that has passed")


def stamped(write: Callable[..., None]) -> Callable[..., None]:
    """A writer's write(sample, timestamp=None), after check_stamp()."""
    def stamped_write(sample: Any, timestamp: int | None = None) -> None:
        if timestamp is not None:
            check_stamp(source_stamp(timestamp))
        write(sample, timestamp)

    return stamped_write


class _Copied:
    """In place of an inbox, for a loan of what can't be sent from where it is built."""

    def __init__(self, memory: bytearray, write: Callable[[bytes, int], None]) -> None:
        self._memory = memory
        self._write = write

    def commit(self, size: int | None, timestamp: int, key: int = 0) -> None:
        self._write(bytes(self._memory[:size]), timestamp)

    def abort(self) -> None:
        pass


def copied_loan(codec: Any, size: int, timestamp: int, write: Callable[..., None]) -> Loan:
    """A loan of memory of our own, from which write() takes the sample."""
    memory = bytearray(size)
    data = memoryview(memory) if codec.kind == "bytes" else codec.view(memoryview(memory))

    def put(payload: bytes, timestamp: int) -> None:
        write(payload if codec.kind == "bytes" else codec.decode(payload), timestamp or None)

    return Loan(_Copied(memory, put), memoryview(memory), data, timestamp, None)


__all__ = ["AHEAD_MAX_NS", "bind_closed_write", "bind_disabled_write", "bind_told_write", "bind_write", "check_stamp",
           "copied_loan", "stamped", "write_through"]
