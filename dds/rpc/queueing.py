"""Requests that wait at a server. No thread, no topic.

Rules: at most `queue_max` wait, at most `client_max` of one client; more are refused, with the limit in the text. The
clients are served in turns, each client's requests in their order, so that one with many requests holds up only itself.
A request whose caller has given up meanwhile is skipped.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

from dds.rpc.interface import Operation
from dds.rpc.values import Value


@dataclasses.dataclass(frozen=True)
class Job:
    """One request that the server has understood.

    expires_ns  when its caller gives up; None = never
    writer      handle of the writer that it came from
    """

    client: bytes
    number: int
    operation: Operation
    values: Sequence[Value]
    expires_ns: int | None
    writer: int = 0


class Waiting:
    """The queue of one server. `in_order`: of an ordered service, whose servers carry out all calls in the order of the
    topic; clients have no turns then, since these would depend on when each server reads."""

    def __init__(self, queue_max: int, client_max: int, in_order: bool = False) -> None:
        self._queue_max = queue_max
        self._in_order = in_order
        self._client_max = client_max
        self._of: collections.OrderedDict[bytes, collections.deque[Job]] = collections.OrderedDict()  # next one first
        self._count = 0
        self.skipped = 0  # jobs that nobody waited for any more

    def __len__(self) -> int:
        return self._count

    def add(self, job: Job) -> str:
        """Why there is no room for it; empty = it waits now."""
        client = b"" if self._in_order else job.client
        own = self._of.get(client)
        if self._count >= self._queue_max:
            return f"the server has {self._queue_max} requests waiting, the most that it takes (queue_max)"
        if own is not None and len(own) >= self._client_max:
            return (f"the server has {self._client_max} requests of this client waiting, the most that it takes of one "
                    "(client_max)")
        if own is None:
            own = self._of[client] = collections.deque()
        own.append(job)
        self._count += 1
        return ""

    def take(self, now_ns: int) -> Job | None:
        """The next one whose caller still waits; None if there is none."""
        while self._of:
            client, own = self._of.popitem(last=False)
            job = own.popleft()
            self._count -= 1
            if own:
                self._of[client] = own
            if job.expires_ns is None or now_ns < job.expires_ns:
                return job
            self.skipped += 1
        return None

    def forget(self, client: bytes) -> None:
        """The client is gone: nobody waits for its calls."""
        self._count -= len(self._of.pop(client, ()))


__all__ = ["Job", "Waiting"]
