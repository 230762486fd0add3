"""The thread on which the callbacks of a participant's listeners run.

Why a thread of its own: a callback that runs on the protocol's thread, or under a lock, can stop the node, deadlock
with the interpreter, or meet an entity that isn't finished. Here a callback may do anything: write, take, create and
close entities, also its own, or be slow, which delays other callbacks of the same participant and nobody else.

How much can wait: at most one call per entity and kind. Statuses add up until the call reads them; on_data_available
is called again while the last call took something and unread samples are left. So the queue can't grow, and nothing is
lost by being slow.

Rules: data goes to on_data_on_readers of the subscriber or participant first, if there is one, else to
on_data_available. An exception in a callback is logged with its traceback (logger "dds"), and the next callback runs.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from dds.exceptions import DDSException
from dds.listener import CALLBACKS
from dds.waiting.wake import Hub, Waker, start, wait_readable

if TYPE_CHECKING:
    from dds.contracts import AnEntity, AReader


class _Watched:
    """A reader whose data the dispatcher announces."""

    __slots__ = ("head", "reader")

    def __init__(self, reader: AReader) -> None:
        self.reader = weakref.ref(reader)
        self.head = (-1, -1, -1)  # AReader._head() when the listener was last called


class Dispatcher:
    """The listener thread of one participant. It starts with the first callback that may come.

    Holds no entity alive, except the one whose callback runs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # reentrant: a finalizer may run while we hold it
        self._waker = Waker()
        self._pending: dict[tuple[int, str], weakref.ref[AnEntity]] = {}
        self._watched: dict[int, _Watched] = {}
        self._thread: threading.Thread | None = None
        self._stopping = False

    def post(self, entity: AnEntity, name: str) -> None:
        """Call `name` for `entity` soon, if somebody listens. One call for all posts that wait. Where no more threads
        may run, it waits for the next post that can start one: what has happened goes on for everybody else."""
        with self._lock:
            if self._stopping:
                return
            self._pending[entity._ref, name] = weakref.ref(entity)
            try:
                self._start()
            except DDSException as error:
                import logging

                logging.getLogger("dds").error("%s of %r can't be called yet: %s", name, entity, error)
                return
        self._waker.ring()

    def watch(self, reader: AReader) -> None:
        """Announce the data of `reader` from now on. DDSException where no more threads may run."""
        with self._lock:
            if self._stopping or reader._ref in self._watched:
                return
            self._start()
            self._watched[reader._ref] = _Watched(reader)
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
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            start(thread, "a listener")
            self._thread = thread

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
            reader._source.clear(self._waker)

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
        """Announce what has come for one reader, and ask for a ring; returns its descriptor, -1 if nothing
        will ring it."""
        reader = watched.reader()
        if reader is None or not reader._open:
            return -1
        try:
            bell = reader._source.bell
            fd = -1 if bell is None else bell.fileno()
            reader._source.arm()
            head = reader._head()
        except (DDSException, ValueError):
            return -1  # closed meanwhile
        if head != watched.head:
            watched.head = head
            try:
                self._announce(reader, watched)
            except Exception:  # closed meanwhile, or its node is gone; nothing may end this thread
                if reader._open:
                    import logging

                    logging.getLogger("dds").exception("the listener of %r can't be called", reader)
        return fd if reader._open and reader._source.bell is bell else -1

    def _announce(self, reader: AReader, watched: _Watched) -> None:
        reader._look_at_statuses()
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
                return  # the callback took nothing: it is called again when more comes
            self._run_pending()

    def _call(self, entity: AnEntity, name: str) -> bool:
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
        except BaseException:  # also sys.exit(): all other callbacks of the participant are called here
            import logging

            logging.getLogger("dds").exception("%s of %r failed for %r", name, listener, entity)
        return True
