"""`bench failover`: how long delivery pauses when a node is killed, hangs, joins or leaves, and that nothing is lost.

Why whole daemons and applications: what counts is when a program reads the next sample, with everything in between:
the kernel's news of the death, the agreement on the next view, its memory, the trim, and the way to the reader.

Rules: every application writes at a steady pace and notes when each message of any writer came. A crash is measured
from the signal to the first message of a view without the victim, at the slowest survivor; a clean change as the
longest pause between two messages around it, beside the longest pauses in as long a time while nothing happens (what
this machine's scheduling costs anyway). After each round all survivors must have delivered the same sequence,
with everything that a survivor wrote, once, in order; else the run has failed.
"""

from __future__ import annotations

import hashlib
import os
import signal
import struct
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spindle_lab.bench import pacing
from spindle_lab.bench.app_run import Daemon
from spindle_lab.bench.channel import Channel
from spindle_lab.bench.crew import BenchFailed, Worker
from spindle_lab.bench.reach import check_fabric
from spindle_lab.bench.results import median

TOPIC = "failover"
PAYLOAD = struct.Struct("<IIQ")  # node id, life of the application, index
NODES = 3
WAIT_S = 20.0  # for anything that should take milliseconds
SETTLE_S = 0.15  # of steady traffic before and after what is measured
AROUND_NS = 100_000_000  # before the first message of a view: a pause that ends there belongs to its change
AFTER_NS = 10_000_000
KILL_TARGET_MS, CHANGE_TARGET_MS, STOP_TARGET_MS = 50.0, 20.0, 100.0


class Notes:
    """What one reader has seen."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=16)
        self.next: dict[tuple[int, int], int] = {}  # per writer: the index that must come next
        self.wrong = 0  # messages out of their writer's order
        self.firsts: list[tuple[int, int]] = []  # view id, arrival of its first message
        self.pauses: list[tuple[int, int]] = []  # begin, end
        self.last_ns = 0
        self.view_id = -1

    def take(self, pairs: list[Any], now_ns: int, pause_ns: int) -> None:
        """A batch that was delivered now. Pauses shorter than `pause_ns` are not noted."""
        if self.last_ns and now_ns - self.last_ns >= pause_ns:
            self.pauses.append((self.last_ns, now_ns))
        self.last_ns = now_ns
        for payload, info in pairs:
            node_id, life, index = PAYLOAD.unpack_from(payload)
            self.wrong += index != self.next.get((node_id, life), 0)
            self.next[node_id, life] = index + 1
            self.digest.update(struct.pack("<Q", info.view_id) + payload[: PAYLOAD.size])
            if info.view_id != self.view_id:
                self.view_id = info.view_id
                self.firsts.append((info.view_id, now_ns))

    def as_json(self) -> dict[str, Any]:
        return {
            "digest": self.digest.hexdigest(),
            "wrong": self.wrong,
            "counts": [[node_id, life, count] for (node_id, life), count in self.next.items()],
            "firsts": self.firsts,
            "pauses": self.pauses[-2000:],
        }


class Application:
    """One writer and one reader at a daemon."""

    def __init__(self, config: dict[str, Any]) -> None:
        from spindle.client import attach
        from spindle.group.topics import TopicSpec

        self.config = config
        self.notes = Notes()
        self.written = 0
        self.writing, self.reading = True, True
        self.session = attach(runtime_dir=config["runtime_dir"], node_id=config["node_id"])
        self.session.declare_topic(TopicSpec(TOPIC, size_max=config["size"]))
        self.reader = self.session.open_reader(TOPIC, keep_all=True, from_history=False)
        self.writer = self.session.open_writer(TOPIC)
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.read, self.write)]

    def read(self) -> None:
        log, pause_ns = self.reader.log, int(3e9 / self.config["rate"])
        while self.reading:
            pairs = log.take_pairs(1000)
            if pairs:
                self.notes.take(pairs, time.monotonic_ns(), pause_ns)
            else:
                log.wait(0.2)

    def write(self) -> None:
        period_ns = int(1e9 / self.config["rate"])
        due_ns = time.monotonic_ns()
        filler = bytes(self.config["size"] - PAYLOAD.size)
        while self.writing:
            due_ns = max(due_ns + period_ns, time.monotonic_ns() - 10 * period_ns)
            pacing.sleep_until_ns(due_ns)
            self.writer.inbox.write(
                PAYLOAD.pack(self.config["node_id"], self.config["life"], self.written) + filler, timeout_s=WAIT_S)
            self.written += 1

    def members(self) -> list[int]:
        """Node ids of the topic's members that also send."""
        topics = {topic.spec.name: topic for topic in self.session.topics()}
        return list(topics[TOPIC].senders) if TOPIC in topics else []


def work(channel: Channel, config: dict[str, Any]) -> None:
    """A worker: does what it is told, one message at a time."""
    pacing.precise_timers()
    app = Application(config)
    channel.send({"event": "open"})
    while True:
        message, _ = channel.receive()
        what = message["event"]
        if what == "start":
            for thread in app.threads:
                thread.start()
        elif what == "look":
            channel.send({"event": "look", "view": list(app.session.view().node_ids), "members": app.members(),
                          "count": sum(app.notes.next.values())})
        elif what == "stop":  # what was written is delivered everywhere after this
            app.writing = False
            app.threads[1].join(WAIT_S)
            app.writer.close()
            channel.send({"event": "stop", "written": app.written})
        elif what == "notes":
            channel.send({"event": "notes", **app.notes.as_json()})
        else:
            app.reading = False
            app.threads[0].join(WAIT_S)
            app.session.close()
            channel.send({"event": "end"})


class Member:
    """A daemon and its application."""

    def __init__(self, directory: str, node_id: int, options: dict[str, Any], life: int = 0) -> None:
        self.node_id, self.life = node_id, life
        self.directory, self.options = directory, options
        settings = {"membership.suspect_timeout_s": str(options["suspect_timeout_s"]),
                    "network.fabric": options["fabric"]}
        self.daemon = Daemon(node_id, Path(directory), settings)
        self.app: Worker | None = None

    def open(self) -> None:
        """Starts the application; the daemon must be ready."""
        self.app = Worker(f"application of node {self.node_id}", "failover", {
            "runtime_dir": self.directory, "node_id": self.node_id, "life": self.life,
            "size": self.options["size"], "rate": self.options["rate"]})

    def ask(self, event: str, timeout_s: float = WAIT_S) -> dict[str, Any]:
        assert self.app is not None
        self.app.channel.send({"event": event})
        return self.app.expect(event, timeout_s)[0]

    def start(self) -> None:
        assert self.app is not None
        self.app.channel.send({"event": "start"})

    def close(self) -> None:
        if self.app is not None:
            self.app.process.kill()
            self.app.close()
        if self.daemon.process.poll() is None:
            self.daemon.process.kill()  # the next round has another group
            self.daemon.process.wait()
        self.daemon.close()


class Group:
    """The members of one round. To be used as a context manager."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.directory = tempfile.TemporaryDirectory(prefix="spindle-bench-")
        self.members: list[Member] = []
        try:
            for node_id in range(1, NODES + 1):
                self.add(node_id)
            for member in self.members:
                member.daemon.wait_ready()
            for member in self.members:
                member.open()
            for member in self.members:
                assert member.app is not None
                member.app.expect("open", WAIT_S)
            self.until(lambda look: len(look["members"]) == NODES, "all members", self.members)
            for member in self.members:
                member.start()
            time.sleep(SETTLE_S)
        except BaseException:
            self.close()
            raise

    def add(self, node_id: int, life: int = 0) -> Member:
        self.members.append(Member(self.directory.name, node_id, self.options, life))
        return self.members[-1]

    def until(self, condition: Callable[[dict[str, Any]], bool], what: str, members: list[Member]) -> None:
        """Asks the applications until the condition holds at all of them."""
        deadline = time.monotonic() + WAIT_S
        for member in members:
            while not condition(member.ask("look")):
                if time.monotonic() > deadline:
                    raise BenchFailed(f"not within {WAIT_S:g} s at node {member.node_id}: {what}")
                time.sleep(0.005)

    def by_rank(self) -> list[Member]:
        """The members, the leader first."""
        order = self.members[0].ask("look")["view"]
        return sorted(self.members, key=lambda member: order.index(member.node_id))

    def settle(self, survivors: list[Member], gone: dict[tuple[int, int], int] | None = None) -> list[dict[str, Any]]:
        """Ends the round: the notes of all survivors. Raises BenchFailed if anything was lost, doubled or misordered.
        `gone`: what members that left in order had written."""
        written = {(one.node_id, one.life): one.ask("stop")["written"] for one in survivors} | (gone or {})
        deadline = time.monotonic() + WAIT_S
        while True:
            notes = [one.ask("notes") for one in survivors]
            counts = [{(node_id, life): count for node_id, life, count in one["counts"]} for one in notes]
            if all(found.get(writer, 0) >= count for found in counts for writer, count in written.items()):
                break
            if time.monotonic() > deadline:
                raise BenchFailed(f"messages were lost: written {written}, delivered {counts}; this is a defect")
            time.sleep(0.02)
        if any(found[writer] != count for found in counts for writer, count in written.items()):
            raise BenchFailed(f"messages were made up: written {written}, delivered {counts}; this is a defect")
        if any(one["wrong"] for one in notes) or len({one["digest"] for one in notes}) != 1:
            raise BenchFailed(f"messages lost, doubled or delivered in different orders: {counts}; this is a defect")
        return notes

    def close(self) -> None:
        for member in self.members:
            member.close()
        self.directory.cleanup()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def crash(options: dict[str, Any], number: int, leader: bool) -> float:
    """One round: sends the signal to the leader or the last member; ms until all survivors deliver again."""
    with Group(options) as group:
        ranked = group.by_rank()
        victim = ranked[0] if leader else ranked[-1]
        survivors = [member for member in ranked if member is not victim]
        hit_ns = time.monotonic_ns()
        os.kill(victim.daemon.process.pid, number)
        group.until(lambda look: victim.node_id not in look["view"], "a view without the victim", survivors)
        time.sleep(SETTLE_S)
        notes = group.settle(survivors)
        if number == signal.SIGSTOP:
            os.kill(victim.daemon.process.pid, signal.SIGCONT)
        return max(min(first_ns for _, first_ns in one["firsts"] if first_ns > hit_ns) - hit_ns for one in notes) / 1e6


def clean_changes(options: dict[str, Any], rounds: int) -> list[float]:
    """A fourth member comes, writes and reads, and goes, so many times; the pause in ms at each view change of it."""
    with Group(options) as group:
        staying = list(group.members)
        gone: dict[tuple[int, int], int] = {}
        begin_ns = time.monotonic_ns()
        for life in range(rounds):
            guest = group.add(NODES + 1, life)
            guest.daemon.wait_ready()
            guest.open()
            assert guest.app is not None
            guest.app.expect("open", WAIT_S)
            guest.start()
            time.sleep(SETTLE_S)
            gone[guest.node_id, life] = guest.ask("stop")["written"]
            guest.ask("end")
            guest.daemon.process.terminate()
            guest.daemon.process.wait(WAIT_S)
            guest.close()
            group.members.remove(guest)
            time.sleep(SETTLE_S)
        return [pause for notes in group.settle(staying, gone) for pause in pauses_ms(notes, begin_ns)]


def nothing_happens(options: dict[str, Any], windows: int) -> list[float]:
    """The longest pause in ms in each of so many windows, as long as what is looked at around a view change."""
    with Group(options) as group:
        window_ns = AROUND_NS + AFTER_NS
        begin_ns = time.monotonic_ns()
        time.sleep(windows * window_ns / 1e9)
        found = []
        for notes in group.settle(group.members):
            for number in range(windows):
                end_ns = begin_ns + (number + 1) * window_ns
                near = [end - begin for begin, end in notes["pauses"] if end_ns - window_ns < end <= end_ns]
                found.append(max(near, default=0) / 1e6)
        return found


def pauses_ms(notes: dict[str, Any], begin_ns: int) -> list[float]:
    """The longest pause at each view change after `begin_ns`; 0 where none was long enough to be noted."""
    found = []
    for _, first_ns in notes["firsts"]:
        if first_ns > begin_ns:
            near = [end - begin for begin, end in notes["pauses"] if first_ns - AROUND_NS < end < first_ns + AFTER_NS]
            found.append(max(near, default=0) / 1e6)
    return found


def summary(values: list[float], target_ms: float, q: float = 1.0) -> dict[str, Any]:
    """Median, p99 and maximum of times in ms; met: the share q of them is within the target."""
    ordered = sorted(values)
    judged = ordered[max(0, -(-int(q * 100) * len(ordered) // 100) - 1)]
    return {
        "samples": len(values),
        "median_ms": round(median(ordered), 2),
        "p99_ms": round(ordered[max(0, -(-99 * len(ordered) // 100) - 1)], 2),
        "max_ms": round(ordered[-1], 2),
        "target_ms": target_ms,
        "met": judged <= target_ms,
    }


def run(options: dict[str, Any], kills: int, stops: int, joins: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything in turn. Raises BenchFailed if a checker finds a message lost, doubled or misordered."""
    check_fabric(options["fabric"])
    result: dict[str, Any] = {"nodes": NODES, "fabric": options["fabric"], "rate": options["rate"],
                              "size": options["size"], "suspect_timeout_s": options["suspect_timeout_s"]}
    timeout_ms = options["suspect_timeout_s"] * 1000
    if kills:
        for name, leader in (("kill_member", False), ("kill_leader", True)):
            say(name)
            result[name] = summary([crash(options, signal.SIGKILL, leader) for _ in range(kills)], KILL_TARGET_MS, 0.99)
    if stops:
        for name, leader in (("stop_member", False), ("stop_leader", True)):
            say(name)
            result[name] = summary(
                [crash(options, signal.SIGSTOP, leader) for _ in range(stops)], timeout_ms + STOP_TARGET_MS)
    if joins:
        say("join_and_leave")
        result["nothing_happens"] = summary(nothing_happens(options, 4 * joins), CHANGE_TARGET_MS, 0.99)
        result["join_and_leave"] = summary(clean_changes(options, joins), CHANGE_TARGET_MS, 0.99)
    return result
