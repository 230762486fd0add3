"""A link to one node, as its program has it.

Over it a program reads and changes regions that programs of that node offer, and sends messages to ports that they
listen at. The program's own node makes and checks everything; what it does after a link is open goes through memory
that both share, without a system call while both are awake.

Rules: a link is for one thread at a time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

from spindle.errors import AccessDenied, ConfigError, ConnectionEnded, LinkError, SpindleError, shortage
from spindle.links.duplexes import SPIN_S as CALL_SPIN_S
from spindle.links.duplexes import Duplexes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spindle.client.session import Session
    from spindle_core.links.duplex import Duplex
    from spindle_core.links.user import LinkUser
    from spindle_core.memory import Mapping

MESSAGE_MAX = (16 << 10) - 8  # bytes of a message
TIMEOUT_S = 5.0
SIZE_MAX = (1 << 64) - 1  # of a number on its way; the node knows how much a program may have
# How long a program looks for the completion of a request on memory before it sleeps. For messages that go through the
# pools it doesn't: whoever has to act on them needs the processor more.
SPIN_S = 50e-6
FIND_SPIN_S = 200e-6  # the same for a region, which the node has to look up and to map; seldom, where it was in vain
FIND_SKIPPED_MAX = 63  # finds without such a look between two with it, at most
READ, WRITE, ATOMIC = 1, 2, 4  # rights (regions.pxd)
LOOK_S = 0.001  # a program that was called so shortly before is taken to be there: to ask costs a system call
LISTENS_S = 1.0  # without an answer, until a caller asks whether anybody listens there still
LAST_S = 0.01  # for what is still on its way when a link is closed
IDLE_MAX = 32  # links of a session that are kept for the next ones
REGIONS_MAX = 64  # of a link
NAME_MAX = 64  # bytes of a region's name
HEAD = struct.Struct("<Q")  # of each message: 0, or the number of a call; an answer has the number of its call
_FOUND = struct.Struct("<QQ")  # size and rights of a region that was found
FAILED = {
    "cut": "the connection to node {node} ended in the middle: it may have happened, or not",
    "ended": "the region has ended, or its lease could not be renewed",
    "range": "it goes past the end of the region, or is not aligned",
    "refused": "this node may not do that",
    "after": "a request before it failed",
    "nobody": "nobody is there",
}


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
        self._session, self.id, self.buffer = session, reply.link.link, reply.link.buffer
        self.closed = False
        try:
            with taken(frame, 6) as fds:
                user_page, pool_page = Mapping.attach(fds.take(), writable=True), Mapping.attach(fds.take())
                bell = Mapping.attach(fds.take())
                self.user: LinkUser = LinkUser(user_page, pool_page, bell, fds.take(), end_of(fds.take()))
                self.memory: Mapping = Mapping.attach(fds.take(), writable=True)
        except OSError as error:
            self._give_back()
            raise shortage(error, "a link") or error from error
        self.view = self.memory.view()
        self.skipped = self.to_skip = 0  # finds without a look before the sleep: since the last one, until the next one
        self.cookie = 0  # of the last request; goes on with the next user, so nothing late is taken for another
        self.regions: dict[tuple[str, bool], tuple[int, int, int]] = {}  # by name and change: handle, size, rights
        self.duplexes = Duplexes(session, self.id)
        session._channel.add_port(-self.id, self.user)  # whoever waits hears of the node's end

    def _give_back(self) -> None:
        from spindle.proto import attach_pb2 as pb

        if not self._session._channel.ended:
            self._session._channel.request(close_link=pb.CloseLink(link=self.id))

    def close(self) -> None:
        """Idempotent."""
        if not self.closed:
            self.closed = True
            self._session._channel.remove_port(-self.id)
            self.duplexes.close()
            try:
                self._give_back()
            finally:
                self.user.close()

    @property
    def is_idle(self) -> bool:
        """Nothing of it is on its way, and it may be used again."""
        if self.closed or self._session._channel.ended or self.user.broken:
            return False
        self.user.take()
        self.user.messages()
        return not self.user.pending

    def check(self) -> None:
        """Raises what keeps it from being used."""
        if self.closed:
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


class Region:
    """A region of a link's node, reached through that link. `size` in bytes; `rights`: READ, WRITE, ATOMIC.

    What an earlier user of the same place has opened is used again. It may have ended since, and another region have
    its name: then the first request finds that one.
    """

    def __init__(self, link: Link, name: str, change: bool, found: tuple[int, int, int], sure: bool) -> None:
        self.link, self.name = link, name
        self.handle, self.size, self.rights = found
        self._change, self._sure = change, sure

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the region, at most the link's memory. An aligned word of 8 is whole, more may be half changed.
        Raises LinkError."""
        link = self.link
        cookie = link.begin(self, offset, length)
        link.user.read(self.handle, offset, length, link.buffer, cookie=cookie)
        try:
            link.carry_out(self)
        except LinkError as error:
            self._find_anew(error)
            return self.read(offset, length)
        self._sure = True
        return bytes(link.view[:length])

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Returns when they are there. Raises LinkError."""
        link = self.link
        size = len(data)
        cookie = link.begin(self, offset, size)
        link.view[:size] = data
        link.user.write(self.handle, offset, size, link.buffer, cookie=cookie)
        try:
            link.carry_out(self)
        except LinkError as error:
            self._find_anew(error)
            self.write(offset, data)
        self._sure = True

    def compare_swap(self, offset: int, expected: int, desired: int) -> int:
        """The word of 8 bytes at `offset` becomes `desired` if it is `expected`, both modulo 2**64; returns what it
        was. Raises LinkError."""
        link = self.link
        cookie = link.begin(self, offset)
        link.user.compare_swap(self.handle, offset, expected % (1 << 64), desired % (1 << 64), cookie=cookie)
        try:
            found = link.carry_out(self)
        except LinkError as error:
            self._find_anew(error)
            return self.compare_swap(offset, expected, desired)
        self._sure = True
        return found

    def fetch_add(self, offset: int, value: int) -> int:
        """The word grows by `value`, modulo 2**64; returns what it was. Raises LinkError."""
        link = self.link
        cookie = link.begin(self, offset)
        link.user.fetch_add(self.handle, offset, value % (1 << 64), cookie=cookie)
        try:
            found = link.carry_out(self)
        except LinkError as error:
            self._find_anew(error)
            return self.fetch_add(offset, value)
        self._sure = True
        return found

    def _find_anew(self, error: LinkError) -> None:
        """After a request that has failed: raises why, unless the region was opened by somebody else and has ended.
        Then the request has not happened, and goes to the one that has the name now."""
        if self._sure or error.status != "ended":
            raise error
        self.link.forget(self.name, self._change, self.handle)
        fresh = self.link.region(self.name, change=self._change)
        self.handle, self.size, self.rights, self._sure = fresh.handle, fresh.size, fresh.rights, True

    def close(self) -> None:
        """The program needs it no more. Raises LinkError."""
        self.link.forget(self.name, self._change, self.handle)


def _failed(region: Region | None, status: str, node_id: int, why: str = "") -> LinkError:
    what = f"region {region.name!r}" if region is not None else "a message"
    return LinkError(f"{what} of node {node_id}: {FAILED.get(status, why).format(node=node_id)}", status)


def _numbers() -> Iterator[int]:
    """Numbers of calls: nobody but who was called can know one, so nobody else can answer, and no link that another
    program has in another life of a node takes an answer for its own."""
    while True:
        yield from (number for number in struct.unpack("<64Q", os.urandom(512)) if number)


class Link:
    """A link to one node; `Links.open()` makes it. `user`, `buffer` and `view` are for programs that hand over lists of
    requests themselves (spindle_core.links.user): the end of the link, the handle of its memory, and that memory."""

    def __init__(self, session: Session, end: LinkEnd, node_id: int, timeout_s: float, idle: Idle | None, memory: int
                 ) -> None:
        self._session, self._end = session, end
        self.node_id, self.timeout_s = node_id, timeout_s
        self._idle, self._memory = idle, memory
        self.user, self.buffer, self.view, self.id = end.user, end.buffer, end.view, end.id
        self._closed = False
        self._others = set(end.regions)  # opened by earlier users of this end
        self._calls = _numbers()
        self._pending = False  # the last request may use the link's memory
        self._calling = 0  # the call that is waited for
        self._answer: bytes | None = None
        self._put_until_s = 0.0  # of the last message that went straight

    def region(self, name: str, *, change: bool = False) -> Region:
        """A region of that node by name; with `change` also to write it or to change its words.

        Raises ConnectionEnded where the node offers none of that name, ConfigError where it can't be changed,
        AccessDenied.
        """
        self._check()
        known = self._end.regions.get((name, change))
        if known is None:
            if len(self._end.regions) >= REGIONS_MAX and self._others:
                earlier = self._others.pop()
                self.forget(*earlier, self._end.regions[earlier][0])
            known = self._end.regions[name, change] = self._find(name, change)
            return Region(self, name, change, known, sure=True)
        self._others.discard((name, change))
        return Region(self, name, change, known, sure=False)

    def _find(self, name: str, change: bool) -> tuple[int, int, int]:
        from spindle_core.links.user import WRONG

        raw = name.encode()
        if not 1 <= len(raw) <= NAME_MAX:
            raise ConfigError(f"a region's name of {len(raw)} bytes: must have between 1 and {NAME_MAX}")
        cookie = self.begin()
        self.view[: len(raw)] = raw
        self._pending = True
        self.user.find(len(raw), self.buffer, change=change, cookie=cookie)
        try:
            handle = self._found()
        except LinkError as error:
            whose = f"region {name!r} of node {self.node_id}"
            if error.status == "nobody":
                raise ConnectionEnded(f"node {self.node_id} offers no region {name!r}") from None
            if error.status == "refused":
                raise ConfigError(f"{whose} is open to reads only, for node {self._session.node_id}") from None
            if error.status == "wrong" and WRONG[errno.EPERM] in str(error):
                raise AccessDenied(f"no access rule lets this program {'change' if change else 'read'} {whose}: add "
                                   f"{name!r} to {'publish and subscribe' if change else 'subscribe'} of a rule in "
                                   "[access] rules of the node's configuration") from None
            raise
        return handle, *_FOUND.unpack_from(self.view)

    def _found(self) -> int:
        """The handle of a region that was asked for, once it is there. To look for long keeps the node from a core that
        it may need, so it is done seldom where it was in vain (spins.pxd)."""
        end, before_s = self._end, time.monotonic()
        if end.skipped < end.to_skip:
            end.skipped += 1
            return self._completed(None, before_s + self.timeout_s)
        handle = self._completed(None, before_s + self.timeout_s, FIND_SPIN_S)
        in_vain = time.monotonic() - before_s > FIND_SPIN_S
        end.skipped, end.to_skip = 0, min(2 * end.to_skip + 1, FIND_SKIPPED_MAX) if in_vain else 0
        return handle

    def forget(self, name: str, change: bool, handle: int) -> None:
        """Closes a region of this link. Raises LinkError."""
        self._check()
        if self._end.regions.pop((name, change), None) is not None:
            cookie = self.begin()
            self._pending = True
            self.user.forget(handle, cookie=cookie)
            self._completed(None, time.monotonic() + self.timeout_s)

    def _check(self) -> None:
        if self._closed:
            raise LinkError("this link is closed", "cut")
        self._end.check()

    def begin(self, region: Region | None = None, offset: int = 0, length: int = 0) -> int:
        """Before a request: its cookie. What nobody waits for any more may still use the link's memory: that is waited
        for, since it would carry out what it finds there then. Raises LinkError, NodeStopped, TimeoutError."""
        self._settle()
        if region is not None and not 0 <= length <= len(self.view):
            raise LinkError(f"region {region.name!r} of node {self.node_id}: {length} bytes at {offset} in a request; "
                            f"there may be from 0 to {len(self.view)}, the link's memory (open it with more)", "wrong")
        if region is not None and not 0 <= offset <= SIZE_MAX:  # no number that a request has: as the node says it
            from spindle_core.links.user import WRONG

            raise _failed(region, "wrong", self.node_id, WRONG[errno.ERANGE])
        self._end.cookie += 1
        return self._end.cookie

    def _settle(self) -> None:
        """What was given up is not on its way any more. Raises LinkError, NodeStopped, TimeoutError."""
        self._check()
        self.user.drop()
        if self._pending:
            with contextlib.suppress(LinkError):  # of that one
                self._completed(None, time.monotonic() + self.timeout_s)
            self._check()

    def carry_out(self, region: Region | None = None) -> int:
        """Submits what was added last; returns what an atomic found, once it is done. LinkError, TimeoutError."""
        self._pending = True
        self.user.submit()
        return self._completed(region, time.monotonic() + self.timeout_s, SPIN_S if region is not None else 0.0)

    def _completed(self, region: Region | None, until_s: float, spin_s: float = 0.0) -> int:
        while True:
            if (value := self._taken(region)) is not None:
                return value
            if not self.user.wait(max(0.0, until_s - time.monotonic()), spin_s) and time.monotonic() >= until_s:
                raise TimeoutError(f"node {self.node_id} has not answered within {self.timeout_s:g} s")
            self._check()
            self._keep_messages()

    def _taken(self, region: Region | None) -> int | None:
        """What the last request has completed with, if it has. Raises LinkError."""
        for cookie, status, value in self.user.take():
            if cookie != self._end.cookie:
                continue  # of one that nobody waits for any more
            self._pending = False
            if status == "done":
                return int(value)
            raise _failed(region, status, self.node_id, str(value))
        return None

    def send(self, data: bytes, port: int = 0, *, to: int = 0, call: int = 0) -> None:
        """A message to a port of the node, or to the link `to` there; returns when the receiver has room for it and it
        lies there. Raises LinkError ("nobody" where nobody listens), TimeoutError where the receiver takes nothing."""
        until_s = time.monotonic() + self.timeout_s
        if port and not to and self._put(port, data, call, until_s) is not None:
            return
        self._submit_message(data, port, to, call)
        self._completed(None, until_s)

    def _submit_message(self, data: bytes, port: int, to: int, call: int) -> None:
        size = len(data) + HEAD.size
        if len(data) > MESSAGE_MAX:
            raise ConfigError(f"a message of {len(data)} bytes: {MESSAGE_MAX} are the limit")
        if size > len(self.view):
            raise ConfigError(f"a message of {len(data)} bytes doesn't fit the link's memory of {len(self.view)}")
        cookie = self.begin()
        self.view[: HEAD.size] = HEAD.pack(call)
        self.view[HEAD.size : size] = data
        self._pending = True
        self.user.send(size, self.buffer, port=port, to=to, cookie=cookie)

    def _put(self, port: int, data: bytes, call: int, until_s: float) -> Duplex | None:
        """Puts a message straight into the memory of whoever listens at that port of this host; returns what it went
        through, None where there is no such way. Raises TimeoutError where the receiver takes nothing."""
        self._settle()
        duplex = self._end.duplexes.to(port, self.timeout_s)
        if duplex is None or len(data) > MESSAGE_MAX:
            return None
        again = call and 0 <= until_s - self._put_until_s < LOOK_S
        self._put_until_s = until_s
        if not again and not duplex.look():  # it goes to who listens now
            return None
        while not duplex.put(call, data):
            self._check()
            if duplex.over:
                self._end.duplexes.drop(port)
                return None
            if (left_s := until_s - time.monotonic()) <= 0:
                raise TimeoutError(f"node {self.node_id} has not answered within {self.timeout_s:g} s: who listens at "
                                   f"port {port} takes nothing")
            if duplex.take() is None:  # an answer that nobody waits for any more
                duplex.wait(left_s, 0.0, len(data))
        return duplex

    def call(self, port: int, data: bytes) -> bytes:
        """A message to a port, and the answer to it. Raises LinkError, TimeoutError."""
        until_s = time.monotonic() + self.timeout_s
        self._calling, self._answer = next(self._calls), None
        if (duplex := self._put(port, data, self._calling, until_s)) is not None:
            return self._answered(duplex, port, until_s)
        self._submit_message(data, port, 0, self._calling)
        asked = False  # whether anybody listens there still
        while True:  # one wait for both: that it was taken, and the answer
            try:
                self._taken(None)
            except LinkError as error:
                raise self._gone(port) if asked and error.status == "nobody" else error from None
            self._keep_messages()
            if self._answer is not None:
                return self._answer
            left_s = until_s - time.monotonic()
            if not self.user.wait(max(0.0, min(left_s, LISTENS_S))):
                if time.monotonic() >= until_s:
                    raise self._unanswered(port)
                if not self._pending:
                    self._ask_who_listens(port)
                    asked = True
            self._check()

    def _ask_who_listens(self, port: int) -> None:
        """By a message that is none, which no port keeps."""
        cookie = self.begin()
        self._pending = True
        self.user.send(1, self.buffer, port=port, cookie=cookie)

    def _answered(self, duplex: Duplex, port: int, until_s: float) -> bytes:
        while True:
            while (came := duplex.take()) is not None:
                if came[0] == self._calling:
                    return came[1]
                if time.monotonic() >= until_s:  # whatever else it says all the time
                    raise self._unanswered(port)
            if duplex.over:
                self._end.duplexes.drop(port)
                raise self._gone(port)
            if not duplex.wait(max(0.0, until_s - time.monotonic()), CALL_SPIN_S) and time.monotonic() >= until_s:
                raise self._unanswered(port)
            self._check()

    def _gone(self, port: int) -> LinkError:
        return LinkError(f"who listened at port {port} of node {self.node_id} has gone in the middle: it may have got "
                         "the message, or not", "cut")

    def _unanswered(self, port: int) -> TimeoutError:
        return TimeoutError(f"port {port} of node {self.node_id} has not answered within {self.timeout_s:g} s")

    def _keep_messages(self) -> None:
        """Of all that comes only the answer that is waited for: what others send is theirs to keep."""
        for _, _, data in self.user.messages():
            if len(data) >= HEAD.size and HEAD.unpack_from(data)[0] == self._calling != 0:
                self._answer = data[HEAD.size :]

    def close(self) -> None:
        """The next link to that node may have its place. Idempotent."""
        if not self._closed:
            if self._pending:
                with contextlib.suppress(SpindleError, TimeoutError):  # a call's message, of which only the answer came
                    self._completed(None, time.monotonic() + LAST_S)
            self._closed = True
            if self._idle is None or not self._idle.put(self.node_id, self._memory, self._end):
                self._end.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
