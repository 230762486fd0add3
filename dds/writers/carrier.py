"""How writers of one publisher write sets, and into order groups: the way of packets out.

All writers of a publisher that have topics of one order group share a *carrier*, a writer of the node's that nobody
hears of. So what they write is in the order in which the program has written it, whichever of them wrote it, and a set
of all of them can be one packet. Each of them still has a writer of its own there: that one gives it its handle, and
its lease; it never carries a message. A writer that shares with nobody is its own carrier.

A set is collected here, and sent when the program ends it: readers couldn't have it earlier anyway. So nobody waits for
a set that is open, a program that dies in its middle has sent nothing of it, and one that goes on at another node takes
it along. Only the packets of a set that has several can be torn, and then readers forget it (`dds.messages.packets`). A
writer that is closed while it has something in an open set stays in the group until that has ended: its part goes with
the set, also to another node.

Rules: one thread at a time sends with a carrier, and sends all packets of a set. What a call has not sent when it
raises is not sent later.
"""

from __future__ import annotations

import collections
import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dds.exceptions import DDSException, DDSSampleTooLarge, DDSTimeout, closed
from dds.internal import publication_handle
from dds.messages import packets
from dds.messages.operations import ANNOUNCES_QOS, DISPOSES, FAREWELL, PACKET, UNREGISTERS, WRITES, handle_of
from dds.messages.order_groups import Channel
from dds.waiting.wake import Deadline
from dds.writers.link import WriterLink
from dds.writers.outlet import through
from dds.writers.suspension import Source, Suspension
from dds.writers.writing import write_through
from spindle.locks import Taking

if TYPE_CHECKING:
    from dds.matching.matching import Runtime
    from spindle.client import Session, WriterHandle
    from spindle.group.topics import TopicSpec


class Said(NamedTuple):
    """What a writer has to say, not encoded yet: after a reattachment it says it by another handle."""

    port: Port
    data: bytes
    tag: int
    source_ns: int
    key: int = 0  # handle of its instance

    def encoded(self) -> bytes:
        port = self.port
        channel = port.channel
        return packets.member(
            self.data, self.tag, port.flags, 0 if channel is None else channel.mark, self.source_ns,
            0 if channel is None else channel.number, port.writer)


class Coherence:
    """The coherent set of a publisher, if one is open.

    offered     its readers may count on sets: its Qos says coherent access
    suspension  of the same publisher: what is said while that lasts is held, and a set as one
    """

    def __init__(self, suspension: Suspension) -> None:
        self.offered = False
        self.suspension = suspension
        self._lock = threading.RLock()
        self._depth = 0
        self._collected: dict[Carrier, list[Said]] = {}
        self._bytes = self._samples = 0
        self._failure: BaseException | None = None
        self._closings: list[Callable[[], None]] = []  # of writers that are closed, and have a part in the set

    @property
    def is_open(self) -> bool:
        return self._depth > 0

    def begin(self) -> None:
        """Collect from now on. Sets within a set are part of it."""
        with self._lock:
            self._depth += 1

    def collect(self, carrier: Carrier, said: Said) -> bool:
        """Keep this until the set ends; False if none is open. Raises DDSException (OUT_OF_RESOURCES) if it is too
        much for the set, which then can't be sent any more."""
        with self._lock:
            if not self._depth:
                return False
            try:
                self._check(carrier, said)
            except DDSException as error:
                self._failure = self._failure or error
                raise
            self._collected.setdefault(carrier, []).append(said)
            return True

    def _check(self, carrier: Carrier, said: Said) -> None:
        carrier.check_fits(said)
        self._bytes += len(said.data)
        self._samples += 1
        bytes_max = max(packets.SET_BYTES_MAX, carrier.link.largest - packets.ROOM * self._samples)
        if self._bytes > bytes_max or self._samples > packets.SET_SAMPLES_MAX:
            raise DDSException(
                DDSException.DDS_RETCODE_OUT_OF_RESOURCES,
                f"this coherent set has {self._samples} samples of {self._bytes} bytes, and a set takes at most "
                f"{packets.SET_SAMPLES_MAX} samples (SET_SAMPLES_MAX of dds.messages.packets) and {bytes_max} bytes. "
                "Nothing of it is sent; write a smaller one")

    def end(self) -> None:
        """Send what was collected, once the outermost set ends. Raises as a write: then nothing of it was sent, or of
        some of several topics that share no order group. DDSException (PRECONDITION_NOT_MET) if none is open, or it
        can't be sent any more."""
        collected, failure, closings = self._ended()
        try:
            self._send(collected, failure)
        finally:
            for close in closings:
                close()

    def _send(self, collected: dict[Carrier, list[Said]], failure: BaseException | None) -> None:
        if failure is not None:
            self._give_up(collected)
            raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET,
                               "nothing of this coherent set was sent, because "
                               + (str(failure) if isinstance(failure, _Discarded) else
                                  f"a write in it has failed: {failure}")) from failure
        for carrier in list(collected):
            try:
                carrier.say_or_hold(collected[carrier])
            except BaseException:
                self._give_up(collected)
                raise
            del collected[carrier]

    def discard(self, failure: BaseException | None = None) -> None:
        """Forget what was collected; of a set within a set, the whole one. `failure`: why, if something went wrong."""
        why = _Discarded("a set within it was discarded" if failure is None else
                         f"the block of a set within it raised {failure!r}")
        why.__cause__ = failure
        with self._lock:
            self._failure = self._failure or why
            if self._depth > 1:
                self._depth -= 1
                return
        collected, _, closings = self._ended()
        self._give_up(collected)
        for close in closings:
            close()

    def abandon(self) -> None:
        """The publisher has ended, and all its writers: nobody could end a set that is open."""
        with self._lock:
            self._depth = 0
            _, _, closings = self._take()
        for close in closings:
            close()

    def _ended(self) -> tuple[dict[Carrier, list[Said]], BaseException | None, list[Callable[[], None]]]:
        with self._lock:
            if not self._depth:
                raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET,
                                   "no coherent set is open: begin_coherent() opens one")
            self._depth -= 1
            if self._depth:
                return {}, None, []
            return self._take()

    def _take(self) -> tuple[dict[Carrier, list[Said]], BaseException | None, list[Callable[[], None]]]:
        """What there is of the set, which is empty then."""
        found = self._collected, self._failure, self._closings
        self._collected, self._failure, self._closings = {}, None, []
        self._bytes = self._samples = 0
        return found

    @staticmethod
    def _give_up(collected: dict[Carrier, list[Said]]) -> None:
        for carrier, said in collected.items():
            carrier.say_later([one for one in said if one.tag & FAREWELL])  # these writers have ended all the same

    def outlasts(self, port: Port, farewell: Said, close: Callable[[], None]) -> bool:
        """A writer is closed: True if it has a part in the set that is open. Then that has its `farewell`, too, and
        close() is called when it has ended."""
        with self._lock:
            said = self._collected.get(port.carrier, [])
            if not any(one.port is port for one in said):
                return False
            if farewell.tag:
                said.append(farewell)
            self._closings.append(close)
            return True


class _Discarded(Exception):
    """A set was given up."""


class CarrierLink(WriterLink):
    """The link of a carrier that writers share. What its dead node has not acknowledged, it hands out to them."""

    is_carrier = True
    ports: list[Port]

    def _open(self, session: Session) -> WriterHandle:
        self.guid = b""  # nobody hears of it
        return session.open_writer(
            self.spec.name, slots=self._slots, keep_unacknowledged=self.runtime.attachment.hopeful,
            farewell=self._farewell)

    def _in_doubt(self, left: list[Any]) -> None:
        said = self.unpacked(left)
        for port in list(self.ports):
            port.link.is_in_doubt([one for writer, one in said if writer in port.writers])


class Carrier:
    """One way into a topic of the node's. `ports` are the writers that take it."""

    def __init__(self, coherence: Coherence) -> None:
        self.coherence = coherence
        self.ports: list[Port] = []
        self.link: WriterLink
        self.is_shared = False
        self._lock = threading.RLock()
        self._later: list[Said] = []
        self._numbers = itertools.count(int.from_bytes(os.urandom(7), "little"))

    @classmethod
    def shared(cls, coherence: Coherence, runtime: Runtime, spec: TopicSpec, ref: int, slots: int) -> Carrier:
        """One for several writers, with a link of its own. Raises what the session raises."""
        carrier = cls(coherence)
        carrier.is_shared = True
        carrier.link = link = CarrierLink(
            carrier, runtime, spec, ref, slots, b"", True, None, FAREWELL | UNREGISTERS, None)  # type: ignore[arg-type]
        link.ports = carrier.ports
        runtime.attachment.add(link, link.handle.session)
        return carrier

    def _rebind(self) -> None:
        """Its link has another inbox: it asks for it anew with each message."""

    def look(self) -> None:
        """If its node is gone, its writers learn what is in doubt."""
        if self.link.handle.inbox.is_gone:
            self.link.bury()

    def check_room(self, channel: Channel | None) -> None:
        """Raise DDSException (OUT_OF_RESOURCES) if readers would forget the oldest of its writers for one more."""
        if sum(one.channel == channel for one in self.ports) >= packets.CARRIED_MAX:
            raise DDSException(
                DDSException.DDS_RETCODE_OUT_OF_RESOURCES,
                f"a publisher has at most {packets.CARRIED_MAX} writers of one topic in an order group (CARRIED_MAX of "
                "dds.messages.packets): make another publisher for more")

    def check_fits(self, said: Said, room: int = packets.ROOM) -> None:
        """Raise DDSSampleTooLarge if no message can hold it, and so many bytes that say what it is."""
        largest = self.link.largest
        if len(said.data) + room > largest:
            raise DDSSampleTooLarge(
                f"writing to topic {said.port.name!r}: a message of {len(said.data)} bytes: {largest} bytes are the "
                f"most{'' if largest > self.link.spec.size_max else ', its size_max'}"
                + (f", of which {room} say what it is" if room else ""))

    def say_or_hold(self, said: list[Said]) -> None:
        """As say(), when the publisher isn't suspended any more. Raises as a write."""
        if not self._holds(said, lambda: self.say(said), packets.ROOM):
            self.say(said)

    def say_plainly_or_hold(self, said: Said) -> None:
        """As say_plainly(), when the publisher isn't suspended any more. Raises as a write."""
        if not self._holds([said], lambda: self.say_plainly(said), 0):
            self.say_plainly(said)

    def _holds(self, said: list[Said], say: Callable[[], None], room: int) -> bool:
        suspension = self.coherence.suspension
        if not suspension.is_active:
            return False
        for one in said:
            self.check_fits(one, room)  # nobody could resume() with what no message can hold
        if any(one.port.is_closed and not one.tag & FAREWELL for one in said):
            raise DDSException(
                DDSException.DDS_RETCODE_PRECONDITION_NOT_MET,
                "the publisher is suspended, and a writer with a part in this coherent set is closed: what is held of "
                "a closed writer is never sent, so nothing of the set is. resume() the publisher before the set ends")
        return suspension.holds(collections.Counter(one.port.source for one in said), say)

    def say(self, said: list[Said]) -> None:
        """All of it, as one set; waits for room as long as its writers may. Raises as a write."""
        times = [one.port.timeout_s for one in said]
        deadline = Deadline.after(-1.0 if min(times) < 0 else max(times))
        for one in said:
            self.check_fits(one)
        with self._turn(deadline):
            self._say_what_waits(deadline)
            self._send(said, deadline)

    def say_plainly(self, said: Said) -> None:
        """As a message of its own, not in a packet. Raises as a write."""
        deadline = Deadline.after(said.port.timeout_s)
        with self._turn(deadline):
            write_through(self.link, said.data, said.source_ns, deadline, said.tag, said.key)

    def say_aside(self, said: Said) -> None:
        """What isn't a sample, if there is room at once; uses up no doubts. Raises what the inbox raises."""
        with self._turn(Deadline(0)):
            data, tag, key = said.data, said.tag, said.key
            if said.port.channel is not None:
                [(data, tag, key)] = self._parts(next(self._numbers), [said], self.link.spec.size_max)
            self.link.handle.inbox.write(data, 0, 0.0, tag, key)

    def say_later(self, said: list[Said]) -> None:
        """At once if there is room, else before anything else."""
        with self._lock:
            self._later += said
            try:
                self._say_what_waits(Deadline(0))
            except DDSException:
                pass  # if nothing follows, the carrier's own end says it, too

    def _say_what_waits(self, deadline: Deadline) -> None:
        if self._later:
            self._send(self._later, deadline)
            self._later = []

    def _turn(self, deadline: Deadline) -> Taking:
        """Whoever has it sends."""
        return Taking(self._lock, deadline.left_s(), lambda: DDSTimeout(
            f"writing to topic {self.link.spec.name!r}: another writer waits for room"))

    def _send(self, said: list[Said], deadline: Deadline) -> None:
        through(self.link, lambda inbox, _: self._send_set(said, inbox, deadline), deadline, said[0].port.name)

    def _send_set(self, said: list[Said], inbox: Any, deadline: Deadline) -> None:
        """One set, from its beginning: the packets that a node which has gone had taken are of a torn one."""
        link, number = self.link, next(self._numbers) & (1 << 64) - 1
        for port in {one.port for one in said if not one.tag & FAREWELL}:
            port.link.check()
            if not port.is_at(link):
                self._wait_for(port)
        # Who has ended at a node that is gone has ended with it.
        said = [one for one in said if not one.tag & FAREWELL or one.port.is_at(link)]
        parts = self._parts(number, said, link.largest)
        link.torn.add(number)  # if its last packet can't be sent
        for at, (part, tag, key) in enumerate(parts):
            if at == len(parts) - 1:
                link.torn.discard(number)
            inbox.write(part, 0, deadline.wait_s(), tag, key)

    def _parts(self, number: int, said: list[Said], largest: int) -> list[tuple[bytes, int, int]]:
        """The packets of a set, with their tags and keys."""
        spec = self.link.spec
        encoded = [one.encoded() for one in said]
        if spec.effects and len(said) == 1 and packets.can_be_single(said[0].tag) and (
                channel := said[0].port.channel) is not None:
            data, tag = packets.single(number, encoded[0], said[0].port.depth, spec.size_max, largest)
            return [(data, tag, handle_of((channel.number, said[0].key)))]
        parts = packets.cut(number, encoded, spec.size_max, largest)
        # Packets of several samples are of no instance. A node that keeps the last samples of each keeps them one by
        # one, or the last of those that say the same of the same instances.
        key = self._alike(said) if len(parts) == 1 else 0
        return [(part, PACKET, 1 << 63 | (key or handle_of((number, at)))) for at, part in enumerate(parts)]

    def _alike(self, said: list[Said]) -> int:
        """A key of what is said: the same for two sets if one says nothing that the other doesn't say anew. 0: nodes
        keep too few of each for that."""
        spec = self.link.spec
        if not spec.effects or any(one.port.channel is None or one.port.depth > spec.history_depth for one in said):
            return 0
        found = set()
        for one in said:
            assert one.port.channel is not None
            does, handle = one.tag & ~ANNOUNCES_QOS & ~WRITES, one.port.link.handle
            who = publication_handle(handle.session.node_id, handle.writer_id, handle.relay) if does else 0
            found.add((one.port.channel.number, one.key, does, who))
        return handle_of(sorted(found))

    def _wait_for(self, port: Port) -> None:
        """This writer is at another node than its carrier, as whose it can't speak there. Raises ConnectionError if the
        carrier is about to follow, else why the writer has not come along."""
        if port.link.error is not None:
            raise port.link.error
        if self.link.handle.session is self.link.runtime.attachment.session:
            raise closed("a writer of this set")
        self.link.bury()
        raise ConnectionError("the node of the carrier has gone")


class Port:
    """The way of one writer.

    link     the writer's own
    source   the writer, as a suspended publisher knows it; `name` is that of its topic
    channel  its topic in an order group; None outside of groups: then what is in no set goes as plain messages
    farewell tag of what it says when it ends; 0 = nothing
    depth    samples that are kept of each instance of its topic in an order group, if any group keeps the last ones;
             0 = as many as the group keeps
    """

    def __init__(self, carrier: Carrier, link: WriterLink, source: Source, channel: Channel | None, farewell: int,
                 timeout_s: float, depth: int = 0) -> None:
        self.carrier = carrier
        self.link = link
        self.source = source
        self.name = source.topic
        self.is_closed = False  # its writer is
        self.channel = channel
        self.depth = depth
        self.is_shared = carrier.is_shared
        self.timeout_s = timeout_s
        self.change(farewell)
        self.writers: set[int] = set()  # its handles, one of each node that it was attached to
        carrier.ports.append(self)

    def change(self, farewell: int) -> None:
        """It says something else when it ends."""
        self.flags = packets.AUTODISPOSES if farewell & DISPOSES else 0
        self._farewell = farewell if self.is_shared else 0  # else its node says it

    @property
    def writer(self) -> int:
        """As its samples have it, see packets.member()."""
        if not self.is_shared:
            return 0
        handle = self.link.handle
        number = publication_handle(handle.session.node_id, handle.writer_id, handle.relay)
        self.writers.add(number)
        return number

    def is_at(self, carrier: WriterLink) -> bool:
        """True if its writer is at the node that the carrier is at."""
        return self.link.handle.session is carrier.handle.session

    def put(self, data: bytes, tag: int, timestamp: int | None, key: int) -> None:
        """Say something, or collect it if a set is open, or hold it if the publisher is suspended. Raises as a
        write."""
        said = Said(self, data, tag, timestamp or time.time_ns(), key)
        if self.carrier.coherence.collect(self.carrier, said):
            return
        # Where nodes keep the last samples of each instance, what ends one that is in a packet is in a packet, too.
        if self.channel is None and not self.link.spec.effects:
            self.carrier.say_plainly_or_hold(said)
        else:
            self.carrier.say_or_hold([said])

    def put_aside(self, data: bytes, tag: int, key: int = 0) -> None:
        """Say what is in no set and no sample, if there is room at once. Raises what the inbox raises."""
        self.carrier.say_aside(Said(self, data, tag, time.time_ns(), key))

    def close(self, rest: Callable[[], None]) -> None:
        """The writer has ended, and rest() gives back what else it has: at once, or when the set has ended that it has
        a part in."""
        self.is_closed = True
        self.carrier.look()
        said = Said(self, b"", self._farewell, time.time_ns())
        if self.carrier.coherence.outlasts(self, said, lambda: self._leave(rest)):
            return
        if self._farewell and len(self.carrier.ports) > 1:
            self.carrier.say_later([said])
        self._leave(rest)

    def _leave(self, rest: Callable[[], None]) -> None:
        if self in self.carrier.ports:
            self.carrier.ports.remove(self)
            if self.is_shared and not self.carrier.ports:
                self.carrier.link.close()
                self.carrier._later = []  # it knows us, and its end says the same
        rest()


__all__ = ["Carrier", "Coherence", "Port"]
