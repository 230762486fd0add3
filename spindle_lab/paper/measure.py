"""`spindle paper measure`: a cost table of the machine at hand, each cost measured for itself.

None of it is taken from the throughput or the latency of a multicast, so that a prediction from the table can be held
against these (experiments/real.py). What crosses cores is measured between two cores; on a machine with one, on that.
Bytes are measured while both move some (loads.pyx).

A time is the median of its rounds: others may be busy here, and what they take from a round must not count. Bytes are
means, since a run has what disturbs them as well. Where a virtual machine's processors are moved, a table is of one
moment, and several are needed to say what a second costs.
"""

from __future__ import annotations

import dataclasses
import os
import random
import select
from collections.abc import Sequence
from typing import Any

from spindle.group.topics import SLOT_OVERHEAD, choose_window
from spindle_core.ends import Ringer
from spindle_core.fabric.fabric import Fabric
from spindle_core.fabric.tcp import TcpFabric
from spindle_core.memory import Mapping
from spindle_lab.paper import loads, probes
from spindle_lab.paper.parameters import Network, Node, Parameters
from spindle_lab.paper.stands import apart, connection, cores, mean, median, together, two_ends, view, words

FABRICS = ("shm", "tcp")
ROUNDS = 100
COPY_SIZES = (64, 256, 1024, 4096, 10240, 65536, 262144, 1 << 20)
COPY_RING = 1 << 20  # bytes that copies come from: a few windows, in a cache
COLD_RING = 256 << 20  # in none
MEMBERS = (2, 4, 8)  # of the views whose idle passes are compared
TOPICS = (1, 4, 16)
LINES = 512
HOLD_NS = 3000
SLICE_NS = 3e6  # where none was seen to end
SLICES_NS, GAP_NS = 150_000_000, 300_000  # of looking at how long a thread is left to run; a pause is longer than that
ANSWERS = 3000
# Of one core alone.
OWN_COSTS = ("lap_ns", "subgroup_ns", "line_ns", "yield_ns", "spin_ns", "switch_ns", "slice_ns", "ring_ns", "woken_ns",
             "ring_busy_ns")
SHORT, LONG = 16 << 10, 128 << 10  # bytes of a write
LEAVE_NS_MIN = 1.0  # of the call by which posts leave, for each peer
STREAM_POSTS = 60  # of each end, in one turn, besides the first round through the ring
STREAM_TURNS = 2
STREAM_RING, STREAM_AHEAD = 512 << 10, 256 << 10  # as a topic's ring, and as much of it as is on its way
PAYLOAD_SLOTS = 4000  # that each thread fills at least
WARM_UP = 2  # rounds, in which pages are new
FAR = 1e14  # bytes/s of memory that is reached without a link


# ---- the node ------------------------------------------------------------------------------------------------------


def pass_costs(fabric: str) -> dict[str, float]:
    """lap_ns, subgroup_ns, line_ns: from idle passes of views of several sizes, by least squares."""
    points = []
    for n in MEMBERS:
        for topics in TOPICS:
            with view(n, topics, fabric=fabric) as (_, epochs):
                points.append((topics, topics * 3 * n, median(probes.passes(epochs[0], 50))))
    lap, subgroup, line = least_squares(points)
    lap += probes.clock_ns()  # the thread looks at the clock after each pass
    return {"lap_ns": max(0.0, lap), "subgroup_ns": max(0.0, subgroup), "line_ns": max(0.0, line)}


def least_squares(points: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    """(a, b, c) of y = a + b * x1 + c * x2, in shares of y: a pass of 16 topics weighs no more than one of one."""
    rows = [(1 / y, x1 / y, x2 / y) for x1, x2, y in points]
    matrix = [[sum(row[i] * row[k] for row in rows) for k in range(3)] for i in range(3)]
    for i in range(3):
        matrix[i].append(sum(row[i] for row in rows))
    for i in range(3):
        pivot = matrix[i][i]
        matrix[i] = [value / pivot for value in matrix[i]]
        for k in range(3):
            if k != i:
                matrix[k] = [a - matrix[k][i] * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    return matrix[0][3], matrix[1][3], matrix[2][3]


def line_costs() -> dict[str, float]:
    """changed_ns: what a line costs more that another core has changed; store_ns: to store into one that another core
    has read, until it can see it. Lines in no order, so that none is fetched ahead."""
    lines, baton, order = words(8 * LINES), words(8), words(LINES)
    for place, line in enumerate(random.Random(1).sample(range(LINES), LINES)):
        order[place] = line
    stores, (first, again) = together(
        lambda: probes.change_lines(lines, order, ROUNDS, baton), lambda: probes.read_lines(lines, order, ROUNDS, baton)
    )
    return {"changed_ns": max(0.0, (median(first) - median(again)) / LINES), "store_ns": median(stores) / LINES}


def answer_ns() -> float:
    """From a store on one core to its being seen on another."""

    def round_trip() -> float:
        lines = words(16)
        [[one], [other]] = together(lambda: probes.ping(lines, 0, 20_000), lambda: probes.ping(lines, 1, 20_000))
        return min(one, other)

    return median([round_trip() / 2 for _ in range(5)])


def message_costs(size: int, n: int, places: tuple[int, int] | None = None, fabric: str = "shm") -> dict[str, float]:
    """One application and one predicate thread of a node alone, in turns of n messages: ns of a turn, by part.

    size: bytes that are filled, 0: none. The upcall is empty.
    """
    baton = words(8)
    with view(1, window=max(n, 8), size=max(size, 16), fabric=fabric) as ([engine], [epoch]):
        engine.set_upcall(1, probes.empty_upcall())
        (claims, fills, commits), (sends, receives, deliveries) = together(
            lambda: probes.fill_turns(engine, epoch, 1, size, n, ROUNDS, baton),
            lambda: probes.take_turns(epoch, 1, ROUNDS, baton),
            places,
        )
        if engine.counters.snapshot()["delivery_messages"] != n * ROUNDS:
            raise RuntimeError("messages were not delivered in the turn in which they were committed")
    parts = {"claim": claims, "fill": fills, "commit": commits, "send": sends, "receive": receives,
             "deliver": deliveries}  # fmt: skip
    clock = probes.clock_ns()
    return {name: max(0.0, median(times) - clock) for name, times in parts.items()}


def shared_costs(size: int) -> dict[str, float]:
    """The same, where the predicate thread looks between claim and commit."""
    baton = words(8)
    with view(1, size=max(size, 16)) as ([engine], [epoch]):
        engine.set_upcall(1, probes.empty_upcall())
        (claims, commits), looks = together(
            lambda: probes.open_turns(engine, epoch, 1, size, ROUNDS, baton),
            lambda: probes.look_turns(epoch, 1, ROUNDS, baton),
        )
    clock = probes.clock_ns()
    return {"claim": median(claims) - clock, "commit": median(commits) - clock, "look": median(looks) - clock}


def message_ns(size: int, rings: int = 1, fabric: str = "shm") -> dict[str, float]:
    """What becomes Node's fields of the same names for messages of `size` bytes. rings: of so many senders, which share
    the caches."""
    n = choose_window(size) * rings
    one, other = cores()
    between: list[dict[str, float]] = []
    for places in ((one, other), (one, one)):
        single, many = (message_costs(size, k, places, fabric) for k in (1, n))
        each = {name: (many[name] - single[name]) / (n - 1) for name in many}
        fires = [single["send"] - each["send"], single["receive"], single["deliver"] - each["deliver"]]
        between.append({
            "claim_ns": many["claim"] / n,
            "commit_ns": many["commit"] / n,
            "retry_ns": many["claim"] / n,
            "deliver_ns": each["deliver"],
            "send_ns": each["send"],
            "trigger_ns": sum(fires) / 3,
        })  # fmt: skip
    found = {
        name: max(0.0, apart() * cost + (1 - apart()) * between[1][name]) for name, cost in between[0].items()
    }
    shared = shared_costs(size)
    found["claim_shared_ns"] = max(0.0, shared["claim"] - found["claim_ns"])
    found["commit_shared_ns"] = max(0.0, shared["commit"] - found["commit_ns"])
    found["look_shared_ns"] = max(0.0, shared["look"])
    return found


def payload_ns(size: int, nodes: int, fabric: str = "shm") -> dict[str, float]:
    """fill_ns and take_ns: what the benchmarks' senders and receivers do with the bytes of a message, where as many
    nodes as that all send, and two cores are busy with it at the same time.

    Each core has the predicate threads of every second node, and the applications either of the same nodes or of the
    others: with two cores both cases are as likely.
    """
    together_ns, apart_ns = (payload_at(size, nodes, fabric == "tcp", crossed) for crossed in (False, True))
    return {name: apart() * apart_ns[name] + (1 - apart()) * together_ns[name] for name in apart_ns}


def payload_at(size: int, nodes: int, copies: bool, crossed: bool) -> dict[str, float]:
    """The same; crossed: an application is on another core than its node's predicate thread. copies: what is read is a
    node's own copy of what others have filled. Whole windows in turn: a message is delivered when everybody has it, and
    by then its sender is about a window ahead."""
    window, stride = choose_window(size), (size + SLOT_OVERHEAD + 63) // 64 * 64
    rings = [[Mapping.create("measure", window * stride) for _ in range(nodes if copies else 1)] for _ in range(nodes)]

    def ring(sender: int, node: int) -> Mapping:
        return rings[sender][node if copies else 0]

    baton = words(8 * 2)
    rounds = WARM_UP + max(20, PAYLOAD_SLOTS // window)

    def part(core: int) -> tuple[Sequence[float], Sequence[float]]:
        here = range(core, nodes, 2)
        fills = [ring(node, node) for node in range(core ^ crossed, nodes, 2)]
        pairs = [(ring(sender, sender), ring(sender, node)) for node in here for sender in range(nodes)
                 if copies and sender != node]  # fmt: skip
        reads = [ring(sender, node) for node in here for sender in range(nodes)]
        return loads.payload_turns(fills, pairs, reads, size, stride, window, window, rounds, baton, 2, core)

    try:
        parts = together(lambda: part(0), lambda: part(1))
    finally:
        for mapping in [mapping for row in rings for mapping in row]:
            mapping.close()
    fills, takes = (sum(mean(part[place][WARM_UP:]) for part in parts) for place in range(2))
    return {"fill_ns": fills / (window * nodes), "take_ns": takes / (window * nodes * nodes)}


def handover_ns() -> float:
    """From one thread's letting go of a lock to another's having it, where that one has waited."""
    let_go, baton = words(ROUNDS), words(8)
    with view(1) as (_, [epoch]):
        _, found = together(
            lambda: probes.hold_lock(epoch, 1, HOLD_NS, let_go, baton),
            lambda: probes.take_lock(epoch, 1, let_go, baton),
        )
    return median(found)


def copy_curve(ring: int = COPY_RING) -> dict[int, float]:
    """Of copies from a ring of so many bytes into memory that stays hot: {bytes: ns}."""
    from spindle_lab.bench.bare import copy_rate

    curve = {}
    for size in COPY_SIZES:
        rates = [copy_rate(max(ring, 2 * size), max(64 << 10, size), size, 10_000_000) for _ in range(5)]
        curve[size] = size / median(rates) * 1e9
    return curve


def core_costs() -> dict[str, float]:
    """What threads cost each other that share a core, and what it costs to wake one."""
    from spindle_lab.bench import doorbell

    here = cores()[0]
    alone, _ = together(lambda: probes.yields(100), lambda: None)
    one, other = together(lambda: probes.yields(100), lambda: probes.yields(100), (here, here))
    left = together(
        lambda: probes.slices(SLICES_NS, GAP_NS), lambda: probes.slices(SLICES_NS, GAP_NS), (here, here)
    )
    rung = doorbell.run(300)
    ringer, gone_fd = Ringer(), os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
    try:
        with select.epoll() as poller:  # as the predicate thread sleeps
            poller.register(ringer.heard, select.EPOLLIN | select.EPOLLET)
            busy, _ = together(
                lambda: probes.ring_sleeper(ringer.fd, gone_fd, ROUNDS),
                lambda: probes.sleep_rounds(poller.fileno(), gone_fd, ROUNDS),
                (here, here),
            )
    finally:
        ringer.close()
        os.close(gone_fd)
    return {
        "yield_ns": median(alone),
        "spin_ns": median(probes.spins(ROUNDS)),
        # Between two returns of a thread's call the other one's call comes: two calls, and two switches.
        "switch_ns": max(0.0, median([*one, *other]) / 2 - median(alone)),
        # What is shorter lies between two interruptions.
        "slice_ns": median([ns for ns in (*left[0], *left[1]) if ns > GAP_NS] or [SLICE_NS]),
        "ring_ns": rung["ring_us"]["p50"] * 1000,
        "woken_ns": rung["wakeup_us"]["p50"] * 1000,
        "ring_busy_ns": median(busy),
    }


# ---- the network ---------------------------------------------------------------------------------------------------


def shm_costs() -> dict[str, float]:
    """Of a post, which is a look at whether the peer sleeps, behind a store into a line that it has read. No bytes are
    moved."""
    with view(9) as (_, epochs):
        fabric: Fabric = epochs[0].fabric
        one, eight = (median(probes.post_lists(fabric, n, 50)) for n in (1, 8))
    return {
        "post_first_ns": one + apart() * line_costs()["store_ns"],
        "post_next_ns": max(0.0, (eight - one) / 7),
        "latency_ns": answer_ns(),
    }


def tcp_turns(n: int, length: int) -> dict[str, float]:
    """One pass of posts to one peer: ns of posting, of their leaving, of taking, of looking."""
    one, other = cores()
    between, within = (tcp_turns_at(n, length, places) for places in ((one, other), (one, one)))
    return {name: apart() * between[name] + (1 - apart()) * within[name] for name in between}


def tcp_turns_at(n: int, length: int, places: tuple[int, int]) -> dict[str, float]:
    """The same, with the two threads on these processors."""
    baton = words(8)
    with two_ends(max(4096, 2 * n * length + length)) as (sender, receiver):
        (posting, leaving), (taking, looking) = together(
            lambda: probes.post_turns(sender, 1, n, length, ROUNDS, baton),
            lambda: probes.arrival_turns(receiver, n, ROUNDS, baton),
            places,
        )
    clock = probes.clock_ns()
    parts = {"post": posting, "leave": leaving, "take": taking, "look": looking}
    return {name: max(0.0, median(times) - clock) for name, times in parts.items()}


def stream_costs(nodes: int) -> dict[str, float]:
    """Of streams between so many nodes in all directions, while two cores are busy with it: what a call costs that
    sends, or receives, and each byte of it; what is read from a row has been filled meanwhile.

    Loopback does much of the receiver's work in the sender's call; that counts as the sender's. Short and long writes
    take turns, so that both have the same share of whatever else goes on here.
    """
    found: dict[int, list[dict[str, int]]] = {SHORT: [], LONG: []}
    for _ in range(STREAM_TURNS):
        for length, moved in found.items():
            moved.append(streams(nodes, length, False))
            moved.append(streams(nodes, length, True))
    look = median([one["look_ns"] / max(1, one["looks"]) for moved in found.values() for one in moved])
    costs = {}
    for name, bytes_of, calls, per_byte in (("leave", "sent", "sends", "post_ns_per_byte"),
                                            ("take", "received", "receives", "take_ns_per_byte")):  # fmt: skip
        ns, size = ([median([one[field] / one[calls] for one in found[length]]) for length in (SHORT, LONG)]
                    for field in (f"{name}_ns", bytes_of))  # fmt: skip
        pace = max(0.0, (ns[1] - ns[0]) / (size[1] - size[0])) if size[1] > size[0] else 0.0
        costs[per_byte] = pace
        costs[f"{name}_ns"] = max(0.0, ns[0] - pace * size[0] - (look if name == "take" else 0.0))
    return costs


def streams(nodes: int, length: int, crossed: bool) -> dict[str, int]:
    """What loads.stream_passes() says of two cores together, with writes of so many bytes. crossed: rows are
    filled on the other core than they are posted from."""
    fabrics = [TcpFabric(rank, nodes) for rank in range(nodes)]
    try:
        for rank, fabric in enumerate(fabrics):
            fabric.make_row(f"measure-{rank}", STREAM_RING)
            for other in range(rank):
                here, there = connection()
                fabric.connect(other, here)
                fabrics[other].connect(rank, there)
        rounds = STREAM_RING // length + STREAM_POSTS
        places = words(8 * nodes)

        def end(core: int) -> dict[str, int]:
            rows = [fabric.row for fabric in fabrics[core ^ crossed :: 2]]
            return loads.stream_passes(
                fabrics[core::2], rows, length, STREAM_RING, STREAM_AHEAD, rounds, places, nodes)  # fmt: skip

        one, other = together(lambda: end(0), lambda: end(1))
        return {name: value + other[name] for name, value in one.items()}
    finally:
        for fabric in fabrics:
            fabric.close()


def tcp_costs(nodes: int = 2) -> dict[str, float]:
    """Posts wait until the end of a pass, and leave with one call for each peer; what comes is taken with another."""
    one, many = tcp_turns(1, 64), tcp_turns(64, 64)
    with two_ends(4096) as (first, second):
        rounds, _ = together(
            lambda: probes.answers(first, 1, True, ANSWERS), lambda: probes.answers(second, 0, False, ANSWERS)
        )
    stream = stream_costs(nodes)
    # A busy machine may make the fixed part of a call vanish in that of its bytes; 0 would say that posts don't wait.
    stream["leave_ns"] = max(LEAVE_NS_MIN, stream["leave_ns"])
    return {
        "post_first_ns": one["post"],
        "post_next_ns": max(0.0, (many["post"] - one["post"]) / 63),
        "leave_post_ns": max(0.0, (many["leave"] - one["leave"]) / 63),
        "take_post_ns": max(0.0, (many["take"] - one["take"]) / 63),
        **stream,
        # What is left of half a round when both ends have done their part.
        "latency_ns": max(0.0, median(rounds) / 2 - one["post"] - one["leave"] - one["take"]),
    }


# ---- tables --------------------------------------------------------------------------------------------------------


def node_of(fabric: str, size: int, nodes: int, known: Node | None = None) -> tuple[Node, dict[str, float]]:
    """Of this machine, with such a fabric and messages of `size` bytes, and payload_ns(). known: as parameters_for."""
    # Where bytes are copied each node has a ring of each sender.
    rings = nodes if fabric == "shm" else nodes * nodes
    return Node(
        changed_line_ns=apart() * line_costs()["changed_ns"],
        handover_ns=handover_ns(),
        copy_ns=known.copy_ns if known else copy_curve(),
        **message_ns(size, rings, fabric),
        **({name: getattr(known, name) for name in OWN_COSTS} if known else {**pass_costs(fabric), **core_costs()}),
    ), payload_ns(size, nodes, fabric)


def network_of(fabric: str, nodes: int = 2) -> Network:
    """Of this machine, for so many nodes that are all on it. Raises ValueError for a fabric that is not measured."""
    if fabric not in FABRICS:
        raise ValueError(f"fabric {fabric!r} is not measured: one of {', '.join(FABRICS)}")
    costs: dict[str, Any] = {**(shm_costs() if fabric == "shm" else tcp_costs(nodes))}
    return Network(**costs, small_ns_per_byte=0.0, bytes_s=FAR, packet_bytes=1 << 30)


def parameters_for(fabric: str, size: int = 1024, nodes: int = 2,
                   known: Parameters | None = None) -> tuple[Parameters, dict[str, float]]:  # fmt: skip
    """The table of this machine, for messages of `size` bytes that all of so many nodes send. Its cores are all that
    the nodes' threads have together. And fill_ns, take_ns: what the benchmarks' applications do with a message.

    known: an earlier one, of which copies and OWN_COSTS are taken: they take longest to measure, and change least.
    """
    node, payload = node_of(fabric, size, nodes, known.node if known else None)
    network = network_of(fabric, nodes)
    return Parameters(f"this machine, {fabric}", network, node, cores=len(os.sched_getaffinity(0))), payload


def measure(sizes: Sequence[int] = (1024, 10240)) -> dict[str, Any]:
    """Tables for all fabrics and messages of these sizes, as JSON has it."""
    from spindle_lab.bench.suite import machine

    tables = []
    for fabric in FABRICS:
        for size in sizes:
            table, payload = parameters_for(fabric, size)
            tables.append({"fabric": fabric, "size": size, **payload, "table": dataclasses.asdict(table)})
    return {"machine": machine(), "tables": tables, "copy_cold_ns": copy_curve(COLD_RING)}
