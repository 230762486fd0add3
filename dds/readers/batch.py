"""Batches: many samples at once, without an object for each.

A `Batch` of a reader that keeps all is a window onto the delivery log itself: nothing is copied, and the log's memory
is held until release(). For other readers, which may be overtaken at any moment, it is a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dds.internal import SampleInfo


class Block(Protocol):
    """Samples in place: see `spindle_core.reader.Block`."""

    @property
    def buffer(self) -> memoryview: ...
    @property
    def offset(self) -> int: ...
    @property
    def stride(self) -> int: ...
    @property
    def payload_size(self) -> int: ...
    @property
    def count(self) -> int: ...
    def info(self, i: int, info_type: type) -> SampleInfo: ...
    def release(self) -> None: ...


class Batch:
    """Samples of equal size, oldest first. Use it in a `with` block, or call release(): only then the reader goes on.

    array  NumPy view: records of the topic's dtype, shape (count,); for bytes, shape (count, size), uint8. It must not
           be used after release(); what should stay must be copied before.
    """

    def __init__(self, codec: Any, count: int, size: int, buffer: bytes | memoryview, offset: int, stride: int,
                 block: Block | None, infos: list[SampleInfo] | None) -> None:
        self._codec = codec
        self._count = count
        self._size = size
        self._buffer = buffer
        self._offset = offset
        self._stride = stride
        self._block = block
        self._infos = infos
        self._open = True

    @classmethod
    def of_block(cls, codec: Any, block: Block) -> Batch:
        return cls(codec, block.count, block.payload_size, block.buffer, block.offset, block.stride, block, None)

    @classmethod
    def of_payloads(cls, codec: Any, payloads: list[bytes], infos: list[SampleInfo]) -> Batch:
        size = len(payloads[0]) if payloads else 0
        return cls(codec, len(payloads), size, b"".join(payloads), 0, size, None, infos)

    def _usable(self) -> None:
        if not self._open:
            raise ValueError("this batch was released")

    def __len__(self) -> int:
        return self._count

    @property
    def array(self) -> NDArray[Any]:
        self._usable()
        import numpy as np

        if self._codec.kind == "numpy":
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
        from dds.readers.live import LiveSampleInfo

        assert self._block is not None
        return self._block.info(i, LiveSampleInfo)

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


__all__ = ["Batch"]
