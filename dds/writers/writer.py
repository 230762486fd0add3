"""What a writer does below its interface: opening, the ways of what it writes, going by its Qos.

Why apart from `dds.pub`: what programs call is there, how it works is here.

Rules: what outlives the writer (its link, port, suspension, and what write() has at hand) knows nothing of the writer
itself, so that it can be forgotten.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dds.exceptions import DDSException
from dds.internal import publication_handle, source_stamp
from dds.listener import Listener
from dds.matching.announcing import encode_type
from dds.matching.matching import Matches
from dds.messages.announced import type_of
from dds.messages.inline_qos import InlineQos, of_writer
from dds.messages.operations import ANNOUNCES_QOS, KEYLESS_HANDLE, MISSES_DEADLINE, farewell_tag
from dds.policy import policies
from dds.qos import Qos
from dds.status import DeadlineMissedStatus
from dds.topic import Topic
from dds.waiting.wake import Deadline
from dds.writers.carrier import Carrier, Port
from dds.writers.limits import WriterLimits
from dds.writers.link import WriterLink
from dds.writers.publisher import Publisher
from dds.writers.statuses import WriterStatuses
from dds.writers.suspension import Source, Suspension
from dds.writers.vigil import Vigil, lease_of
from dds.writers.writing import (
    bind_disabled_write,
    bind_told_write,
    bind_write,
    check_stamp,
    stamped,
    write_through,
)
from dds.writers.written import Written
from spindle.group.topics import choose_inbox_slots

if TYPE_CHECKING:
    from dds.matching.matching import Runtime
    from spindle.client import WriterHandle


class WriterCore(WriterStatuses):
    """The works of a DataWriter."""

    write: Callable[..., None]  # of the class, or what _use() has put in its place for this instance
    _shortcut: bool  # a subclass has none of its own

    def _begin(self, publisher: Publisher, topic: Topic[Any], own: Qos, listener: Listener | None, given: bool,
               slots: int) -> None:
        """Become a writer of `topic` with the checked Qos `own`; `given`: the publisher is the program's. Raises
        DDSException."""
        self._given, self._topic, self._own, self._wanted_slots = given, topic, own, slots
        self._suspension = Suspension()
        self._enter(publisher, own, listener)
        try:
            topic._check_exists()
            if given:
                policies.check_group("Publisher", own, publisher._qos)
            if self._enabled:
                self._start()
            else:
                self._use(bind_disabled_write(repr(self)))
                self._qos = policies.effective(own, topic._own_qos, policies.of_group(publisher._qos))
        except BaseException:
            self._abandon()
            if not given:
                publisher.close()
            raise

    def _publisher(self) -> Publisher:
        assert isinstance(self._parent, Publisher)
        return self._parent

    def _start(self) -> None:
        topic, given, publisher = self._topic, self._given, self._publisher()
        info, self._qos = topic._settle(self._own, policies.of_group(publisher._qos), is_writer=True)
        policies.check_scope(self._qos, topic.name, topic.order, {
            one._topic.order for one in publisher._living_children() if isinstance(one, WriterCore)
            and one is not self})
        self._codec = topic._codec_of(policies.offered_representation(self._qos))
        slots = self._wanted_slots or policies.samples_max(self._qos, self._codec.key_of is not None)
        self._suspension = publisher._suspension
        self._source = Source(self._ref, topic.name, slots or choose_inbox_slots(info.spec.size_max))
        self._written = None if self._codec.key_of is None else Written(self._codec)
        self._hear_inline(of_writer(self._qos))
        topic._check_room(len(self._inline), info.spec)
        self._timeout_s = policies.blocking_time_s(self._qos)
        self._limits = WriterLimits.of(self._qos, self._written, self._timeout_s, topic.name)
        self._coherence = coherence = publisher._coherence
        coherence.offered = coherence.offered or (not given and policies.presentation(self._qos)[1])
        is_shared = given and bool(topic.order)
        farewell = self._farewell(self._qos)
        self._port: Port | None = None

        def open_ways() -> None:
            self._link = WriterLink(
                self, self._runtime, info.spec, self._ref, 1 if is_shared else slots,
                self._announcement(self._qos), not policies.best_effort(self._qos), self._codec,
                0 if is_shared else farewell, lease_of(self._qos),
                encode_type(self._codec, topic._channel) if info.spec.level.keeps_history else b"")
            if topic.order or coherence.offered:
                self._port = self._open_port(publisher, is_shared, slots, farewell)

        with self._runtime.session.whole_or_closed():  # until the closer can do it
            self._runtime.ask(f"opening a writer of topic {topic.name!r}", open_ways)
            self._matches = Matches(self, info.spec.name, True, self._qos, type_of(self._codec), topic._channel)
            self._closer = functools.partial(
                _close_writer, self._ref, self._link, self._runtime, self._matches, self._port, self._suspension)
        self._missed = DeadlineMissedStatus()
        self._vigil: Vigil | None = None
        if Vigil.is_needed(self._qos):
            self._vigil = self._new_vigil(self._qos)
        self._by_source = policies.by_source(self._qos)
        self._rebind()
        self._enabled = True  # it is complete, and peers may be told of it, and listeners of peers
        with self._runtime.asking(f"opening a writer of topic {topic.name!r}"):
            self._runtime.attachment.add(self._link, self._link.handle.session)
        self._runtime.add(self._matches)
        if self._vigil is not None:
            self._vigil.start()

    def _open_port(self, publisher: Publisher, is_shared: bool, slots: int, farewell: int) -> Port:
        """The way of what it writes, into packets. Raises what the session raises."""
        spec = self._link.spec
        if is_shared:
            carrier = publisher._carriers.get(spec.name)
            if carrier is None or not carrier.ports:
                carrier = Carrier.shared(publisher._coherence, self._runtime, spec, self._ref, slots)
                publisher._carriers[spec.name] = carrier
            carrier.check_room(self._topic._channel)
        else:
            carrier = Carrier(publisher._coherence)
            carrier.link = self._link
        return Port(carrier, self._link, self._source, self._topic._channel, farewell, self._timeout_s,
                    self._topic._kept_in_group.depth)

    def _present_inbox(self) -> Callable[[], Any]:
        way = self._way  # not the writer itself
        return lambda: way.handle.inbox

    def _put(self) -> Callable[[bytes, int, int | None, int], None]:
        """What sends a message with a tag, a source timestamp and the handle of its instance, and knows nothing of the
        writer itself."""
        link, timeout_s = self._link, self._timeout_s
        put: Callable[[bytes, int, int | None, int], None] = self._port.put if self._port is not None else (
            lambda data, tag, timestamp, key: write_through(
                link, data, timestamp, Deadline.after(timeout_s), tag, key))
        if self._port is not None or not self._suspension.is_active:
            return put  # a port holds by itself: whole sets
        return self._suspension.holding(self._source, link.largest, put)

    def _sayer(self) -> Callable[[bytes, int, int], None]:
        """What sends a message that isn't a sample, a tag and the handle of an instance, if there is room at once."""
        if self._port is not None:
            return self._port.put_aside
        link = self._link

        def say(data: bytes, tag: int, key: int) -> None:
            link.handle.inbox.write(data, 0, 0.0, tag, key)

        return say

    @property
    def _handle(self) -> WriterHandle:
        return self._link.handle

    def _instance_handle(self) -> int:
        """As its samples have it at readers (sample_info.publication_handle). After a reattachment to another node it
        has another one."""
        self._check_open()
        handle = self._handle
        return publication_handle(handle.session.node_id, handle.writer_id, handle.relay)

    @property
    def _way(self) -> WriterLink:
        """What its messages go by: its own link, or that of the carrier which it shares."""
        return self._link if self._port is None else self._port.carrier.link

    @property
    def _inbox(self) -> Any:
        return self._way.handle.inbox

    def _rebind(self) -> None:
        """Make write() of this instance a function that has all it needs of the present inbox at hand: no detours."""
        if self._open:
            self._told = bool(self._inline) or self._port is not None or self._suspension.is_active or (
                self._limits is not None or (self._vigil is not None and self._vigil.hears_writes))
            if self._told:
                write = bind_told_write(
                    self._codec, self._put(), self._written, self._inline, self._key_mask, self._vigil, self._limits,
                    self._present_inbox(), self._topic.name)
            else:
                write = bind_write(self._codec, self._link, self._timeout_s, self._written)
            self._use(stamped(write) if self._by_source else write)

    def _use(self, write: Callable[..., None]) -> None:
        """This is what write() of this instance does from now on."""
        self._write = write
        if self._shortcut:
            self.write = write

    # --- what was written before

    def _check_doubts(self) -> None:
        self._look()
        self._link.check()

    def _wait_for_acks(self, deadline: Deadline, persisted: bool, takes_doubts: bool = True) -> bool:
        """takes_doubts=False: who writes next hears of what is in doubt, though this call has found it."""
        if not self._suspension.wait_until_sent(self._ref, deadline):
            return False
        if self._port is not None:
            if self._port.carrier.coherence.is_open:
                raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET,
                                   "a coherent set is open, of which nothing is sent until it ends")
            self._link.check()
        return self._way.wait_acknowledged(deadline, persisted, takes_doubts)

    def _look(self) -> None:
        if self._port is not None:
            self._port.carrier.look()

    # --- Qos

    def _farewell(self, qos: Qos) -> int:
        """Tag of the message that follows the last one of a writer that goes by this; 0 = none."""
        keyed = self._written is not None
        if keyed or lease_of(qos) is not None or policies.is_exclusive(qos):
            return farewell_tag(keyed and policies.autodisposes(qos))
        # What it had begun doesn't go on.
        return farewell_tag(False) if self._coherence.offered or (self._given and self._topic.order) else 0

    def _new_vigil(self, qos: Qos) -> Vigil:
        return Vigil(self, self._runtime, self._link, self._written, qos, self._sayer(),
                     self._port is not None and self._port.is_shared)

    def _apply_qos(self, following: Qos) -> None:
        """Go by it, and say so. DDSException; then nothing has changed."""
        if not self._enabled:
            self._qos = following
            return
        inline = of_writer(following)
        self._topic._check_room(len(inline.encoded()), self._link.spec)
        if policies.is_exclusive(self._qos) and inline.partitions != policies.partitions(self._qos):
            self._let_go()
        self._revision += 1
        farewell = self._farewell(following)
        is_shared = self._port is not None and self._port.is_shared
        self._link.change(self._announcement(following), 0 if is_shared else farewell)
        self._qos = following
        self._hear_inline(inline)
        if self._port is not None:
            self._port.change(farewell)
        if self._vigil is not None:
            self._vigil.change(following)
        elif Vigil.is_needed(following):
            self._vigil = self._new_vigil(following)
            self._vigil.start()
        self._rebind()
        self._runtime.reconsider(self._matches, following)

    def _let_go(self) -> None:
        """Say where it has written until now that it owns nothing there any more, until it writes again: it may be
        about to write to others. Raises as a write."""
        handles = [KEYLESS_HANDLE] if self._written is None else self._written.handles()
        for handle in handles:
            payload = b"" if self._written is None else self._written.payload(handle)
            if payload is not None:
                self._send(payload, None, MISSES_DEADLINE, 0 if self._written is None else handle)

    # --- sending what is no plain sample

    def _stamp(self, timestamp: int | None) -> int:
        """The source timestamp to send for the one that the program gives; 0 = now. Raises as write()."""
        if timestamp is None:
            return 0
        at = source_stamp(timestamp)
        if self._by_source:
            check_stamp(at)
        return at

    def _send(self, data: Any, timestamp: int | None, tag: int, key: int) -> None:
        at = self._stamp(timestamp)
        if self._inline:
            data, tag = bytes(data) + self._inline, tag | ANNOUNCES_QOS
        self._put()(bytes(data), tag, at, key ^ self._key_mask)

    def _hear_inline(self, inline: InlineQos) -> None:
        """That goes with what it writes from now on."""
        self._inline, self._key_mask = inline.encoded(), inline.key_mask


def _close_writer(ref: int, link: WriterLink, runtime: Runtime, matches: Matches, port: Port | None,
                  suspension: Suspension) -> None:
    def close() -> None:
        link.close()
        runtime.remove(matches, link.guid)

    suspension.discard(ref)
    if port is None:
        close()
    else:
        port.close(close)


__all__ = ["WriterCore"]
