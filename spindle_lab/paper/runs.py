"""One run of the evaluation: what it is, as data, and what it shows, as plain numbers.

A Run says everything that its figures depend on, so that equal runs are the same run: it is computed once, whoever
asks for it, and kept under its hash.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from spindle_core.switches import Switches
from spindle_lab.paper.parameters import (
    PAPER,
    PAPER_PER_MESSAGE,
    PAPER_REFERENCE,
    PAUSES,
    PER_MESSAGE_WORK_US,
    Parameters,
)

# What is added step by step, in the paper's order; each has all before it (sections 3.2 to 3.4).
TECHNIQUES = {
    "baseline": Switches.baseline(),
    "delivery": Switches(False, False, True, False, False),
    "receive": Switches(False, True, True, False, False),
    "batching": Switches(True, True, True, False, False),
    "nulls": Switches(True, True, True, True, False),
    "all": Switches(),
}
TABLES = {"paper": PAPER, "reference": PAPER_REFERENCE, "per message": PAPER_PER_MESSAGE}
ENDLESS = 1 << 40  # messages: a sender that never comes to its end
DISK_AHEAD_BYTES = 1 << 20  # little, so that a short run is as steady as one that writes for hours


@dataclass(frozen=True)
class Run:
    """Every node is in all topics; of these the first `active` carry messages. Times in microseconds, sizes in bytes.

    messages: of each sender, that are measured (0: as many as make it steady); before them comes a warm-up.
    """

    members: int = 16
    senders: int = 0  # the first so many ranks; 0: all
    techniques: str = "all"
    size: int = 10240
    window: int = 100
    topics: int = 1
    active: int = 1
    messages: int = 0
    delayed: int = 0  # of the senders, the last so many
    delay_us: float = 0.0  # after each message; math.inf: they never send
    level: int = 1
    upcall_us: float = 0.0
    copies_in: bool = False
    copies_out: bool = False
    disk_bytes_s: float = 0.0  # of a log; delivery waits when it is DISK_AHEAD_BYTES behind
    work_us: float = 0.0  # an application's, for each message
    second_size: int = -1  # of every second message; -1: as the others
    slot: int = 0  # bytes that a slot has room for; 0: as many as the messages need
    range_cost: int = -1  # unused bytes of slots that are posted along instead of a further post; -1: all
    push_bytes: int = -1  # of slots that go with a count of their own; -1: a batch has one
    lock_free: bool = False  # claims take no lock
    paused: bool = False  # threads are interrupted, as parameters.PAUSES has it
    ahead: bool = False  # acknowledgements have a connection of their own
    once: bool = False  # what a pass acknowledges leaves at its end, received and delivered in one write
    table: str = "paper"
    changes: tuple[tuple[str, float], ...] = ()  # of the table: fields of Node or Network, or lock_through
    seed: int = 1

    @property
    def sending(self) -> int:
        return self.senders or self.members

    @property
    def one_by_one(self) -> bool:
        """Messages are delivered one at a time: such a run is long, and even."""
        return not TECHNIQUES[self.techniques].batch_delivery

    def spec(self) -> dict[str, Any]:
        """As JSON has it."""
        fields = dataclasses.asdict(self)
        fields["delay_us"] = "inf" if math.isinf(self.delay_us) else self.delay_us
        fields["changes"] = [list(change) for change in self.changes]
        return fields


def parameters_of(run: Run) -> Parameters:
    """Raises ValueError for a field that a table doesn't have."""
    table = TABLES[run.table]
    for name, value in run.changes:
        for part in ("node", "network"):
            if name in {field.name for field in dataclasses.fields(getattr(table, part))}:
                changed = dataclasses.replace(getattr(table, part), **{name: value})
                table = dataclasses.replace(table, **{part: changed})
                break
        else:
            if name != "lock_through":
                raise ValueError(f"{name}: neither Node nor Network has it")
            table = dataclasses.replace(table, lock_through=bool(value))
    return dataclasses.replace(table, pauses=PAUSES) if run.paused else table


def work_of(run: Run) -> float:
    """What an application does for each message: what the run says, and what the table was fitted with."""
    return run.work_us + (PER_MESSAGE_WORK_US if run.table == "per message" else 0.0)


def counts_of(run: Run) -> tuple[int, int]:
    """(warm-up, measured), in messages of each sender and topic."""
    if run.one_by_one:
        return run.window, run.messages or max(100, run.window)
    return 2 * run.window, run.messages or max(800, 4 * run.window)


def simulate(run: Run) -> dict[str, Any]:
    """Plays it; its figures as JSON has them. Deterministic."""
    from spindle_core.engine import SubgroupSpec
    from spindle_lab.paper.cluster import Cluster, Sender, Upcall

    members, senders = tuple(range(run.members)), tuple(range(run.sending))
    slot = run.slot or max(run.size, run.second_size)
    topics = [SubgroupSpec(t + 1, members, senders, run.window, slot, run.level) for t in range(run.topics)]
    delayed = set(senders[run.sending - run.delayed :] if run.delayed else ())
    silent = delayed if math.isinf(run.delay_us) else set()
    applications = [
        Sender(rank, t + 1, ENDLESS, run.size, run.delay_us if rank in delayed else 0.0, run.copies_in, work_of(run),
               second_size=run.second_size if run.second_size >= 0 else None)
        for rank in senders
        if rank not in silent
        for t in range(run.active)
    ]
    upcall = Upcall(run.upcall_us, run.copies_out, run.disk_bytes_s, DISK_AHEAD_BYTES)
    cluster = Cluster(
        parameters_of(run),
        run.members,
        topics,
        applications,
        switches=TECHNIQUES[run.techniques],
        upcalls={topic.topic_id: upcall for topic in topics},
        range_cost=run.range_cost if run.range_cost >= 0 else None,
        push_bytes=run.push_bytes if run.push_bytes >= 0 else None,
        lock_free=run.lock_free,
        ahead=run.ahead,
        once=run.once,
        seed=run.seed,
    )
    try:
        warm_up, measured = counts_of(run)
        until = (warm_up + measured) * (run.sending - len(silent)) * run.active
        outcome = cluster.run(until=until, warm_up=warm_up / (warm_up + measured), limit_s=1000.0)
        return figures_of(run, outcome, [app.rank in delayed for app in applications])
    finally:
        cluster.close()


def figures_of(run: Run, outcome: Any, slow: list[bool]) -> dict[str, Any]:
    """Shares are of the run's time; *_per_message of messages delivered at a node; times in microseconds."""
    counters = outcome.counters
    delivered = sum(c["delivery_messages"] for c in counters) / run.members
    seconds = outcome.seconds
    swift = [i for i, is_slow in enumerate(slow) if not is_slow] or list(range(len(slow)))
    null_laps = [outcome.null_laps[rank] for rank in range(run.members)]
    first_slow = run.sending - run.delayed
    return {
        "finished": outcome.finished,
        "seconds": seconds,
        "gb_s": mean(outcome.bytes_s) / 1e9,
        "messages_s": mean(outcome.messages_s),
        "latency_us": {str(q): s * 1e6 for q, s in outcome.latency_s.items()},
        "latency_mean_us": outcome.latency_mean_s * 1e6,
        "delivered": delivered,
        "pushes_per_message": pushes_per_message(counters, run.members),
        "writes_per_message": outcome.writes / run.members / delivered,
        "posting_us_per_message": mean(outcome.posting_s) / seconds * 1e6 / mean(outcome.messages_s),
        "posting_share": mean(outcome.posting_s) / seconds,
        "waiting_share": mean([outcome.waiting_s[i] for i in swift]) / seconds,
        "locked_share": mean([outcome.locked_s[i] for i in swift]) / seconds,
        "active_share": mean([sum(shares[t + 1] for t in range(run.active)) for shares in outcome.topic_shares]),
        "predicate": {
            "posting": mean(outcome.posting_s) / seconds,
            "looking": mean(outcome.looking_s) / seconds,
            "firing": mean(outcome.firing_s) / seconds,
            "delivering": mean(outcome.delivering_s) / seconds,
            "idle": 1 - mean(outcome.busy_s) / seconds,
        },
        "port": {
            "slots": (mean(outcome.port_s) - mean(outcome.port_counts_s)) / seconds,
            "counts": mean(outcome.port_counts_s) / seconds,
            "idle": 1 - mean(outcome.port_s) / seconds,
        },
        "acknowledgement_us": outcome.acknowledgement_s * 1e6,
        "link_share": max(outcome.out_bytes) / seconds / parameters_of(run).network.bytes_s,
        "batches": {
            kind: total(counters, f"{kind}_messages") / max(1, total(counters, f"{kind}_batches"))
            for kind in ("send", "receive", "delivery")
        },
        "histograms": {kind: {str(k): n for k, n in sizes.items()} for kind, sizes in outcome.batches.items()},
        "nulls_per_message": total(counters, "nulls") / run.members / delivered,
        "null_laps": {
            "swift": mean(null_laps[:first_slow]),
            "slow": mean(null_laps[first_slow : run.sending]) if run.delayed else 0.0,
        },
        "sent": {
            "swift": mean([outcome.sent[i] for i in swift]),
            "slow": mean([n for n, is_slow in zip(outcome.sent, slow, strict=True) if is_slow]) if any(slow) else 0.0,
        },
    }


def pushes_per_message(counters: list[dict[str, int]], members: int) -> float:
    """Of a node, for each message that is delivered there, as it is in the long run.

    When a run ends, messages are on their way: more were sent than received, and received than delivered. So each kind
    of push is taken beside its own kind of messages.
    """
    sends, receipts, deliveries = (total(counters, f"{kind}_batches") for kind in ("send", "receive", "delivery"))
    sent, received, delivered = (total(counters, f"{kind}_messages") for kind in ("send", "receive", "delivery"))
    if not (sent and received and delivered):
        return 0.0
    nulls = total(counters, "nulls") / sent
    acknowledged = min(receipts, total(counters, "pushes") - sends - deliveries)
    return sends / sent / members + acknowledged / received * (1 + nulls) + deliveries / delivered


def mean(values: list[Any]) -> float:
    return sum(values) / len(values) if values else 0.0


def total(counters: list[dict[str, int]], name: str) -> int:
    return sum(c[name] for c in counters)
