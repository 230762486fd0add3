"""What Spindle makes of a Qos: which it accepts, the level of a topic, who may talk to whom, what each policy comes to.

What each policy means is a row of `dds.policy.table`; what is asked of a whole Qos is asked here.

Rules: matching follows DDS 1.4, 2.2.3: what a writer offers must be at least what a reader requests. What neither the
entity nor its topic says is DEFAULT: reliable, volatile, keep all; so nothing is lost silently unless asked for.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Any, NamedTuple

from dds.exceptions import DDSException
from dds.internal import dds_infinity
from dds.policy import table
from dds.policy.table import GROUP_SCOPE, LEASE_MIN, TABLE
from dds.policy.table import kind as _kind
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
        row = table.row_of(policy)
        if (reason := row.impossible(policy, entity)) is not None:
            raise DDSException(DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
                               f"a {entity} can't have {policy!r}: {reason}")
        if (reason := row.refused(policy, entity)) is not None:
            raise DDSException(DDSException.DDS_RETCODE_UNSUPPORTED, f"a {entity} can't have {policy!r}: {reason}")
    _check_together(qos)
    return qos


def _check_together(qos: Qos) -> None:
    """Raise DDSException (INCONSISTENT_POLICY) for policies that contradict each other."""
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


def changed(entity: str, present: Qos, wanted: Qos, limited: type[LimitedScopeQos], enabled: bool = True) -> Qos:
    """What a living `entity` that goes by `present` goes by after set_qos(wanted).

    Raises as check(), and DDSException (IMMUTABLE_POLICY) for a policy that would be another, and can't be, since the
    entity is `enabled`.
    """
    if wanted is None:
        raise TypeError("qos must be a Qos, not None")
    check(entity, wanted, limited)
    for policy in wanted:
        if enabled and not table.row_of(policy).changeable and present[policy] != policy:
            raise DDSException(DDSException.DDS_RETCODE_IMMUTABLE_POLICY,
                               f"{policy!r} can't be set on a living {entity}: create it with this Qos")
    following = present + wanted
    _check_together(following)
    return following


def autoenables(qos: Qos) -> bool:
    """True if what is made in an entity with this Qos is enabled at once. DDS 1.4, 2.2.3.20."""
    policy = qos[Policy.EntityFactory]
    return policy is None or bool(policy.autoenable_created_entities)


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
    """Most samples that a writer or a reader holds, as ResourceLimits says; 0 = no limit of its own. What it says of
    instances counts where there are some, see `dds.readers.limits`; a type without a key has one."""
    limits = qos[Policy.ResourceLimits]
    if limits is None:
        return 0
    counts = [limits.max_samples] if keyed else [limits.max_samples, limits.max_samples_per_instance]
    return min((one for one in counts if one != -1), default=0)


class Kept(NamedTuple):
    """What nodes keep of a topic for late joiners; 0 = no limit but what fits.

    depth      samples, of types with a key of each instance
    samples    of all instances together
    instances  of which something is kept
    cleanup_ns how long an instance is kept that was disposed of and that nobody writes any more
    """

    depth: int = 0
    samples: int = 0
    instances: int = 0
    cleanup_ns: int = 0

    @property
    def by_instance(self) -> bool:
        """True if it can't be kept without knowing which instance a sample is of."""
        return any(self)


def kept_by(service: Any, keyed: bool, order: str) -> Kept:
    """What a DurabilityService keeps for late joiners. `keyed`: the type has a key; else there is one instance, which
    nobody disposes of. `order`: the order group of the topic, empty: none; its cleanup delay is that of all its topics.
    DDS 1.4, 2.2.3.5.

    Raises DDSException (UNSUPPORTED) for what nodes can't do in an order group.
    """
    limits = [service.max_samples, service.max_instances, service.max_samples_per_instance]
    if order and limits[:2] != [-1, -1]:
        raise DDSException(
            DDSException.DDS_RETCODE_UNSUPPORTED,
            f"a Topic can't have {service!r}: nodes keep the samples of an order group together, and would count those "
            "of all its topics; use max_samples=-1 and max_instances=-1. A history and max_samples_per_instance are of "
            "each topic, the cleanup_delay is that of the group")
    bounds = [history_depth(Qos(service.history)) or -1, service.max_samples_per_instance]
    if order:
        return Kept(_least(*bounds), cleanup_ns=service.cleanup_delay)
    if not keyed:
        return Kept(_least(*bounds, service.max_samples))
    return Kept(_least(*bounds), _least(service.max_samples), _least(service.max_instances), service.cleanup_delay)


def _least(*bounds: int) -> int:
    """Of bounds of which -1 is none; 0: there is none."""
    return min((one for one in bounds if one != -1), default=0)


def best_effort(qos: Qos) -> bool:
    return table.is_best_effort(qos[Policy.Reliability])


def says_level(qos: Qos) -> bool:
    """True if `qos` says anything about the level itself."""
    return Policy.Reliability in qos or Policy.Durability in qos


def durability_rank(qos: Qos) -> int:
    """0 volatile, 1 transient-local, 2 transient, 3 persistent."""
    return table.durability_rank(qos[Policy.Durability])


def by_source(qos: Qos) -> bool:
    """True if what was written last, as its source says, counts as the last. DDS 1.4, 2.2.3.17."""
    return table.is_by_source(qos[Policy.DestinationOrder])


def is_exclusive(qos: Qos) -> bool:
    """True if one writer at a time is heard of each instance. DDS 1.4, 2.2.3.9."""
    return table.is_exclusive(qos[Policy.Ownership])


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
    return table.liveliness_rank(qos[Policy.Liveliness])


def purge_delays_ns(qos: Qos) -> tuple[int, int]:
    """How long samples of an instance are kept that has no writers, and of one that was disposed. DDS 1.4, 2.2.3.22."""
    policy = qos[Policy.ReaderDataLifecycle]
    if policy is None:
        return dds_infinity, dds_infinity
    return policy.autopurge_nowriter_samples_delay, policy.autopurge_disposed_samples_delay


def partitions_meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """True if they have a partition in common: a name, or a pattern of one that the other's name fits. No names are
    the one partition without a name. DDS 1.4, 2.2.3.13."""
    mine, theirs = set(one or ("",)), set(other or ("",))
    return not mine.isdisjoint(theirs) or _fits(mine, theirs) or _fits(theirs, mine)


def _fits(some: set[str], others: set[str]) -> bool:
    """True if a pattern among `some` fits a name among `others`; patterns don't fit patterns."""
    names = [one for one in others if not _is_pattern(one)]
    for pattern in filter(_is_pattern, some):
        fits = re.compile(fnmatch.translate(pattern)).match
        if any(map(fits, names)):
            return True
    return False


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
    inherited = Qos(*(one for one in topic if table.row_of(one).inherited == "topic"))
    return (DEFAULT + inherited + extra if extra is not None else DEFAULT + inherited) + own


def of_group(qos: Qos) -> Qos:
    """What the readers of a subscriber, or the writers of a publisher, go by of its Qos."""
    return Qos(*(one for one in qos if table.row_of(one).inherited == "group"))


def check_group(group: str, own: Qos, groups: Qos, present: Qos | None = None) -> None:
    """Raise DDSException (INCONSISTENT_POLICY) if an endpoint's own Qos has what a group decides that it is made in,
    whose Qos is `groups`; what it has at `present` may be said again."""
    if partitions(own) and (present is None or partitions(own) != partitions(present)):
        raise DDSException(DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
                           f"{own[Policy.Partition]!r} belongs to the Qos of the {group}")
    scope, coherent, _ = presentation(own)
    if (scope == GROUP_SCOPE or coherent) and own[Policy.PresentationAccessScope] != groups[
            Policy.PresentationAccessScope]:
        raise DDSException(DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
                           f"{own[Policy.PresentationAccessScope]!r} belongs to the Qos of the {group}")


def presentation(qos: Qos) -> tuple[int, bool, bool]:
    """How far what belongs together reaches (instance, topic, GROUP_SCOPE), whether sets of it are coherent, and
    whether it is ordered. DDS 1.4, 2.2.3.6."""
    return table.presentation(qos[Policy.PresentationAccessScope])


def check_scope(qos: Qos, topic: str, order: str, others: set[str]) -> None:
    """Raise DDSException (INCONSISTENT_POLICY) if an endpoint of a topic in the order group `order` (empty: in none)
    can't be one of a publisher or subscriber that has the group scope, and endpoints in the order groups `others`."""
    if presentation(qos)[0] < GROUP_SCOPE:
        return
    if not order:
        raise DDSException(
            DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
            f"{qos[Policy.PresentationAccessScope]!r} is about topics of one order group, and topic {topic!r} is in "
            "none: make it with Topic(..., order='name of the group')")
    if others - {order}:
        raise DDSException(
            DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
            f"{qos[Policy.PresentationAccessScope]!r} is about topics of one order group, and topic {topic!r} is in "
            f"{order!r}, others of the same publisher or subscriber in {sorted(others - {order})[0]!r}")


def announced(qos: Qos, topic: Qos, group: Qos) -> Qos:
    """What peers are told of an endpoint that goes by `qos`: that, and the data of its topic and of its publisher or
    subscriber."""
    data = [policy for source, of in (("topic", topic), ("group", group)) for policy in of
            if table.row_of(policy).told_with == source]
    return qos + Qos(*data)


def ignores_local(requested: Qos, same_participant: bool, same_process: bool) -> bool:
    """True if a reader and a writer that are so close must not talk, as IgnoreLocal of the reader says."""
    policy = requested[Policy.IgnoreLocal]
    if policy is None:
        return False
    return same_participant if policy == Policy.IgnoreLocal.Participant else (
        same_process and policy == Policy.IgnoreLocal.Process)


def incompatible_policy(offered: Qos, requested: Qos) -> int:
    """Number of the first policy that keeps a writer and a reader apart, 0 if nothing does. DDS 1.4, 2.2.3."""
    for row in TABLE:
        scope = getattr(Policy, row.scope)
        if row.fits is not None and not row.fits(offered[scope], requested[scope]):
            return row.number
    return 0


def offered_representation(qos: Qos) -> int:
    """CDR version that a writer uses: 1, 2, or 0 for what is native to the type."""
    return table.offered_representation(qos[Policy.DataRepresentation])


def partitions(qos: Qos) -> tuple[str, ...]:
    """The names, without the partition that everybody is in who names none: () and ("",) are the same."""
    policy = qos[Policy.Partition]
    names = () if policy is None else tuple(policy.partitions)
    return () if names == ("",) else names


def at_most(limit: int) -> int:
    """A limit of ResourceLimits as a number to compare with."""
    return 1 << 62 if limit == -1 else limit


__all__ = ["BLOCKING_TIME_DEFAULT", "DEFAULT", "LEASE_MIN", "check", "effective", "incompatible_policy",
           "level_of"]
