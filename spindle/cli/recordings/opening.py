"""Opens readers of topics beside the thread that reads.

Why: a logged topic may wait for nodes that are away, or for room on a disk, for as long as a node asks its group. Who
reads many topics must not stand still for one of them.

Rules: each reader is opened on a thread of its own, one of a topic at a time. What became of it is taken by the thread
that has begun it; a reader that nobody takes any more is closed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from spindle.errors import SpindleError
from spindle.locks import Condition

if TYPE_CHECKING:
    from spindle.client import ReaderHandle, Session


@dataclasses.dataclass
class Opened:
    """What became of it: a reader, or an error. `track` is the caller's."""

    name: str
    session: Session
    track: Any
    handle: ReaderHandle | None = None
    error: Exception | None = None

    def close(self) -> None:
        if self.handle is not None:
            with contextlib.suppress(SpindleError, OSError):
                self.handle.close()


class Opening:
    """`done()` is called on any thread when there is something to take()."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._lock = Condition()
        self._ready: list[Opened] = []
        self._names: dict[str, Session] = {}  # that are being opened, or have not been taken
        self._over = False

    def begin(self, name: str, session: Session, track: Any, opens: Callable[[], ReaderHandle]) -> None:
        """Unless this topic is being opened at this session. Of an earlier session's nothing counts any more."""
        with self._lock:
            if self._over or self._names.get(name) is session:
                return
            self._names[name] = session
        threading.Thread(target=self._run, args=(Opened(name, session, track), opens), name=f"opens {name}",
                         daemon=True).start()

    def _run(self, one: Opened, opens: Callable[[], ReaderHandle]) -> None:
        try:
            one.handle = opens()
        except Exception as error:  # raised where it is taken
            one.error = error
        with self._lock:
            if not self._over:
                self._ready.append(one)
                self._lock.notify_all()
                self._done()
                return
        one.close()

    def settle(self, but: Container[str], timeout_s: float) -> None:
        """Wait until nothing is being opened, but for these topics."""
        with self._lock:
            self._lock.wait_for(lambda: all(name in but or any(one.name == name for one in self._ready)
                                            for name in self._names), timeout_s)

    def names(self) -> list[str]:
        """Topics that are being opened, or whose outcome has not been taken."""
        with self._lock:
            return sorted(self._names)

    def take(self, session: Session) -> list[Opened]:
        """What has been opened at this session, or could not be."""
        with self._lock:
            ready, self._ready = self._ready, []
            found = [one for one in ready if one.session is session]
            for one in found:
                self._names.pop(one.name, None)
        for one in ready:
            if one.session is not session:
                one.close()
        return found

    def close(self) -> None:
        """Of what is being opened nothing is taken any more. Idempotent."""
        with self._lock:
            self._over = True
            ready, self._ready = self._ready, []
        for one in ready:
            one.close()


__all__ = ["Opened", "Opening"]
