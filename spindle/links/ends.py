"""A program's ends of links, and those that nobody uses now: the next link to the same node has them.

Rules: what a node has made for an end is its program's until the end is closed, whichever links use it meanwhile.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from spindle.errors import ConfigError, LinkError, shortage
from spindle.links.duplexes import Duplexes

if TYPE_CHECKING:
    from spindle.client.session import Session
    from spindle_core.links.user import LinkUser
    from spindle_core.memory import Mapping

IDLE_MAX = 32  # links of a session that are kept for the next ones


def check_host(session: Session) -> None:
    """Raises ConfigError for a session with a node of another host."""
    if not session.beside_node:
        raise ConfigError("links need a node on the program's own host: run `spindle daemon` there")


class LinkEnd:
    """The program's end of one link, bound or not."""

    def __init__(self, session: Session, wanted: dict[str, Any]) -> None:
        from spindle.client.session import taken
        from spindle.proto import attach_pb2 as pb
        from spindle_core.ends import end_of
        from spindle_core.links.user import LinkUser
        from spindle_core.memory import Mapping

        check_host(session)
        reply, frame = session._channel.request(open_link=pb.OpenLink(**wanted))
        try:
            self._session, self.id, self.buffer = session, reply.link.link, reply.link.buffer
            self.closed = self.stopped = False
            try:
                with taken(frame, 6) as fds:
                    user_page, pool_page = Mapping.attach(fds.take(), writable=True), Mapping.attach(fds.take())
                    bell = Mapping.attach(fds.take())
                    self.user: LinkUser = LinkUser(user_page, pool_page, bell, fds.take(), end_of(fds.take()))
                    self.memory: Mapping = Mapping.attach(fds.take(), writable=True)
            except OSError as error:
                raise shortage(error, "a link") or error from error
            self._prepare()
        except BaseException:  # also what a signal's handler raises
            self.closed = True
            session._channel.post_close_link(reply.link.link)
            raise

    def _prepare(self) -> None:
        self.view = self.memory.view()
        self.skipped = self.to_skip = 0  # finds without a look before the sleep: since the last one, until the next one
        self.cookie = 0  # of the last request; goes on with the next user, so nothing late is taken for another
        self.regions: dict[tuple[str, bool], tuple[int, int, int]] = {}  # by name and change: handle, size, rights
        self.duplexes = Duplexes(self._session, self.id)
        self._session._channel.add_port(-self.id, self.user)  # whoever waits hears of the node's end

    def __del__(self) -> None:
        """Whoever had it has forgotten it, or was interrupted before he had it, or in closing it."""
        if not sys.is_finalizing() and not getattr(self, "closed", True) and not self._session._channel.ended:
            self.closed = True
            self._session._channel.remove_port(-self.id)
            self._session._channel.post_close_link(self.id)

    def stop(self) -> None:
        """Nobody uses it any more: who waits with it on another thread wakes up and raises LinkError."""
        self.stopped = True
        self.user.mark_gone()
        self.duplexes.mark_gone()

    def close(self) -> None:
        """Idempotent."""
        from spindle.proto import attach_pb2 as pb

        if self.closed:
            return
        self._session._channel.remove_port(-self.id)
        self.duplexes.close()
        try:
            if not self._session._channel.ended:
                self._session._channel.request(close_link=pb.CloseLink(link=self.id))
            self.closed = True
        finally:
            if not self._session._channel.ended and not self.closed:
                self._session._channel.post_close_link(self.id)
            self.closed = True
            self.user.close()

    @property
    def is_idle(self) -> bool:
        """Nothing of it is on its way, and it may be used again."""
        if self.closed or self.stopped or self._session._channel.ended or self.user.broken:
            return False
        self.user.take()
        self.user.messages()
        return not self.user.pending

    def check_forked(self) -> None:
        """Raises SpindleError in a child of the program, where another thread may have its turn for ever."""
        if self._session._channel._forked:
            self._session._channel.check()

    def check(self) -> None:
        """Raises what keeps it from being used."""
        if self.closed or self.stopped:
            raise LinkError("this link is closed", "cut")
        self._session._channel.check()
        if why := self.user.broken:
            raise LinkError(f"this link is over: {why}", "cut")


class Idle:
    """Ends of a session that nobody uses now, by node: the next link to that node takes one of them, with the regions
    that it has open, and nobody is asked."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], list[LinkEnd]] = {}
        self._lock = threading.Lock()

    def take(self, node_id: int, memory: int) -> LinkEnd | None:
        """One that leads there, with memory of that size."""
        while True:
            with self._lock:
                ends = self._ends.get((node_id, memory))
                if not ends:
                    return None
                end = ends.pop()
            if end.is_idle:
                return end
            end.close()  # it asks the node: nobody else waits for that

    def give_up(self) -> bool:
        """Closes all of them; whether there were any."""
        with self._lock:
            ends = [end for some in self._ends.values() for end in some]
            self._ends.clear()
        for end in ends:
            end.close()
        return bool(ends)

    def put(self, node_id: int, memory: int, end: LinkEnd) -> bool:
        """Keeps it; False where enough are kept, or something of it is still on its way."""
        with self._lock:
            if sum(map(len, self._ends.values())) >= IDLE_MAX or not end.is_idle:
                return False
            self._ends.setdefault((node_id, memory), []).append(end)
            return True
