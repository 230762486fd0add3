"""The calls of one client: which server each goes to, and what becomes of it. No thread, no clock, no topic.

The caller of this module writes what it says is to be sent, tells it what came, who came and who went, and the time;
it gets back what is settled. One thing at a time: the client holds a lock.

Rules: a call goes to one server, the one of those there that has the fewest calls of this client; of an ordered service
to all. It is settled exactly once: by a reply of the server that has it, by that server's end, by its deadline, or by
what makes it uncertain whether a reply can still come. Only a server that says that it has not carried a call out (its
queue is full) is followed by another one: a call is never carried out twice.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable

from dds.rpc.errors import CallTimeout, NoServer, OutcomeUnknown, RpcError, ServerBusy, ServerGone, TooManyCalls
from dds.rpc.messages import NOBODY, Code
from dds.waiting.wake import span_text


@dataclasses.dataclass(eq=False)
class Call:
    """One call in flight.

    deadline_ns  when its caller has waited long enough, on the clock of whoever drives this
    server       that it was sent to; None = it waits for one
    """

    number: int
    operation: str
    signature: bytes
    arguments: bytes
    begun_ns: int
    deadline_ns: int
    server: bytes | None = None
    refused_by: set[bytes] = dataclasses.field(default_factory=set)
    refusal: str = ""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a server says of a call."""

    code: int
    error: str
    body: bytes


Settled = tuple[Call, "Answer | RpcError"]


@dataclasses.dataclass
class Effects:
    """What follows from something: calls that are to be sent to their servers, and calls that are settled."""

    send: list[Call] = dataclasses.field(default_factory=list)
    settled: list[Settled] = dataclasses.field(default_factory=list)


class _Server:
    """One that is there: the numbers of the calls that it has, and when it was asked last, by the turns."""

    __slots__ = ("asked", "calls")

    def __init__(self, asked: int) -> None:
        self.asked = asked
        self.calls: set[int] = set()


class Calls:
    """All calls of one client. A program's thread may be interrupted by a signal between any two steps of begin() and
    drop(): what it has done by then harms no other call, and what it has kept ends at its deadline.

    service    name of the service, for texts
    calls_max  calls in flight
    patience   ns that a call waits for a server if there is none
    ordered    every server carries out every call
    """

    def __init__(self, service: str, calls_max: int, patience_ns: int, ordered: bool = False) -> None:
        self._service = service
        self._calls_max = calls_max
        self._patience_ns = patience_ns
        self._ordered = ordered
        self._calls: dict[int, Call] = {}
        self._servers: dict[bytes, _Server] = {}
        self._count = 0
        self._turns = 0  # how often one was asked
        self._times: list[tuple[int, int]] = []  # a heap: when to look at a call, and its number

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def servers(self) -> list[bytes]:
        return list(self._servers)

    # --- from the program

    def begin(self, operation: str, signature: bytes, arguments: bytes, now_ns: int, timeout_ns: int,
              keep: bool = True) -> Call:
        """A new call; send it if it has a server. `keep` False: nothing will be said of it (one way).

        Raises TooManyCalls, and NoServer for a one-way call if none is there.
        """
        if keep and len(self._calls) >= self._calls_max:
            raise TooManyCalls(f"{self._service}: {self._calls_max} calls of this client are in flight, the most that "
                               "it may have (calls_max): wait for some, or make the Client with more")
        self._count += 1
        call = Call(self._count, operation, signature, arguments, now_ns, now_ns + timeout_ns)
        has = self._assign(call)
        if keep:
            look_ns = call.deadline_ns if call.server is not None else self._waits_until(call)
            heapq.heappush(self._times, (look_ns, call.number))
            self._keep(call, has)
        elif call.server is None:
            raise NoServer(f"{self._service}: there is no server")
        return call

    def drop(self, call: Call) -> None:
        """Its caller doesn't wait any more."""
        self._remove(call)

    # --- from the servers

    def server_came(self, server: bytes) -> Effects:
        """It is there: calls that wait for one go out."""
        self._servers.setdefault(server, _Server(self._turns))
        effects = Effects()
        for call in self._calls.values():
            if call.server is None:
                self._keep(call, self._assign(call))
                effects.send.append(call)
                heapq.heappush(self._times, (call.deadline_ns, call.number))
        return effects

    def server_gone(self, server: bytes) -> Effects:
        """It is there no more: what becomes of its calls is unknown."""
        had = self._servers.pop(server, None)
        if had is None:
            return Effects()
        if self._ordered:
            return Effects() if self._servers else self._unknown(
                [one for one in self._calls.values() if one.server is not None], ServerGone(
                    f"{self._service}: all servers are gone: nobody can say whether the call was carried out"))
        return self._unknown(self._of(had), ServerGone(
            f"{self._service}: the server that had the call is gone: nobody can say whether it was carried out"))

    def overtaken(self, server: bytes) -> Effects:
        """It has lost requests, and doesn't know whose."""
        return self._unknown(self._of(self._servers.get(server)), OutcomeUnknown(
            f"{self._service}: the server was stopped for so long that requests were lost, perhaps this one"))

    def replied(self, server: bytes, number: int, answer: Answer) -> Effects:
        """A reply came from `server`. Nothing happens unless that one has the call."""
        call = self._calls.get(number)
        if call is None or call.server is None or (not self._ordered and call.server != server):
            return Effects()
        if answer.code == Code.OUT_OF_RESOURCES and not self._ordered:
            return self._refused(call, server, answer)
        self._remove(call)
        return Effects(settled=[(call, answer)])

    def _refused(self, call: Call, server: bytes, answer: Answer) -> Effects:
        self._remove(call)
        call.refused_by.add(server)
        call.refusal = answer.body.decode("utf-8", "replace")
        if self._servers.keys() - call.refused_by:
            self._keep(call, self._assign(call))
            return Effects(send=[call])
        return Effects(settled=[(call, ServerBusy(f"{self._service}: {call.refusal}"))])

    # --- from elsewhere

    def uncertain(self, why: str) -> Effects:
        """Requests or replies may have been lost: of all that was sent nobody can say what becomes."""
        return self._unknown([one for one in self._calls.values() if one.server is not None], OutcomeUnknown(
            f"{self._service}: {why}: nobody can say whether the call was carried out"))

    def end(self, error: RpcError) -> Effects:
        """Nothing can come any more."""
        return self._unknown(self._calls.values(), error)

    @property
    def next_ns(self) -> int | None:
        """When pass_time() has something to do, if nothing happens before."""
        return self._times[0][0] if self._times else None

    def pass_time(self, now_ns: int) -> Effects:
        """Settle what has waited long enough."""
        effects = Effects()
        while self._times and self._times[0][0] <= now_ns:
            call = self._calls.get(heapq.heappop(self._times)[1])
            if call is None:
                continue
            waited = span_text(now_ns - call.begun_ns)
            if call.server is not None and call.deadline_ns <= now_ns:
                self._remove(call)
                effects.settled.append((call, CallTimeout(
                    f"{self._service}: {call.operation}() has had no reply for {waited}; it may have been "
                    "carried out, or be carried out yet")))
            elif call.server is None and self._waits_until(call) <= now_ns:
                self._remove(call)
                effects.settled.append((call, NoServer(
                    f"{self._service}: there was no server for {waited}; {call.operation}() was not sent")))
        return effects

    # --- inside

    def _waits_until(self, call: Call) -> int:
        return min(call.deadline_ns, call.begun_ns + self._patience_ns)

    def _assign(self, call: Call) -> _Server | None:
        """Which server is to carry it out: of those with the fewest calls the one that was asked longest ago."""
        if self._ordered:
            call.server = NOBODY if self._servers else None
            return None
        free = [one for one in self._servers.items() if one[0] not in call.refused_by]
        if not free:
            call.server = None
            return None
        call.server, chosen = min(free, key=lambda one: (len(one[1].calls), one[1].asked))
        self._turns += 1
        chosen.asked = self._turns
        return chosen

    def _keep(self, call: Call, has: _Server | None) -> None:
        self._calls[call.number] = call
        if has is not None:
            has.calls.add(call.number)

    def _of(self, server: _Server | None) -> list[Call]:
        """The calls that it has."""
        return [] if server is None else [self._calls[one] for one in server.calls if one in self._calls]

    def _remove(self, call: Call) -> None:
        self._calls.pop(call.number, None)
        if call.server is not None and call.server in self._servers:
            self._servers[call.server].calls.discard(call.number)
        if len(self._times) > 64 + 2 * len(self._calls):
            self._times = [one for one in self._times if one[1] in self._calls]
            heapq.heapify(self._times)

    def _unknown(self, calls: Iterable[Call], error: RpcError) -> Effects:
        effects = Effects(settled=[(call, error) for call in list(calls)])
        for call, _ in effects.settled:
            self._remove(call)
        return effects


__all__ = ["Answer", "Call", "Calls", "Effects", "Settled"]
