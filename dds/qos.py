"""Qos: policies, and immutable sets of them.

Why so: the names, arguments and operators are those that users of cyclonedds-python know. A Qos holds any policy of
DDS, so that programs can build, compare and print it; what Spindle can't do is refused when an entity is created with
it (`dds.policy.policies`), never ignored.

Rules: a Qos holds at most one policy of each scope (of each key, for properties), sorted by scope. Policies and Qos are
immutable, comparable and hashable. Durations are nanoseconds, see `dds.util.duration`.

    qos = Qos(Policy.Reliability.Reliable(duration(seconds=1)), Policy.History.KeepLast(10))
    qos[Policy.History].depth            # 10
    Policy.Durability in qos             # False
    qos + Qos(Policy.History.KeepAll)    # the right side wins
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from dds.policy.classes import BasePolicy, Policy, from_plain, scope_of, to_plain
from dds.policy.table import scopes_at


class Qos:
    """An immutable set of policies.

    policies  any number of policies
    base      another Qos, whose policies are taken over where none of the same scope is given
    Raises TypeError for what isn't a policy or Qos, ValueError for two policies of one scope.
    """

    __slots__ = ("_policies",)

    def __init__(self, *policies: Any, base: Qos | None = None) -> None:
        for one in policies:
            if not isinstance(one, BasePolicy):
                raise TypeError(f"{one!r} is not a policy; use for example Policy.History.KeepLast(10)")
        if base is not None and not isinstance(base, Qos):
            raise TypeError(f"base must be a Qos, not {type(base).__name__}")
        found: dict[str, BasePolicy] = {}
        for one in policies:
            scope = scope_of(one)
            if scope in found:
                raise ValueError(f"two policies of one scope in a Qos: {found[scope]} and {one}")
            found[scope] = one
        for one in base._policies if base is not None else ():
            found.setdefault(scope_of(one), one)
        self._policies: tuple[BasePolicy, ...] = tuple(found[scope] for scope in sorted(found))
        self._check()

    def _check(self) -> None:
        """For subclasses: raise ValueError if a policy doesn't belong here."""

    @property
    def policies(self) -> tuple[BasePolicy, ...]:
        return self._policies

    def __iter__(self) -> Iterator[BasePolicy]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def __getitem__(self, key: Any) -> Any:
        """The policy of that scope (`qos[Policy.History]`), or None. ValueError if `key` names no policy."""
        scope = scope_of(key)
        for one in self._policies:
            if one.__scope__ == scope:
                return one
        return None

    def __contains__(self, key: Any) -> bool:
        """For a scope: is one of its policies in here; for a policy: is exactly this one."""
        scope = scope_of(key)
        if isinstance(key, type):
            return any(one.__scope__ == scope for one in self._policies)
        return any(one == key for one in self._policies)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Qos) and self._policies == other._policies

    def __hash__(self) -> int:
        return hash(self._policies)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._policies))})"

    def __add__(self, other: Qos) -> Qos:
        """Both; where they overlap, `other`."""
        return Qos(*other._policies, base=self)

    def __sub__(self, other: Qos) -> Qos:
        """Without the policies of `other`. ValueError unless all of them are in here."""
        for one in other:
            if one not in self:
                raise ValueError(f"{one} can't be taken away: it is not in {self!r}")
        return Qos(*(one for one in self._policies if one not in other))

    def asdict(self) -> dict[str, Any]:
        """Plain dicts, strings, numbers and booleans, as `fromdict` takes them; bytes in base64."""
        return {one.__scope__: to_plain(one) for one in self._policies}

    @classmethod
    def fromdict(cls, data: dict[str, Any]) -> Qos:
        """What `asdict` gave. Raises ValueError for anything else."""
        return cls(*(from_plain(scope, fields) for scope, fields in data.items()))

    def domain_participant(self) -> DomainParticipantQos:
        return self._limited(DomainParticipantQos)

    def topic(self) -> TopicQos:
        return self._limited(TopicQos)

    def publisher(self) -> PublisherQos:
        return self._limited(PublisherQos)

    def subscriber(self) -> SubscriberQos:
        return self._limited(SubscriberQos)

    def datareader(self) -> DataReaderQos:
        return self._limited(DataReaderQos)

    def datawriter(self) -> DataWriterQos:
        return self._limited(DataWriterQos)

    def _limited(self, kind: type[Any]) -> Any:
        """The part that entities of one kind take."""
        return kind(*(one for one in self._policies if one.__scope__.split("<")[0] in kind.supported_scopes))


class LimitedScopeQos(Qos):
    """A Qos for one kind of entity: it refuses policies that don't concern it."""

    __slots__ = ()
    for_entity: ClassVar[str] = ""
    supported_scopes: ClassVar[frozenset[str]] = frozenset()

    def _check(self) -> None:
        for one in self._policies:
            if one.__scope__.split("<")[0] not in self.supported_scopes:
                raise ValueError(f"{one} does not concern a {self.for_entity}")


class DomainParticipantQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "DomainParticipant"
    supported_scopes = scopes_at("DomainParticipant")


class TopicQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "Topic"
    supported_scopes = scopes_at("Topic")


class PublisherQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "Publisher"
    supported_scopes = scopes_at("Publisher")


class SubscriberQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "Subscriber"
    supported_scopes = scopes_at("Subscriber")


class DataWriterQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "DataWriter"
    supported_scopes = scopes_at("DataWriter")


class DataReaderQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "DataReader"
    supported_scopes = scopes_at("DataReader")


__all__ = [
    "BasePolicy", "DataReaderQos", "DataWriterQos", "DomainParticipantQos", "LimitedScopeQos", "Policy", "PublisherQos",
    "Qos", "SubscriberQos", "TopicQos",
]
