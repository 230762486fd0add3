"""What an entity has done so far, in numbers, for programs and people who watch it."""

from __future__ import annotations

from dds.entity import Entity, Participant
from dds.exceptions import DDSException
from dds.pub import DataWriter
from dds.sub import DataReader


class Statistics:
    """Numbers of one entity, as they were when it was made or `refresh()` was called last.

    entity  a DataWriter, a DataReader, or a DomainParticipant for its node
    time    when that was, UTC ns
    data    name -> number. Samples, if the name doesn't say otherwise:
            of a writer, at its present node: written, acknowledged (every subscribing node has delivered them),
            persisted (on disk everywhere; logged topics only), each in an order group of all writers of its publisher;
            and of all of its nodes unacknowledged (in doubt since a node went away)
            of a reader: given (to the program, each counted once), waiting (in the log), kept (read and not taken, or
            looked at one by one), filtered, lost
            of a participant: its node's counters (docs/operations.md)
    Raises TypeError for what is no entity, DDSException (ILLEGAL_OPERATION) for an entity without numbers.
    """

    def __init__(self, entity: Entity) -> None:
        if not isinstance(entity, Entity):
            raise TypeError(f"statistics are of an entity, not of {entity!r}")
        self.entity = entity._real()
        if not isinstance(self.entity, (DataWriter, DataReader, Participant)):
            raise DDSException(DDSException.DDS_RETCODE_ILLEGAL_OPERATION,
                               f"{entity!r} has no statistics; writers, readers and participants have some")
        self.time = 0
        self.data: dict[str, int] = {}
        self.refresh()

    def refresh(self) -> Statistics:
        """Read the numbers anew. Returns self."""
        from time import time_ns

        entity = self.entity
        entity._check_open()
        if isinstance(entity, DataWriter):
            data = _of_writer(entity)
        elif isinstance(entity, DataReader):
            data = _of_reader(entity)
        else:
            assert isinstance(entity, Participant)
            data = {name: int(value) for name, value in entity.session.counters().snapshot().items()}
        self.data, self.time = data, time_ns()
        return self

    def __getitem__(self, name: str) -> int:
        return self.data[name]

    def __repr__(self) -> str:
        return f"Statistics({self.entity!r}, time={self.time}, data={self.data!r})"


def _of_writer(writer: DataWriter[object]) -> dict[str, int]:
    from spindle.group.levels import Level

    inbox = writer._inbox
    data = {"written": inbox.committed, "acknowledged": inbox.acknowledged,
            "unacknowledged": writer._link.status.total_count}
    if writer._link.spec.level is Level.LOGGED:
        data["persisted"] = inbox.persisted
    return data


def _of_reader(reader: DataReader[object]) -> dict[str, int]:
    with reader._lock:
        intake = reader._intake
        reader._look_for_lost()
        return {"given": reader._consumed, "waiting": reader._source.log.pending, "kept": len(intake),
                "filtered": intake.filtered, "lost": reader._lost.total_count}


__all__ = ["Statistics"]
