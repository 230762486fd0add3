"""The policies of DDS 1.4, 2.2.3, one row each: who has it, what it means here, what is refused, and who may match.

Why one table: a policy that is accepted anywhere must be honoured everywhere, and the documents must say the same. What
is asked of a policy is asked here: the kinds of Qos (`dds.qos`), what entities accept, inherit and may change, and
which ends match (`dds.policy.policies`), and the table of docs/qos.md (`tools/dds_reference.py`).

Rules: a row knows policies, never a Qos. Where a function of a row gets None in place of a policy, nothing was said,
and the default of DDS counts (reliable, volatile, keep all here; see `dds.policy.policies.DEFAULT`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from dds.internal import dds_infinity
from dds.policy.classes import Policy

PARTICIPANT, TOPIC, PUBLISHER, SUBSCRIBER = "DomainParticipant", "Topic", "Publisher", "Subscriber"
WRITER, READER = "DataWriter", "DataReader"
ENTITIES = (PARTICIPANT, TOPIC, PUBLISHER, SUBSCRIBER, WRITER, READER)

LEASE_MIN = 10_000_000  # ns; spindle.group.leases.LEASE_NS_MIN
PARTITIONS_MAX = 4096  # bytes of their names together

Says = Callable[[Any, str], "str | None"]  # of a policy at an entity: what is wrong with it, None if nothing is


def _nothing(policy: Any, entity: str) -> str | None:
    return None


@dataclasses.dataclass(frozen=True)
class Row:
    """One policy.

    scope       its name in a Qos
    entities    those that have it
    number      QosPolicyId_t of DDS 1.4, 2.3.3 (and XTypes 1.3, 7.6.2), as incompatible-Qos statuses report it; 0 if
                it is none of these
    meaning     what it does here, for docs/qos.md
    changeable  set_qos() may change it on a living entity (the table in DDS 1.4, 2.2.3)
    inherited   readers and writers that don't say it themselves go by that of their "topic", or of the "group" that
                they are made in (a publisher or subscriber)
    told_with   peers are told of it with each reader and writer of the "topic", or "group", that has it
    impossible  why a value can't be right anywhere
    refused     why a value can't be honoured here, and what to do instead
    fits        what a writer offers is enough for what a reader requests; None: it doesn't keep them apart
    """

    scope: str
    entities: tuple[str, ...]
    number: int
    meaning: str
    changeable: bool = False
    inherited: str = ""
    told_with: str = ""
    impossible: Says = _nothing
    refused: Says = _nothing
    fits: Callable[[Any, Any], bool] | None = None


def kind(policy: Any) -> str:
    """Name of a policy within its scope: "KeepLast" of Policy.History.KeepLast(1)."""
    return type(policy).__name__.split(".")[-1]


def scope_of_row(policy: Any) -> str:
    """The scope by which the table knows a policy: properties have one of their own for each key."""
    return str(policy.__scope__).split("<")[0]


# --- what policies come to, where rows and others need it

_DURABILITY_RANK = {"Volatile": 0, "TransientLocal": 1, "Transient": 2, "Persistent": 3}
_LIVELINESS_RANK = {"Automatic": 0, "ManualByParticipant": 1, "ManualByTopic": 2}
GROUP_SCOPE = 2
_PRESENTATION_RANK = {"Instance": 0, "Topic": 1, "Group": GROUP_SCOPE}


def is_best_effort(reliability: Any) -> bool:
    return reliability is not None and kind(reliability) == "BestEffort"


def durability_rank(durability: Any) -> int:
    """0 volatile, 1 transient-local, 2 transient, 3 persistent."""
    return 0 if durability is None else _DURABILITY_RANK[kind(durability)]


def liveliness_rank(liveliness: Any) -> int:
    """0: alive while the program is; 1: while the program says so of one of the participant's writers; 2: of this."""
    return 0 if liveliness is None else _LIVELINESS_RANK[kind(liveliness)]


def is_by_source(order: Any) -> bool:
    return order is not None and kind(order) == "BySourceTimestamp"


def is_exclusive(ownership: Any) -> bool:
    return ownership is not None and kind(ownership) == "Exclusive"


def offered_representation(representation: Any) -> int:
    """CDR version that a writer uses: 1, 2, or 0 for what is native to the type."""
    if representation is None or (
            representation.use_cdrv0_representation == representation.use_xcdrv2_representation):
        return 0
    return 1 if representation.use_cdrv0_representation else 2


def accepted_representations(representation: Any) -> tuple[int, ...]:
    """CDR versions that a reader takes, as offered_representation() numbers them; says nothing = all."""
    one = offered_representation(representation)
    return (0, 1, 2) if one == 0 else (0, one)


def _duration(policy: Any, field: str, unsaid: int) -> int:
    return unsaid if policy is None else int(getattr(policy, field))


def presentation(policy: Any) -> tuple[int, bool, bool]:
    """How far what belongs together reaches (instance, topic, GROUP_SCOPE), whether sets of it are coherent, and
    whether it is ordered."""
    return (0, False, False) if policy is None else (
        _PRESENTATION_RANK[kind(policy)], bool(policy.coherent_access), bool(policy.ordered_access))


def _presents(offered: Any, requested: Any) -> bool:
    return all(offer >= want for offer, want in zip(presentation(offered), presentation(requested), strict=True))


def _lives(offered: Any, requested: Any) -> bool:
    return liveliness_rank(offered) >= liveliness_rank(requested) and (
        _duration(offered, "lease_duration", dds_infinity) <= _duration(requested, "lease_duration", dds_infinity))


# --- what is wrong with policies

def _at_least(field: str, least: int, text: str = "") -> Says:
    def says(policy: Any, entity: str) -> str | None:
        if getattr(policy, field) >= least:
            return None
        return f"{field} must {text or ('not be negative' if not least else f'be at least {least}')}"

    return says


def _wrong_depth(history: Any) -> str | None:
    return "depth must be at least 1" if kind(history) == "KeepLast" and history.depth < 1 else None


def _wrong_limits(policy: Any, entity: str) -> str | None:
    for name in ("max_samples", "max_instances", "max_samples_per_instance"):
        if getattr(policy, name) != -1 and getattr(policy, name) < 1:
            return f"{name} must be at least 1, or -1 for no limit"
    if -1 < policy.max_samples < policy.max_samples_per_instance:
        return "max_samples must not be less than max_samples_per_instance"
    return None


def _wrong_service(policy: Any, entity: str) -> str | None:
    if policy.cleanup_delay < 0:
        return "cleanup_delay must not be negative"
    if kind(policy.history) == "KeepLast" and -1 < policy.max_samples_per_instance < policy.history.depth:
        return "max_samples_per_instance must not be less than the depth of its history"
    return _wrong_depth(policy.history) or _wrong_limits(policy, entity)


def _wrong_blocking_time(policy: Any, entity: str) -> str | None:
    return "max_blocking_time must not be negative" if kind(policy) == "Reliable" and policy.max_blocking_time < 0 \
        else None


def _wrong_strength(policy: Any, entity: str) -> str | None:
    return None if -1 << 31 <= policy.strength < 1 << 31 else "strength must have 32 bits"


def _wrong_partitions(policy: Any, entity: str) -> str | None:
    names = "\0".join(policy.partitions)
    if names.count("\0") != max(0, len(policy.partitions) - 1):
        return "partitions must not contain the character 0"
    if len(names.encode()) > PARTITIONS_MAX:
        return f"partitions must not have more than {PARTITIONS_MAX} bytes together"
    return None


def _wrong_delays(policy: Any, entity: str) -> str | None:
    least = min(policy.autopurge_nowriter_samples_delay, policy.autopurge_disposed_samples_delay)
    return "delay must not be negative" if least < 0 else None


def _refused_ignoring(policy: Any, entity: str) -> str | None:
    if kind(policy) != "Nothing" and entity != READER:
        return "readers say what they ignore; give it to the DataReader"
    return None


_ENDS = (TOPIC, WRITER, READER)

TABLE: tuple[Row, ...] = (
    Row("Userdata", (PARTICIPANT, WRITER, READER), 1,
        "carried along: what others are told of the participant, reader or writer has it", changeable=True),
    Row("Topicdata", (TOPIC,), 18,
        "carried along: what others are told of the topic, and of its readers and writers, has it",
        changeable=True, told_with="topic"),
    Row("Groupdata", (PUBLISHER, SUBSCRIBER), 19,
        "carried along: what others are told of the readers and writers in it has it",
        changeable=True, told_with="group"),
    Row("Durability", _ENDS, 2,
        "the [level of the topic](#the-level-of-a-topic), and whether a reader begins with the history",
        inherited="topic", fits=lambda offered, requested: durability_rank(offered) >= durability_rank(requested)),
    Row("DurabilityService", (TOPIC, WRITER), 22,
        "how much is kept for [late joiners](#late-joiners), before History, and how long what was disposed of",
        impossible=_wrong_service),
    Row("PresentationAccessScope", (PUBLISHER, SUBSCRIBER), 3,
        "samples of a topic always come in order, and [coherent sets](dds.md#coherent-sets) whole. `Group` is about "
        "topics of one [order group](dds.md#order-groups). A reader or writer that is made in a participant may have "
        "it itself",
        inherited="group", fits=_presents),
    Row("Deadline", _ENDS, 4,
        "both ends count the periods in which an instance got no sample. Where no deadline was set before, a reader "
        "counts from then on, a writer from its next sample on. Listeners and wait sets hear of it at most "
        "each millisecond, of periods below that each 10 ms, and of several periods at once where thousands of "
        "instances are late",
        inherited="topic",
        impossible=_at_least("deadline", 1, "be at least 1 ns"),
        fits=lambda offered, requested: _duration(offered, "deadline", dds_infinity) <= _duration(
            requested, "deadline", dds_infinity), changeable=True),
    Row("LatencyBudget", _ENDS, 5, "a hint, used only for matching: every sample goes out at once",
        inherited="topic", impossible=_at_least("budget", 0),
        fits=lambda offered, requested: _duration(offered, "budget", 0) <= _duration(requested, "budget", 0),
        changeable=True),
    Row("Ownership", _ENDS, 6,
        "`Exclusive`: of the writers of an instance only the strongest is heard, "
        "[below](#one-owner-for-each-instance)",
        inherited="topic", fits=lambda offered, requested: is_exclusive(offered) == is_exclusive(requested)),
    Row("OwnershipStrength", (WRITER,), 7, "of a writer, said with each sample; more is stronger",
        impossible=_wrong_strength, changeable=True),
    Row("Liveliness", _ENDS, 8,
        "a writer that gives no sign of life for its lease is told to all readers, [below](#signs-of-life)",
        inherited="topic",
        impossible=_at_least("lease_duration", LEASE_MIN, f"be at least {LEASE_MIN // 1_000_000} ms"), fits=_lives),
    Row("TimeBasedFilter", (READER,), 9,
        "at most one sample of an instance in that time, by the source timestamps. Of those held back the last comes "
        "when the time is over. No more than the deadline",
        impossible=_at_least("filter_time", 0), changeable=True),
    Row("Partition", (PUBLISHER, SUBSCRIBER), 10,
        "a writer and a reader meet if they have a partition in common; patterns as in `fnmatch`. At most "
        f"{PARTITIONS_MAX:,} bytes of names. A reader or writer that is made in a participant may have it itself",
        inherited="group", impossible=_wrong_partitions, changeable=True),
    Row("Reliability", _ENDS, 11,
        "`BestEffort` readers hold nobody up; `Reliable`: [how long a write may wait](#slow-readers); with Durability "
        "the [level of the topic](#the-level-of-a-topic)",
        inherited="topic", impossible=_wrong_blocking_time,
        fits=lambda offered, requested: not is_best_effort(offered) or is_best_effort(requested)),
    Row("TransportPriority", (TOPIC, WRITER), 20, "a hint without effect: the samples of a topic are in one order",
        changeable=True),
    Row("Lifespan", (TOPIC, WRITER), 21,
        "a sample goes from all readers at the same place of the order, that long after its source timestamp, "
        "[below](#lifespan)",
        inherited="topic", impossible=_at_least("lifespan", 1, "be at least 1 ns"), changeable=True),
    Row("DestinationOrder", _ENDS, 12,
        "`ByReceptionTimestamp`: samples come in the agreed order. `BySourceTimestamp`, at readers: of each instance, "
        "a sample that was written before one that came already is kept out, and counts as lost; so the last is what "
        "was written last. All readers keep out the same. Writers must offer it. A sample stamped in the future "
        "keeps all others out until then: so a writer refuses timestamps more than 30 s ahead of its host's clock; "
        "and if the topic's Qos says it, or that of whoever opened the topic first, nodes refuse such messages of "
        "any program. The hosts' clocks must agree, and access rules say who may write: within these 30 s, and "
        "within packets (order groups, coherent sets), a program that lies about its clock is believed",
        inherited="topic", fits=lambda offered, requested: is_by_source(offered) or not is_by_source(requested)),
    Row("History", _ENDS, 13,
        "what a reader keeps, [above](#slow-readers), and how much [late joiners](#late-joiners) get",
        inherited="topic", impossible=lambda policy, entity: _wrong_depth(policy)),
    Row("ResourceLimits", _ENDS, 14,
        "`max_samples` of a writer: so many may wait between it and its node. Of a reader: it holds at most so many "
        "that were read and not taken. Limits on instances are those of types with a key, "
        "[below](#resource-limits)",
        inherited="topic", impossible=_wrong_limits),
    Row("WriterDataLifecycle", (WRITER,), 16,
        "whether `unregister_instance()` and the writer's end dispose of its instances, too; they do by default",
        changeable=True),
    Row("ReaderDataLifecycle", (READER,), 17,
        "samples of instances without writers, or disposed of, go after these delays", impossible=_wrong_delays,
        changeable=True),
    Row("EntityFactory", (PARTICIPANT, PUBLISHER, SUBSCRIBER), 15,
        "whether what is made in it is enabled at once, [below](#disabled-entities)", changeable=True),
    Row("DataRepresentation", _ENDS, 23, "of IDL types: which XCDR is written and accepted, 1 or 2",
        inherited="topic",
        fits=lambda offered, requested: offered_representation(offered) in accepted_representations(requested)),
    Row("TypeConsistency", _ENDS, 24,
        "of readers: which other types than their own they read ([dds.md](dds.md#types-that-change)); an end whose "
        "type doesn't go with theirs is an inconsistent topic, not an incompatible Qos", inherited="topic"),
    Row("IgnoreLocal", ENTITIES, 0,
        "of readers: no samples of writers of its own participant, or of its own process", refused=_refused_ignoring),
    Row("EntityName", ENTITIES, 0, "of participants: shown in listings", changeable=True),
    Row("Property", ENTITIES, 0, "carried along", changeable=True),
    Row("BinaryProperty", ENTITIES, 0, "carried along", changeable=True),
)

BY_SCOPE = {row.scope: row for row in TABLE}


def row_of(policy: Any) -> Row:
    """The row of a policy, or of its class or family."""
    return BY_SCOPE[scope_of_row(policy)]


def scopes_at(entity: str) -> frozenset[str]:
    """The scopes of the policies that an entity of this kind has."""
    return frozenset(row.scope for row in TABLE if entity in row.entities)


def number_of(scope: type) -> int:
    """QosPolicyId_t of a policy: number_of(Policy.Deadline) is 4."""
    return row_of(scope).number


assert all(hasattr(Policy, row.scope) for row in TABLE)

__all__ = ["BY_SCOPE", "ENTITIES", "LEASE_MIN", "PARTITIONS_MAX", "TABLE", "Row", "number_of", "row_of",
           "scopes_at"]
