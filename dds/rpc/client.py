"""Clients: calling a service as if it were an object here.

    client = Client(participant, Calculator)
    client.add(1, 2)                                  # 3; waits for it
    await client.add.aio(1, 2)                        # 3, in a coroutine
    client.add.future(1, 2)                           # a concurrent.futures.Future
    client.add.within(duration(seconds=1))(1, 2)      # with a deadline of its own

How a call goes: the thread of the caller writes the request; one thread of the client takes the replies, hears who
comes and goes, and looks at the time (`dds.rpc.pump`); what it all means is decided in `dds.rpc.calls`.

Rules: a client may be used by any number of threads and event loops at once. It is closed by close(), by leaving a
`with` block, with its participant, or when it is forgotten.
"""

from __future__ import annotations

import collections
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from dds.entity import Participant
from dds.exceptions import DDSException, DDSUnacknowledged, closed, forked
from dds.rpc.calls import Answer, Call, Calls, Effects
from dds.rpc.errors import (
    InvalidArguments,
    OutcomeUnknown,
    RemoteError,
    RpcError,
    UnknownOperation,
)
from dds.rpc.futures import Outcome, settle
from dds.rpc.interface import Interface, Operation
from dds.rpc.messages import ID_BYTES, Announcement, Code, Reply, Request
from dds.rpc.peers import Peers
from dds.rpc.pump import Pump
from dds.rpc.service import service_of
from dds.rpc.topics import ServiceTopics, close_ends
from dds.util import duration
from dds.waiting.wake import Deadline, check_positive, check_timeout, park, start
from spindle.locks import Condition

if TYPE_CHECKING:
    from typing_extensions import Self

S = TypeVar("S")
R = TypeVar("R")

TIMEOUT_NS = duration(seconds=10)
PATIENCE_NS = duration(seconds=2)
CALLS_MAX = 1000


class Client(Generic[S]):
    """A proxy of a service: its operations are attributes, which are called as the service's methods are.

    service     the class that describes it, see dds.rpc.service()
    name        of the service in the group; None = as the class says
    timeout     ns that a call may take, and sending it
    wait_for_server  ns of these that a call waits for a server if none is there
    calls_max   calls in flight
    instance    only servers with this name; None = any
    size_max    bytes of the largest request or reply, with about 100 bytes for its head; 0 = as the group has it, else
                16 KiB
    Raises TypeError for a class that isn't described, DDSException as making a Topic does.

    A call raises what the service declares, RpcError and what is derived from it (dds.rpc.errors), TypeError for
    arguments that the operation doesn't take, DDSSampleTooLarge, DDSTimeout if it couldn't even be sent, DDSNodeLost.
    """

    def __init__(self, participant: Participant, service: type[S], *, name: str | None = None,
                 timeout: int = TIMEOUT_NS, wait_for_server: int = PATIENCE_NS, calls_max: int = CALLS_MAX,
                 instance: str | None = None, size_max: int = 0) -> None:
        described = service_of(service)
        described.interface.check()
        check_positive(timeout, "timeout")
        check_timeout(wait_for_server, "wait_for_server")
        if calls_max <= 0:
            raise ValueError(f"calls_max must be positive, not {calls_max!r}")
        self._interface = described.interface
        self._timeout_ns = timeout
        topics = ServiceTopics.open(
            participant, name or described.interface.name, described.ordered, described.logged, size_max)
        core = _Core(participant, described.interface, topics, timeout, wait_for_server, calls_max, instance)
        self._core = core
        # The thread holds the core and never the client: that is how a client can be forgotten.
        self._closer = weakref.finalize(self, core.forgotten)
        self._closer.atexit = False
        core.start()

    def __getattr__(self, name: str) -> RemoteOperation[Any]:
        operation = self.__dict__.get("_interface") and self._interface.operations.get(name)
        if not operation:
            raise AttributeError(f"the service has no operation {name!r}")
        return RemoteOperation[Any](self, operation, self._timeout_ns)  # not kept: that would be a circle

    @property
    def typed(self) -> S:
        """The client itself, for type checkers: its operations have the types of the service's methods."""
        return cast(S, self)

    def servers(self) -> list[str]:
        """The names of the servers that are there; "" of one without a name."""
        return self._core.server_names()

    def wait_for_servers(self, count: int = 1, timeout: int | None = TIMEOUT_NS) -> bool:
        """True as soon as so many servers are there; False after `timeout` ns (None = never). Raises
        DDSException if it is closed."""
        return self._core.wait_for_servers(count, Deadline(timeout).left_s())

    def close(self) -> None:
        """End it; calls in flight raise OutcomeUnknown. Idempotent."""
        self._closer.detach()
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dds.rpc.Client of {self._interface.name!r}>"


class RemoteOperation(Generic[R]):
    """One operation of a client: call it, or choose how."""

    def __init__(self, client: Client[Any], operation: Operation, timeout_ns: int) -> None:
        self._client = client  # lest it is forgotten during a call
        self._core = client._core
        self._operation = operation
        self._timeout_ns = timeout_ns
        self.__doc__ = operation.__doc__
        self.__name__ = operation.name

    def __call__(self, *arguments: Any, **keywords: Any) -> R:
        """Call it, and wait for the result. Raises as said at Client."""
        future = self._core.begin(self._operation, arguments, keywords, self._timeout_ns, False)
        return cast(R, None) if future is None else future.result()

    def future(self, *arguments: Any, **keywords: Any) -> Future[R]:
        """Call it, and don't wait. What is wrong with the call itself is raised here, the rest by the future."""
        future = self._core.begin(self._operation, arguments, keywords, self._timeout_ns, False, True)
        if future is None:
            return _nothing()
        vars(future)["client"] = self._client  # until the call has ended
        future.add_done_callback(lambda done: vars(done).pop("client"))
        return future

    async def aio(self, *arguments: Any, **keywords: Any) -> R:
        """Call it, and wait in a coroutine."""
        import asyncio

        future = self._core.begin(self._operation, arguments, keywords, self._timeout_ns, True, True)
        return cast(R, None) if future is None else cast(R, await asyncio.wrap_future(future))

    def within(self, timeout: int) -> RemoteOperation[R]:
        """The same with another timeout, in ns."""
        check_positive(timeout, "timeout")
        other = object.__new__(RemoteOperation)
        other.__dict__.update(self.__dict__, _timeout_ns=timeout)
        return other

    def __repr__(self) -> str:
        return f"<remote operation {self._operation.describe()}>"


def _nothing() -> Future[Any]:
    done: Future[Any] = Outcome()
    done.set_result(None)
    return done


class _Core:
    """What the thread of a client holds."""

    def __init__(self, participant: Participant, interface: Interface, topics: ServiceTopics, timeout_ns: int,
                 patience_ns: int, calls_max: int, instance: str | None) -> None:
        self._interface = interface
        self._instance = instance
        self._lock = self._came = Condition()
        self._calls = Calls(interface.name, calls_max, patience_ns, topics.ordered)
        self._futures: dict[Call, tuple[Future[Any], Operation]] = {}
        self._names: dict[bytes, str] = {}
        self._ended: DDSException | None = None
        self._pid = os.getpid()
        self.id = os.urandom(ID_BYTES)
        me = Announcement("client", self.id)
        self._reader = topics.reader_of_replies(me)
        try:
            self._writer = topics.writer_of_requests(me, timeout_ns)
        except BaseException:
            close_ends(self._reader)
            raise
        self._peers = Peers(self._reader, self._writer, "server")
        try:
            self._pump: Pump[Reply] = Pump(
                participant, f"dds client of {interface.name}", self._reader, [self._writer], self)
        except BaseException:
            close_ends(self._reader, self._writer)
            raise
        self._set_aside: collections.deque[Reply] = collections.deque(maxlen=calls_max)
        self._to_send: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._sender: threading.Thread | None = None

    def start(self) -> None:
        """DDSException where no more threads may run; it is closed then."""
        self.statuses_changed()  # servers that are there are known before the first call
        try:
            self._pump.start()
        except BaseException:
            self.pump_ended(closed(f"the client of {self._interface.name!r}"))
            raise

    # --- the program

    def begin(self, operation: Operation, arguments: tuple[Any, ...], keywords: dict[str, Any], timeout_ns: int,
              never_block: bool, cancellable: bool = False) -> Future[Any] | None:
        """Send a call. None for one-way calls. `never_block`: the sender's thread sends it; `cancellable`: the program
        gets the future, and may cancel it."""
        self._check_process()
        encoded = operation.encode(arguments, keywords)
        if self._pump.is_this_thread():
            raise DDSException(DDSException.DDS_RETCODE_ILLEGAL_OPERATION,
                               "a call from a callback of a future of the same client would wait for itself")
        future: Future[Any] | None = None
        with self._lock:
            self._check()
            call = self._calls.begin(operation.name, operation.signature, encoded, time.monotonic_ns(), timeout_ns,
                                     not operation.oneway)
            if not operation.oneway:
                future = Outcome()
                self._futures[call] = future, operation
            has_server, next_ns = call.server is not None, self._calls.next_ns
        if next_ns is not None:
            self._pump.due(next_ns)
        if future is not None and cancellable:
            future.add_done_callback(lambda done: self._cancelled(call) if done.cancelled() else None)
        if not has_server:
            return future
        if never_block:
            self._hand_over([call])
        else:
            try:
                self._write(call)
            except BaseException:
                with self._lock:
                    self._calls.drop(call)
                    self._futures.pop(call, None)
                raise
        return future

    def _check_process(self) -> None:
        """Before a lock is taken, which another thread may have held when this process was forked."""
        if os.getpid() != self._pid:
            raise forked(f"the client of {self._interface.name!r}")

    def _check(self) -> None:
        if self._ended is not None:
            park()
            raise self._ended

    def _cancelled(self, call: Call) -> None:
        """Nobody waits for it any more."""
        with self._lock:
            self._calls.drop(call)
            self._futures.pop(call, None)

    def server_names(self) -> list[str]:
        self._check_process()
        with self._lock:
            self._check()
            return [self._names[one] for one in self._calls.servers]

    def wait_for_servers(self, count: int, timeout_s: float | None) -> bool:
        self._check_process()
        with self._came:
            found = self._came.wait_for(
                lambda: self._ended is not None or len(self._calls.servers) >= count, timeout_s)
            self._check()
            return found

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # in a forked child: it is the parent's
        self._end(closed(f"the client of {self._interface.name!r}"))
        self._pump.stop()

    def forgotten(self) -> None:
        """Nobody can call any more. For finalizers."""
        self._pump.stop_soon()

    # --- sending

    def _write(self, call: Call) -> None:
        """Raises as a write."""
        assert call.server is not None
        left_ns = max(1, call.deadline_ns - time.monotonic_ns())
        request = Request(self.id, call.number, call.server, left_ns, call.signature, call.operation, call.arguments)
        while True:
            try:
                self._writer.write(request)
                return
            except DDSUnacknowledged:  # calls of before: what became of them is told to their callers
                self._settle(self._calls.uncertain, "the node of this program went away", keep=call)

    def _hand_over(self, calls: list[Call]) -> None:
        """Have the sender's thread send them. It may have to wait for room in the topic; nobody else must. Where no
        more threads may run, those who wait for these calls are told."""
        try:
            if self._sender is None:
                with self._lock:
                    if self._sender is None:
                        sender = threading.Thread(
                            target=self._send_all, name=f"dds sender of {self._interface.name}", daemon=True)
                        start(sender, sender.name)
                        self._sender = sender
        except DDSException as error:
            for call in calls:
                self._not_sent(call, error)
            return
        for call in calls:
            self._to_send.put(call)

    def _not_sent(self, call: Call, error: Exception) -> None:
        with self._lock:
            self._calls.drop(call)
            waiting = self._futures.pop(call, None)
        if waiting is not None:
            settle(waiting[0], error, None)

    def _send_all(self) -> None:
        while (call := self._to_send.get()) is not None:
            try:
                self._write(call)
            except Exception as error:
                self._not_sent(call, error)

    # --- what comes, on the pump's thread

    def samples_came(self, samples: list[Reply]) -> bool:
        for reply in samples:
            if reply.client != self.id and reply.code != Code.OVERTAKEN:
                continue
            server = self._peers.whose(reply.sample_info.publication_handle)  # type: ignore[attr-defined]
            if server is None:  # of a stranger; or of a server that nobody has told us of yet
                self._set_aside.append(reply)
            elif reply.code == Code.OVERTAKEN:
                self._settle(self._calls.overtaken, server.id)
            else:
                self._settle(self._calls.replied, server.id, reply.number,
                             Answer(reply.code, reply.error, reply.body))
        return True

    def statuses_changed(self) -> None:
        if self._writer.get_liveliness_lost_status().total_count_change:
            self._settle(self._calls.uncertain, "the node of this program went away")
        if self._pump.has_missed():
            self._settle(self._calls.uncertain, "replies may have been lost")
        came, gone = self._peers.look()
        aside = list(self._set_aside)
        self._set_aside.clear()
        self.samples_came(aside)
        for one in gone:
            if one.id in self._names:
                self._settle(self._calls.server_gone, one.id)
        for one in came:
            if self._instance is None or self._instance == one.instance:
                self._names[one.id] = one.instance
                self._settle(self._calls.server_came, one.id)
        with self._came:
            self._came.notify_all()

    def time_passed(self, now_ns: int) -> int | None:
        self._settle(self._calls.pass_time, now_ns)
        with self._lock:
            return self._calls.next_ns

    def pump_ended(self, error: DDSException) -> None:
        self._end(error)
        self._to_send.put(None)
        close_ends(self._reader, self._writer)

    def _end(self, error: DDSException) -> None:
        with self._lock:
            if self._ended is None:
                self._ended = error
        why = error if isinstance(error, RpcError) else OutcomeUnknown(f"{self._interface.name}: {error}")
        self._settle(self._calls.end, why)
        with self._came:
            self._came.notify_all()

    def _settle(self, event: Callable[..., Effects], *arguments: Any, keep: Call | None = None) -> None:
        """Do what follows from an event; `keep` is spared."""
        with self._lock:
            effects = event(*arguments)
            settled = [(*self._futures.pop(call), outcome) for call, outcome in effects.settled
                       if call is not keep and call in self._futures]
        if effects.send:
            self._hand_over(effects.send)
        for future, operation, outcome in settled:
            if isinstance(outcome, Answer):
                try:
                    result = self._result(operation, outcome)
                except Exception as error:
                    settle(future, error, None)
                else:
                    settle(future, None, result)
            else:
                settle(future, outcome, None)

    def _result(self, operation: Operation, answer: Answer) -> Any:
        """The result of a call. Raises what the call is to raise."""
        name, code = self._interface.name, answer.code
        if code == Code.OK:
            try:
                return operation.decode_result(answer.body)
            except ValueError as error:
                raise RpcError(f"{name}: the result of {operation.name}() can't be read: {error}") from error
        if code == Code.DECLARED_EXCEPTION and answer.error in self._interface.thrown:
            try:
                thrown = self._interface.thrown[answer.error].decode(answer.body)
            except ValueError as error:
                raise RemoteError(answer.error, f"(which can't be read: {error})") from error
            raise thrown
        text = answer.body.decode("utf-8", "replace")
        if code == Code.UNKNOWN_OPERATION:
            raise UnknownOperation(f"{name}: {text}")
        if code == Code.INVALID_ARGUMENT:
            raise InvalidArguments(f"{name}: {text}")
        if code in (Code.UNKNOWN_EXCEPTION, Code.DECLARED_EXCEPTION):
            raise RemoteError(answer.error, text if code == Code.UNKNOWN_EXCEPTION else "")
        raise RpcError(f"{name}: {text}" if text else f"{name}: the server answered with code {code}")


__all__ = ["Client", "RemoteOperation"]
