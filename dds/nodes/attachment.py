"""The node behind a participant: what happens when it goes, and finding the next one.

Why apart from entities: the thread that looks for the next node must hold none of them alive, and a loss is noticed by
whoever comes first, the session's thread or a write that fails.

Rules:
- A session is lost once; nothing that a loss does blocks or runs foreign code.
- With `again`, a thread runs from a loss until a node serves all endpoints again, `patience_s` is over, or an error
  comes that time can't mend. Each endpoint has a link (`dds.writers.link`, `dds.readers.link`), which the thread moves
  to the new session: readers first, so that nothing is delivered between a writer and them. If that node dies too, it
  begins again. An endpoint for which the node lacks memory or room on its disk fails with that, and is moved when there
  is some.
- Until then `hopeful` is true, and waits go on waiting. Afterwards they end with DDSNodeLost.
- After fork() the child has no such thread, and no hope.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from dds.exceptions import DDSException, DDSNodeLost, forked, translate
from dds.status import NodeState, NodeStatus
from spindle.errors import NoResources, start_thread
from spindle.locks import Condition, Latch

if TYPE_CHECKING:
    from spindle.client import Session
    from spindle.group.topics import TopicSpec

PAUSE_S = 0.005  # between two looks for a node; doubles up to the next
PAUSE_MAX_S = 0.2
LATER_MAX_S = 2.0  # the same between two looks whether a node has by now what it lacked
SETTLE_S = 10.0  # how long a call that needs the node waits for the next one


class Link(Protocol):
    """What an endpoint holds of its node."""

    spec: TopicSpec
    is_writer: bool
    is_carrier: bool  # others write through it: they are moved before it
    error: DDSException | None

    def switch(self, session: Session) -> None: ...
    def fail(self, error: DDSException, passes: bool) -> None: ...
    def wake(self) -> None: ...
    def turned(self) -> None: ...


class Endpoints(Protocol):
    """All endpoints of a participant, as far as its node concerns them: `dds.matching.matching.Runtime`."""

    def node_changed(self, lost: bool) -> None:
        """The node has gone; or another one serves us, or nobody will."""

    def wake_watchers(self) -> None:
        """Wait sets look again at all endpoints."""

    def enter(self, session: Session) -> None:
        """Before our endpoints are opened at the next node. Raises what the session raises."""

    def rematch(self) -> None:
        """After our endpoints were opened there."""


class Attachment:
    """The session of a participant, through its changes. `changed` is notified after each."""

    def __init__(self, endpoints: Endpoints, session: Session, release: Callable[[Session], None],
                 again: Callable[[], Session] | None, patience_s: float | None) -> None:
        """release: gives a session back. again: attaches to a node, or raises; None = we end with our node.
        patience_s: None = endless."""
        self.session = session
        self.changed = Condition()
        self.status = NodeStatus(NodeState.ATTACHED, session.node_id)
        self._endpoints: Endpoints = endpoints
        self._release = release
        self._again = again
        self._patience_s = patience_s
        self._links: tuple[Link, ...] = ()
        self._lost_session: Session | None = None
        self._told_of: Session | None = None  # the last lost session that all statuses tell of
        self._released: Session | None = None  # the session that was released last
        self._thread: threading.Thread | None = None
        self._closing = Latch()
        self._pid = os.getpid()

    @property
    def hopeful(self) -> bool:
        """A node serves us, or one may again."""
        return (self._again is not None and self.status.state is not NodeState.LOST and not self._closing.is_set()
                and os.getpid() == self._pid)

    @property
    def reattaches(self) -> bool:
        """When a node goes, another one is looked for."""
        return self._again is not None

    @property
    def over(self) -> bool:
        """No node serves us, none will, and every status that tells so has changed already."""
        return not self.hopeful and (self._told_of is self.session or os.getpid() != self._pid)

    def lost_error(self, what: str, more: str = "") -> DDSNodeLost:
        """Why `what` can't go on."""
        if os.getpid() != self._pid:
            return forked(f"{what}: the participant")
        text = self.status.text or str(self.session.end_error or f"node {self.session.node_id} has stopped or died")
        hint = "" if self._again is not None else "; make a new participant once a node runs, or one with reattach=True"
        return DDSNodeLost(f"{what}: {text}{hint}{more}")

    # --- endpoints

    def add(self, link: Link, session: Session) -> None:
        """An endpoint that was opened with `session` is to be moved to later ones. Raises as opening it."""
        with self.changed:
            self._links += (link,)
            current = self.session
        if current is not session:  # it changed meanwhile, and perhaps nobody has moved this link
            link.switch(current)

    def discard(self, link: Link) -> None:
        with self.changed:
            self._links = tuple(one for one in self._links if one is not link)

    def settle(self) -> None:
        """Wait a while for the next node if one is being looked for. Not for the thread that does."""
        if self.status.state is NodeState.REATTACHING and threading.current_thread() is not self._thread:
            with self.changed:
                self.changed.wait_for(
                    lambda: self.status.state is not NodeState.REATTACHING or not self.hopeful, SETTLE_S)

    def looks_on(self, session: Session) -> bool:
        """The node of `session` is gone, and another one is looked for, or was found already."""
        if session.gone:
            self.lost(session)
        return self.session is not session or self.status.state is NodeState.REATTACHING

    # --- losing a node

    def lost(self, session: Session) -> None:
        """The node of `session` is gone. Callable by whoever notices, any number of times."""
        if os.getpid() != self._pid:
            return  # a forked child: nobody's statuses, and the parent's other threads may have held the lock
        with self.changed:
            if session is not self.session or session is self._lost_session or self._closing.is_set():
                return
            self._lost_session = session
            self.status.lost_count += 1
            self.status.lost_count_change += 1
            self.status.text = str(session.end_error or f"node {session.node_id} has stopped or died")
            self.status.state = NodeState.LOST if self._again is None else NodeState.REATTACHING
            if self._again is not None and self._thread is None:
                thread = threading.Thread(target=self._run, name="dds reattaching", daemon=True)
                try:
                    start_thread(thread, "looking for another node")
                    self._thread = thread
                except NoResources as error:
                    self.status.state = NodeState.LOST
                    self.status.text = f"{self.status.text}; and {error}"
            self.changed.notify_all()
        self._endpoints.node_changed(lost=True)
        self._told_of = session
        self._endpoints.wake_watchers()
        if self.status.state is NodeState.LOST:
            self._wake()

    def turned(self, text: str) -> None:
        """The session has turned to another node by itself (those with nodes of other hosts do)."""
        with self.changed:
            self.status.lost_count += 1
            self.status.lost_count_change += 1
            self.status.reattached_count += 1
            self.status.reattached_count_change += 1
            self.status.node_id = self.session.node_id
            self.status.text = text
            links = self._links
            self.changed.notify_all()
        for link in links:
            link.turned()

    def _wake(self) -> None:
        for link in self._links:
            link.wake()

    # --- finding the next one, on the thread

    def _run(self) -> None:
        deadline = None if self._patience_s is None else time.monotonic() + self._patience_s
        self._give_back(self.session)  # an embedded node must have ended before another one takes its id
        pause_s = PAUSE_S
        while not self._closing.is_set():
            try:
                lacking = self._find_next()
            except Exception as error:
                if not _may_pass(error) or (deadline is not None and time.monotonic() + pause_s > deadline):
                    self._give_up(error)
                    return
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
                continue
            with self.changed:
                if self._lost_session is self.session:
                    continue  # lost again, before this thread had ended
                if self._closing.is_set():
                    break
                if not lacking:
                    self._thread = None
                self.status.state = NodeState.ATTACHED
                self.status.reattached_count += 1
                self.status.reattached_count_change += 1
                self.changed.notify_all()
            self._endpoints.node_changed(lost=False)
            if not lacking or not self._move_later(lacking):
                return
            self._give_back(self.session)
            pause_s = PAUSE_S

    def _find_next(self) -> list[Link]:
        """Attach, and move everything there; returns those for which the node lacks something. Raises what failed; it
        can be tried again then."""
        assert self._again is not None
        session = self._again()
        try:
            with self.changed:
                if self._closing.is_set():
                    raise DDSNodeLost("closed meanwhile")
                self.session = session  # from here on close() releases it
                self.status.node_id = session.node_id  # endpoints that have moved are used while others have yet to
                links = sorted(self._links, key=lambda one: (one.is_writer, one.is_carrier))
            self._endpoints.enter(session)
            lacking = self._move(links, session)
            self._endpoints.rematch()
            return lacking
        except BaseException:
            with self.changed:
                if self.session is session:
                    self._lost_session = session
            self._give_back(session)
            raise

    def _move(self, links: list[Link], session: Session) -> list[Link]:
        """Returns those for which the node lacks something that it may have later. Raises ConnectionError,
        TimeoutError."""
        from spindle.errors import JournalError

        lacking = []
        known: dict[str, Any] = {one.spec.name: one.spec for one in session.topics()}
        for link in links:
            try:
                if link.spec.name in known:
                    known[link.spec.name].check_same(link.spec)
                else:
                    known[link.spec.name] = session.declare_topic(link.spec).spec
                link.switch(session)
            except (ConnectionError, TimeoutError):
                raise
            except Exception as error:
                passes = isinstance(error, (JournalError, NoResources))
                link.fail(translate(error, f"topic {link.spec.name!r} at node {session.node_id}"), passes)
                if passes:
                    lacking.append(link)
        return lacking

    def _move_later(self, links: list[Link]) -> bool:
        """Try it again and again with these. True when the node is lost meanwhile; else all have been moved, or nobody
        wants that any more."""
        session, pause_s = self.session, PAUSE_S
        while True:
            with self.changed:
                links = [one for one in links if one in self._links]
                lost = self._lost_session is session
                if self._closing.is_set() or not links or lost:
                    if not lost:
                        self._thread = None
                    return lost and not self._closing.is_set()
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, LATER_MAX_S)
            try:
                links = self._move(links, session)
            except (ConnectionError, TimeoutError):
                if session.gone:
                    self.lost(session)

    def _give_back(self, session: Session) -> None:
        """Release a session, once."""
        with self.changed:
            if session is self._released:
                return
            self._released = session
        self._release(session)

    def _give_up(self, error: Exception) -> None:
        with self.changed:
            self._thread = None
            self.status.state = NodeState.LOST
            self.status.text = f"{self.status.text}; and no other node was found: {error}"
            self.changed.notify_all()
        self._endpoints.node_changed(lost=False)
        self._wake()

    def close(self) -> None:
        """Stop looking for nodes, wake whoever waits, release the session."""
        with self.changed:
            if self._closing.is_set():
                return
            self._closing.set()
            self.changed.notify_all()
        self._wake()
        self._give_back(self.session)
        with self.changed:
            if self._thread is None:  # nobody asks for the endpoints any more: free their memory and descriptors now
                self._endpoints = _Nobody()


class _Nobody:
    """Takes the place of the endpoints when a participant is closed."""

    def node_changed(self, lost: bool) -> None: ...

    def wake_watchers(self) -> None: ...

    def enter(self, session: Session) -> None: ...

    def rematch(self) -> None: ...


def _may_pass(error: Exception) -> bool:
    """False for errors that another attempt would only meet again: rights, versions, configuration."""
    final = isinstance(error, (PermissionError, ValueError, TypeError))
    return not final and type(error).__name__ != "ProtocolMismatch"


__all__ = ["Attachment", "Link"]
