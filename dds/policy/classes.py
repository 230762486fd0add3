"""The policies of a Qos: all that DDS has, under the names that users of cyclonedds-python know (`dds.qos.Policy`).

What Spindle makes of each: `dds.policy.policies`.

Rules: policies are immutable, comparable and hashable. One without parameters is an object that stands for itself.
Durations are nanoseconds, see `dds.util.duration`.
"""

from __future__ import annotations

import dataclasses
import operator
from dataclasses import dataclass
from typing import Any, ClassVar


class BasePolicy:
    """Base of every policy. `__scope__` names what two policies of one Qos must not share."""

    __scope__: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__scope__ and cls.__scope__ != cls.__name__:
            cls.__name__ = f"{cls.__scope__}.{cls.__name__}"

    def __post_init__(self) -> None:
        """Raises TypeError for a number that isn't whole: who makes an entity with it later would not know whence."""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.type == "int":
                number = getattr(self, field.name)
                try:
                    object.__setattr__(self, field.name, operator.index(number))
                except TypeError:
                    raise TypeError(
                        f"Policy.{type(self).__name__}: {field.name} must be an int, not {number!r}; durations are "
                        "nanoseconds, as dds.duration(seconds=1.5) gives them") from None

    def __repr__(self) -> str:
        fields = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)  # type: ignore[arg-type]
        return f"Policy.{type(self).__name__}({fields})"

    def __reduce__(self) -> Any:
        """Pickled by name: a policy without parameters stays the one object that it is."""
        return from_plain, (self.__scope__, to_plain(self))


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
    class EntityFactory(BasePolicy):
        """False: what is made in the participant, publisher or subscriber does nothing until its enable() is called."""

        __scope__: ClassVar[str] = "EntityFactory"
        autoenable_created_entities: bool = True

    @dataclass(frozen=True, repr=False)
    class EntityName(BasePolicy):
        __scope__: ClassVar[str] = "EntityName"
        name: str


def scope_of(key: Any) -> str:
    """Of a policy or its class. Raises ValueError for anything else."""
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


def to_plain(policy: Any) -> dict[str, Any]:
    """What Qos.asdict() says of it, fit for JSON."""
    from base64 import b64encode

    plain: dict[str, Any] = {}
    if "." in type(policy).__name__:
        plain["kind"] = type(policy).__name__.split(".")[1]
    for field in dataclasses.fields(policy):
        value = getattr(policy, field.name)
        if isinstance(value, bytes):
            value = b64encode(value).decode()
        elif isinstance(value, BasePolicy):
            value = to_plain(value)
        elif isinstance(value, tuple):
            value = list(value)
        plain[field.name] = value
    return plain


def from_plain(scope: str, fields: Any) -> Any:
    """Inverse of to_plain. Raises ValueError."""
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
                values["history"] = from_plain("History", values["history"])
        return found(**values)
    except (TypeError, ValueError, KeyError) as error:
        raise ValueError(f"{scope}: {fields!r} doesn't describe a policy: {error}") from None
