"""What a writer has written: the instances that it is registered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dds.messages.operations import handle_of

SHRINKS_FROM = 1024  # instances: fewer are not worth it


class Written:
    """The instances that a writer has registered, or written: their handles, and a payload that has the key."""

    def __init__(self, key_of: Callable[[Any], Any]) -> None:
        self.key_of = key_of
        self._handles: dict[Any, int] = {}
        self._payloads: dict[int, bytes] = {}
        self._most = SHRINKS_FROM  # instances since the tables were made

    @property
    def count(self) -> int:
        return len(self._handles)

    def add(self, sample: Any, payload: bytes) -> int:
        """The handle of the instance of `sample`, whose encoded form is `payload`."""
        key = self.key_of(sample)
        handle = self._handles.get(key)
        if handle is None:
            handle = self._handles[key] = handle_of(key)
            self._payloads[handle] = payload
            self._most = max(self._most, len(self._handles))
        return handle

    def add_rows(self, rows: Any, codec: Any) -> None:
        """As add(), of a NumPy array of records."""
        for row in codec.one_of_each_key(rows):
            self.add(row, row.tobytes())

    def key_and_handle(self, sample: Any) -> tuple[Any, int]:
        """Of the sample's instance, which need not have been written before."""
        key = self.key_of(sample)
        return key, self._handles.get(key) or handle_of(key)

    def keep(self, key: Any, handle: int, payload: bytes) -> None:
        """As add(), with what key_and_handle() has said."""
        if key not in self._handles:
            self._handles[key] = handle
            self._payloads[handle] = payload

    def handles_of_rows(self, rows: Any, codec: Any) -> Any:
        """Of a NumPy array of records the handles of their instances, as an array."""
        import numpy as np

        ones, which = codec.instances_of(rows)
        return np.array([self.key_and_handle(one)[1] for one in ones], np.uint64)[which]

    def find(self, sample: Any) -> int | None:
        return self._handles.get(self.key_of(sample))

    def payload(self, handle: int) -> bytes | None:
        return self._payloads.get(handle)

    def discard(self, sample: Any) -> None:
        """The writer has unregistered it."""
        handle = self._handles.pop(self.key_of(sample), None)
        if handle is not None:
            self._payloads.pop(handle, None)
            if len(self._handles) * 4 < self._most:
                self._handles, self._payloads = dict(self._handles), dict(self._payloads)
                self._most = max(SHRINKS_FROM, len(self._handles))


__all__ = ["Written"]
