"""Topics: a name, a type, and the level of delivery that the whole group agrees on.

Who decides the level: Reliability and Durability in the Qos of the Topic, if it says them. Otherwise the topic as the
group has it already, and if the group doesn't, the first writer's or reader's Qos; a reader never makes a topic less
than atomic. Writers and readers that say nothing themselves go by the topic. (`dds.policy.policies.level_of` has the
table.)

Rules: one definition per name in the group: type, level and size_max. Another one is refused with both named.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dds.codecs.types import Codec, codec_for
from dds.entity import Entity, Participant, check_listener
from dds.exceptions import DDSException, translate, unsupported
from dds.listener import Listener
from dds.matching.announcing import encode_qos
from dds.matching.consistency import LENIENT, inconsistency
from dds.messages import order_groups, packets
from dds.messages.announced import type_of
from dds.messages.inline_qos import ROOM
from dds.messages.operations import DEPARTURE, effects, presences, ranks, timing
from dds.policy import policies, table
from dds.qos import Policy, Qos, TopicQos
from dds.status import DDSStatus, InconsistentTopicStatus, while_disabled
from spindle.errors import ConfigError, SpindleError
from spindle.group.endpoints import TOPIC
from spindle.group.topics import SLOT_OF_TYPE_MAX, check_name

if TYPE_CHECKING:
    from dds.matching.announcing import Remote
    from dds.matching.matching import Runtime
    from dds.messages.announced import AnnouncedType
    from spindle.group.topics import TopicInfo, TopicSpec

T = TypeVar("T")
LOG = logging.getLogger("dds")
TOLD_MAX = 64  # different reasons that the log gets for one Topic


class Topic(Entity, Generic[T]):
    """A topic of a participant's domain.

    topic_name   1 to 255 bytes in UTF-8
    data_type    see `dds.codecs.types`
    qos          level, history for late joiners, defaults for the topic's writers and readers
    size_max     bytes of a slot: larger samples go beside the order, which costs each about half a millisecond more.
                 0 = as the group has it, else what the type's largest sample needs, up to 1 MiB; else 16384
    window       slots of each sending node's ring; 0 = chosen from size_max
    history_bytes  memory at each subscribing node for what late joiners get; 0 = the node's default
    order       name of an order group, all of whose topics are in one sequence (`dds.messages.order_groups`); its first
                Topic decides the level and sizes of all. Empty: the topic is a sequence of its own
    keys        fields that make up the key of a NumPy record or a protobuf message, a.b for those of inner ones; IDL
                types say it by annotations
    Raises TypeError for a type that topics can't have, DDSException if the group has the topic with another definition.
    """

    _kind = "Topic"
    _has_factory = True
    _limited_qos = TopicQos

    is_builtin = False  # read with a BuiltinDataReader, and written by nobody

    def __init__(self, domain_participant: Participant, topic_name: str, data_type: type[T] | Any,
                 qos: Qos | None = None, listener: Listener | None = None,
                 *, size_max: int = 0, window: int = 0, history_bytes: int = 0, keys: Sequence[str] = (),
                 order: str = "") -> None:
        if not isinstance(domain_participant, Participant):
            raise TypeError(f"a Topic is made in a DomainParticipant, not in {domain_participant!r}")
        if isinstance(topic_name, bytes):
            topic_name = topic_name.decode()
        if not isinstance(topic_name, str):
            raise TypeError(f"topic_name must be a str, not {topic_name!r}")
        for what, size in (("size_max", size_max), ("window", window), ("history_bytes", history_bytes)):
            if not hasattr(size, "__index__"):
                raise TypeError(f"{what} must be a whole number, not {size!r}")
        try:
            check_name("topic name", topic_name)
        except ConfigError as error:
            raise translate(error) from None
        own = policies.check("Topic", qos, TopicQos)
        check_listener(listener)
        self._name = topic_name
        self.data_type = data_type
        if isinstance(keys, str):
            raise TypeError(f"keys must be a list of names, not {keys!r}")
        if not isinstance(order, str):
            raise TypeError(f"order must be the name of an order group, not {order!r}")
        self._own_qos = own
        self._order = order
        self._keys = tuple(keys)
        self._codecs: dict[int, Codec] = {}
        self._codec = self._codec_of(policies.offered_representation(own))
        self._size_max = size_max
        self._window = window
        self._history_bytes = history_bytes
        self._info: TopicInfo | None = None
        self._lock = threading.Lock()
        self._filter: Callable[[Topic[T], T], bool] | None = None
        self._inconsistent = InconsistentTopicStatus()
        self._differing: set[bytes] = set()  # guids of endpoints, identifiers of types that are kept
        self._told: set[str] = set()  # differences that the log has
        self._kept(own)  # or it raises
        self._check_own(domain_participant)
        self._enter(domain_participant, policies.DEFAULT + own, listener)
        try:
            if self._enabled:
                self._start()
        except BaseException:
            self._open = False
            raise

    def _start(self) -> None:
        own = self._own_qos
        self._agree(policies.level_of(own) if policies.says_level(own) else None)
        self._announce(self._qos)
        self._closer = functools.partial(_withdraw, self._runtime, self._ref)

    def _announce(self, qos: Qos) -> None:
        """Tell everybody of it, or that it has changed."""
        about = encode_qos(qos, self._codec.type_name, self._revision, self._channel, self._codec)
        self._runtime.ask(f"announcing topic {self._name!r}", lambda: self._runtime.directory.announce(
            self._ref, TOPIC, self._order or self._name, about))

    def _change_qos(self, following: Qos, said: Qos) -> None:
        if self._enabled:
            self._revision += 1
            self._announce(following)
        else:
            self._codec = self._codec_of(policies.offered_representation(following))
        self._qos, self._own_qos = following, self._own_qos + said
        if any(table.row_of(one).told_with for one in said):
            for endpoint in self._descendants(self.get_participant()):
                endpoint._topic_changed(self)

    def _descendants(self, entity: Entity) -> Iterator[Entity]:
        for one in entity._living_children():
            yield one
            yield from self._descendants(one)

    # --- agreeing with the group

    def _codec_of(self, version: int) -> Codec:
        """The codec that writes CDR `version` (0 = native); the same one for types without CDR."""
        if version not in self._codecs:
            self._codecs[version] = codec_for(self.data_type, version, self._keys)
        return self._codecs[version]

    def _check_own(self, participant: Participant) -> None:
        """Raise DDSException (INCONSISTENT_POLICY) if the participant has a Topic of this name whose type this one's
        doesn't go with, either way: nobody else would tell the program."""
        mine = type_of(self._codec)
        for other in participant._living_children():
            if mine.kind != "idl" or not isinstance(other, Topic) or other._name != self._name:
                continue
            theirs = type_of(other._codec)
            why = inconsistency(mine, theirs, LENIENT) if theirs.kind == "idl" else ""
            if why and inconsistency(theirs, mine, LENIENT):
                from dds.idl.printer import idl_text

                raise DDSException(
                    DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
                    f"topic {self._name!r} exists in this participant with another definition, which yours doesn't go "
                    f"with ({why}, if a writer has the former). Use the same definition, one that it may change to "
                    f"(docs/dds.md, Types that change), or another topic name. It has\n{idl_text(other.data_type)}\n"
                    f"you want\n{idl_text(self.data_type)}")

    def _agree(self, level: int | None, qos: Qos | None = None) -> TopicInfo | None:
        """The topic as the group has it, declared if the group doesn't have it and `level` says how. None if neither.

        `qos` is that of the reader or writer that asks, for the history.
        """
        with self._lock:
            if self._info is not None:
                return self._info

            def agree() -> TopicInfo | None:
                info, said = self._adopt(), qos or self._own_qos
                if info is not None and self._says_otherwise(info, said) and self._is_given_up(info):
                    return self._declare(policies.level_of(self._own_qos) if policies.says_level(self._own_qos)
                                         else int(info.spec.level), said)
                return info if info is not None or level is None else self._declare(level, said)

            self._info = self._runtime.ask(f"topic {self._name!r}", agree)
            return self._info

    def _adopt(self, anew: bool = True) -> TopicInfo | None:
        """The group's topic of this name, or order group, if it has one. None also if it is another one that nobody has
        open, which the node lets us declare anew, unless that is not wanted. Raises TopicMismatch."""
        from spindle.errors import TopicMismatch
        from spindle.group.levels import Level

        known = self._runtime.session.topics()
        order_groups.check_alone(self._name, self._order, self._runtime.session, known)
        found = next((one for one in known if one.spec.name == (self._order or self._name)), None)
        if found is not None:
            spec = found.spec
            level = policies.level_of(self._own_qos) if policies.says_level(self._own_qos) else spec.level
            wanted = dataclasses.replace(  # without what says how it is kept: not every level goes with that
                spec, level=Level(level), window=self._window or spec.window, effects=b"", timing=b"", samples_max=0,
                keys_max=0, cleanup_ns=0, ranks=b"")
            if self._order:
                wanted = dataclasses.replace(
                    wanted, type_name=order_groups.TYPE_NAME, type_hash=b"", level=max(wanted.level, Level.ATOMIC))
            else:
                wanted = dataclasses.replace(
                    wanted, type_name=self._codec.type_name, type_hash=self._codec.type_hash,
                    departure=DEPARTURE if self._codec.key_of is not None else spec.departure,
                    size_max=self._size_max or spec.size_max)
            try:
                spec.check_same(wanted)
            except TopicMismatch as error:
                if found.members or spec.level is Level.LOGGED or not anew:
                    raise
                if self._others_have(spec.name):
                    raise TopicMismatch(f"{error}; a Topic of this participant has it, close that first") from None
                return None
        return found

    def _others_have(self, name: str) -> bool:
        """True if another Topic of the participant goes by what the group has under this name."""
        return any(isinstance(other, Topic) and other is not self and other._info is not None
                   and (other._order or other._name) == name for other in self.get_participant()._living_children())

    def _says_otherwise(self, found: TopicInfo, qos: Qos) -> bool:
        """True if the group's topic has settings that this declaration says otherwise, but isn't refused for: what is
        kept for late joiners, and which ends are said. Topics of an order group each say something else."""
        if self._order:
            return False
        spec = found.spec
        if policies.is_exclusive(qos) and not spec.departure:
            return True
        if not policies.says_level(self._own_qos):
            return False
        wanted = self._spec(int(spec.level), self._own_qos)
        names = ["history_bytes"] if self._history_bytes else []
        if Policy.History in self._own_qos or Policy.DurabilityService in self._own_qos:
            names += ["history_depth", "effects", "ranks", "samples_max", "keys_max", "cleanup_ns"]
        return (policies.by_source(self._own_qos) and not spec.stamped) or any(
            getattr(spec, name) != getattr(wanted, name) for name in names)

    def _is_given_up(self, found: TopicInfo) -> bool:
        """Deletes it, so that it can be declared anew, unless somebody has it open, or something on disk."""
        from spindle.errors import TopicInUse, TopicUnknown
        from spindle.group.levels import Level

        if found.members or found.spec.level is Level.LOGGED or self._others_have(found.spec.name):
            return False
        try:
            self._runtime.session.delete_topic(found.spec.name)
        except TopicInUse:
            return False
        except TopicUnknown:
            pass  # by somebody else, just now
        return True

    def _declare(self, level: int, qos: Qos) -> TopicInfo:
        from spindle.errors import TopicMismatch

        try:
            return self._runtime.session.declare_topic(self._spec(level, qos))
        except TopicMismatch:
            # Somebody was faster. What our declaration leaves open is as they declared it.
            found = self._adopt()
            if found is None:
                raise
            return found

    def _spec(self, level: int, qos: Qos) -> TopicSpec:
        """What is declared; `qos` is that of whoever needs the topic, for what the Topic's own doesn't say."""
        from spindle.group.levels import Level
        from spindle.group.topics import TopicSpec

        largest = self._codec.size_max or 0
        size_max = self._size_max or (largest + ROOM if 0 < largest <= SLOT_OF_TYPE_MAX - ROOM else 0)
        kept = self._kept(qos) if level >= Level.VOLATILE else policies.Kept()
        exclusive = policies.is_exclusive(qos)
        by_source = policies.by_source(self._own_qos) or policies.by_source(qos)
        departs = self._codec.key_of is not None or exclusive or bool(policies.lease_ns(qos))
        # Without a key there is one instance; of that, too, the last to come may not be the one that counts.
        by_instance = kept.by_instance and bool(self._codec.key_of or self._order or exclusive or by_source)
        ranked = by_instance and exclusive and not self._order
        spec = TopicSpec(
            name=self._name, type_name=self._codec.type_name, type_hash=self._codec.type_hash, level=Level(level),
            size_max=size_max, window=self._window,
            history_depth=kept.depth, history_bytes=self._history_bytes, departure=DEPARTURE if departs else 0,
            effects=effects(carriers=not ranked) if by_instance else b"", timing=timing(by_source),
            ranks=ranks() if ranked else presences() if by_instance and self._codec.key_of and not self._order else b"",
            samples_max=kept.samples, keys_max=kept.instances, cleanup_ns=kept.cleanup_ns)
        if self._order:
            spec = dataclasses.replace(
                spec, name=self._order, type_name=order_groups.TYPE_NAME, type_hash=b"",
                level=max(spec.level, Level.ATOMIC), size_max=order_groups.size_max_of(self._size_max, largest),
                departure=DEPARTURE)
        return spec

    @property
    def _channel(self) -> order_groups.Channel | None:
        """Its place in its order group; None if it is in none."""
        return order_groups.channel_of(self._name, self._codec) if self._order else None

    def _check_room(self, inline: int, spec: TopicSpec) -> None:
        """Raise DDSException (INCONSISTENT_POLICY) if the topic takes nothing larger than its slots, and the largest
        sample of the type with so many bytes of inline Qos behind it fits none."""
        inline += packets.ROOM if self._order else 0
        if self._codec.size_max and self._codec.size_max + inline > spec.size_max and not spec.takes_large:
            raise DDSException(
                DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
                f"topic {self._name!r} takes {spec.size_max} bytes; a sample of {self._codec.type_name} has up to "
                f"{self._codec.size_max}, and what goes along with each (of its order group, and this writer's "
                f"Lifespan, OwnershipStrength, Partition) another {inline}: declare the topic with a larger size_max")

    def _kept(self, qos: Qos) -> policies.Kept:
        """What is to be kept for late joiners. Raises DDSException (UNSUPPORTED) for what can't be."""
        service = self._own_qos[Policy.DurabilityService] or qos[Policy.DurabilityService]
        kept = policies.Kept()
        if service is not None:
            kept = policies.kept_by(service, self._codec.key_of is not None, self._order)
        if self._order:
            return self._kept_in_group
        if service is not None:
            return kept
        return policies.Kept(policies.history_depth(self._own_qos) or policies.history_depth(qos))

    @property
    def _kept_in_group(self) -> policies.Kept:
        """What an order group keeps of the topic; a depth of 0: the Topic says nothing of it. What readers and writers
        say doesn't count: the first of them would decide for all topics of the group."""
        service = self._own_qos[Policy.DurabilityService]
        if service is None:
            return policies.Kept(policies.history_depth(self._own_qos))
        return policies.kept_by(service, self._codec.key_of is not None, self._order)

    def _settle(self, own: Qos, extra: Qos | None, is_writer: bool) -> tuple[TopicInfo, Qos]:
        """The agreed topic, declared if need be, and the Qos that a reader or writer with Qos `own` goes by.

        Raises DDSException (INCONSISTENT_POLICY) if a writer offers more than the topic gives, (PRECONDITION_NOT_MET)
        if the topic is disabled.
        """
        if not self._enabled:
            raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET, f"{self!r} is to be enabled first")
        said = self._own_qos + own
        self._kept(said)  # or it raises
        level = policies.level_of(said)
        if not is_writer and not policies.says_level(self._own_qos):
            level = max(level, 1)
        info = self._agree(level, said)
        assert info is not None
        actual = int(info.spec.level)
        adopted = []
        if Policy.Reliability not in said and actual == 0:
            adopted.append(Policy.Reliability.BestEffort)
        if Policy.Durability not in said and actual >= 2:
            adopted.append(Policy.Durability.TransientLocal if actual == 2 else Policy.Durability.Persistent)
        qos = policies.effective(Qos(*adopted) + own, self._own_qos, extra)
        if policies.is_exclusive(qos) and not info.spec.departure:
            raise DDSException(
                DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
                f"topic {self._name!r} was declared without Ownership.Exclusive: give the Topic this Qos in the "
                "program that makes it first")
        if is_writer and policies.level_of(qos) > actual:
            raise DDSException(
                DDSException.DDS_RETCODE_INCONSISTENT_POLICY,
                f"topic {info.spec.name!r} is {info.spec.level.name.lower()} in the group, the writer offers "
                f"{qos[Policy.Reliability]!r} and {qos[Policy.Durability]!r}: give the Topic this Qos in the program "
                "that makes it first, or offer less")
        return info, qos

    # --- what programs ask

    def _about(self) -> str:
        return f" {self._name!r}"

    def get_name(self, max_size: int = 256) -> str:
        """Name of the topic. (`max_size` is accepted and not needed.)"""
        return self._name

    def get_type_name(self, max_size: int = 256) -> str:
        """Name of its type, as the group knows it."""
        return self._codec.type_name

    name = property(get_name)
    typename = property(get_type_name)

    @property
    def order(self) -> str:
        """The order group that it is in; empty: none."""
        return self._order

    @property
    def spec(self) -> TopicSpec | None:
        """What the group agreed on (spindle.group.topics.TopicSpec); None as long as nobody has decided the level. Of a
        topic in an order group, what was agreed on about that."""
        if not self._enabled:
            self._check_open()
        info = self._agree(None)
        return None if info is None else info.spec

    def set_topic_filter(self, callable: Callable[[Topic[T], T], bool] | None) -> None:
        """Readers of this Topic object that are made from now on only see samples for which callable(topic, sample) is
        true. None = all. Raises TypeError for what can't be called."""
        if callable is not None and not hasattr(callable, "__call__"):  # noqa: B004  the argument hides the function
            raise TypeError(f"a topic filter is a function of a topic and a sample, not {callable!r}")
        self._filter = callable

    def set_c_topic_filter(self, c_callable: object) -> None:
        unsupported("a filter in C", "use set_topic_filter()")

    @while_disabled(InconsistentTopicStatus)
    def get_inconsistent_topic_status(self) -> InconsistentTopicStatus:
        """Readers and writers in the group whose types this Topic's own don't go with; each counts once."""
        self._check_open()
        self._changed &= ~DDSStatus.InconsistentTopic
        return self._inconsistent.read()  # type: ignore[return-value]

    def _differs(self, remote: Remote, difference: str) -> None:
        """An endpoint has a type that one of this Topic's own doesn't go with, for this reason."""
        with self._lock:
            if remote.guid in self._differing:
                return
            self._differing.add(remote.guid)
            self._inconsistent.count()
            known = difference in self._told
            if len(self._told) < TOLD_MAX:
                self._told.add(difference)
        if not known:
            end = remote.endpoint
            LOG.warning("topic %r: a %s of node %d (%s, pid %d) has another type, and is not matched: %s", self._name,
                        "writer" if end.is_writer else "reader", end.node_id, end.app_name, end.pid, difference)
        self._note("on_inconsistent_topic")

    def _keeps_other(self, type_: AnnouncedType, difference: str) -> None:
        """The topic keeps, or kept, samples of a type that nobody announces who is matched with a reader of this Topic,
        and that the reader's own isn't assignable from, for this reason. They are refused."""
        with self._lock:
            if type_.identifier in self._differing:
                return
            self._differing.add(type_.identifier)
            self._inconsistent.count()
        LOG.warning("topic %r keeps samples of another type, %s, which readers of the type %s refuse: %s", self._name,
                    type_.name, self._codec.type_name, difference)
        self._note("on_inconsistent_topic")


def _withdraw(runtime: Runtime, ref: int) -> None:
    if not runtime.closing:  # else the participant's end says it
        with contextlib.suppress(SpindleError):
            runtime.directory.withdraw(ref)


__all__ = ["Topic"]
