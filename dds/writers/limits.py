"""ResourceLimits where instances count, at writers: what has to wait, or can't be written. DDS 1.4, 2.2.3.19.

Why apart: `max_samples` alone is the size of a writer's ring. Here each sample is looked at for its instance.
"""

from __future__ import annotations

import collections
from typing import Any

from dds.exceptions import DDSException, DDSTimeout
from dds.policy.policies import at_most
from dds.qos import Policy, Qos
from dds.waiting.wake import Deadline
from dds.writers.written import Written

STEP_S = 0.01  # between two looks whether a sample was delivered everywhere


class WriterLimits:
    """Of a writer of a type with a key. `inbox` is where it writes to at present."""

    def __init__(self, instances: int, per_instance: int, written: Written, timeout_s: float, topic: str) -> None:
        self._instances, self._per_instance = at_most(instances), per_instance
        self._written, self._timeout_s, self._topic = written, timeout_s, topic
        self._inbox: Any = None
        self._sent: dict[int, collections.deque[int]] = {}  # by instance: how many were written with each sample

    @classmethod
    def of(cls, qos: Qos, written: Written | None, timeout_s: float, topic: str) -> WriterLimits | None:
        """None if counting samples is enough."""
        limits = qos[Policy.ResourceLimits]
        if written is None or limits is None or (limits.max_instances, limits.max_samples_per_instance) == (-1, -1):
            return None
        return cls(limits.max_instances, limits.max_samples_per_instance, written, timeout_s, topic)

    def admit(self, sample: Any, inbox: Any) -> None:
        """Before a sample is written. Waits until its instance has room. Raises DDSException (OUT_OF_RESOURCES) for one
        instance too many, DDSTimeout."""
        handle = self.check_known(sample)
        if self._per_instance == -1 or handle is None:
            return
        if inbox is not self._inbox:  # those of an earlier node are in doubt, which is another matter
            self._inbox, self._sent = inbox, {}
        waiting = self._sent.get(handle)
        deadline = Deadline.after(self._timeout_s)
        while waiting:
            while waiting and waiting[0] <= inbox.acknowledged:
                waiting.popleft()
            if len(waiting) < self._per_instance:
                return
            left_s = deadline.left_s()
            if left_s == 0:
                raise DDSTimeout(
                    f"writing to topic {self._topic!r}: {len(waiting)} samples of this instance are not delivered "
                    "everywhere yet, and ResourceLimits.max_samples_per_instance allows no more")
            inbox.wait_acknowledged(STEP_S if left_s is None else min(STEP_S, left_s))

    def check_known(self, sample: Any) -> int | None:
        """The handle of the sample's instance, None for a new one; DDSException (OUT_OF_RESOURCES) if that is one too
        many."""
        handle = self._written.find(sample)
        if handle is None and self._written.count >= self._instances:
            raise DDSException(
                DDSException.DDS_RETCODE_OUT_OF_RESOURCES,
                f"writing to topic {self._topic!r}: the writer has {self._written.count} instances, and "
                "ResourceLimits.max_instances allows no more: unregister_instance() those that it doesn't need")
        return handle

    def written(self, instance: int, inbox: Any) -> None:
        """A sample of this instance was written."""
        if self._per_instance != -1:
            self._inbox = inbox
            self._sent.setdefault(instance, collections.deque()).append(inbox.committed)

    def ended(self, instance: int) -> None:
        """The writer has unregistered it."""
        self._sent.pop(instance, None)


__all__ = ["WriterLimits"]
