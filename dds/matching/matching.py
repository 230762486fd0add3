"""Matching: which writers and readers of a topic talk to each other, and telling them.

Each participant compares what is offered with what is requested for its own endpoints (`dds.policy.policies`), as
everybody announces it (`dds.matching.announcing`), so both ends come to the same result without asking each other.

Rules: an endpoint's guid is never used again, so that what was withdrawn never comes back, whatever order answers and
events arrive in. The list from the node is the truth, events only say that it changed. Nothing here runs foreign code.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from dds.exceptions import DDSException, DDSNodeLost, translate
from dds.matching.announcing import Remote
from dds.matching.consistency import inconsistency
from dds.matching.directory import Directory
from dds.messages.announced import NOTHING, AnnouncedType
from dds.messages.order_groups import Channel
from dds.nodes.attachment import Attachment
from dds.nodes.local_writers import LocalWriters
from dds.policy.policies import ignores_local, incompatible_policy, of_group, partitions, partitions_meet
from dds.policy.table import TABLE
from dds.qos import Qos
from dds.status import (
    IncompatibleQosStatus,
    LivelinessChangedStatus,
    LivelinessLostStatus,
    PublicationMatchedStatus,
    SubscriptionMatchedStatus,
)
from dds.waiting.alarms import Alarms
from dds.waiting.dispatcher import Dispatcher

if TYPE_CHECKING:
    from dds.contracts import AnEndpoint, AnEntity, AReader, AVigil
    from spindle.client import Endpoint, Event, Session

T = TypeVar("T")

GONE_GUIDS_MAX = 4096  # guids of withdrawn endpoints that are remembered
OVER_MAX = 4096  # and handles of a reader's writers that have ended
ITSELF = 0  # the handle of a participant among its own entities, as far as the group is concerned
PREFIX_BYTES = 12  # of a guid, which stand for its participant

_numbers = itertools.count(1)
_prefixes: dict[bytes, int] = {}  # of the participants of this process -> their numbers


class Matches:
    """The matching state of one of our own readers or writers. Changed only under the Runtime's lock.

    topic    the node's, by its name: of an endpoint in an order group, the group
    channel  its own topic in that group
    """

    def __init__(self, entity: AnEndpoint, topic: str, is_writer: bool, qos: Qos,
                 type_: AnnouncedType = NOTHING, channel: Channel | None = None) -> None:
        self.entity = weakref.ref(entity)
        self.type = type_
        self.participant = 0  # its number, see Runtime
        self.topic = topic
        self.is_writer = is_writer
        self.qos = qos
        self.channel = channel
        self.matched: dict[bytes, Remote] = {}
        self.incompatible: dict[bytes, Remote] = {}
        self._parted: dict[bytes, int] = {}  # guids of others with which we have nothing to do -> handles
        self.status: Any = PublicationMatchedStatus() if is_writer else SubscriptionMatchedStatus()
        self.incompatible_status = IncompatibleQosStatus()
        self.liveliness_status = LivelinessChangedStatus()
        self.liveliness_lost_status = LivelinessLostStatus()
        self._not_alive: set[int] = set()  # handles of writers whose lease has run out
        self._over: dict[int, bool] = {}  # of writers that have ended since; those of the last OVER_MAX
        self._counting = threading.Lock()  # of the writers that live

    def consider(self, remote: Remote) -> None:
        """It was announced, or announced anew, or our own Qos has changed."""
        if remote.is_writer == self.is_writer:
            return
        entity = self.entity()
        obstacle = self._obstacle(remote)
        if entity is None:
            return
        difference = "" if obstacle is None else self._difference(remote, entity)
        if obstacle == 0 and not difference and remote.guid in self.matched:
            self.matched[remote.guid] = remote
            return
        if (obstacle or difference) and remote.guid in self.incompatible:
            self.incompatible[remote.guid] = remote
            return
        is_new = not any(remote.guid in known for known in (self.matched, self.incompatible, self._parted))
        self._leave(remote.guid, is_over=False)
        if is_new and self._over.pop(remote.handle, False):
            # An earlier writer had that number. Otherwise the order may have said of this one that it is not alive.
            entity._forget_lapse(remote.handle)  # type: ignore[attr-defined]
        if obstacle is None:
            self._parted[remote.guid] = remote.handle
            if not self.is_writer:
                entity._unblock(remote.handle)  # type: ignore[attr-defined]  # what it writes says whom it is for
        elif difference:
            self.incompatible[remote.guid] = remote
            entity._differs(remote, difference)
        elif obstacle:
            self.incompatible[remote.guid] = remote
            self.incompatible_status.count()
            self.incompatible_status.last_policy_id = obstacle
            if not self.is_writer:
                entity._block(remote.handle)  # type: ignore[attr-defined]
            entity._note("on_offered_incompatible_qos" if self.is_writer else "on_requested_incompatible_qos")
        else:
            if not self.is_writer:
                entity._unblock(remote.handle)  # type: ignore[attr-defined]
            self.matched[remote.guid] = remote
            self.status.count()
            self._count_current(entity, remote, 1)

    def _obstacle(self, remote: Remote) -> int | None:
        """Number of the policy that keeps us apart, 0 if none does; None if we have nothing to do with each other."""
        mine, theirs = self.channel, remote.channel
        if mine != theirs and (mine is None or theirs is None or mine.topic != theirs.topic):
            return None  # another topic of the group
        offered, requested = (self.qos, remote.qos) if self.is_writer else (remote.qos, self.qos)
        if ignores_local(requested, self.participant == _prefixes.get(remote.guid[:PREFIX_BYTES]),
                         remote.guid[:PREFIX_BYTES] in _prefixes):
            return None
        if not partitions_meet(partitions(offered), partitions(requested)):
            return None
        return incompatible_policy(offered, requested)

    def _difference(self, remote: Remote, entity: AnEndpoint) -> str:
        """Why our types don't go together; "" if they do."""
        requested = remote.qos if self.is_writer else self.qos
        ends = (remote.type, self.type) if self.is_writer else (self.type, remote.type)
        difference = inconsistency(*ends, requested) or entity._meets(remote.type)
        return difference or ("the types differ" if self.channel != remote.channel else "")

    def forget(self, guid: bytes) -> None:
        """The endpoint is closed. An incompatible writer that is closed stays blocked: what it has written may not have
        been read."""
        self._leave(guid, is_over=True)

    def _leave(self, guid: bytes, is_over: bool) -> None:
        """The endpoint is closed, or has changed: then what the order has said of its lease still holds."""
        entity = self.entity()
        apart, parted = self.incompatible.pop(guid, None), self._parted.pop(guid, None)
        remote = self.matched.pop(guid, None)
        if remote is not None and entity is not None:
            self._count_current(entity, remote, -1, is_over)
        handle = remote.handle if remote is not None else apart.handle if apart is not None else parted
        if is_over and handle is not None and entity is not None and not self.is_writer:
            entity._forget_lapse(handle)  # type: ignore[attr-defined]
            self._have_ended([handle])

    def _have_ended(self, writers: Iterable[int]) -> None:
        for one in writers:
            self._over.pop(one, None)
            self._over[one] = True
        while len(self._over) > OVER_MAX:
            del self._over[next(iter(self._over))]

    def forget_all(self) -> None:
        """The node is gone. Incompatible writers stay blocked: their samples may wait in the log that it has left."""
        entity = self.entity()
        matched = list(self.matched.values())
        if not self.is_writer:  # at the next node they are others, and what the order says of them begins anew
            self._have_ended([*(one.handle for one in (*matched, *self.incompatible.values())),
                              *self._parted.values(), *self._not_alive])
        self.incompatible.clear()
        self._parted.clear()
        self.matched.clear()
        if entity is not None:
            for remote in matched:
                self._count_current(entity, remote, -1)
        self._not_alive.clear()

    def _count_current(self, entity: AnEntity, remote: Remote, change: int, is_over: bool = True) -> None:
        self.status.current_count += change
        self.status.current_count_change += change
        if self.is_writer:
            self.status.last_subscription_handle = remote.handle
            entity._note("on_publication_matched")
        else:
            self.status.last_publication_handle = remote.handle
            with self._counting:
                lapsed = remote.handle in self._not_alive
                self._count_liveliness(remote.handle, 0 if lapsed else change, change if lapsed else 0)
                if change < 0 and is_over:
                    self._not_alive.discard(remote.handle)
            entity._note("on_subscription_matched")
            entity._note("on_liveliness_changed")

    def has(self, handle: int) -> bool:
        """True if an endpoint with this handle is matched."""
        return any(one.handle == handle for one in list(self.matched.values()))

    def knows(self, handle: int) -> bool:
        """True if an endpoint with this handle is there, whether it is matched or not."""
        return self.has(handle) or any(one.handle == handle for one in list(self.incompatible.values())) or (
            handle in list(self._parted.values()))

    def lapsed(self, writer: int, lapsed: bool | None) -> None:
        """The lease of the writer with this handle has run out, or it lives again; None: it has ended, in whatever
        state. The reader calls it."""
        entity = self.entity()
        with self._counting:
            matched = self.has(writer)
            if lapsed is None:
                if not matched:  # else forget() is still to count it
                    self._not_alive.discard(writer)
                return
            if lapsed == (writer in self._not_alive):
                return
            if lapsed:
                self._not_alive.add(writer)  # also of one that is only about to be announced
            else:
                self._not_alive.discard(writer)
            if not matched:
                return
            self._count_liveliness(writer, *((-1, 1) if lapsed else (1, -1)))
        if entity is not None:
            entity._note("on_liveliness_changed")

    def _count_liveliness(self, writer: int, alive: int, not_alive: int) -> None:
        status = self.liveliness_status
        status.alive_count += alive
        status.alive_count_change += alive
        status.not_alive_count += not_alive
        status.not_alive_count_change += not_alive
        status.last_publication_handle = writer


class Runtime:
    """What a participant's threads may hold: its session, its listener thread, the state of matching. No entities.

    attachment   its session, and what happens when the node goes
    prefix       12 bytes in front of the guids of this participant's entities; others after each reattachment
    number       of the participant in this process
    participant  the participant, weakly
    """

    def __init__(self, session: Session, release: Callable[[Session], None],
                 again: Callable[[], Session] | None = None, patience_s: float | None = None) -> None:
        self.attachment = Attachment(self, session, release, again, patience_s)
        self.participant: weakref.ref[AnEntity] | None = None
        self.number = next(_numbers)
        self._vigils: tuple[weakref.ref[AVigil], ...] = ()  # replaced, never changed: each write looks at them
        self.enabling = threading.RLock()  # entities begin one after the other
        self.closing = False  # the participant is, and all that it has
        self.alarms = Alarms(f"spindle alarms of domain {session.domain_id}")
        self.signs = Alarms(f"spindle signs of life of domain {session.domain_id}")  # never waits for the program
        self._renew_prefix()
        self.dispatcher = Dispatcher(f"spindle listeners of domain {session.domain_id}")
        self._lock = threading.RLock()
        self._local: tuple[Matches, ...] = ()  # replaced, never changed: a finalizer may do so at any moment
        self._known: dict[str, dict[bytes, Remote]] = {}
        self._gone: dict[bytes, None] = {}
        self._watching = False
        self._readers: weakref.WeakSet[AReader] = weakref.WeakSet()
        self.directory = Directory(self, self._lock)

    @property
    def session(self) -> Session:
        return self.attachment.session

    @property
    def is_remote(self) -> bool:
        """Its node is on another host."""
        return not self.session.beside_node

    def _renew_prefix(self) -> None:
        self.prefix = os.urandom(PREFIX_BYTES)
        _prefixes[self.prefix] = self.number

    def guid_of(self, ref: int) -> bytes:
        """Under which its entity with this handle is opened at the session."""
        return self.prefix + (ref & 0xFFFFFFFF).to_bytes(4, "big")

    def known_guid_of(self, ref: int) -> bytes:
        """Under which the group has it."""
        return self.session.present_guid(self.guid_of(ref))

    @contextlib.contextmanager
    def asking(self, doing: str) -> Iterator[None]:
        """Errors of the session in the terms of DDS. Waits a while if the next node is being looked for."""
        self.attachment.settle()
        try:
            yield
        except (TypeError, NotImplementedError):
            raise
        except Exception as error:
            raise translate(error, doing) from error

    def ask(self, doing: str, question: Callable[[], T]) -> T:
        """As asking(), for what may be asked twice: if the node goes meanwhile, the next one is asked."""
        session = self.session
        try:
            with self.asking(doing):
                session = self.session
                return question()
        except DDSNodeLost:
            if not self.attachment.looks_on(session):
                raise
        with self.asking(doing):
            return question()

    @property
    def vigils(self) -> list[AVigil]:
        """Over the participant's writers with Liveliness.ManualByParticipant."""
        return [vigil for one in self._vigils if (vigil := one()) is not None]

    def add_vigil(self, vigil: AVigil) -> None:
        """One more of these."""
        with self._lock:
            self._vigils = (*(one for one in self._vigils if one() is not None), weakref.ref(vigil))

    # --- endpoints of our own

    def add(self, matches: Matches) -> None:
        """Match a new endpoint of our own, and learn of everybody on its topic, before returning."""
        self._watch()
        with self._lock:
            matches.participant = self.number
            self._local += (matches,)
            for remote in list(self._known.get(matches.topic, {}).values()):
                matches.consider(remote)
        self.refresh(matches.topic)

    def remove(self, matches: Matches, guid: bytes) -> None:
        """One of our endpoints is closed; its peers in this participant know at once."""
        guid = self.session.present_guid(guid)
        with self._lock:
            self.directory.went(guid)
            self._local = tuple(one for one in self._local if one is not matches)
            self._withdraw(matches.topic, guid)
            if not any(one.topic == matches.topic for one in self._local):
                self._known.pop(matches.topic, None)

    def _watch(self) -> None:
        if not self._watching:
            self._watching = True
            try:
                with self.asking("watching the group"):
                    self._listen(self.session)
            except BaseException:
                self._watching = False
                raise

    def watch(self) -> None:
        """Hear of the node's end, and of what happens in the group."""
        self._watch()

    def _listen(self, session: Session) -> None:
        session.add_listener(functools.partial(_on_event, weakref.ref(self), weakref.ref(session)))

    def reconsider(self, matches: Matches, qos: Qos) -> None:
        """One of our endpoints has another Qos."""
        with self._lock:
            matches.qos = qos
            for remote in list(self._known.get(matches.topic, {}).values()):
                matches.consider(remote)

    # --- everybody's endpoints

    def refresh(self, topic: str) -> None:
        """Bring the matching of `topic` up to date with the node's list."""
        with self.asking(f"asking for the endpoints of topic {topic!r}"):
            listed = {one.guid: one for one in self.session.endpoints(topic)}
            with self._lock:
                for endpoint in listed.values():
                    self._announce(endpoint)
                    self.directory.came(endpoint)
                missing = [guid for guid in list(self._known.get(topic, {})) if guid not in listed]
            if missing:
                # An event may have told us of them after the list was made: only a second list is proof.
                listed = {one.guid: one for one in self.session.endpoints(topic)}
                with self._lock:
                    for guid in missing:
                        if guid not in listed:
                            self._withdraw(topic, guid)

    def _announce(self, endpoint: Endpoint) -> None:
        with self._lock:
            if endpoint.guid in self._gone or not any(one.topic == endpoint.topic for one in self._local):
                return
            known = self._known.setdefault(endpoint.topic, {})
            before = known.get(endpoint.guid)
            if before is not None and before.endpoint == endpoint:
                return
            remote = Remote(endpoint)
            if before is not None and before.revision > remote.revision:
                return  # what it said earlier, told by a list that comes behind the event
            known[endpoint.guid] = remote
            for one in self._local:
                if one.topic == endpoint.topic:
                    one.consider(remote)

    def _withdraw(self, topic: str, guid: bytes) -> None:
        with self._lock:
            self._gone[guid] = None
            if len(self._gone) > GONE_GUIDS_MAX:
                del self._gone[next(iter(self._gone))]
            self._known.get(topic, {}).pop(guid, None)
            for one in self._local:
                if one.topic == topic:
                    one.forget(guid)

    def on_event(self, event: Event) -> None:
        """On the session's thread."""
        if event.endpoint is not None:
            if event.kind == "endpoint_added":
                self._announce(event.endpoint)
            elif event.kind == "endpoint_removed":
                self._withdraw(event.endpoint.topic, event.endpoint.guid)
            self.directory.on_event(event)
        elif event.kind == "turned":
            _prefixes[self.session.present_guid(self.prefix)] = self.number
            self.attachment.turned(event.text)
            self.node_changed(lost=False)
        elif event.kind == "missed":
            with self._lock:
                topics = {one.topic for one in self._local}
            for topic in topics:
                self.refresh(topic)
            with self.asking("asking for what is announced"):
                self.directory.refresh()

    # --- losing a node, and entering the next one

    def node_changed(self, lost: bool) -> None:
        """The node has gone, and with it everybody whom it told us of; or another one serves us, or nobody will."""
        with self._lock:
            local = self._local if lost else ()
            for one in local:
                one.forget_all()
            if lost:
                self._known.clear()
                self.directory.lost()
        self.directory.wake()
        for one in local:
            entity = one.entity()
            if entity is not None and one.is_writer:
                one.liveliness_lost_status.count()
                entity._note("on_liveliness_lost")
        participant = self.participant() if self.participant is not None else None
        if participant is not None:
            participant._note("on_node_changed")
        self.wake_watchers()

    def wake_watchers(self) -> None:
        """Wait sets look again at all endpoints."""
        with self._lock:
            entities = [one.entity() for one in self._local]
        for entity in entities:
            if entity is not None:
                entity._wake_watchers()

    def enter(self, session: Session) -> None:
        """Before our endpoints are opened at the next node. Raises what the session raises."""
        with self._lock:
            self._renew_prefix()
            self._known.clear()
            self._gone.clear()  # the new node's list is a truth of its own
            self._watching = True
        self._listen(session)
        self.directory.enter(session)

    def rematch(self) -> None:
        """After our endpoints were opened there."""
        with self._lock:
            topics = {one.topic for one in self._local}
        for topic in topics:
            self.refresh(topic)
        self.directory.refresh()

    # --- listeners

    def add_reader(self, reader: AReader) -> None:
        self._readers.add(reader)
        self.listeners_changed()

    def listeners_changed(self) -> None:
        """Listen for the data of exactly those readers that somebody may want to be called for."""
        for reader in list(self._readers):
            entity: AnEntity | None = reader
            while entity is not None and entity._listener is None:
                entity = entity._parent
            if entity is not None and reader._open:
                self.dispatcher.watch(reader)
            else:
                self.dispatcher.unwatch(reader._ref, reader._hub)

    def close(self) -> None:
        self.signs.stop()
        self.alarms.stop()
        if self.session.embedded:  # and other participants of this process may go on with it
            self.directory.close()
        self.dispatcher.stop()
        self.attachment.close()
        for prefix in [one for one, number in list(_prefixes.items()) if number == self.number]:
            _prefixes.pop(prefix, None)
        LocalWriters.forget(self.number)


def change_members(group: Any, following: Qos) -> None:
    """A subscriber or publisher goes by its new Qos, and its readers or writers do, and announce it. Raises what the
    first of them raises that can't; then all go by what they had."""
    before, group._qos = group._qos, following
    changed = {one.__scope__ for one in following if before[one] != one}
    if not any(row.inherited == "group" or row.told_with == "group" for row in TABLE if row.scope in changed):
        return
    had: list[tuple[Any, Qos]] = []
    try:
        for member in group._living_children():
            had.append((member, member._qos))
            member._apply_qos(member._qos + of_group(following))
    except BaseException:
        group._qos = before
        for member, qos in had[:-1]:
            with contextlib.suppress(DDSException):
                member._apply_qos(qos)
        raise


def _on_event(runtime_ref: weakref.ref[Runtime], session_ref: weakref.ref[Session], event: Event) -> None:
    runtime, session = runtime_ref(), session_ref()
    if runtime is None or session is None:
        return
    if event.kind == "gone":
        runtime.attachment.lost(session)
    elif session is runtime.session:  # else an event of an earlier node, which is not ours any more
        runtime.on_event(event)


__all__ = ["ITSELF", "Matches", "Runtime", "change_members"]
