"""What replicas raise, beside what the commands themselves raise."""

from __future__ import annotations

from dds.exceptions import DDSException


class ReplicaError(DDSException):
    """The replica can't serve. `msg` says why."""

    def __init__(self, msg: str) -> None:
        super().__init__(self.DDS_RETCODE_ERROR, msg)


class ReplicaDiverged(ReplicaError):
    """This replica's state differs from that of the others after the same commands: it serves no more."""


class StateLost(ReplicaError):
    """The object exists, and nobody is left who has its state."""


__all__ = ["ReplicaDiverged", "ReplicaError", "StateLost"]
