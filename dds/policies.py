"""What Spindle makes of a Qos: which policies it honours, the level of a topic, and who may talk to whom.

Why one place: a policy that is accepted anywhere must be honoured everywhere. `check` refuses, when an entity is
created, whatever isn't; what passes has its meaning here or in the code that is named in the table.

| policy | honoured as |
|---|---|
| Reliability, Durability | the level of the topic (`level_of`) and matching; max_blocking_time by DataWriter.write |
| History | readers: KeepLast skips, KeepAll holds the writers back; topics: how much late joiners get |
| ResourceLimits | writers: max_samples slots of their inbox; readers: samples that are read and not taken |
| DurabilityService | history.depth for late joiners, before History |
| DestinationOrder | ByReceptionTimestamp is the agreed order; BySourceTimestamp keeps out what is older than \
something of its instance that came before in that order |
| DataRepresentation | the CDR version written and accepted |
| LatencyBudget | matching; every sample goes out at once |
| TransportPriority | a hint without effect: all samples of a topic are in one order |
| WriterDataLifecycle | writers of types with a key: whether unregister_instance() and the writer's end dispose of \
instances, too; the default is that they do |
| IgnoreLocal | readers: no samples of writers of their own participant or process |
| PresentationAccessScope | Instance and Topic without coherent access: samples come in the agreed order |
| Ownership, OwnershipStrength | readers: of the writers of an instance the strongest is heard, `dds.intake`; the \
strength goes along with each sample |
| Partition | a writer and a reader match if they have a partition in common; goes along with each sample |
| Lifespan | goes along with each sample; readers drop what has expired |
| Deadline | both ends count the periods without a sample, `dds.deadlines` |
| Liveliness | a lease that the writer's node watches: when it runs out, the node says so in the topic's order |
| TimeBasedFilter | readers: at most one sample of an instance in that time, by its source timestamps |
| ReaderDataLifecycle | readers: samples of instances that are over go after that time |
| EntityName, Property, BinaryProperty, Userdata, Topicdata, Groupdata | carried along; get_qos() returns them, and \
what peers are told of an endpoint has them, with its topic's and publisher's or subscriber's data |
| TypeConsistency.DisallowTypeCoercion | what Spindle does anyway |

Rules: matching follows DDS 1.4, 2.2.3: what a writer offers must be at least what a reader requests. What neither the
entity nor its topic says is DEFAULT: reliable, volatile, keep all; so nothing is lost silently unless asked for.
"""

from __future__ import annotations

import fnmatch
from typing import Any

from dds.exceptions import DDSException
from dds.inline_qos import PARTITIONS_MAX, partitions
from dds.internal import dds_infinity
from dds.qos import LimitedScopeQos, Policy, Qos

BLOCKING_TIME_DEFAULT = 10_000_000_000  # ns; long enough for a change of view, which holds writers back

DEFAULT = Qos(
    Policy.Reliability.Reliable(BLOCKING_TIME_DEFAULT),
    Policy.Durability.Volatile,
    Policy.History.KeepAll,
    Policy.DestinationOrder.ByReceptionTimestamp,
    Policy.Ownership.Shared,
    Policy.Liveliness.Automatic(dds_infinity),
)

# Policy ids of DDS 1.4, 2.3.3 (and XTypes for the last), as incompatible-Qos statuses report them.
POLICY_IDS = {
    "Durability": 2, "PresentationAccessScope": 3, "Deadline": 4, "LatencyBudget": 5, "Ownership": 6, "Liveliness": 8,
    "Reliability": 11, "DestinationOrder": 12, "DataRepresentation": 23}

LEASE_MIN = 10_000_000  # ns; spindle.group.leases.LEASE_NS_MIN
DEADLINE_MIN = 1_000_000  # ns

_LIVELINESS_RANK = {"Automatic": 0, "ManualByParticipant": 1, "ManualByTopic": 2}
_DURABILITY_RANK = {"Volatile": 0, "TransientLocal": 1, "Transient": 2, "Persistent": 3}


def _kind(policy: Any) -> str:
    return type(policy).__name__.split(".")[-1]


def _refusal(policy: Any) -> str | None:
    """Why Spindle can't do `policy`, or None if it can."""
    scope = policy.__scope__.split("<")[0]
    if scope == "Reliability":
        if _kind(policy) == "Reliable" and policy.max_blocking_time < 0:
            return "max_blocking_time must not be negative"
    elif scope == "History":
        if _kind(policy) == "KeepLast" and policy.depth < 1:
            return "depth must be at least 1"
    elif scope == "DurabilityService":
        if _kind(policy.history) == "KeepLast" and policy.history.depth < 1:
            return "depth must be at least 1"
        if policy.cleanup_delay:
            return "what is kept is not cleaned up by time; use a cleanup_delay of 0"
        if (policy.max_samples, policy.max_instances, policy.max_samples_per_instance) != (-1, -1, -1):
            return "what is kept is limited by its history, and in bytes by Topic(history_bytes=); use limits of -1"
    elif scope == "ResourceLimits":
        for name in ("max_samples", "max_instances", "max_samples_per_instance"):
            if getattr(policy, name) != -1 and getattr(policy, name) < 1:
                return f"{name} must be at least 1, or -1 for no limit"
    elif scope == "PresentationAccessScope":
        if _kind(policy) == "Group" or policy.coherent_access:
            return "order is per topic, and samples are not grouped; use one topic for what belongs together"
    elif scope == "LatencyBudget":
        if policy.budget < 0:
            return "budget must not be negative"
    elif scope == "OwnershipStrength":
        if not -1 << 31 <= policy.strength < 1 << 31:
            return "strength must have 32 bits"
    elif scope == "Liveliness":
        if policy.lease_duration < LEASE_MIN:
            return f"lease_duration must be at least {LEASE_MIN // 1_000_000} ms"
    elif scope == "Deadline":
        if policy.deadline < DEADLINE_MIN:
            return f"deadline must be at least {DEADLINE_MIN // 1_000_000} ms"
    elif scope == "Lifespan":
        if policy.lifespan < 1:
            return "lifespan must be at least 1 ns"
    elif scope == "TimeBasedFilter":
        if policy.filter_time < 0:
            return "filter_time must not be negative"
    elif scope == "Partition":
        names = "\0".join(policy.partitions)
        if names.count("\0") != max(0, len(policy.partitions) - 1):
            return "partitions must not contain the character 0"
        if len(names.encode()) > PARTITIONS_MAX:
            return f"partitions must not have more than {PARTITIONS_MAX} bytes together"
    elif scope == "ReaderDataLifecycle":
        if min(policy.autopurge_nowriter_samples_delay, policy.autopurge_disposed_samples_delay) < 0:
            return "delay must not be negative"
    elif scope == "TypeConsistency":
        if _kind(policy) == "AllowTypeCoercion":
            return "all ends of a topic have the same type; use TypeConsistency.DisallowTypeCoercion()"
    return None


def check(entity: str, qos: Any, limited: type[LimitedScopeQos]) -> Qos:
    """`qos` as a Qos that Spindle honours for an `entity`, whose own kind of Qos is `limited`; None gives an empty one.

    Raises TypeError if it is no Qos or one for another kind of entity, DDSException with DDS_RETCODE_UNSUPPORTED or
    DDS_RETCODE_INCONSISTENT_POLICY for a policy that can't be honoured.
    """
    if qos is None:
        return Qos()
    if not isinstance(qos, Qos):
        raise TypeError(f"qos must be a Qos, not {qos!r}")
    if isinstance(qos, LimitedScopeQos) and not isinstance(qos, limited):
        raise TypeError(f"{qos!r} is for a {qos.for_entity}, not for a {entity}")
    for policy in qos:
        reason = _refusal(policy)
        if policy.__scope__ == "IgnoreLocal" and _kind(policy) != "Nothing" and entity != "DataReader":
            reason = "readers say what they ignore; give it to the DataReader"
        if reason is not None:
            impossible = " must " in reason
            code = DDSException.DDS_RETCODE_INCONSISTENT_POLICY if impossible else DDSException.DDS_RETCODE_UNSUPPORTED
            raise DDSException(code, f"a {entity} can't have {policy!r}: {reason}")
    limits, history = qos[Policy.ResourceLimits], qos[Policy.History]
    if limits is not None and history is not None and _kind(history) == "KeepLast":
        per_instance = limits.max_samples_per_instance
        if per_instance != -1 and per_instance < history.depth:
            raise DDSException(DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
                               f"{history!r} keeps more than {limits!r} allows")
    deadline, separation = qos[Policy.Deadline], qos[Policy.TimeBasedFilter]
    if deadline is not None and separation is not None and deadline.deadline < separation.filter_time:
        raise DDSException(DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
                           f"{deadline!r} wants more samples than {separation!r} lets pass")
    return qos


def level_of(qos: Qos) -> int:
    """Level of a topic (number of spindle.group.levels.Level) with what `qos` says, DEFAULT for the rest.

    Best effort with more than volatile durability is delivered reliably: more than was asked for.
    """
    durability = _kind(qos[Policy.Durability] or DEFAULT[Policy.Durability])
    if durability == "Persistent":
        return 3
    if durability != "Volatile":
        return 2
    return 0 if best_effort(qos) else 1


def samples_max(qos: Qos, keyed: bool) -> int:
    """Most samples that a writer or a reader holds, as ResourceLimits says; 0 = no limit of its own.

    Raises DDSException (UNSUPPORTED) for limits per instance of a type with a key.
    """
    limits = qos[Policy.ResourceLimits]
    if limits is None:
        return 0
    if keyed and (limits.max_instances, limits.max_samples_per_instance) != (-1, -1):
        raise DDSException(DDSException.DDS_RETCODE_UNSUPPORTED,
                           f"{limits!r}: limits per instance are not kept for types with a key; use max_samples")
    counts = [one for one in (limits.max_samples, limits.max_samples_per_instance) if one != -1]
    return min(counts) if counts else 0


def best_effort(qos: Qos) -> bool:
    return qos[Policy.Reliability] == Policy.Reliability.BestEffort


def says_level(qos: Qos) -> bool:
    """True if `qos` says anything about the level itself."""
    return Policy.Reliability in qos or Policy.Durability in qos


def durability_rank(qos: Qos) -> int:
    """0 volatile, 1 transient-local, 2 transient, 3 persistent."""
    return _DURABILITY_RANK[_kind(qos[Policy.Durability] or DEFAULT[Policy.Durability])]


def by_source(qos: Qos) -> bool:
    """True if what was written last, as its source says, counts as the last. DDS 1.4, 2.2.3.17."""
    policy = qos[Policy.DestinationOrder]
    return policy is not None and _kind(policy) == "BySourceTimestamp"


def is_exclusive(qos: Qos) -> bool:
    """True if one writer at a time is heard of each instance. DDS 1.4, 2.2.3.9."""
    return qos[Policy.Ownership] == Policy.Ownership.Exclusive


def deadline_ns(qos: Qos) -> int:
    """Longest time between two samples of an instance; 0 = any."""
    policy = qos[Policy.Deadline]
    return 0 if policy is None or policy.deadline >= dds_infinity else int(policy.deadline)


def separation_ns(qos: Qos) -> int:
    """Shortest time between two samples of an instance that a reader wants. DDS 1.4, 2.2.3.12."""
    policy = qos[Policy.TimeBasedFilter]
    return 0 if policy is None else int(policy.filter_time)


def lease_ns(qos: Qos) -> int:
    """How long a writer may give no sign of life; 0 = for ever."""
    policy = qos[Policy.Liveliness]
    return 0 if policy is None or policy.lease_duration >= dds_infinity else int(policy.lease_duration)


def liveliness_kind(qos: Qos) -> int:
    """0: the writer is alive while its program is; 1: while the program says so of one of the participant's writers;
    2: of this one."""
    policy = qos[Policy.Liveliness]
    return 0 if policy is None else _LIVELINESS_RANK[_kind(policy)]


def purge_delays_ns(qos: Qos) -> tuple[int, int]:
    """How long samples of an instance are kept that has no writers, and of one that was disposed. DDS 1.4, 2.2.3.22."""
    policy = qos[Policy.ReaderDataLifecycle]
    if policy is None:
        return dds_infinity, dds_infinity
    return policy.autopurge_nowriter_samples_delay, policy.autopurge_disposed_samples_delay


def partitions_meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """True if they have a partition in common: a name, or a pattern of one that the other's name fits. No names are
    the one partition without a name. DDS 1.4, 2.2.3.13."""
    if not one and not other:
        return True
    return any(
        mine == theirs
        or (_is_pattern(mine) != _is_pattern(theirs) and (
            fnmatch.fnmatchcase(theirs, mine) if _is_pattern(mine) else fnmatch.fnmatchcase(mine, theirs)))
        for mine in one or ("",) for theirs in other or ("",))


def _is_pattern(name: str) -> bool:
    return any(one in name for one in "*?[")


def autodisposes(qos: Qos) -> bool:
    """True if a writer disposes of the instances that it unregisters. DDS 1.4, 2.2.3.21."""
    policy = qos[Policy.WriterDataLifecycle]
    return policy is None or bool(policy.autodispose)


def history_depth(qos: Qos) -> int:
    """Depth of KeepLast, 0 for KeepAll."""
    history = qos[Policy.History]
    return 0 if history is None or _kind(history) == "KeepAll" else history.depth


def blocking_time_s(qos: Qos) -> float:
    """How long a write may wait, in seconds; -1.0 = for ever."""
    reliability = qos[Policy.Reliability]
    if reliability is None or _kind(reliability) == "BestEffort":
        ns = BLOCKING_TIME_DEFAULT
    else:
        ns = reliability.max_blocking_time
    return -1.0 if ns >= dds_infinity else ns / 1e9


def effective(own: Qos, topic: Qos, extra: Qos | None = None) -> Qos:
    """What an endpoint goes by: its own policies, then its topic's as far as they concern it, then DEFAULT."""
    inherited = Qos(*(p for p in topic if p.__scope__ in (
        "Reliability", "Durability", "History", "ResourceLimits", "DestinationOrder", "LatencyBudget",
        "DataRepresentation", "Ownership", "Liveliness", "Deadline", "Lifespan", "TypeConsistency")))
    return (DEFAULT + inherited + extra if extra is not None else DEFAULT + inherited) + own


def of_group(qos: Qos) -> Qos:
    """What the readers of a subscriber, or the writers of a publisher, go by of its Qos."""
    return Qos(*(one for one in qos if one.__scope__ in ("PresentationAccessScope", "Partition")))


def check_group(group: str, own: Qos) -> None:
    """Raise DDSException (INCONSISTENT_POLICY) if an endpoint's own Qos has what a group decides that it is made in."""
    if partitions(own):
        raise DDSException(DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
                           f"{own[Policy.Partition]!r} belongs to the Qos of the {group}")


def announced(qos: Qos, topic: Qos, group: Qos) -> Qos:
    """What peers are told of an endpoint that goes by `qos`: that, and the data of its topic and of its publisher or
    subscriber."""
    data = [one[kind] for one, kind in ((topic, Policy.Topicdata), (group, Policy.Groupdata))]
    return qos + Qos(*(one for one in data if one is not None))


def ignores_local(requested: Qos, same_participant: bool, same_process: bool) -> bool:
    """True if a reader and a writer that are so close must not talk, as IgnoreLocal of the reader says."""
    policy = requested[Policy.IgnoreLocal]
    if policy is None:
        return False
    return same_participant if policy == Policy.IgnoreLocal.Participant else (
        same_process and policy == Policy.IgnoreLocal.Process)


def incompatible_policy(offered: Qos, requested: Qos) -> int:
    """Id of the first policy that keeps a writer and a reader apart, 0 if nothing does. DDS 1.4, 2.2.3."""
    if best_effort(offered) and not best_effort(requested):
        return POLICY_IDS["Reliability"]
    if durability_rank(offered) < durability_rank(requested):
        return POLICY_IDS["Durability"]
    offers, wants = _presentation(offered), _presentation(requested)
    if offers[0] < wants[0] or offers[1] < wants[1]:
        return POLICY_IDS["PresentationAccessScope"]
    if _budget(offered) > _budget(requested):
        return POLICY_IDS["LatencyBudget"]
    if (deadline_ns(offered) or dds_infinity) > (deadline_ns(requested) or dds_infinity):
        return POLICY_IDS["Deadline"]
    if is_exclusive(offered) != is_exclusive(requested):
        return POLICY_IDS["Ownership"]
    if liveliness_kind(offered) < liveliness_kind(requested) or (
            lease_ns(offered) or dds_infinity) > (lease_ns(requested) or dds_infinity):
        return POLICY_IDS["Liveliness"]
    if by_source(requested) and not by_source(offered):
        return POLICY_IDS["DestinationOrder"]
    if offered_representation(offered) not in accepted_representations(requested):
        return POLICY_IDS["DataRepresentation"]
    return 0


def _presentation(qos: Qos) -> tuple[int, bool]:
    policy = qos[Policy.PresentationAccessScope]
    return (0, False) if policy is None else (int(_kind(policy) == "Topic"), policy.ordered_access)


def _budget(qos: Qos) -> int:
    policy = qos[Policy.LatencyBudget]
    return 0 if policy is None else int(policy.budget)


def offered_representation(qos: Qos) -> int:
    """CDR version that a writer uses: 1, 2, or 0 for what is native to the type."""
    policy = qos[Policy.DataRepresentation]
    if policy is None or policy.use_cdrv0_representation == policy.use_xcdrv2_representation:
        return 0
    return 1 if policy.use_cdrv0_representation else 2


def accepted_representations(qos: Qos) -> tuple[int, ...]:
    """CDR versions that a reader takes, as offered_representation() numbers them; says nothing = all."""
    one = offered_representation(qos)
    return (0, 1, 2) if one == 0 else (0, one)
