"""What drives a replica: a pump that reads the object's topic, a thread that writes, the callers of commands.

The thread of the caller writes its command into the topic; the pump's thread carries out all commands in the topic's
order, and gives the caller the result of its own. What the replica has to write besides, another thread writes: the one
that reads must never wait for room, since it is the one that makes room. What to write, and what each entry means, is
decided by `dds.replicated.conduct`.

Rules: `_lock` is held around each call of the conduct, `_writing` while commands are numbered and written; who needs
both takes `_writing` first.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dds.entity import Participant, enabled
from dds.exceptions import DDSException, DDSTimeout, DDSUnacknowledged, closed, forked
from dds.pub import DataWriter, Publisher
from dds.qos import Policy, Qos
from dds.replicated.conduct import NEWS_S, Conduct
from dds.replicated.errors import ReplicaDiverged, ReplicaError, StateLost
from dds.replicated.machine import Phase, Result
from dds.replicated.messages import ID_BYTES, ROOM, Entry
from dds.replicated.object import Carrier
from dds.rpc.errors import CallTimeout, OutcomeUnknown
from dds.rpc.futures import Outcome, settle
from dds.rpc.interface import Operation
from dds.rpc.messages import Announcement
from dds.rpc.peers import Peers
from dds.rpc.pump import Pump
from dds.rpc.topics import close_ends
from dds.sub import DataReader, Subscriber
from dds.topic import Topic
from dds.util import duration
from dds.waiting.wake import Deadline, span_text, start
from spindle.locks import Condition, Taking

SLOTS_MAX = 1024
LOOK_S = 0.2  # how often a replica that waits for the state looks around
LONELY_S = 2.0  # how long it waits if nobody is there who could have it

log = logging.getLogger("dds")


class Again:
    """In the queue of the scribe: the node went away."""


class Driver:
    """What the threads of a replica hold. Arguments as of `dds.replicated.Replica`; `carrier` has the object."""

    def __init__(self, participant: Participant, name: str, carrier: Carrier, logged: bool, check_every: int,
                 commands_max: int, size_max: int, history_bytes: int, timeout_ns: int) -> None:
        self.name = name
        self._carrier = carrier
        self.logged = logged
        self._history_bytes = history_bytes
        self._commands_max = commands_max
        self._lock = self._changed = Condition()  # of the machine and the object; a command may ask its own object
        self._writing = Condition()  # a lock: commands are numbered and written in one order
        self._owes = False  # a node has gone with what was on its way, and that is not all written again
        self._ended: DDSException | None = None
        self._pid = os.getpid()
        durable = Policy.Durability.Persistent if logged else Policy.Durability.TransientLocal
        reliable = Policy.Reliability.Reliable(timeout_ns)
        topic: Topic[Entry] = enabled(Topic(participant, f"{name}_Replicated", Entry, Qos(reliable, durable),
                                            size_max=size_max, history_bytes=history_bytes))
        spec = topic.spec
        assert spec is not None
        piece_bytes = spec.size_max - ROOM
        if piece_bytes < 256:
            raise ValueError(f"size_max {spec.size_max}: an object needs {ROOM + 256} or more")
        self._conduct: Conduct[Future[Any]] = Conduct(
            os.urandom(ID_BYTES), carrier, check_every, history_bytes // 8 if logged else 0, piece_bytes)
        self.machine = self._conduct.machine
        me = Qos(Policy.Userdata(Announcement("replica", self.machine.me).encode()))
        # What waits in the writer's ring comes before a snapshot that is due. A logged object lives on what the topic
        # keeps, so a snapshot must come before too much of that is overwritten.
        slots = min(SLOTS_MAX, max(8, history_bytes // (16 * spec.size_max))) if logged else 0
        self._writer = DataWriter(enabled(Publisher(participant)), topic, Qos(reliable, durable) + me, slots=slots)
        self._participant, self._topic = participant, topic
        self._reader_qos = Qos(durable, Policy.History.KeepAll) + me
        try:
            self._reader = self._open_reader()
        except BaseException:
            close_ends(self._writer)
            raise
        self._reads_anew = False  # entries may be missing, and another reader is to be opened
        self._news_due_ns: int | None = None  # see _wait_for_news()
        self._peers = Peers(self._reader, self._writer, "replica")
        try:
            self._pump: Pump[Entry] = Pump(participant, f"dds replica of {name}", self._reader, [self._writer], self)
        except BaseException:
            close_ends(self._reader, self._writer)
            raise
        self._to_write: queue.SimpleQueue[Entry | Again | None] = queue.SimpleQueue()
        self._scribe = threading.Thread(target=self._write_all, name=f"dds entries of {name}", daemon=True)

    def _open_reader(self) -> DataReader[Entry]:
        reader = DataReader(enabled(Subscriber(self._participant)), self._topic, self._reader_qos)
        reader.read_own_writes = False
        return reader

    def start(self) -> None:
        """DDSException where no more threads may run; it is closed then."""
        try:
            start(self._scribe, self._scribe.name)
            self._have_written(self._conduct.join())
            self._pump.start()
        except BaseException:
            self.pump_ended(closed(f"the replica of {self.name!r}"))
            raise

    def wait_live(self, timeout_ns: int) -> None:
        """Raises StateLost, DDSTimeout, or why it has ended."""
        deadline = Deadline(timeout_ns)
        lonely_since = None
        others: set[bytes] = set()
        with self._changed:
            while not self._changed.wait_for(
                    lambda: self._ended is not None or self.machine.phase is Phase.LIVE, LOOK_S):
                others = self._peers.there - {self.machine.me}
                phase, now = self.machine.phase, time.monotonic()
                lonely_since = None if others or phase is not Phase.WAITING else lonely_since or now
                if deadline.left_s() == 0 or (lonely_since is not None and now - lonely_since > LONELY_S):
                    break
            else:
                self._check()
                return
        waited = f"within {span_text(timeout_ns)}"
        if phase is Phase.WAITING and not others:
            raise StateLost(f"{self.name}: the object exists, and nobody who has its state is left, nor is there a "
                            "whole snapshot in what its topic has kept. Close all that is left of it, and it begins "
                            "anew")
        raise DDSTimeout(f"{self.name}: the replica did not get the state {waited}: it {phase.value}; "
                         f"{len(others)} other replicas are there")

    # --- the program

    def begin(self, operation: Operation, arguments: tuple[Any, ...], keywords: dict[str, Any], timeout_ns: int
              ) -> Outcome[Any]:
        """Write a command; waits for room at most so long. Raises as a write, and for wrong arguments."""
        body = operation.encode(arguments, keywords)
        if self._pump.is_this_thread():
            raise DDSException(DDSException.DDS_RETCODE_ILLEGAL_OPERATION,
                               f"{operation.name}(): a command that another command waits for would wait for ever; "
                               "call the method of the object itself")
        return self._issue(operation.name, body, timeout_ns, self._commands_max)

    def _issue(self, name: str, body: bytes, timeout_ns: int, most: int | None) -> Outcome[Any]:
        """Write an entry that has a result, unless as many as `most` are in flight. Raises as a write, and DDSTimeout
        if none may be written in that time."""
        self._check_process()
        future: Outcome[Any] = Outcome()
        deadline = Deadline(timeout_ns)
        while True:
            # Whoever else writes may be waiting for room, and for longer than this may.
            with Taking(self._writing, deadline.left_s(), lambda: DDSTimeout(
                    f"{self.name}: the command was not written: others of this replica wait for room, within "
                    f"{span_text(timeout_ns)}")):
                with self._lock:
                    self._check()
                    if most is not None and self._conduct.in_flight >= most:
                        raise DDSException(DDSException.DDS_RETCODE_OUT_OF_RESOURCES,
                                           f"{self.name}: {most} commands of this replica are in flight, "
                                           "the most that it may have (commands_max): wait for some")
                    entry = None if self._conduct.holds_back else self._conduct.begin(name, body, future)
                if entry is not None:
                    try:
                        self._write_command(entry)
                    except BaseException as error:
                        with self._changed:
                            self._conduct.withdraw(entry)
                            self._changed.notify_all()
                        if getattr(error, "code", None) == DDSException.DDS_RETCODE_ALREADY_DELETED:
                            self._check()  # the replica has ended meanwhile, and closed its writer: that is why
                        raise
                    return future
            # Not under `_writing`: after the death of a node, others must write before there is room.
            with self._changed:
                if not self._changed.wait_for(lambda: self._ended is not None or not self._conduct.holds_back,
                                              deadline.left_s()):
                    raise DDSTimeout(f"{self.name}: the command was not written: {self._why_held_back()}, within "
                                     f"{span_text(timeout_ns)}")

    def _why_held_back(self) -> str:
        if self._conduct.has_state:
            return (f"there was no room for it in what the object's topic keeps ({self._history_bytes} bytes, "
                    "history_bytes) before the next snapshot is complete")
        return f"this replica has lost its place and has not got the state again (it {self.machine.phase.value})"

    def _write_command(self, entry: Entry) -> None:
        """Whoever calls it holds `_writing`."""
        if not self._owes:
            try:
                self._writer.write(entry)
                return
            except DDSUnacknowledged:
                pass  # what is in doubt was a part of what is in flight: all of that is written again, in its order
        self._write_again()

    def _write_again(self) -> None:
        """After a node has gone. Whoever calls it holds `_writing`."""
        self._owes = True  # until all of it is written, though it may raise DDSTimeout
        with self._lock:
            entries = self._conduct.write_again()
        written = 0
        while written < len(entries):
            try:
                self._writer.write(entries[written])
                written += 1
            except DDSUnacknowledged:
                written = 0  # another node has gone
        self._owes = False

    def ask(self, operation: Operation, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Answer a query here."""
        values = operation.bind(arguments, keywords)
        self._check_process()
        with self._lock:
            self._check()
            return operation.call(self._carrier.object, values)

    def persisted(self, deadline: Deadline) -> bool:
        """True when all that was written is on disk everywhere. Raises OutcomeUnknown."""
        try:
            # Who hears that a node has gone must write again what was on its way, see `_write_other`; so not this.
            return self._writer._wait_for_acks(deadline, True, takes_doubts=False)
        except DDSUnacknowledged as error:
            raise OutcomeUnknown(f"{self.name}: the node of this program went away: the command was carried out here, "
                                 "and is not known to be on disk") from error
        except DDSException as error:
            raise OutcomeUnknown(f"{self.name}: the command was carried out here, and is not known to be on disk: "
                                 f"{error}") from error

    def wait_for(self, condition: Callable[[Any], bool], timeout_ns: int | None) -> bool:
        self._check_process()
        with self._changed:
            found = self._changed.wait_for(lambda: self._ended is not None or condition(self._carrier.object),
                                           Deadline(timeout_ns).left_s())
            self._check()
            return found

    def live_replicas(self) -> list[bytes]:
        self._check_process()
        with self._lock:
            self._check()
            return [] if self.machine.agreed is None else list(self.machine.agreed.live)

    def synchronize(self, timeout_ns: int) -> None:
        """An entry that does nothing, and is in flight as commands are."""
        deadline = Deadline(timeout_ns)
        try:
            future = self._issue("", b"", timeout_ns, None)
        except DDSTimeout as late:
            raise CallTimeout(late.msg) from late
        if not future.wait(deadline.left_s()):
            raise CallTimeout(f"{self.name}: the order did not get here within {span_text(timeout_ns)}")
        error = future.exception()
        if isinstance(error, DDSException):
            raise error

    def _check_process(self) -> None:
        """Before a lock is taken, which another thread may have held when this process was forked."""
        if os.getpid() != self._pid:
            raise forked(f"the replica of {self.name!r}")

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # in a forked child: it is the parent's
        with self._lock:
            over = self._ended is not None
            if not over:
                self._have_written(self._conduct.leave())
        self._to_write.put(None)
        if self._scribe.ident is not None and threading.current_thread() is not self._scribe:
            self._scribe.join(2.0)
        if not over:
            try:
                self._writer.wait_for_acks(duration(milliseconds=500))
            except DDSException:
                pass
        self._end(closed(f"the replica of {self.name!r}"))
        self._pump.stop()

    # --- writing what isn't a command

    def _write_all(self) -> None:
        while (entry := self._to_write.get()) is not None:
            try:
                while not self._write_other(entry):
                    pass
            except DDSException as error:
                log.debug("a replica of %r writes no more: %s", self.name, error)
                return

    def _write_other(self, entry: Entry | Again) -> bool:
        """False: not yet. The writer says once, to whoever writes next, that a node has gone with what was on its way.
        Whoever hears it writes that again before anybody writes a command: one that came earlier than those before it
        would have them passed over, everywhere. So this is done under `_writing`, too."""
        try:
            with self._writing:
                if isinstance(entry, Again):
                    self._writer.take_unacknowledged()
                    self._owes = True
                if self._owes:
                    self._write_again()
                if isinstance(entry, Entry):
                    try:
                        self._writer.write(entry)
                    except DDSUnacknowledged:
                        self._owes = True
                        return False
                return True
        except DDSTimeout as error:
            log.warning("a replica of %r: %s; it goes on trying", self.name, error)
            return False

    def _have_written(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._to_write.put(entry)

    def _deliver(self, entry: Entry) -> list[tuple[Future[Any], Result]]:
        """Under the lock: the next entry of the order. Which futures are settled by it."""
        before = self._conduct.snapshot_bytes
        write, settled = self._conduct.came(entry, entry.sample_info.source_timestamp)  # type: ignore[attr-defined]
        size = self._conduct.snapshot_bytes
        if self.logged and size > self._history_bytes // 8 and size != before:
            log.error("a snapshot of %r has %d bytes, more than an eighth of history_bytes (%d): after the death of "
                      "all nodes it may not be found. Make its replicas with more history_bytes", self.name, size,
                      self._history_bytes)
        self._have_written(write)
        return settled

    # --- what comes, on the pump's thread

    def samples_came(self, samples: list[Entry]) -> bool:
        if self._must_read_anew():
            return True  # there is a hole before them, or between them
        settled: list[tuple[Future[Any], Result]] = []
        with self._changed:
            for entry in samples:
                settled += self._deliver(entry)
            self._changed.notify_all()
            self._bury()
        for future, result in settled:
            settle(future, result.error, result.value)
        self._end_if_stopped()
        return True

    def _end_if_stopped(self) -> None:
        if self.machine.why_stopped and self._ended is None:
            error = ReplicaDiverged(f"{self.name}: {self.machine.why_stopped}")
            log.error("%s", error)
            self._end(error)
            self._pump.stop_soon()

    def _bury(self) -> None:
        """Under the lock: replicas that are live in the order and not there have gone."""
        if not self._conduct.must_look and self._conduct.is_lacking(self._peers.there):
            self._peers.look()
            self._have_written(self._conduct.look_around(self._peers.there))

    def statuses_changed(self) -> None:
        self._peers.look()
        if self._writer.get_liveliness_lost_status().total_count_change:
            self._to_write.put(Again())
        self._must_read_anew()
        with self._lock:
            self._bury()

    def _look_whether_there(self, surely: bool = False) -> None:
        """Those that are live in the order, by what the node says now: that is asked without the lock."""
        try:
            self._reader._runtime.refresh(self._topic.name)
        except DDSException as error:
            log.debug("a replica of %r can't be told yet who is there: %s", self.name, error)
            return
        self._peers.look()
        with self._lock:
            self._have_written(self._conduct.look_around(self._peers.there, surely))
        self._end_if_stopped()

    def _must_read_anew(self) -> bool:
        if self._pump.has_missed() and self._ended is None and not self._reads_anew:
            log.warning("a replica of %r may have missed commands, or has carried out some that were on no disk when "
                        "all nodes died; it reads anew what its topic has kept", self.name)
            self._reads_anew = True
            self._pump.wake()
        return self._reads_anew

    def time_passed(self, now_ns: int) -> int | None:
        if self._reads_anew:
            self._read_anew()
        if self._conduct.must_look:
            self._look_whether_there()
        again = now_ns + int(LOOK_S * 1e9) if self._reads_anew or self._conduct.must_look else None
        news = self._wait_for_news(now_ns)
        return again if news is None else news if again is None else min(again, news)

    def _wait_for_news(self, now_ns: int) -> int | None:
        """Of replicas that are live in the order and that nobody has told us of: until when. Then they have gone."""
        with self._lock:
            if not self._conduct.awaits_news(self._peers.there):
                self._news_due_ns = None
                return None
            due_ns = self._news_due_ns = self._news_due_ns or now_ns + int(NEWS_S * 1e9)
        if now_ns >= due_ns:
            due_ns = self._news_due_ns = now_ns + int(NEWS_S * 1e9)
            self._look_whether_there(surely=True)
        return due_ns

    def _read_anew(self) -> None:
        """From the oldest that the topic has kept, by another reader: nobody can say of this one where its hole is."""
        try:
            reader = self._open_reader()
        except DDSException as error:
            log.debug("a replica of %r can't read anew yet: %s", self.name, error)
            return
        before, self._reader = self._reader, reader
        self._peers.read(reader)
        self._pump.read(reader)
        close_ends(before)
        with self._changed:
            entries, given_up = self._conduct.lose_place()
            self._changed.notify_all()
            self._have_written(entries)
            _fail(given_up, OutcomeUnknown(f"{self.name}: commands may be missing here: nobody can say whether this "
                                           "one was carried out"))
        self._reads_anew = False

    def pump_ended(self, error: DDSException) -> None:
        self._end(error)
        self._to_write.put(None)
        close_ends(self._reader, self._writer)

    def _end(self, error: DDSException) -> None:
        with self._changed:
            if self._ended is None:
                self._ended = error
            self._changed.notify_all()
            _fail(self._conduct.give_up(),
                  error if isinstance(error, ReplicaError) else OutcomeUnknown(f"{self.name}: {error}"))


def _fail(futures: list[Future[Any]], error: DDSException) -> None:
    for future in futures:
        settle(future, error, None)


__all__ = ["Driver"]
