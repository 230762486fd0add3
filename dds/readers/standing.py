"""What a reader's Qos makes of writers and instances: who owns what, and which partitions concern the reader.

Ownership, DDS 1.4, 2.2.3.9: with Ownership.Exclusive an instance belongs to the strongest of its writers, and only that
one is heard. Who that is follows from the messages in their order: each sample says how strong its writer is, the end
of a writer, of its lease, of its node, and a deadline that it has missed, are messages, too. So all readers of the same
messages have the same owner after each of them, through any failover, and nobody ever hears two.

A type without a key has one instance. Of two that are equally strong, the one with the smaller handle is the owner.
"""

from __future__ import annotations

from typing import Any

from dds.internal import dds_infinity
from dds.messages.inline_qos import InlineQos
from dds.policy import policies
from dds.policy.policies import partitions
from dds.qos import Qos
from dds.readers.instances import Instance
from dds.status import InstanceState

NAMES_MAX = 20_000  # of partitions that writers were heard to write to, of which it is remembered whether they meet


class Standing:
    """Of one reader with the Qos `requested`.

    by_source   a sample that is older at its source than one of its instance that came before is kept out
    exclusive   only the owner of an instance is heard
    separation  ns between the source timestamps of two samples of an instance; 0 = any
    """

    def __init__(self, requested: Qos) -> None:
        self.by_source = policies.by_source(requested)
        self.exclusive = policies.is_exclusive(requested)
        self._owned: dict[int, dict[Instance, None]] = {}  # publication handle -> instances
        self._written_to: dict[int, tuple[str, ...]] = {}  # publication handle of an owner -> its partitions
        self._unseen: dict[Any, Instance] = {}  # by key: owned ones that the reader's filter let nothing pass of
        self.change(requested)

    def change(self, requested: Qos) -> None:
        """The reader goes by this from now on; what DDS lets nobody change is as it was."""
        self.separation = policies.separation_ns(requested)
        self._partitions = partitions(requested)
        self._delay_no_writers, self._delay_disposed = policies.purge_delays_ns(requested)
        self._names = 0  # of partitions in there
        self._reached: dict[tuple[str, ...], bool] = {(): policies.partitions_meet((), self._partitions)}
        for writer in [one for one, places in self._written_to.items() if not self.reaches(places)]:
            self.gone(writer)  # whom this reader doesn't hear keeps no other from being heard

    def differs(self, requested: Qos) -> bool:
        """True if it would take in other samples with this."""
        return (policies.separation_ns(requested), partitions(requested)) != (self.separation, self._partitions)

    @property
    def chooses(self) -> bool:
        """True if samples may come that aren't for this reader, or not yet."""
        return self.by_source or self.exclusive or bool(self.separation) or bool(self._partitions)

    def reaches(self, written_to: tuple[str, ...]) -> bool:
        """True if what a writer writes to these partitions is for this reader."""
        found = self._reached.get(written_to)
        if found is None:
            self._names += len(written_to)
            if self._names > NAMES_MAX:
                self._names = len(written_to)
                self._reached.clear()
            found = self._reached[written_to] = policies.partitions_meet(written_to, self._partitions)
        return found

    def purge_delay(self, state: int) -> int:
        """How long what is kept of an instance stays that is in this state, ns."""
        if state == InstanceState.NotAliveDisposed:
            return self._delay_disposed
        return self._delay_no_writers if state == InstanceState.NotAliveNoWriters else dds_infinity

    # --- ownership

    def would_count(self, instance: Instance, writer: int, inline: InlineQos, source_ns: int) -> bool:
        """True unless a sample of this writer, with this source timestamp, would be kept out as it comes."""
        if self.exclusive and not self._may_own(instance, writer, inline.strength):
            return False
        return not self.by_source or instance.would_be_news(source_ns)

    @staticmethod
    def _may_own(instance: Instance, writer: int, strength: int) -> bool:
        owner = instance.owner
        return owner is None or owner[1] == writer or (owner[0], -owner[1]) <= (strength, -writer)

    def owns(self, instance: Instance, writer: int, inline: InlineQos) -> bool:
        """A writer, with what it says of itself, has something to say about an instance: True if it is its owner, from
        now on if need be."""
        owner, strength = instance.owner, inline.strength
        if not self._may_own(instance, writer, strength):
            return False
        if owner is None or owner[1] != writer:
            if owner is not None:
                self._release(instance, owner[1])
            self._owned.setdefault(writer, {})[instance] = None
        self._written_to[writer] = inline.partitions
        instance.owner = strength, writer
        return True

    # Of an instance of which a filter has let nothing pass the reader doesn't know, but who owns it.

    def owns_unseen(self, key: Any, writer: int, inline: InlineQos) -> bool:
        """As owns()."""
        found = self._unseen.get(key)
        if found is None:
            found = self._unseen[key] = Instance(key, 0)
        return self.owns(found, writer, inline)

    def late_unseen(self, key: Any, writer: int) -> None:
        """As late()."""
        found = self._unseen.get(key)
        if found is not None:
            self.late(found, writer)

    def seen(self, instance: Instance) -> None:
        """The reader knows this instance from now on, and its owner is the one that it had before."""
        before = self._unseen.get(instance.key)
        if before is not None and before.owner is not None:
            strength, writer = before.owner
            places = self._written_to[writer]
            self._free(before, writer)
            self.owns(instance, writer, InlineQos(strength=strength, partitions=places))

    def late(self, instance: Instance, writer: int) -> None:
        """This writer doesn't own the instance any more, if it did, until it writes again."""
        if instance.owner is not None and instance.owner[1] == writer:
            self._free(instance, writer)

    def over(self, instance: Instance) -> None:
        """The instance has neither life nor writers, or is forgotten: whoever writes it next begins it anew."""
        if instance.owner is not None:
            self._free(instance, instance.owner[1])

    def gone(self, writer: int) -> None:
        """As late(), of all that it owns."""
        for instance in list(self._owned.get(writer, ())):
            self._free(instance, writer)

    def owners(self) -> list[int]:
        """Publication handles of all that own anything."""
        return list(self._owned)

    def begin_anew(self) -> None:
        """Nobody owns anything until he writes again."""
        for writer in list(self._owned):
            self.gone(writer)

    def departed(self, node_id: int) -> None:
        """As gone(), of all writers of a node."""
        for writer in [one for one in self._owned if one >> 16 == node_id]:
            self.gone(writer)

    def _free(self, instance: Instance, writer: int) -> None:
        """Nobody owns it any more."""
        self._release(instance, writer)
        if self._unseen.get(instance.key) is instance:
            del self._unseen[instance.key]

    def _release(self, instance: Instance, writer: int) -> None:
        instance.owner = None
        owned = self._owned.get(writer)
        if owned is not None:
            owned.pop(instance, None)
            if not owned:
                del self._owned[writer]
                self._written_to.pop(writer, None)


__all__ = ["Standing"]
