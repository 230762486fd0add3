"""What a writer holds of its node, and how that is carried over to the next one.

A writer goes on in a new inbox. What its dead node had not acknowledged is in doubt: delivered everywhere or nowhere,
and nobody can tell from here. It is never sent again by itself, and never forgotten: the next call of the writer raises
DDSUnacknowledged with the samples, unless take_unacknowledged() has given them out before. A best-effort writer only
counts them.

Rules (of the readers' links, too): links know their entities weakly, and are known to the attachment once their entity
is complete (`Attachment.add`). `switch` is called by one thread at a time; what it replaces, it replaces under the
link's lock. A handle is closed by whoever takes it out of the link.
"""

from __future__ import annotations

import dataclasses
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from dds.exceptions import DDSException, DDSNodeLost, DDSTimeout, DDSUnacknowledged, closed
from dds.internal import publication_handle
from dds.messages import packets
from dds.messages.inline_qos import split
from dds.messages.operations import ANNOUNCES_QOS, FAREWELL, MISSES_DEADLINE, is_packet, operation
from dds.nodes.local_writers import LocalWriters
from dds.status import Unacknowledged, UnacknowledgedStatus
from dds.waiting.wake import Deadline
from spindle.errors import SpindleError
from spindle.group.topics import LARGE_SAMPLE_MAX

if TYPE_CHECKING:
    from dds.contracts import AWriter
    from dds.matching.matching import Runtime
    from spindle.client import Session, WriterHandle
    from spindle.group.leases import Lease
    from spindle.group.topics import TopicSpec

LOGGED = 3  # spindle.group.levels.Level
HELD_UP_FOR_S = 1.0  # so long the last answer to who holds a topic up is good enough
HELD_UP_TIMEOUT_S = 0.5


class WriterLink:
    """A writer's handle at its present node, and what earlier ones left in doubt.

    insists   the program must be told of what is in doubt (every writer but best-effort ones)
    farewell, lease, type_  see Session.open_writer
    """

    is_writer = True
    is_carrier = False

    def __init__(self, writer: AWriter, runtime: Runtime, spec: TopicSpec, ref: int, slots: int,
                 endpoint: bytes, insists: bool, codec: Any, farewell: int,
                 lease: Lease | None, type_: bytes = b"") -> None:
        """Opens the writer. Raises what the session raises."""
        self.writer = weakref.ref(writer)
        self.runtime = runtime
        self.spec = spec
        self.insists = insists
        self.error: DDSException | None = None
        self.status = UnacknowledgedStatus()
        self.unpersisted = 0  # delivered everywhere, and not known to be on disk when their node died
        self._ref = ref
        self._slots = slots
        self._endpoint = endpoint
        self._codec = codec
        self._farewell = farewell
        self._lease = lease
        self._type = type_
        self._held_up = "", -HELD_UP_FOR_S
        self._lock = threading.RLock()
        self._doubts: list[Any] = []  # as the session has them
        self._untold = False
        self._buried: WriterHandle | None = None
        self._closed = False
        self.torn: set[int] = set()  # numbers of sets whose last packet was not written: nobody ever gets these
        self.guid = b""
        self.handle = self._open(runtime.session)
        self.spec = self.handle.topic.spec  # somebody may have declared it anew since
        self._local.add(self.handle, runtime.number)

    @property
    def largest(self) -> int:
        """Bytes of the largest message that may go out. The node may be configured to take less than this says."""
        takes_large = self.spec.takes_large and getattr(self.handle.inbox, "beside", None) is not None
        return LARGE_SAMPLE_MAX if takes_large else self.spec.size_max

    def held_up_by(self, few: bool = False) -> str:
        """Whom the topic's writers wait for, `few`: for memory, in words; empty if nobody can tell. Asks the node once
        in a while, and not for long: the caller has waited enough."""
        if awaits := self.handle.session.awaits:
            return awaits
        text, asked_s = self._held_up
        if time.monotonic() - asked_s >= HELD_UP_FOR_S:
            try:
                holders = self.handle.session.held_up_by(self.spec.name, HELD_UP_TIMEOUT_S, few)
                text = "; ".join(map(str, holders))
            except (SpindleError, OSError):
                text = ""
            self._held_up = text, time.monotonic()
        return text

    @property
    def _local(self) -> LocalWriters:
        return LocalWriters.of(self.runtime.session.domain_id, self.spec.name)

    def _open(self, session: Session) -> WriterHandle:
        self.guid = self.runtime.guid_of(self._ref)
        return session.open_writer(
            self.spec.name, slots=self._slots, endpoint=self._endpoint, guid=self.guid,
            keep_unacknowledged=self.runtime.attachment.hopeful, farewell=self._farewell, lease=self._lease,
            type_=self._type)

    def switch(self, session: Session) -> None:
        if self.handle.session is session or self._closed:
            return
        self.bury()
        said = self._endpoint, self._farewell
        handle = self._open(session)
        with self._lock:
            if self._closed:
                handle.close()
                return
            self._local.discard(self.handle)
            self.handle = handle
            self.spec = handle.topic.spec  # in another group others may have been the first to declare it
            self._local.add(handle, self.runtime.number)
            self.error = None
        if said != (self._endpoint, self._farewell):  # changed meanwhile
            handle.change(self._endpoint, self._farewell)
        writer = self.writer()
        if writer is not None:
            writer._rebind()

    def change(self, endpoint: bytes, farewell: int) -> None:
        """What is said of the writer is this from now on. DDSException; then nothing has changed."""
        before = self._endpoint, self._farewell
        self._endpoint, self._farewell = endpoint, farewell
        if self.handle.session.gone and self.runtime.attachment.hopeful:
            return  # the next node hears it when the writer is opened there
        try:
            with self.runtime.asking(f"changing a writer of topic {self.spec.name!r}"):
                self.handle.change(endpoint, farewell)
        except DDSException as error:
            if isinstance(error, DDSNodeLost) and self.runtime.attachment.hopeful:
                return
            self._endpoint, self._farewell = before
            raise

    def fail(self, error: DDSException, passes: bool) -> None:
        """It isn't open at the next node; if that `passes`, it may be later."""
        self.error = error
        self.wake()

    def wake(self) -> None:
        with self.runtime.attachment.changed:
            self.runtime.attachment.changed.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            handle = self.handle
        self.runtime.attachment.discard(self)
        self._local.discard(handle)
        if handle.inbox.is_gone:
            self.bury()
        handle.close()
        if self._untold:
            import logging

            logging.getLogger("dds").warning(
                "a writer of topic %r is closed, and nobody has asked for its %d samples that a dead node had not "
                "acknowledged: take_unacknowledged() has them", self.spec.name, len(self._doubts))

    def turned(self) -> None:
        """The session has turned to another node by itself: it also sends again what had not come."""
        before, self.spec = self.spec, self.handle.topic.spec
        if self.spec != before and (writer := self.writer()) is not None:
            writer._rebind()

    # --- after the death of the node

    def bury(self) -> None:
        """Its node is gone: whatever it had not acknowledged is in doubt from now on."""
        with self._lock:
            handle = self.handle
            if self._buried is handle:
                return
            self._buried = handle
            handle.inbox.mark_gone()
            left = handle.unacknowledged()
            if int(self.spec.level) == LOGGED:
                self.unpersisted += handle.inbox.committed - len(left) - handle.inbox.persisted
            self._in_doubt(left)
            self.torn.clear()

    def _in_doubt(self, left: list[Any]) -> None:
        """These messages are."""
        self.is_in_doubt([one for _, one in self.unpacked(left)])

    def unpacked(self, left: list[Any]) -> list[tuple[int, Any]]:
        """The writer of each sample in these messages, and the sample as if it had come alone."""
        handle = self.handle
        me = publication_handle(handle.session.node_id, handle.writer_id, handle.relay)
        found: list[tuple[int, Any]] = []
        for one in left:
            if not is_packet(one.tag) or one.payload is None:
                found.append((me, one))
            elif packets.set_number(one.payload) not in self.torn:
                found += [(member.handle, dataclasses.replace(one, payload=member.payload, tag=member.tag,
                                                              timestamp=member.source_timestamp))
                          for _, _, member in packets.members(packets.opened(one.tag, one.payload), me)]
        return found

    def is_in_doubt(self, left: list[Any]) -> None:
        """These samples are, and whatever else the writer has said."""
        with self._lock:
            left = [one for one in left if not one.tag & (MISSES_DEADLINE | FAREWELL)]  # no samples of the program
            self._doubts += left
            self._untold = self._untold or (self.insists and bool(left))
            self.status.count(len(left))

    def lost_error(self, doing: str) -> DDSException:
        """That no node serves this writer any more, and what is in doubt."""
        self._untold = False
        more = f". {len(self._doubts)} samples had not been acknowledged: take_unacknowledged() has them"
        return self.runtime.attachment.lost_error(f"{doing} topic {self.spec.name!r}", more if self._doubts else "")

    def take_doubts(self) -> list[Unacknowledged]:
        """What is in doubt, each once."""
        with self._lock:
            if self.handle.inbox.is_gone:
                self.bury()
            taken, self._doubts = self._doubts, []
            self._untold = False
        return [Unacknowledged(one.index, one.timestamp, None if one.payload is None else self._sample_of(one),
                               operation(one.tag)) for one in taken]

    def forget_doubts(self) -> None:
        """The program knows by itself what is in doubt."""
        with self._lock:
            if self.handle.inbox.is_gone:
                self.bury()
            self._doubts, self._untold = [], False

    def _sample_of(self, one: Any) -> Any:
        return self._codec.decode_lasting(split(one.payload)[0] if one.tag & ANNOUNCES_QOS else one.payload)

    def check(self, takes: bool = True) -> None:
        """Raise DDSUnacknowledged if there is something in doubt that nobody has heard of; from then on somebody has,
        unless not `takes`. Not where no other node is looked for: whoever finds the node gone raises DDSNodeLost, which
        says the same (lost_error)."""
        if self._untold and self.runtime.attachment.reattaches:
            count, taken = len(self._doubts), self.take_doubts() if takes else []
            raise DDSUnacknowledged(
                f"{count} samples written to topic {self.spec.name!r} had not been acknowledged when their node "
                "went away: the others have got each of them, or not. This call has written nothing else", taken)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def closed_error(self, topic: str = "") -> DDSException:
        """`topic`: the name by which the program knows it, if that isn't the link's."""
        return closed(f"the writer of topic {topic or self.spec.name!r}")

    @property
    def doubtful(self) -> bool:
        return self._untold

    def renew(self, deadline: Deadline) -> None:
        """An inbox's node is gone: return when there is another. Raises DDSUnacknowledged, DDSTimeout, DDSNodeLost."""
        attachment = self.runtime.attachment
        if self._closed:  # this inbox has ended by close(), not with its node
            raise self.closed_error()
        if not self.handle.inbox.is_gone:  # the inbox that the caller found gone was an earlier one
            self.check()
            return
        self.bury()
        attachment.lost(self.handle.session)
        if attachment.hopeful:
            self.check()
        if not self._wait_for_another(deadline, "writing to"):
            raise DDSTimeout(f"writing to topic {self.spec.name!r}: {attachment.status.text}; no other node "
                             "was found in the time that a write may wait (Reliability.max_blocking_time)")
        self.check()

    def _wait_for_another(self, deadline: Deadline, doing: str) -> bool:
        """True when there is an inbox that isn't buried; False if not in time. Raises DDSNodeLost."""
        attachment = self.runtime.attachment
        with attachment.changed:
            while self._buried is self.handle:
                if self._closed:
                    raise self.closed_error()
                if self.error is not None:
                    raise self.error
                if not attachment.hopeful:
                    raise self.lost_error(doing)
                left_s = deadline.left_s()
                if left_s == 0 or not attachment.changed.wait(left_s):
                    return False
        return True

    def wait_acknowledged(self, deadline: Deadline, persisted: bool, takes_doubts: bool = True) -> bool:
        """As InboxWriter's, for what was written since the last loss. Raises DDSUnacknowledged, DDSNodeLost.

        takes_doubts  False: the samples in doubt are left to whoever writes next, and the error has none
        """
        from spindle.errors import NodeGone

        while True:
            handle = self.handle  # before the check: a later one's doubts would not be known by it
            self.check(takes_doubts)
            if persisted and self.unpersisted:
                count, self.unpersisted = self.unpersisted, 0
                raise DDSUnacknowledged(
                    f"{count} samples written to topic {self.spec.name!r} were delivered everywhere, but not known to "
                    "be on disk when their node went away", [])
            try:
                return bool(handle.inbox.wait_acknowledged(deadline.wait_s(), persisted))
            except NodeGone:
                self.bury()
                self.runtime.attachment.lost(handle.session)
                if not self.runtime.attachment.hopeful:
                    raise self.lost_error("waiting for acknowledgements of") from None
            except ValueError:
                raise self.closed_error() from None
            self.check(takes_doubts)
            if persisted and self.unpersisted:
                continue  # which is said
            # What was in doubt somebody else has heard of: for what was written since, there is no inbox yet.
            if not self._wait_for_another(deadline, "waiting for acknowledgements of"):
                return False


__all__ = ["WriterLink"]
