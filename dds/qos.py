"""Qos: policies, and immutable sets of them.

Why so: the names, arguments and operators are those that users of cyclonedds-python know. A Qos holds any policy of
DDS, so that programs can build, compare and print it; what Spindle can't do is refused when an entity is created with
it (`dds.policies`), never ignored.

Rules: a Qos holds at most one policy of each scope (of each key, for properties), sorted by scope. Policies and Qos are
immutable, comparable and hashable. Durations are nanoseconds, see `dds.util.duration`.

    qos = Qos(Policy.Reliability.Reliable(duration(seconds=1)), Policy.History.KeepLast(10))
    qos[Policy.History].depth            # 10
    Policy.Durability in qos             # False
    qos + Qos(Policy.History.KeepAll)    # the right side wins
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar


class BasePolicy:
    """Base of every policy. `__scope__` names what two policies of one Qos must not share."""

    __scope__: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__scope__ and cls.__scope__ != cls.__name__:
            cls.__name__ = f"{cls.__scope__}.{cls.__name__}"

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)  # type: ignore[arg-type]
        return f"Policy.{type(self).__name__}({fields})"

    def __reduce__(self) -> Any:
        """Pickled by name: a policy without parameters stays the one object that it is."""
        return _from_plain, (self.__scope__, _to_plain(self))


def _plain(scope: str, name: str) -> Any:
    """A policy without parameters: one object that stands for itself."""
    namespace = {"__scope__": scope, "__repr__": lambda self: f"Policy.{scope}.{name}"}
    cls: Any = dataclass(frozen=True, repr=False)(type(name, (BasePolicy,), namespace))
    return cls()


class _Family:
    """A scope with several kinds: only its members are policies, itself it can't be made."""

    __scope__: ClassVar[str] = ""

    def __init__(self, *args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"{type(self).__qualname__} is a name space: use one of its members")


def _need_bytes(policy: Any, field: str) -> None:
    if not isinstance(getattr(policy, field), bytes):
        raise ValueError(f"{type(policy).__name__}.{field} must be bytes, not {type(getattr(policy, field)).__name__}")


class Policy(_Family):
    """The policies of DDS 1.4, 2.2.3, and those of XTypes and cyclonedds that programs carry along."""

    class Reliability(_Family):
        __scope__ = "Reliability"
        BestEffort: ClassVar[Any] = _plain("Reliability", "BestEffort")

        @dataclass(frozen=True, repr=False)
        class Reliable(BasePolicy):
            """`max_blocking_time`: how long a write may wait for room before it raises DDSTimeout, ns."""

            __scope__: ClassVar[str] = "Reliability"
            max_blocking_time: int

    class Durability(_Family):
        __scope__ = "Durability"
        Volatile: ClassVar[Any] = _plain("Durability", "Volatile")
        TransientLocal: ClassVar[Any] = _plain("Durability", "TransientLocal")
        Transient: ClassVar[Any] = _plain("Durability", "Transient")
        Persistent: ClassVar[Any] = _plain("Durability", "Persistent")

    class History(_Family):
        __scope__ = "History"
        KeepAll: ClassVar[Any] = _plain("History", "KeepAll")

        @dataclass(frozen=True, repr=False)
        class KeepLast(BasePolicy):
            """The newest `depth` samples (of each instance, for types with a key)."""

            __scope__: ClassVar[str] = "History"
            depth: int

    @dataclass(frozen=True, repr=False)
    class ResourceLimits(BasePolicy):
        """-1 = no limit of its own."""

        __scope__: ClassVar[str] = "ResourceLimits"
        max_samples: int = -1
        max_instances: int = -1
        max_samples_per_instance: int = -1

    class PresentationAccessScope(_Family):
        __scope__ = "PresentationAccessScope"

        @dataclass(frozen=True, repr=False)
        class Instance(BasePolicy):
            __scope__: ClassVar[str] = "PresentationAccessScope"
            coherent_access: bool
            ordered_access: bool

        @dataclass(frozen=True, repr=False)
        class Topic(BasePolicy):
            __scope__: ClassVar[str] = "PresentationAccessScope"
            coherent_access: bool
            ordered_access: bool

        @dataclass(frozen=True, repr=False)
        class Group(BasePolicy):
            __scope__: ClassVar[str] = "PresentationAccessScope"
            coherent_access: bool
            ordered_access: bool

    @dataclass(frozen=True, repr=False)
    class Lifespan(BasePolicy):
        """A sample expires so many ns after its source timestamp."""

        __scope__: ClassVar[str] = "Lifespan"
        lifespan: int

    @dataclass(frozen=True, repr=False)
    class Deadline(BasePolicy):
        __scope__: ClassVar[str] = "Deadline"
        deadline: int

    @dataclass(frozen=True, repr=False)
    class LatencyBudget(BasePolicy):
        __scope__: ClassVar[str] = "LatencyBudget"
        budget: int

    class Ownership(_Family):
        __scope__ = "Ownership"
        Shared: ClassVar[Any] = _plain("Ownership", "Shared")
        Exclusive: ClassVar[Any] = _plain("Ownership", "Exclusive")

    @dataclass(frozen=True, repr=False)
    class OwnershipStrength(BasePolicy):
        __scope__: ClassVar[str] = "OwnershipStrength"
        strength: int

    class Liveliness(_Family):
        __scope__ = "Liveliness"

        @dataclass(frozen=True, repr=False)
        class Automatic(BasePolicy):
            __scope__: ClassVar[str] = "Liveliness"
            lease_duration: int

        @dataclass(frozen=True, repr=False)
        class ManualByParticipant(BasePolicy):
            __scope__: ClassVar[str] = "Liveliness"
            lease_duration: int

        @dataclass(frozen=True, repr=False)
        class ManualByTopic(BasePolicy):
            __scope__: ClassVar[str] = "Liveliness"
            lease_duration: int

    @dataclass(frozen=True, repr=False)
    class TimeBasedFilter(BasePolicy):
        __scope__: ClassVar[str] = "TimeBasedFilter"
        filter_time: int

    @dataclass(frozen=True, repr=False)
    class Partition(BasePolicy):
        """One name or a sequence of them; kept as a tuple."""

        __scope__: ClassVar[str] = "Partition"
        partitions: Any

        def __post_init__(self) -> None:
            names = (self.partitions,) if isinstance(self.partitions, str) else tuple(self.partitions)
            object.__setattr__(self, "partitions", names)

    @dataclass(frozen=True, repr=False)
    class TransportPriority(BasePolicy):
        __scope__: ClassVar[str] = "TransportPriority"
        priority: int

    class DestinationOrder(_Family):
        __scope__ = "DestinationOrder"
        ByReceptionTimestamp: ClassVar[Any] = _plain("DestinationOrder", "ByReceptionTimestamp")
        BySourceTimestamp: ClassVar[Any] = _plain("DestinationOrder", "BySourceTimestamp")

    @dataclass(frozen=True, repr=False)
    class WriterDataLifecycle(BasePolicy):
        __scope__: ClassVar[str] = "WriterDataLifecycle"
        autodispose: bool

    @dataclass(frozen=True, repr=False)
    class ReaderDataLifecycle(BasePolicy):
        __scope__: ClassVar[str] = "ReaderDataLifecycle"
        autopurge_nowriter_samples_delay: int
        autopurge_disposed_samples_delay: int

    @dataclass(frozen=True, repr=False)
    class DurabilityService(BasePolicy):
        """What is kept for late joiners; `history` is a policy of the History family."""

        __scope__: ClassVar[str] = "DurabilityService"
        cleanup_delay: int
        history: Any
        max_samples: int
        max_instances: int
        max_samples_per_instance: int

    class IgnoreLocal(_Family):
        __scope__ = "IgnoreLocal"
        Nothing: ClassVar[Any] = _plain("IgnoreLocal", "Nothing")
        Participant: ClassVar[Any] = _plain("IgnoreLocal", "Participant")
        Process: ClassVar[Any] = _plain("IgnoreLocal", "Process")

    @dataclass(frozen=True, repr=False)
    class Userdata(BasePolicy):
        __scope__: ClassVar[str] = "Userdata"
        data: bytes

        def __post_init__(self) -> None:
            _need_bytes(self, "data")

    @dataclass(frozen=True, repr=False)
    class Topicdata(BasePolicy):
        __scope__: ClassVar[str] = "Topicdata"
        data: bytes

        def __post_init__(self) -> None:
            _need_bytes(self, "data")

    @dataclass(frozen=True, repr=False)
    class Groupdata(BasePolicy):
        __scope__: ClassVar[str] = "Groupdata"
        data: bytes

        def __post_init__(self) -> None:
            _need_bytes(self, "data")

    @dataclass(frozen=True, repr=False)
    class Property(BasePolicy):
        """A Qos may hold several, with different keys."""

        __scope__: ClassVar[str] = "Property"
        key: str
        value: str
        propagate: bool = False

        def __post_init__(self) -> None:
            if not isinstance(self.value, str):
                raise ValueError(f"Property.value must be a str, not {type(self.value).__name__}; see BinaryProperty")
            object.__setattr__(self, "__scope__", f"Property<{self.key}>")

    @dataclass(frozen=True, repr=False)
    class BinaryProperty(BasePolicy):
        """A Qos may hold several, with different keys."""

        __scope__: ClassVar[str] = "BinaryProperty"
        key: str
        value: bytes
        propagate: bool = False

        def __post_init__(self) -> None:
            _need_bytes(self, "value")
            object.__setattr__(self, "__scope__", f"BinaryProperty<{self.key}>")

    class TypeConsistency(_Family):
        __scope__ = "TypeConsistency"

        @dataclass(frozen=True, repr=False)
        class DisallowTypeCoercion(BasePolicy):
            __scope__: ClassVar[str] = "TypeConsistency"
            force_type_validation: bool = False

        @dataclass(frozen=True, repr=False)
        class AllowTypeCoercion(BasePolicy):
            __scope__: ClassVar[str] = "TypeConsistency"
            ignore_sequence_bounds: bool = True
            ignore_string_bounds: bool = True
            ignore_member_names: bool = True
            prevent_type_widening: bool = False
            force_type_validation: bool = False

    @dataclass(frozen=True, repr=False)
    class DataRepresentation(BasePolicy):
        """Which CDR encodings a writer uses or a reader accepts; both False = what is native to the type."""

        __scope__: ClassVar[str] = "DataRepresentation"
        use_cdrv0_representation: bool = False
        use_xcdrv2_representation: bool = False

    @dataclass(frozen=True, repr=False)
    class EntityName(BasePolicy):
        __scope__: ClassVar[str] = "EntityName"
        name: str


def _scope_of(key: Any) -> str:
    scope = getattr(key, "__scope__", None)
    if not scope:
        raise ValueError(f"{key!r} is not a policy")
    return str(scope)


def _by_name(scope: str, kind: str | None) -> Any:
    """Policy class or plain policy of that name, or None."""
    family = getattr(Policy, scope, None)
    if kind is None:
        return family if isinstance(family, type) and issubclass(family, BasePolicy) else None
    return getattr(family, kind, None) if isinstance(family, type) and issubclass(family, _Family) else None


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
            scope = _scope_of(one)
            if scope in found:
                raise ValueError(f"two policies of one scope in a Qos: {found[scope]} and {one}")
            found[scope] = one
        for one in base._policies if base is not None else ():
            found.setdefault(_scope_of(one), one)
        self._policies: tuple[Any, ...] = tuple(found[scope] for scope in sorted(found))
        self._check()

    def _check(self) -> None:
        """For subclasses: raise ValueError if a policy doesn't belong here."""

    @property
    def policies(self) -> tuple[Any, ...]:
        return self._policies

    def __iter__(self) -> Iterator[Any]:
        return iter(self._policies)

    def __len__(self) -> int:
        return len(self._policies)

    def __getitem__(self, key: Any) -> Any:
        """The policy of that scope (`qos[Policy.History]`), or None. ValueError if `key` names no policy."""
        scope = _scope_of(key)
        for one in self._policies:
            if one.__scope__ == scope:
                return one
        return None

    def __contains__(self, key: Any) -> bool:
        """For a scope: is one of its policies in here; for a policy: is exactly this one."""
        scope = _scope_of(key)
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
        return {one.__scope__: _to_plain(one) for one in self._policies}

    @classmethod
    def fromdict(cls, data: dict[str, Any]) -> Qos:
        """What `asdict` gave. Raises ValueError for anything else."""
        return cls(*(_from_plain(scope, fields) for scope, fields in data.items()))

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


def _to_plain(policy: Any) -> dict[str, Any]:
    from base64 import b64encode

    plain: dict[str, Any] = {}
    if "." in type(policy).__name__:
        plain["kind"] = type(policy).__name__.split(".")[1]
    for field in dataclasses.fields(policy):
        value = getattr(policy, field.name)
        if isinstance(value, bytes):
            value = b64encode(value).decode()
        elif isinstance(value, BasePolicy):
            value = _to_plain(value)
        elif isinstance(value, tuple):
            value = list(value)
        plain[field.name] = value
    return plain


def _from_plain(scope: str, fields: Any) -> Any:
    from base64 import b64decode

    scope = scope.split("<")[0]
    try:
        values = dict(fields)
        found = _by_name(scope, values.pop("kind", None))
        if found is None:
            raise ValueError("no such policy")
        if isinstance(found, BasePolicy):
            if values:
                raise ValueError(f"it has no parameters, {sorted(values)} given")
            return found
        for field in dataclasses.fields(found):
            if field.type == "bytes" and field.name in values:
                values[field.name] = b64decode(values[field.name], validate=True)
            elif field.name == "history":
                values["history"] = _from_plain("History", values["history"])
        return found(**values)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{scope}: {fields!r} doesn't describe a policy: {error}") from None


class LimitedScopeQos(Qos):
    """A Qos for one kind of entity: it refuses policies that don't concern it."""

    __slots__ = ()
    for_entity: ClassVar[str] = ""
    supported_scopes: ClassVar[frozenset[str]] = frozenset()

    def _check(self) -> None:
        for one in self._policies:
            if one.__scope__.split("<")[0] not in self.supported_scopes:
                raise ValueError(f"{one} does not concern a {self.for_entity}")


_ANY = frozenset({"EntityName", "BinaryProperty", "Property", "IgnoreLocal"})
_DATA = _ANY | {
    "DataRepresentation", "Deadline", "DestinationOrder", "Durability", "History", "LatencyBudget", "Liveliness",
    "Ownership", "Reliability", "ResourceLimits", "TypeConsistency"}


class DomainParticipantQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "DomainParticipant"
    supported_scopes = _ANY | {"Userdata"}


class TopicQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "Topic"
    supported_scopes = _DATA | {"DurabilityService", "Lifespan", "Topicdata", "TransportPriority"}


class PublisherQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "Publisher"
    supported_scopes = _ANY | {"Groupdata", "Partition", "PresentationAccessScope"}


class SubscriberQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "Subscriber"
    supported_scopes = PublisherQos.supported_scopes


class DataWriterQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "DataWriter"
    supported_scopes = _DATA | {
        "DurabilityService", "Lifespan", "OwnershipStrength", "TransportPriority", "Userdata", "WriterDataLifecycle"}


class DataReaderQos(LimitedScopeQos):
    __slots__ = ()
    for_entity = "DataReader"
    supported_scopes = _DATA | {"ReaderDataLifecycle", "TimeBasedFilter", "Userdata"}


__all__ = [
    "BasePolicy", "DataReaderQos", "DataWriterQos", "DomainParticipantQos", "LimitedScopeQos", "Policy", "PublisherQos",
    "Qos", "SubscriberQos", "TopicQos",
]
