"""Qos from files: the profiles of a DDS-XML file. DDS-XML 1.0, building block Qos.

    <dds>
      <qos_library name="flight">
        <qos_profile name="recorded" base_name="shared">
          <datareader_qos>
            <durability><kind>PERSISTENT_DURABILITY_QOS</kind></durability>
            <history><kind>KEEP_LAST_HISTORY_QOS</kind><depth>5</depth></history>
          </datareader_qos>
        </qos_profile>
      </qos_library>
    </dds>

    provider = QosProvider("qos.xml")
    reader = DataReader(participant, topic, qos=provider.get_datareader_qos("flight::recorded"))

Rules: what a file says is taken, or refused with the element that is wrong; nothing is skipped. A part of a policy that
the file leaves out has the default of DDS 1.4, 2.2.3. A profile takes over what its `base_name` has, part by part.
Which policies Spindle honours is decided when an entity is made with them (`dds.policy.policies`).
"""

from __future__ import annotations

import os
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dds.exceptions import DDSException
from dds.internal import dds_infinity
from dds.qos import (
    DataReaderQos,
    DataWriterQos,
    DomainParticipantQos,
    LimitedScopeQos,
    Policy,
    PublisherQos,
    Qos,
    SubscriberQos,
    TopicQos,
)

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

SIZE_MAX = 1 << 20  # bytes of a file
DEPTH_MAX = 16  # profiles that are each other's base
DIGITS_MAX = 20  # of a number
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")

Fields = dict[str, Any]  # parts of a policy: name -> text, or Fields of a duration, or a list of texts
Settings = dict[str, Fields]  # policies of an entity


class QosProvider:
    """The profiles of a DDS-XML file.

    path   of the file (str, bytes, os.PathLike, or file://...), or the XML itself
    scope  which profiles to take: "library::profile::entity" with * or nothing for any
    Raises TypeError; DDSException (BAD_PARAMETER) for a file that can't be read or isn't DDS-XML, and for a scope with
    nothing in it.
    """

    def __init__(self, path: str | bytes | os.PathLike[str], scope: str = "*") -> None:
        for given, kinds, what in ((path, (str, bytes, os.PathLike), "a path or XML"), (scope, (str,), "a str")):
            if not isinstance(given, kinds):
                raise TypeError(f"{given!r} is not {what}")
        self._text_of = _shown(path)
        self._profiles: dict[tuple[str, str], dict[tuple[str, str], Settings]] = {}
        self._bases: dict[tuple[str, str], tuple[str, str]] = {}
        self._scope = [one or "*" for one in scope.split("::")]
        if len(self._scope) > 3 and any(one != "*" for one in self._scope):
            raise self._wrong(f"the scope {scope!r} has more than three parts; it is library::profile::entity")
        root = self._parsed(self._content(path))
        if _tag(root) != "dds":
            raise self._wrong(f"its first element is <{_tag(root)}>, not <dds>")
        try:
            for library in root:
                if _tag(library) == "qos_library":  # other building blocks of DDS-XML aren't about Qos
                    _only(library, "name")
                    _no_text(library)
                    for profile in library:
                        self._read_profile(_name(library), profile)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        except RecursionError:
            raise self._wrong("its elements lie too deep in each other") from None
        if any(one != "*" for one in self._scope) and not self._has_scope():
            raise self._wrong(f"nothing in it is of the scope {scope!r}; it has {self._known()}")

    def _has_scope(self) -> bool:
        library, profile, entity = (*self._scope, "*", "*")[:3]
        named = {one for settings in self._profiles.values() for one in settings if one[1] == entity}
        return any(library in ("*", one) and profile in ("*", other) and (
            entity == "*" or any(self._settings((one, other), which, 0) is not None for which in named))
            for one, other in self._profiles)

    def _known(self) -> str:
        return ", ".join(sorted(f"{one}::{other}" for one, other in self._profiles)) or "no profiles"

    def get_datareader_qos(self, key: str) -> DataReaderQos:
        """Of the profile "library::profile", or of the <datareader_qos name="entity"> in it with
        "library::profile::entity". DDSException (BAD_PARAMETER) if there is none."""
        return self._get("datareader_qos", key, DataReaderQos)

    def get_datawriter_qos(self, key: str) -> DataWriterQos:
        return self._get("datawriter_qos", key, DataWriterQos)

    def get_topic_qos(self, key: str) -> TopicQos:
        return self._get("topic_qos", key, TopicQos)

    def get_publisher_qos(self, key: str) -> PublisherQos:
        return self._get("publisher_qos", key, PublisherQos)

    def get_subscriber_qos(self, key: str) -> SubscriberQos:
        return self._get("subscriber_qos", key, SubscriberQos)

    def get_domain_participant_qos(self, key: str) -> DomainParticipantQos:
        return self._get("domain_participant_qos", key, DomainParticipantQos)

    get_participant_qos = get_domain_participant_qos

    def _get(self, kind: str, key: str, limited: type[Any]) -> Any:
        if not isinstance(key, str):
            raise TypeError(f"{key!r} is not a str: write \"library::profile\"")
        library, profile, entity = ([*key.split("::"), "", ""])[:3]
        if key.count("::") > 2 or not profile:
            raise self._wrong(f"{key!r} names no Qos: write library::profile, or library::profile::entity")
        if not all(wanted in ("*", one) for wanted, one in zip(self._scope, (library, profile, entity), strict=False)):
            raise self._wrong(f"{key!r} is outside the scope {'::'.join(self._scope)!r} of this provider")
        settings = self._settings((library, profile), (kind, entity), 0)
        if settings is None:
            raise self._wrong(f"it has no <{kind}{f' name={entity!r}' if entity else ''}> in {library}::{profile}; "
                              f"it has {self._known()}")
        try:
            policies = [self._policy(name, fields, limited) for name, fields in settings.items()]
            qos: LimitedScopeQos = limited(*(one for one in policies if one is not None))
        except (ValueError, ArithmeticError) as error:
            raise self._wrong(f"{kind} of {key}: {error}") from None
        return qos

    # --- reading

    def _content(self, uri: str | bytes | os.PathLike[str]) -> str | bytes:
        if isinstance(uri, str):
            text = uri.lstrip("\ufeff \t\r\n")
            if text.startswith("<"):
                return text
            path = uri.removeprefix("file://")
        elif isinstance(uri, bytes):
            if uri.startswith(_BYTE_ORDER_MARKS) or uri.lstrip().startswith(b"<"):
                return uri
            path = os.fsdecode(uri.removeprefix(b"file://"))
        else:
            path = os.fspath(uri)
        try:
            with Path(path).open("rb") as file:
                return file.read(SIZE_MAX + 1)
        except (OSError, ValueError) as error:
            raise self._wrong(f"it can't be read: {error}") from None

    def _parsed(self, data: str | bytes) -> Element:
        from xml.etree import ElementTree as Tree

        class Builder(Tree.TreeBuilder):
            def doctype(self, *_: Any) -> None:  # entities could make gigabytes of a small file
                raise ValueError("it has a document type definition, which DDS-XML has no use for")

        if len(data) > SIZE_MAX:
            raise self._wrong(f"it has more than {SIZE_MAX:,} {'characters' if isinstance(data, str) else 'bytes'}")
        parser = Tree.XMLParser(target=Builder())
        try:
            parser.feed(data)
            root: Element = parser.close()
            return root
        except (Tree.ParseError, ValueError, LookupError) as error:
            raise self._wrong(f"it is no XML that can be read: {error}") from None

    def _read_profile(self, library: str, profile: Element) -> None:
        if _tag(profile) != "qos_profile":
            raise self._wrong(f"<{_tag(profile)}> stands in library {library!r}, where <qos_profile> may stand")
        key = library, _name(profile)
        _only(profile, "name", "base_name")
        _no_text(profile)
        if key in self._profiles:
            raise self._wrong(f"there are two profiles {'::'.join(key)}")
        base = profile.get("base_name")
        if base:
            self._bases[key] = (library, base) if "::" not in base else tuple(base.split("::", 1))  # type: ignore[assignment]
        entities = self._profiles[key] = {}
        for entity in profile:
            kind = _ALIASES.get(_tag(entity), _tag(entity))
            if kind not in _ENTITIES:
                raise self._wrong(f"<{_tag(entity)}> stands in profile {'::'.join(key)}; what may stand there is "
                                  f"{', '.join(sorted(_ENTITIES))}")
            _only(entity, "name")
            _no_text(entity)
            if (kind, _name(entity)) in entities:
                raise self._wrong(f"profile {'::'.join(key)} has two <{kind}>"
                                  + (f" with the name {_name(entity)!r}" if _name(entity) else ""))
            settings: Settings = {}
            for policy in entity:
                name = _tag(policy)
                if name not in _POLICIES:
                    raise self._wrong(f"<{name}> in {kind} of {'::'.join(key)} is no policy of DDS-XML")
                if name in settings:
                    raise self._wrong(f"{kind} of {'::'.join(key)} has two <{name}>")
                _only(policy)
                settings[name] = _fields(policy)
            entities[kind, _name(entity)] = settings

    def _settings(self, profile: tuple[str, str], entity: tuple[str, str], depth: int) -> Settings | None:
        """What a profile and its bases say of an entity; None if none of them says anything."""
        if depth > DEPTH_MAX:
            raise self._wrong(f"profile {'::'.join(profile)} has more than {DEPTH_MAX} bases, or is its own")
        found: Settings | None = None
        if profile in self._bases:
            found = self._settings(self._bases[profile], entity, depth + 1)
            if self._bases[profile] not in self._profiles:
                raise self._wrong(f"the base of {'::'.join(profile)}, {'::'.join(self._bases[profile])}, isn't there")
        own = self._profiles.get(profile, {}).get(entity)
        if own is None:
            return found
        merged = {name: dict(fields) for name, fields in (found or {}).items()}
        for name, fields in own.items():
            merged.setdefault(name, {}).update(fields)
        return merged

    def _policy(self, name: str, fields: Fields, limited: type[LimitedScopeQos]) -> Any:
        make, parts = _POLICIES[name]
        unknown = fields.keys() - parts
        if unknown:
            raise ValueError(f"<{name}> has no <{sorted(unknown)[0]}>; it has {', '.join(sorted(parts))}")
        return make(_Parts(name, fields, limited))

    def _wrong(self, why: str) -> DDSException:
        return DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER, f"the Qos of {self._text_of} can't be used: {why}")


class _Parts:
    """The parts of one policy, with the defaults of DDS for what is left out. ValueError for what makes no sense."""

    def __init__(self, policy: str, fields: Fields, limited: type[LimitedScopeQos]) -> None:
        self._policy = policy
        self._fields = fields
        self.limited = limited

    def text(self, part: str, default: str = "") -> str:
        found = self._fields.get(part, default)
        if not isinstance(found, str):
            raise ValueError(f"<{part}> of <{self._policy}> has parts, where text is expected")
        return found

    def texts(self, part: str) -> list[str]:
        found = self._fields.get(part, {})
        elements = found.get("element", []) if isinstance(found, dict) and found.keys() <= {"element"} else None
        elements = elements if isinstance(elements, list) else [elements]
        if not all(isinstance(one, str) for one in elements) and found != "":
            raise ValueError(f"<{part}> of <{self._policy}> is a list: what may stand in it is <element>text</element>")
        return elements if found else []

    def number(self, part: str, default: int, least: int = 0) -> int:
        text = self.text(part, str(default))
        found = _whole_number(text, f"<{part}> of <{self._policy}>")
        if not least <= found < 1 << 31:
            raise ValueError(f"<{part}> of <{self._policy}> is {found:,}; it must be {least:,} to {(1 << 31) - 1:,}")
        return found

    def length(self, part: str) -> int:
        """A limit; -1 = none."""
        if self.text(part, "LENGTH_UNLIMITED") in ("LENGTH_UNLIMITED", "-1"):
            return -1
        return self.number(part, 1, 1)

    def truth(self, part: str, default: bool) -> bool:
        text = self.text(part, str(default)).lower()
        if text not in ("true", "false", "1", "0"):
            raise ValueError(f"<{part}> of <{self._policy}> is {text!r}, not true or false")
        return text in ("true", "1")

    def duration(self, part: str, default: int) -> int:
        """Nanoseconds."""
        found = self._fields.get(part)
        if found is None:
            return default
        if not isinstance(found, dict) or found.keys() - {"sec", "nanosec"}:
            raise ValueError(f"<{part}> of <{self._policy}> must have <sec> and <nanosec>")
        numbers = []
        for name in ("sec", "nanosec"):
            text, where = found.get(name, "0"), f"<{name}> of <{part}> of <{self._policy}>"
            infinite = isinstance(text, str) and text in _INFINITE
            numbers.append(-1 if infinite else _whole_number(text, where, f" or {_INFINITE[0]}"))
            if not infinite and numbers[-1] < 0:
                raise ValueError(f"{where} is less than 0")
        sec, nanosec = numbers
        if sec < 0:
            return dds_infinity
        if nanosec < 0:
            raise ValueError(f"<nanosec> of <{part}> of <{self._policy}> is infinite, and <sec> isn't")
        return min(sec * 1_000_000_000 + nanosec, dds_infinity)

    def data(self) -> bytes:
        try:
            return b64decode("".join(self.text("value").split()), validate=True)
        except ValueError:
            raise ValueError(f"<value> of <{self._policy}> is not base64") from None

    def kind(self, kinds: dict[str, Any], default: str, part: str = "kind") -> Any:
        text = self.text(part, default)
        if text not in kinds:
            raise ValueError(f"<{part}> of <{self._policy}> is {text!r}; it may be {', '.join(kinds)}")
        return kinds[text]

    def history(self, prefix: str = "") -> Any:
        keeps_all = self.kind({"KEEP_LAST_HISTORY_QOS": False, "KEEP_ALL_HISTORY_QOS": True}, "KEEP_LAST_HISTORY_QOS",
                              f"{prefix}kind")
        depth = self.number(f"{prefix}depth", 1, 1)
        return Policy.History.KeepAll if keeps_all else Policy.History.KeepLast(depth)

    def limits(self) -> tuple[int, int, int]:
        samples, instances, each = (self.length(part) for part in _LIMITS)
        return samples, instances, each


_INFINITE = ("DURATION_INFINITE_SEC", "DURATION_INFINITY", "DURATION_INFINITE_NSEC")
_LIMITS = ("max_samples", "max_instances", "max_samples_per_instance")
_ENTITIES = {"datareader_qos", "datawriter_qos", "topic_qos", "publisher_qos", "subscriber_qos",
             "domain_participant_qos"}
_ALIASES = {"participant_qos": "domain_participant_qos", "domainparticipant_qos": "domain_participant_qos"}


def _reliability(parts: _Parts) -> Any:
    default = "RELIABLE" if parts.limited is DataWriterQos else "BEST_EFFORT"
    reliable = parts.kind({"RELIABLE_RELIABILITY_QOS": True, "BEST_EFFORT_RELIABILITY_QOS": False},
                          f"{default}_RELIABILITY_QOS")
    blocking = parts.duration("max_blocking_time", 100_000_000)
    return Policy.Reliability.Reliable(blocking) if reliable else Policy.Reliability.BestEffort


def _liveliness(parts: _Parts) -> Any:
    kind = parts.kind({
        "AUTOMATIC_LIVELINESS_QOS": Policy.Liveliness.Automatic,
        "MANUAL_BY_PARTICIPANT_LIVELINESS_QOS": Policy.Liveliness.ManualByParticipant,
        "MANUAL_BY_TOPIC_LIVELINESS_QOS": Policy.Liveliness.ManualByTopic}, "AUTOMATIC_LIVELINESS_QOS")
    return kind(parts.duration("lease_duration", dds_infinity))


def _presentation(parts: _Parts) -> Any:
    kind = parts.kind({
        "INSTANCE_PRESENTATION_QOS": Policy.PresentationAccessScope.Instance,
        "TOPIC_PRESENTATION_QOS": Policy.PresentationAccessScope.Topic,
        "GROUP_PRESENTATION_QOS": Policy.PresentationAccessScope.Group}, "INSTANCE_PRESENTATION_QOS", "access_scope")
    return kind(coherent_access=parts.truth("coherent_access", False),
                ordered_access=parts.truth("ordered_access", False))


def _durability_service(parts: _Parts) -> Any:
    return Policy.DurabilityService(
        parts.duration("service_cleanup_delay", 0), parts.history("history_"), *parts.limits())


def _entity_factory(parts: _Parts) -> Any:
    return Policy.EntityFactory(parts.truth("autoenable_created_entities", True))


# Element -> (policy of its parts, None for one that asks for nothing; the parts it may have).
_POLICIES: dict[str, tuple[Callable[[_Parts], Any], set[str]]] = {
    "deadline": (lambda p: Policy.Deadline(p.duration("period", dds_infinity)), {"period"}),
    "destination_order": (lambda p: p.kind({
        "BY_RECEPTION_TIMESTAMP_DESTINATIONORDER_QOS": Policy.DestinationOrder.ByReceptionTimestamp,
        "BY_SOURCE_TIMESTAMP_DESTINATIONORDER_QOS": Policy.DestinationOrder.BySourceTimestamp},
        "BY_RECEPTION_TIMESTAMP_DESTINATIONORDER_QOS"), {"kind"}),
    "durability": (lambda p: p.kind({
        "VOLATILE_DURABILITY_QOS": Policy.Durability.Volatile,
        "TRANSIENT_LOCAL_DURABILITY_QOS": Policy.Durability.TransientLocal,
        "TRANSIENT_DURABILITY_QOS": Policy.Durability.Transient,
        "PERSISTENT_DURABILITY_QOS": Policy.Durability.Persistent}, "VOLATILE_DURABILITY_QOS"), {"kind"}),
    "durability_service": (_durability_service, {"service_cleanup_delay", "history_kind", "history_depth", *_LIMITS}),
    "entity_factory": (_entity_factory, {"autoenable_created_entities"}),
    "group_data": (lambda p: Policy.Groupdata(p.data()), {"value"}),
    "history": (lambda p: p.history(), {"kind", "depth"}),
    "latency_budget": (lambda p: Policy.LatencyBudget(p.duration("duration", 0)), {"duration"}),
    "lifespan": (lambda p: Policy.Lifespan(p.duration("duration", dds_infinity)), {"duration"}),
    "liveliness": (_liveliness, {"kind", "lease_duration"}),
    "ownership": (lambda p: p.kind({
        "SHARED_OWNERSHIP_QOS": Policy.Ownership.Shared, "EXCLUSIVE_OWNERSHIP_QOS": Policy.Ownership.Exclusive},
        "SHARED_OWNERSHIP_QOS"), {"kind"}),
    "ownership_strength": (lambda p: Policy.OwnershipStrength(p.number("value", 0, -1 << 31)), {"value"}),
    "partition": (lambda p: Policy.Partition(p.texts("name")), {"name"}),
    "presentation": (_presentation, {"access_scope", "coherent_access", "ordered_access"}),
    "reader_data_lifecycle": (lambda p: Policy.ReaderDataLifecycle(
        p.duration("autopurge_nowriter_samples_delay", dds_infinity),
        p.duration("autopurge_disposed_samples_delay", dds_infinity)),
        {"autopurge_nowriter_samples_delay", "autopurge_disposed_samples_delay"}),
    "reliability": (_reliability, {"kind", "max_blocking_time"}),
    "resource_limits": (lambda p: Policy.ResourceLimits(*p.limits()), set(_LIMITS)),
    "time_based_filter": (
        lambda p: Policy.TimeBasedFilter(p.duration("minimum_separation", 0)), {"minimum_separation"}),
    "topic_data": (lambda p: Policy.Topicdata(p.data()), {"value"}),
    "transport_priority": (lambda p: Policy.TransportPriority(p.number("value", 0, -1 << 31)), {"value"}),
    "user_data": (lambda p: Policy.Userdata(p.data()), {"value"}),
    "writer_data_lifecycle": (
        lambda p: Policy.WriterDataLifecycle(p.truth("autodispose_unregistered_instances", True)),
        {"autodispose_unregistered_instances"}),
}


def _tag(element: Element) -> str:
    """Without its name space."""
    return str(element.tag).rpartition("}")[2]


def _name(element: Element) -> str:
    return element.get("name", "")


def _fields(element: Element) -> Fields:
    """The parts of an element: text, or parts of their own; a list where <element> stands more than once.

    Raises ValueError for text where parts are expected, for attributes, and for any other part that stands twice.
    """
    fields: Fields = {}
    _no_text(element)
    for part in element:
        name = _tag(part)
        _only(part)
        value = _fields(part) if len(part) else (part.text or "").strip()
        if name not in fields:
            fields[name] = value
        elif name == "element":
            earlier = fields[name]
            fields[name] = [*(earlier if isinstance(earlier, list) else [earlier]), value]
        else:
            raise ValueError(f"<{_tag(element)}> has two <{name}>")
    return fields


def _only(element: Element, *attributes: str) -> None:
    """Raise ValueError if an element has an attribute that isn't one of these."""
    for name in element.attrib:
        if name not in attributes and not name.startswith("{http://www.w3.org/2001/XMLSchema-instance}"):
            allowed = f"; it may have {', '.join(attributes)}" if attributes else ""
            raise ValueError(f"<{_tag(element)}> has the attribute {name!r}, which means nothing here{allowed}")


def _no_text(element: Element) -> None:
    """Raise ValueError if an element has text between its parts."""
    for text in (element.text, *(part.tail for part in element)):
        if text and not text.isspace():
            raise ValueError(f"<{_tag(element)}> has the text {text.strip()[:40]!r}, where elements are expected")


def _whole_number(text: Any, where: str, alternative: str = "") -> int:
    try:
        if len(text) > DIGITS_MAX:
            raise ValueError
        return int(text)
    except (TypeError, ValueError):
        shown = repr(text) if len(text) <= DIGITS_MAX else f"{str(text)[:DIGITS_MAX]!r}..."
        raise ValueError(f"{where} is {shown}, not a whole number{alternative}") from None


def _shown(uri: Any) -> str:
    text = repr(uri.decode(errors="replace") if isinstance(uri, bytes) else str(uri))
    return text if len(text) <= 80 else f"{text[:77]}...'"


__all__ = ["Qos", "QosProvider"]
