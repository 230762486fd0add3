"""What a writer has written: the instances that it is registered with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dds.messages.operations import Peak, handle_of

if TYPE_CHECKING:
    from dds.codecs.types import Codec

KEPT_BYTES_MAX = 4096  # a larger payload is not kept for its key's sake, where one can be made of the key


class Written:
    """The instances that a writer has registered, or written: their handles, and a payload that has the key."""

    def __init__(self, codec: Codec) -> None:
        assert codec.key_of is not None
        self.key_of: Callable[[Any], Any] = codec.key_of
        self._encode_key = codec.encode_key
        self._handles: dict[Any, int] = {}
        self._payloads: dict[int, bytes | Callable[[], bytes]] = {}  # or what makes one
        self._peak = Peak()

    @property
    def count(self) -> int:
        return len(self._handles)

    def handles(self) -> list[int]:
        """Of all of them, at the moment."""
        return list(self._payloads)

    def add(self, sample: Any, payload: Any) -> int:
        """The handle of the instance of `sample`, whose encoded form is `payload`."""
        key = self.key_of(sample)
        handle = self._handles.get(key)
        if handle is None:
            handle = handle_of(key)
            self.keep(key, handle, payload)
        return handle

    def add_rows(self, rows: Any, codec: Any) -> None:
        """As add(), of a NumPy array of records."""
        for row in codec.one_of_each_key(rows):
            key = self.key_of(row)
            if key not in self._handles:
                self.keep(key, handle_of(key), row.tobytes())

    def key_and_handle(self, sample: Any) -> tuple[Any, int]:
        """Of the sample's instance, which need not have been written before."""
        key = self.key_of(sample)
        return key, self._handles.get(key) or handle_of(key)

    def keep(self, key: Any, handle: int, payload: Any) -> None:
        """As add(), with what key_and_handle() has said."""
        if key not in self._handles:
            self._handles[key] = handle
            if self._encode_key is None or len(payload) <= KEPT_BYTES_MAX:
                self._payloads[handle] = bytes(payload)
            else:
                self._payloads[handle] = functools.partial(self._encode_key, key)
            self._peak.has(len(self._handles))

    def handles_of_rows(self, rows: Any, codec: Any) -> Any:
        """Of a NumPy array of records the handles of their instances, as an array."""
        import numpy as np

        ones, which = codec.instances_of(rows)
        return np.array([self.key_and_handle(one)[1] for one in ones], np.uint64)[which]

    def find(self, sample: Any) -> int | None:
        return self._handles.get(self.key_of(sample))

    def payload(self, handle: int) -> bytes | None:
        found = self._payloads.get(handle)
        return found() if callable(found) else found

    def discard(self, sample: Any) -> None:
        """The writer has unregistered it."""
        handle = self._handles.pop(self.key_of(sample), None)
        if handle is not None:
            self._payloads.pop(handle, None)
            if self._peak.has_left(len(self._handles)):
                self._handles, self._payloads = dict(self._handles), dict(self._payloads)


__all__ = ["Written"]
