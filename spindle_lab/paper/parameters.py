"""Cost models: what a cluster's parts cost, each number with its source. Another cluster is another table.

No number here is fitted to the outcome of an experiment. Those of PAPER come from what the paper says of single parts
(arXiv 2110.00886; section in brackets) or, where it says nothing, from measurements of this project's own code on
a two-core x86-64 virtual machine (`spindle paper measure`), which are named as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType


@dataclass(frozen=True)
class Network:
    """What posts and bytes cost. Times in nanoseconds."""

    post_first_ns: float  # of the posting thread: the first post of a list
    post_next_ns: float  # each further post of the list
    latency_ns: float  # of one byte, unloaded, from when it was posted
    small_ns_per_byte: float  # that each byte up to `small_bytes` adds to it, besides its place on the wire
    bytes_s: float  # of a port, each direction
    small_bytes: int = 4096
    packet_bytes: int = 4096
    packet_overhead_bytes: int = 0
    post_ns_per_byte: float = 0.0  # where the posting thread copies
    take_ns_per_byte: float = 0.0  # where the receiving thread copies
    # Where posts wait for the end of a pass (0: they leave at once): what it costs then for each peer, and each post.
    leave_ns: float = 0.0
    leave_post_ns: float = 0.0
    take_ns: float = 0.0  # of the receiving thread, in a pass: for each peer of which something has come
    take_post_ns: float = 0.0  # and for each write


@dataclass(frozen=True)
class Node:
    """What the node's own work costs, in nanoseconds. copy_ns: {bytes: ns of a copy of so many}."""

    lap_ns: float  # a pass over the predicates, besides what follows
    subgroup_ns: float  # one subgroup's predicates, which find nothing
    line_ns: float  # their look at a column of another member
    changed_line_ns: float  # what that look costs more where the column has changed
    trigger_ns: float  # of a predicate that fires, besides its posts and the messages it delivers
    deliver_ns: float  # a message: its slot's header and the upcall
    claim_ns: float  # of a slot, under the lock
    commit_ns: float  # of a slot, under the lock
    retry_ns: float  # an application that waits for a slot looks again
    handover_ns: float  # of a lock that somebody waits for
    copy_ns: Mapping[int, float] = field(default_factory=dict)
    send_ns: float = 0.0  # of a message that is published, for the predicate thread, under the lock
    # What an application and its node's predicate thread cost each other, who have the same lines in turn:
    claim_shared_ns: float = 0.0  # a claim after a pass, more than one after another claim
    commit_shared_ns: float = 0.0  # a commit after a pass
    look_shared_ns: float = 0.0  # a pass after a claim
    # Where threads share cores (Parameters.cores):
    yield_ns: float = 0.0  # the call that gives a core away
    spin_ns: float = 0.0  # how long an application looks at a taken lock before it does
    switch_ns: float = 0.0  # from one thread to the next
    slice_ns: float = 3e6  # after which a thread that has more to do makes room for others
    ring_ns: float = 0.0  # the call that wakes a thread: one for which a core is idle,
    ring_busy_ns: float = 0.0  # one for which none is
    woken_ns: float = 0.0  # from that call until it runs, on a core that was idle
    busy_poll_ns: float = 10_000.0  # how long a predicate thread looks for work before it sleeps


@dataclass(frozen=True)
class Parameters:
    """One cluster. jitter: share by which costs vary, seeded. cores: of all nodes together; 0: each thread its own.
    pauses: {ns: how many a second} of interruptions of a thread that runs. lock_through: predicates hold their topic's
    lock from their begin until they post, upcalls included, and applications from a claim to its commit, as the
    reference's do."""

    name: str
    network: Network
    node: Node
    jitter: float = 0.1
    cores: int = 0
    pauses: Mapping[int, float] = field(default_factory=dict)
    lock_through: bool = False


# Of 10 KB copies etc. on a two-core virtual machine: docs/benchmarks.md.
COPY_NS = MappingProxyType({64: 5.0, 1024: 35.0, 4096: 130.0, 10240: 600.0, 65536: 6_000.0, 1 << 20: 150_000.0})

# "an InfiniBand switch of 12.5 GB/s (100 Gb/s)", 16 machines with 16 cores (section 4).
INFINIBAND_100 = Network(
    # "posting an RDMA request to the NIC takes ~1 us in our setting" (3.2).
    post_first_ns=1000.0,
    # Of 18.2 million write requests in 64.84 s, each to 15 members: 3.56 us (4.29 s of 1.1 million: 3.9 us); without
    # the first microsecond, 14 further posts (4.1.1).
    post_next_ns=(64.84e9 / 18.2e6 - 1000.0) / 14,
    # "from 1.73 us for 1-byte data to 2.46 us for 4KB data" (3.2); from there on the link's pace. A program
    # measures that from before the call that posts: so does the benchmark of writes that is archived with the reference
    # (raw_rdma_write.cpp takes the time, posts, and takes it again when it sees the answer).
    latency_ns=1730.0 - 1000.0,
    small_ns_per_byte=(2460.0 - 1730.0) / 4096 - 1e9 / 12.5e9,
    bytes_s=12.5e9,
    # Headers of a packet of a reliable connection: LRH 8, BTH 12, ICRC 4, VCRC 2 (InfiniBand Architecture 1.3, vol. 1,
    # chapters 5 and 9); RETH is in the first one only.
    packet_overhead_bytes=26,
)

PAPER = Parameters(
    name="paper",
    network=INFINIBAND_100,
    node=Node(
        # Measured: idle passes of views of 2 to 8 members and 1 to 16 topics, all in the cache (9 ns and 10 ns, medians
        # of 40), and a look at the clock after each (24 ns). What it costs that lines are elsewhere comes next.
        lap_ns=33.0,
        subgroup_ns=10.0,
        # Another member's column lies in the last-level cache, where the card has put it (about 70 cycles at 3 GHz).
        line_ns=20.0,
        changed_line_ns=20.0,
        # "they [RDMA writes] can consume 20-50% of the time spent in the entire predicated test and code block" (3.4):
        # with the costs of posts above, 20% of a push to one member and 50% of one to 15 leave 4 us and 3.6 us.
        trigger_ns=4000.0,
        deliver_ns=100.0,  # measured: this project's deliver predicate with an empty upcall
        claim_ns=60.0,  # measured, as are the next two
        commit_ns=60.0,
        retry_ns=100.0,
        handover_ns=100.0,  # measured, between two cores: 101 ns, median of 40
        copy_ns=COPY_NS,
    ),
)

# Interruptions of a thread that has a core for itself: measured on a two-core virtual machine, four seconds of looking
# at the clock (pauses.pyx), those of each power of two by their mean. Its timer ticks 250 times a second; what takes
# 50 us and more is its host's. A machine of its own, as the paper's, has fewer. Not in PAPER: runs may ask for them.
PAUSES = MappingProxyType({
    1_610: 159.0, 2_717: 263.0, 5_907: 74.0, 11_006: 52.0, 25_011: 77.0, 51_862: 122.0, 81_026: 146.0, 165_871: 8.5,
    351_186: 0.7, 1_278_637: 0.5,
})  # fmt: skip

# The paper's system, not this one: PAPER with what the reference's own code was measured to cost (github.com/
# Derecho-Project/derecho, commit 80f2da12 of January 2021, which has the paper's techniques; g++ 12.2 -O3; one process
# on a two-core virtual machine). Its predicates, SST, multicast group and locks are its own; posts did nothing, and
# what other members write stood there between two passes. And with its locking: `send` and the whole of its receive and
# deliver predicates, upcalls included, exclude each other (multicast_group.cpp, lines 760, 810, 1394).
PAPER_REFERENCE = replace(
    PAPER,
    name="paper, reference's code",
    lock_through=True,
    node=replace(
        PAPER.node,
        # For each message 56 ns to receive it and 52 ns to deliver it, with its two ordered maps and a callback that
        # counts; and 60 ns more where its slot's header is not in the core's cache.
        deliver_ns=170.0,
        # Of `send`, all under the lock, the predicate thread active on the other core: 280 ns with 4 members, 360 ns
        # with 16 (alone: 160 to 270). The lock's sleep was emulated there, with what is assumed below.
        claim_ns=260.0,
        commit_ns=60.0,
        retry_ns=250.0,  # a look for a free slot, which takes the lock: 120 to 450 ns
        # ASSUMED: its lock puts who waits to sleep, and the kernel wakes it. On the virtual machine that takes 30 us.
        handover_ns=3000.0,
    ),
)

# FITTED, unlike everything above: it shows where the difference between PAPER's figures and the paper's comes from, and
# stands beside no claim without saying so. Two costs of the reference's code for each message, of which the paper says
# nothing, and two of its figures that give them (9.7 GB/s of 10 KB messages with 4 as with 16 senders; 4.3, Figure 12).
# Four applications that need so long for a message, besides claim and commit, make 9.7 GB/s;
PER_MESSAGE_WORK_US = round(4 * 10240 / 9.7e9 * 1e6 - 0.12, 1)
# with that, this cost of a delivery gives 9 to 10 GB/s with 8 to 16.
PAPER_PER_MESSAGE = replace(PAPER, name="paper, per message", node=replace(PAPER.node, deliver_ns=450.0))
