"""Servers: an object here, whose methods others call.

    with Server(participant, Calculator()):
        ...

How a call comes: one thread takes the requests (`dds.rpc.pump`) and puts them into a bounded queue
(`dds.rpc.queueing`); worker threads, or an event loop for coroutine methods, carry them out and reply. So a method that
takes long holds up neither the topics nor the calls of other services, and what doesn't fit into the queue is refused
at once.

A server of an ordered service carries out every call, one after the other, in the order of the topic, as all others do.
It refuses none and skips none, whoever asks and however long it takes: if it lags, the callers of all wait.

Rules: a server runs until close(), the end of its participant, or the loss of its node.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import logging
import os
import queue
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from dds.entity import Participant
from dds.exceptions import DDSException, DDSSampleTooLarge, DDSTimeout, DDSUnacknowledged, closed, forked, translate
from dds.rpc.futures import Outcome
from dds.rpc.interface import Operation, text_of
from dds.rpc.messages import ID_BYTES, NOBODY, Announcement, Code, Reply, Request
from dds.rpc.peers import Peers
from dds.rpc.pump import Pump
from dds.rpc.queueing import Job, Waiting
from dds.rpc.service import service_of
from dds.rpc.topics import ServiceTopics, close_ends
from dds.util import duration
from dds.waiting.deadlines import Arrivals
from dds.waiting.wake import Deadline, start
from spindle.locks import Condition

if TYPE_CHECKING:
    from typing_extensions import Self

QUEUE_MAX = 1000
CONCURRENT_MAX = 100
REPLY_NS = duration(seconds=2)  # how long a reply may wait for room in its topic
TEXT_MAX = 400  # characters of a text in a reply
CLOSE_S = 10.0  # how long close() waits for calls that are being carried out

log = logging.getLogger("dds")


class Server:
    """Carries out the calls of a service with an object.

    implementation  an object of the service's class, or of one derived from it
    name       of the service in the group; None = as the class says
    instance   name of this server among those of the service, at most 100 characters
    workers    threads that call its methods; with 1, the default, one call is carried out after the other
    loop       the event loop for its coroutine methods; None = one on a thread of its own
    concurrent_max  calls of coroutine methods at a time
    queue_max  calls that may wait; client_max of them of one client, None = a quarter
    size_max   bytes of the largest request or reply; 0 = as the group has it, else 16 KiB
    Raises TypeError for an object whose class is no service, DDSException as making a Topic does.
    """

    def __init__(self, participant: Participant, implementation: object, *, name: str | None = None,
                 instance: str = "", workers: int = 1, loop: asyncio.AbstractEventLoop | None = None,
                 concurrent_max: int = CONCURRENT_MAX, queue_max: int = QUEUE_MAX, client_max: int | None = None,
                 size_max: int = 0) -> None:
        described = service_of(type(implementation))
        described.interface.check()
        if client_max is None:
            client_max = max(1, queue_max // 4)
        for what, value in (("workers", workers), ("concurrent_max", concurrent_max), ("queue_max", queue_max),
                            ("client_max", client_max)):
            if value < 1:
                raise ValueError(f"{what} must be at least 1, not {value!r}")
        if len(instance) > 100:
            raise ValueError(f"the name of an instance has at most 100 characters, not {len(instance)}")
        self._interface = described.interface
        self._ordered = described.ordered
        # The object's own methods: those of a class derived from the service may be coroutines where the service's
        # are not, or the other way round.
        self._coroutines = {one for one in self._interface.operations
                            if inspect.iscoroutinefunction(getattr(implementation, one))}
        if self._ordered and (workers > 1 or self._coroutines):
            raise TypeError(f"{self._interface.name} is ordered: its calls are carried out one after the other, so it "
                            "has one worker and no coroutine methods")
        self._implementation = implementation
        self._queue_max = queue_max
        self._lock = self._changed = Condition()
        # Only workers wait for it: each job wakes one.
        self._has_job = threading.Condition(self._lock)  # type: ignore[arg-type]
        self._waiting = Waiting(1 << 62, 1 << 62, in_order=True) if self._ordered else Waiting(queue_max, client_max)
        self._waiting_async = Waiting(queue_max, client_max)
        self._running_async = 0
        self._concurrent_max = concurrent_max
        self._closing = False
        self._ended = False
        self._pid = os.getpid()
        self._set_aside: collections.deque[Request] = collections.deque(maxlen=queue_max)
        self._held = False  # the pump waits until the queue is shorter
        self.id = os.urandom(ID_BYTES)
        me = Announcement("server", self.id, instance)
        topics = ServiceTopics.open(
            participant, name or self._interface.name, self._ordered, described.logged, size_max)
        # Who sees the reader must find the writer: a server is there when both are.
        self._writer = topics.writer_of_replies(me, REPLY_NS)
        try:
            self._reader = topics.reader_of_requests(me)
        except BaseException:
            close_ends(self._writer)
            raise
        self._arrivals = Arrivals(same_clock=not self._reader._runtime.is_remote)
        self._peers = Peers(self._reader, self._writer, "client")
        self._workers = [threading.Thread(target=self._work, name=f"dds worker of {self._interface.name}", daemon=True)
                         for _ in range(workers)]
        self._loop = loop
        self._loop_thread: threading.Thread | None = None
        self._loop_told = False  # to stop, by the first thread that closes
        self._stops_loop = False  # coroutines that are left are cancelled
        self._replies: queue.SimpleQueue[tuple[Job, Reply, Future[None]] | None] = queue.SimpleQueue()
        self._replier: threading.Thread | None = None
        try:
            self._pump: Pump[Request] = Pump(
                participant, f"dds server of {self._interface.name}", self._reader, [self._writer], self)
            if self._coroutines:
                self._start_loop()
            for one in self._workers:
                start(one, one.name)
            self._pump.start()
        except BaseException:
            self._closing = True  # it was never there: nothing is to be said of its end
            self.pump_ended(closed(f"the server of {self._interface.name!r}"))
            raise

    def close(self) -> None:
        """End it: calls that wait are refused, those that are being carried out get their replies. Idempotent.

        In the event loop of its coroutine methods it does not wait for them: `await asyncio.to_thread(server.close)`.
        """
        if os.getpid() != self._pid:
            return  # in a forked child: it is the parent's
        with self._lock:
            self._closing = True
            self._has_job.notify_all()
        # No reply can be sent any more once the pump has ended: nothing is worth waiting for.
        deadline = time.monotonic() + (0.0 if self._ended else CLOSE_S)
        if not self._ordered:
            self._refuse_waiting()
        for one in self._workers:
            if one is not threading.current_thread():
                one.join(max(0.0, deadline - time.monotonic()))
        if not self._in_loop():
            with self._lock:
                self._changed.wait_for(lambda: not self._running_async, max(0.0, deadline - time.monotonic()))
        try:
            self._writer.wait_for_acks(duration(seconds=1))  # a client that hears of our end first gives its call up
        except DDSException:
            pass
        self._pump.stop()
        self._end_loop()
        if self._loop_thread is not None:
            self._loop_thread.join(CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<dds.rpc.Server of {self._interface.name!r}>"

    def wait(self, timeout: int | None = None) -> bool:
        """Until it has ended, for programs that do nothing else; False after `timeout` ns (None = never).
        DDSNodeLost in a forked child: it is the parent that serves."""
        if os.getpid() != self._pid:
            raise forked(f"the server of {self._interface.name!r}")
        with self._lock:
            return self._changed.wait_for(lambda: self._ended, Deadline(timeout).left_s())

    # --- what comes, on the pump's thread

    def samples_came(self, samples: list[Request]) -> bool:
        for request in samples:
            if request.server != (NOBODY if self._ordered else self.id):
                continue
            # Whether an ordered call counts must follow from the call alone: every server decides alike.
            if self._ordered or self._is_of_its_client(request):
                self._admit(request)
        self._arrivals.begin_at(time.monotonic_ns())
        if not self._ordered:
            return True
        with self._lock:
            self._held = len(self._waiting) >= self._queue_max
            return not self._held

    def _is_of_its_client(self, request: Request) -> bool:
        """False for what another writer has written in the client's name. A request of a writer that nobody has told us
        of yet is set aside: samples and the news of who has come take different ways."""
        client = self._peers.whose(request.sample_info.publication_handle)  # type: ignore[attr-defined]
        if client is None:
            self._set_aside.append(request)
            return False
        if client.id != request.client:
            log.debug("a request to %s comes from a writer that is not its client's", self._interface.name)
            return False
        return True

    def _admit(self, request: Request) -> None:
        operation = self._interface.operations.get(request.operation)
        name = self._interface.name
        if operation is None:
            known = ", ".join(sorted(self._interface.operations))
            self._refuse(request, Code.UNKNOWN_OPERATION,
                         f"there is no operation {request.operation[:100]!r}; the server has {known}")
            return
        if request.signature != operation.signature:
            self._refuse(request, Code.INVALID_ARGUMENT,
                         f"{operation.name}() has other types at the client: the server has {operation.describe()}")
            return
        try:
            values = operation.arguments.decode(request.arguments)
        except ValueError as error:
            self._refuse(request, Code.INVALID_ARGUMENT, f"{operation.describe()}: {error}")
            return
        expires_ns = None if self._ordered else time.monotonic_ns() + self._left_ns(request)
        handle = request.sample_info.publication_handle  # type: ignore[attr-defined]
        job = Job(request.client, request.number, operation, values, expires_ns, handle)
        coroutine = operation.name in self._coroutines
        with self._lock:
            why = "it is closing" if self._closing else (
                self._waiting_async if coroutine else self._waiting).add(job)
            if not why and not coroutine:
                self._has_job.notify()
        if why:
            log.debug("%s: %s", name, why)
            self._refuse(request, Code.OUT_OF_RESOURCES, why)
        elif coroutine and self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._start_coroutines)
            except RuntimeError:  # the program has closed the loop that it gave us
                self._refuse_coroutines()

    def _left_ns(self, request: Request) -> int:
        """How long its caller still waits, at most. Its time has begun when this host's node had it, if this program
        took it later, as it hung. What it took to get there is not known, as hosts' clocks may differ; so on a host
        without a node, where another host's clock says when it came, its time begins now. So it does where the clock
        has been set since."""
        came_ns = self._arrivals.came_at(request.sample_info.reception_timestamp)  # type: ignore[attr-defined]
        age_ns = 0 if came_ns is None else max(0, time.monotonic_ns() - came_ns)
        return max(0, request.timeout - age_ns)

    def _refuse_coroutines(self) -> None:
        """The loop of the coroutine methods is gone, and stays gone."""
        while True:
            with self._lock:
                job = self._waiting_async.take(time.monotonic_ns())
            if job is None:
                return
            if not job.operation.oneway:
                self._reply(Reply(job.client, job.number, Code.OUT_OF_RESOURCES, "",
                                  b"the event loop of the server's coroutine methods is closed"))

    def _refuse(self, request: Request, code: Code, why: str) -> None:
        operation = self._interface.operations.get(request.operation)
        if operation is None or not operation.oneway:
            self._reply(Reply(request.client, request.number, code, "", why[:TEXT_MAX].encode()))

    def _refuse_waiting(self) -> None:
        while True:
            with self._lock:
                now_ns = time.monotonic_ns()
                job = self._waiting.take(now_ns) or self._waiting_async.take(now_ns)
            if job is None:
                return
            if not job.operation.oneway:
                self._reply(Reply(job.client, job.number, Code.OUT_OF_RESOURCES, "", b"the server is closing"))

    def statuses_changed(self) -> None:
        if self._pump.has_missed():
            log.warning("the server of %s was stopped for so long that it has lost requests", self._interface.name)
            self._reply(Reply(NOBODY, 0, Code.OVERTAKEN, "", b""))
        _, gone = self._peers.look()
        aside = list(self._set_aside)
        self._set_aside.clear()
        for request in aside:
            if self._is_of_its_client(request):
                self._admit(request)
        if not self._ordered:
            with self._lock:
                for one in gone:
                    self._waiting.forget(one.id)
                    self._waiting_async.forget(one.id)

    def time_passed(self, now_ns: int) -> int | None:
        return None

    def pump_ended(self, error: DDSException) -> None:
        with self._lock:
            if not self._closing:  # a program that closes its participant, or ends, knows what ends with it
                by_program = error.code == DDSException.DDS_RETCODE_ALREADY_DELETED
                log.log(logging.INFO if by_program else logging.WARNING, "the server of %s has ended: %s",
                        self._interface.name, error)
            self._closing = self._ended = True
            self._has_job.notify_all()
            self._changed.notify_all()
        self._end_loop()  # nobody may ever close() it
        close_ends(self._reader, self._writer)

    # --- carrying out

    def _work(self) -> None:
        while True:
            with self._lock:
                while (job := self._waiting.take(time.monotonic_ns())) is None or self._closing:
                    if self._closing:
                        return
                    self._has_job.wait()
                go_on = self._held and len(self._waiting) <= self._queue_max // 2
                if go_on:
                    self._held = False
            if go_on:
                self._pump.wake()
            try:
                result = job.operation.call(self._implementation, job.values)
            except BaseException as error:
                self._finish(job, error, None)
            else:
                self._finish(job, None, result)

    def _finish(self, job: Job, error: BaseException | None, result: Any) -> None:
        reply = self._reply_of(job, error, result)
        # Of an ordered call only those that are there need a reply; a server that starts carries out old ones.
        if reply is not None and not (self._ordered and self._peers.whose(job.writer) is None):
            self._reply(reply)

    def _reply_of(self, job: Job, error: BaseException | None, result: Any) -> Reply | None:
        name, operation = self._interface.name, job.operation
        code, error_name, body = Code.OK, "", b""
        try:
            if error is None:
                body = operation.encode_result(result)
            else:
                code, error_name, body = self._failed(operation, error)
        except Exception as wrong:  # values and errors are the service's: their own methods may raise anything
            text = text_of(wrong)
            log.error("%s.%s(): %s", name, operation.name, text)
            code, error_name = Code.RESULT_LOST, ""
            body = f"{operation.name}() was carried out, but: {text}"[:TEXT_MAX].encode("utf-8", "replace")
        return None if operation.oneway else Reply(job.client, job.number, code, error_name, body)

    def _failed(self, operation: Operation, error: BaseException) -> tuple[Code, str, bytes]:
        thrown = self._interface.thrown_by(operation, error) if isinstance(error, Exception) else None
        if thrown is not None:
            assert isinstance(error, Exception)
            return Code.DECLARED_EXCEPTION, thrown.name, thrown.encode(error)
        log.warning("%s.%s() raised %s", self._interface.name, operation.name, type(error).__name__, exc_info=error)
        return Code.UNKNOWN_EXCEPTION, type(error).__name__[:100], text_of(error)[:TEXT_MAX].encode("utf-8", "replace")

    def _reply(self, reply: Reply) -> None:
        while True:
            try:
                self._writer.write(reply)
                return
            except DDSUnacknowledged:
                continue  # our node went away, and with it, to all clients, this server as it was
            except DDSSampleTooLarge as error:
                reply = Reply(reply.client, reply.number, Code.RESULT_LOST, "",
                              f"the call was carried out, but its result is too large: {error}"[:TEXT_MAX].encode())
            except DDSTimeout as error:
                log.warning("a reply of %s could not be sent: %s", self._interface.name, error)
                return
            except DDSException as error:
                log.debug("a reply of %s could not be sent: %s", self._interface.name, error)
                return

    # --- coroutine methods

    def _in_loop(self) -> bool:
        try:
            return self._loop is not None and asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _start_loop(self) -> None:
        self._replier = threading.Thread(
            target=self._send_replies, name=f"dds replies of {self._interface.name}", daemon=True)
        start(self._replier, self._replier.name)
        if self._loop is None:
            thread = threading.Thread(target=self._run_loop, name=f"dds loop of {self._interface.name}", daemon=True)
            try:
                loop = self._loop = asyncio.new_event_loop()
            except OSError as error:
                raise translate(error, thread.name) from error
            try:
                start(thread, thread.name)
            except BaseException:
                loop.close()
                raise
            self._loop_thread = thread

    def _end_loop(self) -> None:
        """The threads of coroutine methods end, once they have sent the replies that there are. Idempotent."""
        with self._lock:
            told, self._loop_told = self._loop_told, True
            if told:  # a second word would interrupt how the loop ends
                return
            self._replies.put(None)
        if self._loop_thread is not None and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _run_loop(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._stops_loop = True
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
        finally:
            self._loop.close()

    def _start_coroutines(self) -> None:
        """In the loop: as many as may run at a time."""
        assert self._loop is not None
        while True:
            with self._lock:
                if self._running_async >= self._concurrent_max or self._closing:
                    return
                job = self._waiting_async.take(time.monotonic_ns())
                if job is None:
                    return
                self._running_async += 1
            task = self._loop.create_task(self._run_coroutine(job))
            _running.add(task)
            task.add_done_callback(_running.discard)

    async def _run_coroutine(self, job: Job) -> None:
        try:
            try:
                result = await job.operation.call(self._implementation, job.values)
            except BaseException as error:  # as of other methods: what one of them raises must not end the loop
                if self._ended or self._stops_loop:
                    raise
                reply = self._reply_of(job, error, None)
            else:
                reply = self._reply_of(job, None, result)
            if reply is not None:  # writing may have to wait, and the loop must not
                sent: Future[None] = Outcome()
                with self._lock:
                    goes = not self._loop_told
                    if goes:
                        self._replies.put((job, reply, sent))
                if goes:
                    await asyncio.wrap_future(sent)
        finally:
            with self._lock:
                self._running_async -= 1
                self._changed.notify_all()
            self._start_coroutines()

    def _send_replies(self) -> None:
        while (one := self._replies.get()) is not None:
            _, reply, sent = one
            self._reply(reply)
            if not sent.cancelled():
                sent.set_result(None)


_running: set[asyncio.Task[None]] = set()  # a loop holds its tasks weakly

__all__ = ["Server"]
