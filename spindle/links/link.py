"""A link to one node, as its program has it.

Over it a program reads and changes regions that programs of that node offer, and sends messages to ports that they
listen at. The program's own node makes and checks everything; what it does after a link is open goes through memory
that both share, without a system call while both are awake.

Rules: one thread at a time uses a link; others wait for their turn. Who is interrupted in the middle, as by a signal's
handler that raises, may go on with the link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
from typing import TYPE_CHECKING

from spindle.errors import AccessDenied, ConfigError, ConnectionEnded, LinkError, SpindleError, give_way
from spindle.links.duplexes import SPIN_S as CALL_SPIN_S

if TYPE_CHECKING:
    from spindle.client.session import Session
    from spindle.links.ends import Idle, LinkEnd
    from spindle_core.links.duplex import Duplex

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
REGIONS_MAX = 64  # of a link
PORTS_MAX = 65535
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


def check_port(port: int) -> None:
    """Raises ConfigError for a number that no port has; 0: none is named."""
    if not 0 <= port <= PORTS_MAX:
        raise ConfigError(f"port {port}: must be between 1 and {PORTS_MAX}")


def checked_name(name: str) -> bytes:
    """Of a region. Raises ConfigError for one that none can have."""
    try:
        raw = name.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"a region's name {name!r}: is no text ({error.reason})") from None
    if not 1 <= len(raw) <= NAME_MAX:
        raise ConfigError(f"a name of {len(raw)} bytes: must have between 1 and {NAME_MAX}")
    return raw


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
        with link.turn():
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
        """Returns when they are there. Raises LinkError; TypeError for what is no contiguous bytes."""
        link = self.link
        raw = memoryview(data).cast("B")  # of other items, too
        with link.turn():
            cookie = link.begin(self, offset, len(raw))
            link.view[: len(raw)] = raw
            link.user.write(self.handle, offset, len(raw), link.buffer, cookie=cookie)
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
        with link.turn():
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
        with link.turn():
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


def _failed(region: Region | str | None, status: str, node_id: int, why: str = "") -> LinkError:
    name = region.name if isinstance(region, Region) else region
    what = "a message" if name is None else f"region {name!r}"
    return LinkError(f"{what} of node {node_id}: {FAILED.get(status, why).format(node=node_id)}", status)


class _Numbers:
    """Numbers of calls: nobody but who was called can know one, so nobody else can answer, and no link that another
    program has in another life of a node takes an answer for its own. (No generator: an exception in it, as of a signal
    handler, would be its end.)"""

    def __init__(self) -> None:
        self._left: list[int] = []

    def next(self) -> int:
        while not self._left:
            self._left = [number for number in struct.unpack("<64Q", os.urandom(512)) if number]
        return self._left.pop()


class Link:
    """A link to one node; `Links.open()` makes it. `user`, `buffer` and `view` are for programs that hand over lists of
    requests themselves (spindle_core.links.user): the end of the link, the handle of its memory, and that memory."""

    def __init__(self, session: Session, end: LinkEnd, node_id: int, timeout_s: float, idle: Idle | None, memory: int
                 ) -> None:
        self._session, self._end = session, end
        self.node_id, self.timeout_s = node_id, timeout_s
        self._idle, self._memory = idle, memory
        self.user, self.buffer, self.view, self.id = end.user, end.buffer, end.view, end.id
        self._turn = threading.RLock()  # of whoever uses it
        self._closed = False
        self._others = set(end.regions)  # opened by earlier users of this end
        self._calls = _Numbers()
        self._calling = 0  # the call that is waited for
        self._answer: bytes | None = None
        self._put_until_s = 0.0  # of the last message that went straight

    def region(self, name: str, *, change: bool = False) -> Region:
        """A region of that node by name; with `change` also to write it or to change its words.

        Raises ConnectionEnded where the node offers none of that name, ConfigError where it can't be changed,
        AccessDenied.
        """
        with self.turn():
            self._check()
            known = self._end.regions.get((name, change))
            if known is None:
                if len(self._end.regions) >= REGIONS_MAX and self._others:
                    self._forget_another()
                known = self._end.regions[name, change] = self._found_or_given_way(name, change)
                return Region(self, name, change, known, sure=True)
            self._others.discard((name, change))
            return Region(self, name, change, known, sure=False)

    def _forget_another(self) -> None:
        """One that an earlier user of this end has opened."""
        earlier = self._others.pop()
        self.forget(*earlier, self._end.regions[earlier][0])

    def _found_or_given_way(self, name: str, change: bool) -> tuple[int, int, int]:
        """What is kept for later, of links that are closed, gives way where it takes the last place."""
        from spindle_core.links.user import WRONG

        while True:
            try:
                return self._find(name, change)
            except LinkError as error:
                if WRONG[errno.ENOSPC] not in str(error):
                    raise
                if self._others:
                    self._forget_another()
                elif self._session.idle_links is None or not self._session.idle_links.give_up():
                    raise

    def _find(self, name: str, change: bool) -> tuple[int, int, int]:
        from spindle_core.links.user import WRONG

        raw = checked_name(name)
        cookie = self.begin()
        self.view[: len(raw)] = raw
        self.user.expect(cookie)
        self.user.find(len(raw), self.buffer, change=change, cookie=cookie)
        try:
            handle = self._found(name)
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

    def _found(self, name: str) -> int:
        """The handle of a region that was asked for, once it is there. To look for long keeps the node from a core that
        it may need, so it is done seldom where it was in vain (spins.pxd)."""
        end, before_s = self._end, time.monotonic()
        if end.skipped < end.to_skip:
            end.skipped += 1
            return self._completed(name, before_s + self.timeout_s)
        handle = self._completed(name, before_s + self.timeout_s, FIND_SPIN_S)
        in_vain = time.monotonic() - before_s > FIND_SPIN_S
        end.skipped, end.to_skip = 0, min(2 * end.to_skip + 1, FIND_SKIPPED_MAX) if in_vain else 0
        return handle

    def forget(self, name: str, change: bool, handle: int) -> None:
        """Closes a region of this link. Raises LinkError."""
        with self.turn():
            self._check()
            if self._end.regions.pop((name, change), None) is not None:
                cookie = self.begin()
                self.user.expect(cookie)
                self.user.forget(handle, cookie=cookie)
                self._completed(name, time.monotonic() + self.timeout_s)

    def turn(self) -> threading.RLock:
        """What one thread at a time has. Raises what keeps the link from being used: LinkError, NodeStopped."""
        self._check()
        return self._turn

    @property
    def _pending(self) -> bool:
        """The last request may use the link's memory yet."""
        return self.user.on_way

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
        self.user.expect(self._end.cookie)
        self.user.submit()
        return self._completed(region, time.monotonic() + self.timeout_s, SPIN_S if region is not None else 0.0)

    def _completed(self, region: Region | str | None, until_s: float, spin_s: float = 0.0) -> int:
        while True:
            if (value := self._taken(region)) is not None:
                return value
            if not self.user.wait(max(0.0, until_s - time.monotonic()), spin_s) and time.monotonic() >= until_s:
                raise TimeoutError(f"node {self.node_id} has not answered within {self.timeout_s:g} s")
            self._check()
            self._keep_messages()

    def _taken(self, region: Region | str | None) -> int | None:
        """What the last request has completed with, if it has. Raises LinkError."""
        self.user.take()
        if (outcome := self.user.outcome) is None:
            return None
        status, value = outcome
        if status == "done":
            return int(value)
        raise _failed(region, status, self.node_id, str(value))

    def send(self, data: bytes, port: int = 0, *, to: int = 0, call: int = 0) -> None:
        """A message to a port of the node, or to the link `to` there; returns when the receiver has room for it and it
        lies there. Raises LinkError ("nobody" where nobody listens), TimeoutError where the receiver takes nothing."""
        check_port(port)
        with self.turn():
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
        self.user.expect(cookie)
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
        check_port(port)
        with self.turn():
            until_s = time.monotonic() + self.timeout_s
            self._calling, self._answer = self._calls.next(), None
            if (duplex := self._put(port, data, self._calling, until_s)) is not None:
                return self._answered(duplex, port, until_s)
            return self._called(data, port, until_s)

    def _called(self, data: bytes, port: int, until_s: float) -> bytes:
        """Through the pools."""
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
        self.user.expect(cookie)
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
        """The next link to that node may have its place. Who waits with it on another thread raises LinkError.
        Idempotent."""
        if self._session._channel.ended:  # in a child of the program another thread has its turn for ever
            self._close()
            return
        if not self._turn.acquire(blocking=False):
            self._end.stop()
            self._turn.acquire()
        try:
            self._close()
        finally:
            self._turn.release()

    def _close(self) -> None:
        if self._closed:
            return
        if self._pending:  # a call's message, of which only the answer came
            try:
                self._completed(None, time.monotonic() + LAST_S)
            except (SpindleError, TimeoutError) as error:
                give_way(error)
        self._closed = True
        if self._idle is None or not self._idle.put(self.node_id, self._memory, self._end):
            self._end.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
