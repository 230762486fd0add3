"""Batches: many samples at once, without an object for each.

A `Batch` of a reader that keeps all is a window onto the delivery log itself: nothing is copied, and the log's memory
is held until release(). For other readers, which may be overtaken at any moment, it is a copy. A sample that is larger
than the topic's slots is a batch of one, in memory of its own, which nobody changes: never copied, whatever the reader
keeps, and there for as long as somebody has the array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dds.codecs.types import Codec, NumpyCodec
from dds.exceptions import DDSException, undecodable
from dds.internal import SampleInfo
from dds.readers.fast_way import ANY, sample_count
from dds.readers.kept import rank
from dds.readers.reader import ReaderCore
from dds.readers.source import UNREADABLE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dds.readers.source import Block


class Batch:
    """Samples of equal size, oldest first. Use it in a `with` block, or call release(): only then the reader goes on.

    array  NumPy view, read-only: records of the topic's dtype, shape (count,); for bytes, shape (count, size), uint8.
           It must not be used after release(); what should stay must be copied before. Unless `stays`: then it may.
    """

    def __init__(self, codec: Codec, count: int, size: int, buffer: bytes | memoryview, offset: int, stride: int,
                 block: Block | None, infos: list[SampleInfo] | None) -> None:
        self._codec = codec
        self._count = count
        self._size = size
        self._buffer = buffer
        self._offset = offset
        self._stride = stride
        self._block = block
        self._infos = infos
        self._info_type: Any = None  # of what is in a block
        self._open = True

    @classmethod
    def of_block(cls, codec: Codec, block: Block, info_type: type) -> Batch:
        batch = cls(codec, block.count, block.payload_size, block.buffer, block.offset, block.stride, block, None)
        batch._info_type = info_type
        return batch

    @classmethod
    def of_payloads(cls, codec: Codec, payloads: list[bytes], infos: list[SampleInfo]) -> Batch:
        size = len(payloads[0]) if payloads else 0
        return cls(codec, len(payloads), size, payloads[0] if len(payloads) == 1 else b"".join(payloads), 0, size,
                   None, infos)

    @property
    def stays(self) -> bool:
        """True where the array may be used after release(), too: it has memory of its own."""
        return self._block is None or self._block.stays

    def _usable(self) -> None:
        if not self._open:
            raise ValueError("this batch was released")

    def __len__(self) -> int:
        return self._count

    @property
    def array(self) -> NDArray[Any]:
        self._usable()
        import numpy as np

        if isinstance(self._codec, NumpyCodec):
            if not self._count:
                return np.empty(0, self._codec.dtype)
            if self._size != self._codec.size_max:
                raise ValueError(f"samples of {self._size} bytes are not records of {self._codec.dtype}")
            return self._codec.batch(self._buffer, self._offset, self._stride, self._count)
        if not self._count or not self._size:
            return np.empty((self._count, self._size), np.uint8)
        return np.ndarray((self._count, self._size), np.uint8, self._buffer, self._offset, (self._stride, 1))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        import numpy as np

        return np.array(self.array, dtype=dtype)

    def payload(self, i: int) -> memoryview:
        """The bytes of sample i, in place. IndexError beyond the last."""
        self._usable()
        at = self._offset + self._index(i) * self._stride
        return memoryview(self._buffer)[at:at + self._size].toreadonly()

    def sample_info(self, i: int) -> SampleInfo:
        """The info of sample i. IndexError beyond the last."""
        self._usable()
        i = self._index(i)
        if self._infos is not None:
            return self._infos[i]
        assert self._block is not None
        return self._block.info(i, self._info_type)

    def _index(self, i: int) -> int:
        if not -self._count <= i < self._count:
            raise IndexError(f"sample {i} of a batch of {self._count}")
        return i % self._count

    def release(self) -> None:
        """The samples count as taken, and their memory may be used again. Idempotent."""
        if self._open:
            self._open = False
            self._buffer = b""
            if self._block is not None:
                self._block.release()

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.release()


class BatchWay(ReaderCore):
    """How a reader takes many samples at once; the base of `dds.sub.DataReader`."""

    def take_batch(self, N: int = 1024) -> Batch:
        """Up to `N` samples of equal size as one Batch, in place where possible; for bytes and NumPy types.

            with reader.take_batch(1000) as batch:
                total += batch.array["altitude"].sum()

        An empty Batch if there is none. Take nothing else from the reader before the batch is released.
        """
        n, codec = sample_count(N), self._codec
        self._check_open()
        if codec.kind == "object":
            raise DDSException(DDSException.DDS_RETCODE_UNSUPPORTED,
                               f"samples of {codec.type_name} have no fixed layout: use take()")
        with self._lock:
            if self._access is not None:
                self._access.check_open()
            if not self._fast or self._intake.is_ahead() or not self._keep_all or (
                    self._keyed and self._source.log.tagged_within(n)):
                return self._copied_batch(n)
            if self._limit:
                self._look_for_rejected()
                n = min(n, self._limit)
            try:
                block = self._next_block(n)
                if block is None:
                    block = self._source.first(lambda: self._next_block(n) if self._fast else None, None)
            except ValueError:
                if self._intake.instances is None:
                    raise
                return self._copied_batch(n)  # the first one is no record of the type
            if block is None and (self._source.log.meets_tagged or not self._fast):
                return self._copied_batch(n)
            if block is None:
                return Batch.of_payloads(codec, [], [])
            self._consumed += block.count
            self._info_type = self._live_info
            return Batch.of_block(codec, block, self._live_info)

    def _next_block(self, n: int) -> Block | None:
        """Up to `n` samples in place, None if there is none; records of another size than the dtype's are refused."""
        while True:
            block = self._take_block(n)
            if block is None or self._codec.kind != "numpy" or block.payload_size == self._codec.size_max:
                return block
            self._consumed += block.count
            for _ in range(block.count):
                self._intake.refuse(_other_size(block.payload_size, self._codec))
            block.release()
            self._look_for_refused()

    def _take_block(self, n: int) -> Block | None:
        instances, source = self._intake.instances, self._source
        try:
            if instances is None:
                return source.log.take_block(n)
            return source.log.take_block(n, instances.table, self._intake.learn, self._live_info)
        except UNREADABLE as error:
            raise source.refusal(error) from None

    def _copied_batch(self, n: int) -> Batch:
        self._fill(n)
        self._look_for_lost()
        entries: list[Any] = []
        for entry in self._intake.matching(ANY, None, None):
            if entry.ends:  # nothing that an array could hold
                self._consumed += not entry.read
                self._intake.drop(entry)
                continue
            if entry.failure is not None and not entries:
                raise undecodable(self._topic.name, self._intake.given_up(entry)) from entry.failure
            if self._codec.kind == "numpy" and len(entry.payload) != self._codec.size_max and entry.failure is None:
                self._consumed += not entry.read
                self._intake.refuse(_other_size(len(entry.payload), self._codec), entry)
                continue
            other_size = bool(entries) and len(entry.payload) != len(entries[0].payload)
            if len(entries) == n or entry.failure is not None or other_size:
                break
            entries.append(entry)
        infos: list[Any] = [SampleInfo(one, self._topic.name) for one in entries]
        if self._codec.key_of is not None:
            rank(entries, infos)
        for entry in entries:
            entry.instance.new = False
            self._consumed += not entry.read
            self._intake.drop(entry)
        self._intake.sweep_all()
        self._look_for_refused()
        return Batch.of_payloads(self._codec, [one.payload for one in entries], infos)

    def take_array(self, N: int = 1024) -> NDArray[Any]:
        """As take_batch(), but a NumPy array of one's own."""
        with self.take_batch(N) as batch:
            return batch.array.copy()


def _other_size(size: int, codec: Codec) -> ValueError:
    return ValueError(f"{size} bytes are not a record of {codec.size_max}")


__all__ = ["Batch", "BatchWay"]
