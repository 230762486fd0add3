"""What is announced in the group: what a participant says of itself and its topics, and what it hears of everybody.

Why beside matching: a reader or writer needs to know the other ends of its own topic, at all times; all topics and all
participants concern only those who have builtin readers. Nothing is asked or kept of them before the first of these.

Rules: the node's list is the truth, events only say that it changed. What a participant does itself is in its own
directory before the call returns. A guid is never used again; of two announcements under one guid the later revision
counts, whichever comes first. Nothing here runs foreign code. The lock is the runtime's.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from dds.matching.announcing import Remote, topic_key
from spindle.errors import SpindleError
from spindle.group.endpoints import PARTICIPANT, PORT, TOPIC, Endpoint

if TYPE_CHECKING:
    from dds.matching.notices import NoticeLog
    from spindle.client import Session
    from spindle.group.events import Event

GONE_GUIDS_MAX = 4096  # guids of withdrawn endpoints that are remembered

PARTICIPANTS, TOPICS, WRITERS, READERS = "participants", "topics", "writers", "readers"  # what a log is about


class Member(Protocol):
    """The participant that the directory belongs to: `dds.matching.matching.Runtime`."""

    @property
    def session(self) -> Session: ...

    def guid_of(self, ref: int) -> bytes:
        """Under which its entity with this handle is announced at the session."""

    def known_guid_of(self, ref: int) -> bytes:
        """Under which the group has it."""

    def watch(self) -> None:
        """Hear of what happens in the group."""


class Directory:
    """Of one participant."""

    def __init__(self, member: Member, lock: threading.RLock) -> None:
        self._member_ref = weakref.ref(member)  # which has this
        self._lock = lock
        self._own: dict[int, tuple[int, str, bytes]] = {}  # by handle: kind, topic, what is said
        self._unspread: dict[int, tuple[str, bytes]] = {}  # builtin readers, of which only this participant hears
        self._logs: tuple[tuple[str, NoticeLog], ...] = ()
        self._known: dict[bytes, Remote] = {}
        self._topics: dict[bytes, dict[bytes, Remote]] = {}  # by key: the participants' announcements of that topic
        self._gone: dict[bytes, None] = {}

    @property
    def _member(self) -> Member:
        member = self._member_ref()
        assert member is not None  # whoever calls holds it
        return member

    # --- what this participant says. Raises what the session raises

    def announce(self, ref: int, kind: int, topic: str, said: bytes) -> None:
        """Tell the group of the participant, or of one of its topics, or anew."""
        self._member.session.announce(self._member.guid_of(ref), kind, topic, said)
        with self._lock:
            self._own[ref] = kind, topic, said
        if self._logs:
            self.refresh()

    def withdraw(self, ref: int) -> None:
        """It has gone."""
        with self._lock:
            announced = self._own.pop(ref, None)
        if announced is not None:
            self.went(self._member.known_guid_of(ref))
            if not self._member.session.gone:
                self._member.session.withdraw(self._member.guid_of(ref))

    def close(self) -> None:
        """The participant is closed, and its session may stay."""
        with contextlib.suppress(SpindleError):
            for ref in list(self._own):
                self.withdraw(ref)

    def enter(self, session: Session) -> None:
        """The participant is to be served by this node, under new guids."""
        with self._lock:
            own = dict(self._own)
        for ref, (kind, topic, said) in own.items():
            session.announce(self._member.guid_of(ref), kind, topic, said)

    # --- builtin readers

    def subscribe(self, about: str, log: NoticeLog, ref: int, topic: str, said: bytes) -> None:
        """Tell `log` what is there, and what comes and goes. It is of the builtin reader with this handle."""
        self._member.watch()
        with self._lock:
            self._unspread[ref] = topic, said
            self._logs += ((about, log),)
            for remote in list(self._known.values()):
                if remote.endpoint.kind != TOPIC:
                    self._tell(remote, only=log)
            for key, remotes in self._topics.items():
                self._tell_topic(key, next(iter(remotes.values())), only=log)
        self.refresh()

    def unsubscribe(self, log: NoticeLog, ref: int) -> None:
        with self._lock:
            self._unspread.pop(ref, None)
            self._logs = tuple(one for one in self._logs if one[1] is not log)
            if self._logs:
                self.went(self._member.known_guid_of(ref))
            else:
                self._known.clear()
                self._topics.clear()
                self._gone.clear()

    def refresh(self) -> None:
        """Bring it up to date with the node's list. Raises what the session raises."""
        if not self._logs:
            return
        listed = self._listed()
        with self._lock:
            for endpoint in listed.values():
                self.came(endpoint)
            missing = [guid for guid in self._known if guid not in listed]
        if missing:
            # An event may have told us of them after the list was made: only a second list is proof.
            listed = self._listed()
            with self._lock:
                for guid in missing:
                    if guid not in listed:
                        self.went(guid)

    def _listed(self) -> dict[bytes, Endpoint]:
        session = self._member.session
        listed = {one.guid: one for one in session.endpoints(everything=True)}
        with self._lock:
            for ref, (topic, said) in self._unspread.items():
                guid = self._member.known_guid_of(ref)
                listed[guid] = Endpoint(guid, session.node_id, False, topic, said, session.name, os.getpid())
        return listed

    def came(self, endpoint: Endpoint) -> None:
        """Something was announced, or announced anew."""
        with self._lock:
            if not self._logs or endpoint.guid in self._gone:
                return
            before = self._known.get(endpoint.guid)
            if before is not None and before.endpoint == endpoint:
                return
            remote = Remote(endpoint)
            if before is not None and before.revision > remote.revision:
                return
            self._known[endpoint.guid] = remote
            if endpoint.kind == TOPIC:
                if before is not None:
                    self._topic_went(before)
                self._topic_came(remote)
            else:
                self._tell(remote)

    def went(self, guid: bytes) -> None:
        """It was withdrawn."""
        with self._lock:
            if not self._logs:
                return
            self._gone[guid] = None
            if len(self._gone) > GONE_GUIDS_MAX:
                del self._gone[next(iter(self._gone))]
            remote = self._known.pop(guid, None)
            if remote is None:
                return
            if remote.endpoint.kind == TOPIC:
                self._topic_went(remote)
            else:
                self._for_logs(_about(remote), lambda log: log.gone(guid))

    def lost(self) -> None:
        """The node is gone, and with it everybody whom it told us of."""
        with self._lock:
            for guid in list(self._known):
                self.went(guid)
            self._gone.clear()  # the next node's list is a truth of its own
        self.wake()

    def wake(self) -> None:
        """Whoever waits for a builtin reader looks again."""
        for _, log in self._logs:
            log.ring()

    def on_event(self, event: Event) -> None:
        """On the session's thread."""
        assert event.endpoint is not None
        if event.kind in ("endpoint_added", "announced"):
            self.came(event.endpoint)
        else:
            self.went(event.endpoint.guid)

    # --- telling the logs

    def _tell(self, remote: Remote, only: NoticeLog | None = None) -> None:
        self._for_logs(_about(remote), lambda log: log.put(remote.guid, remote), only)

    def _topic_came(self, remote: Remote) -> None:
        key = topic_key(remote)
        self._topics.setdefault(key, {})[remote.guid] = remote
        if len(self._topics[key]) == 1:
            self._tell_topic(key, remote)

    def _topic_went(self, remote: Remote) -> None:
        key = topic_key(remote)
        remotes = self._topics.get(key, {})
        remotes.pop(remote.guid, None)
        if not remotes:
            self._topics.pop(key, None)
            self._for_logs(TOPICS, lambda log: log.gone(key))

    def _tell_topic(self, key: bytes, remote: Remote, only: NoticeLog | None = None) -> None:
        self._for_logs(TOPICS, lambda log: log.put(key, remote), only)

    def _for_logs(self, about: str, do: Callable[[NoticeLog], None], only: NoticeLog | None = None) -> None:
        for subject, log in self._logs:
            if subject == about and only in (None, log):
                do(log)


def _about(remote: Remote) -> str:
    if remote.endpoint.kind == PORT:
        return WRITERS if remote.is_writer else READERS
    return PARTICIPANTS if remote.endpoint.kind == PARTICIPANT else TOPICS


__all__ = ["PARTICIPANTS", "READERS", "TOPICS", "WRITERS", "Directory"]
