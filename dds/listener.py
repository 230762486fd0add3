"""Listeners: callbacks that run on a thread of their participant's own.

Why a thread of its own: a callback that runs on the protocol's thread, or under a lock, can stop the node, deadlock
with the interpreter, or meet an entity that isn't finished. Here a callback may do anything: write, take, create and
close entities, also its own, or be slow, which delays other callbacks of the same participant and nobody else.

How much can wait: at most one call per entity and kind. Statuses add up until the call reads them; on_data_available
is called again while the last call took something and unread samples are left. So the queue can't grow, and nothing is
lost by being slow.

Rules: a status goes to the first listener that handles it: the entity's own, its publisher's or subscriber's, its
participant's (DDS 1.4, 2.2.4.3.2). Data goes to on_data_on_readers of the subscriber or participant first, if there is
one. An exception in a callback is logged with its traceback (logger "dds"), and the next callback runs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dds.status import DDSStatus
from dds.wake import Hub, Waker, wait_readable

if TYPE_CHECKING:
    from dds.entity import Entity
    from dds.reader import ReaderCore

# Callback, bit in status masks, and the method that reads the status ("" = the callback gets none).
CALLBACKS = {
    "on_inconsistent_topic": (DDSStatus.InconsistentTopic, "get_inconsistent_topic_status"),
    "on_data_available": (DDSStatus.DataAvailable, ""),
    "on_liveliness_lost": (DDSStatus.LivelinessLost, "get_liveliness_lost_status"),
    "on_liveliness_changed": (DDSStatus.LivelinessChanged, "get_liveliness_changed_status"),
    "on_offered_deadline_missed": (DDSStatus.OfferedDeadlineMissed, "get_offered_deadline_missed_status"),
    "on_offered_incompatible_qos": (DDSStatus.OfferedIncompatibleQos, "get_offered_incompatible_qos_status"),
    "on_data_on_readers": (DDSStatus.DataOnReaders, ""),
    "on_sample_lost": (DDSStatus.SampleLost, "get_sample_lost_status"),
    "on_sample_rejected": (DDSStatus.SampleRejected, "get_sample_rejected_status"),
    "on_requested_deadline_missed": (DDSStatus.RequestedDeadlineMissed, "get_requested_deadline_missed_status"),
    "on_requested_incompatible_qos": (DDSStatus.RequestedIncompatibleQos, "get_requested_incompatible_qos_status"),
    "on_publication_matched": (DDSStatus.PublicationMatched, "get_publication_matched_status"),
    "on_subscription_matched": (DDSStatus.SubscriptionMatched, "get_subscription_matched_status"),
    "on_node_changed": (DDSStatus.NodeChanged, "get_node_status"),  # beyond DDS
}


class Listener:
    """Derive from it and override callbacks, or give them by name: Listener(on_data_available=...).

    Raises TypeError for a name that is no callback.
    """

    def __init__(self, **callbacks: Callable[..., Any] | None) -> None:
        for name, callback in callbacks.items():
            self._set(name, callback)

    def _set(self, name: str, callback: Callable[..., Any] | None) -> None:
        if name not in CALLBACKS:
            raise TypeError(f"{name!r} is no callback of a Listener; there are {', '.join(CALLBACKS)}")
        if callback is None:
            self.__dict__.pop(name, None)
        elif callable(callback):
            self.__dict__[name] = callback
        else:
            raise TypeError(f"{name} must be callable, not {callback!r}")

    def handles(self, name: str) -> bool:
        """True if the callback `name` was given or overridden."""
        return name in self.__dict__ or getattr(type(self), name) is not getattr(Listener, name)

    def _handled(self) -> dict[str, Callable[..., Any]]:
        return {name: getattr(self, name) for name in CALLBACKS if self.handles(name)}

    def reset(self) -> None:
        """Forget the callbacks that were given; overridden ones stay."""
        for name in CALLBACKS:
            self.__dict__.pop(name, None)

    def copy(self) -> Listener:
        """A listener with the same callbacks."""
        return Listener(**self._handled())

    def copy_to(self, listener: Listener) -> None:
        """Give all callbacks of this one to `listener`."""
        for name, callback in self._handled().items():
            listener._set(name, callback)

    def merge(self, listener: Listener) -> None:
        """Take over all callbacks of `listener`."""
        listener.copy_to(self)

    # The callbacks: what is overridden is called.
    def on_inconsistent_topic(self, topic: Any, status: Any) -> None: ...
    def on_data_available(self, reader: Any) -> None: ...
    def on_liveliness_lost(self, writer: Any, status: Any) -> None: ...
    def on_liveliness_changed(self, reader: Any, status: Any) -> None: ...
    def on_offered_deadline_missed(self, writer: Any, status: Any) -> None: ...
    def on_offered_incompatible_qos(self, writer: Any, status: Any) -> None: ...
    def on_data_on_readers(self, subscriber: Any) -> None: ...
    def on_sample_lost(self, reader: Any, status: Any) -> None: ...
    def on_sample_rejected(self, reader: Any, status: Any) -> None: ...
    def on_requested_deadline_missed(self, reader: Any, status: Any) -> None: ...
    def on_requested_incompatible_qos(self, reader: Any, status: Any) -> None: ...
    def on_publication_matched(self, writer: Any, status: Any) -> None: ...
    def on_subscription_matched(self, reader: Any, status: Any) -> None: ...
    def on_node_changed(self, participant: Any, status: Any) -> None: ...

    def set_on_inconsistent_topic(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_inconsistent_topic", callback)

    def set_on_data_available(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_data_available", callback)

    def set_on_liveliness_lost(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_liveliness_lost", callback)

    def set_on_liveliness_changed(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_liveliness_changed", callback)

    def set_on_offered_deadline_missed(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_offered_deadline_missed", callback)

    def set_on_offered_incompatible_qos(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_offered_incompatible_qos", callback)

    def set_on_data_on_readers(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_data_on_readers", callback)

    def set_on_sample_lost(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_sample_lost", callback)

    def set_on_sample_rejected(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_sample_rejected", callback)

    def set_on_requested_deadline_missed(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_requested_deadline_missed", callback)

    def set_on_requested_incompatible_qos(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_requested_incompatible_qos", callback)

    def set_on_publication_matched(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_publication_matched", callback)

    def set_on_subscription_matched(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_subscription_matched", callback)

    def set_on_node_changed(self, callback: Callable[..., Any] | None) -> None:
        self._set("on_node_changed", callback)


class _Watched:
    """A reader whose data the dispatcher announces."""

    __slots__ = ("head", "reader")

    def __init__(self, reader: ReaderCore) -> None:
        self.reader = weakref.ref(reader)
        self.head = (-1, -1)  # samples that had come when the listener was last called, and in which of its logs


class Dispatcher:
    """The listener thread of one participant. It starts with the first callback that may come.

    Holds no entity alive, except the one whose callback runs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # reentrant: a finalizer may run while we hold it
        self._waker = Waker()
        self._pending: dict[tuple[int, str], weakref.ref[Entity]] = {}
        self._watched: dict[int, _Watched] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False

    def post(self, entity: Entity, name: str) -> None:
        """Call `name` for `entity` soon, if somebody listens. One call for all posts that wait."""
        with self._lock:
            if self._stopping:
                return
            self._pending[entity._ref, name] = weakref.ref(entity)
            self._start()
        self._waker.ring()

    def watch(self, reader: ReaderCore) -> None:
        """Announce the data of `reader` from now on."""
        with self._lock:
            if self._stopping or reader._ref in self._watched:
                return
            self._watched[reader._ref] = _Watched(reader)
            self._start()
        reader._hub.join(self._waker)
        self._waker.ring()

    def unwatch(self, ref: int, hub: Hub) -> None:
        """The reader with this handle and hub needs no listening any more."""
        with self._lock:
            found = self._watched.pop(ref, None)
        if found is not None:
            hub.leave(self._waker)
            self._waker.ring()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """No more callbacks; waits for one that runs, unless called from it. Idempotent."""
        with self._lock:
            self._stopping = True
            self._pending.clear()
            self._watched.clear()
        self._waker.ring()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    # --- on the thread

    def _run(self) -> None:
        while not self._stopping:
            self._waker.clear()
            self._run_pending()
            fds = self._run_data()
            if self._stopping or self._pending:
                continue
            try:
                readable = wait_readable([self._waker.fd, *fds], None)
            except OSError:
                continue  # a reader was closed meanwhile: look again
            for fd in readable:
                if fd in fds:
                    self._empty(fds[fd])

    # No local name of _run() ever holds an entity: it would live as long as the thread waits.

    def _empty(self, watched: _Watched) -> None:
        reader = watched.reader()
        if reader is not None and reader._open:
            reader._clear_ring(self._waker)

    def _run_pending(self) -> None:
        while self._run_one():
            pass

    def _run_one(self) -> bool:
        with self._lock:
            if not self._pending or self._stopping:
                return False
            key = next(iter(self._pending))
            entity = self._pending.pop(key)()
        if entity is not None and entity._open:
            self._call(entity, key[1])
        return True

    def _run_data(self) -> dict[int, _Watched]:
        """Announce what has come; returns what to wait for."""
        return {fd: watched for watched in list(self._watched.values()) if (fd := self._look(watched)) >= 0}

    def _look(self, watched: _Watched) -> int:
        """Announce what has come for one reader, and ask for a ring; returns its descriptor, -1 if it is closed."""
        reader = watched.reader()
        if reader is None or not reader._open:
            return -1
        try:
            fd = reader.fileno()
            reader._arm()
            head = reader._head()
        except ValueError:
            return -1  # closed meanwhile
        if head != watched.head:
            watched.head = head
            self._announce(reader, watched)
        return fd if reader._open else -1

    def _announce(self, reader: ReaderCore, watched: _Watched) -> None:
        reader._look_for_lost()
        while reader._open and not self._stopping and reader._unread():
            before = reader._consumed
            try:
                watched.head = reader._head()  # all of this is being announced, also what came since we were woken
            except ValueError:
                return  # closed meanwhile
            name = "on_data_available"
            subscriber = reader._parent
            if subscriber is not None and subscriber._listener_for("on_data_on_readers") is not None:
                if not self._call(subscriber, "on_data_on_readers"):
                    return
            elif not self._call(reader, name):
                return
            if reader._consumed == before:
                return  # it looked, or not, and left the rest for later
            self._run_pending()

    def _call(self, entity: Entity, name: str) -> bool:
        """Run the callback `name` for `entity`; False if nobody handles it."""
        listener = entity._listener_for(name)
        if listener is None:
            return False
        try:
            getter = CALLBACKS[name][1]
            if getter:
                getattr(listener, name)(entity, getattr(entity, getter)())
            else:
                getattr(listener, name)(entity)
        except Exception:
            import logging

            logging.getLogger("dds").exception("%s of %r failed for %r", name, listener, entity)
        return True


__all__ = ["Listener"]
