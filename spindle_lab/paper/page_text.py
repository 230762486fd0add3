"""What docs/paper.md says besides figures: its opening, and where each parameter comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from spindle_lab.paper.experiments.base import EVALUATION, PAST
from spindle_lab.paper.parameters import PAPER, PAPER_PER_MESSAGE, PAPER_REFERENCE, PER_MESSAGE_WORK_US

OPENING = """
# The paper's evaluation

The paper ("Spindle: Techniques for Optimizing Atomic Multicast on RDMA", arXiv 2110.00886) measured sixteen machines
with an InfiniBand of 100 Gb/s. This page puts its evaluation beside the same experiments with this project's core, in
virtual time. It is written by

```
make paper
```

which plays what isn't there yet (`spindle paper --help`); the same code gives the same figures, on any machine.

## What is played

Every node of a run is the production core: its epoch, rings, counts and predicates, called through the same `step` as
by a node's predicate thread, with the paper's techniques switched on and off as a node can. Around it is a model, and
nothing else passes time:

- **The network.** Posts cost the posting thread time. What was posted leaves a node's port packet by packet, in turn
  for each peer; the other end takes it at the same pace; then the latency has passed and the write is there, in order
  for each pair. A write and an acknowledgement differ in nothing but their size.
- **The predicate thread.** A pass costs by what it looks at, a predicate that fires costs, and so does each message
  that is delivered. While it posts, others act. Where it posts under the topic's lock, applications find that taken.
- **The application.** One thread for each topic that a node sends in; it claims a slot with the core's own functions,
  and waits for a slot or for the lock where it has to.

Not modelled: the switch's buffers and what fills up behind them, congestion control, retransmission; the card's
caches and its own time for a request; memory bandwidth that threads share, NUMA, caches beyond a cost for a line that
another has changed; the operating system's scheduling. Costs vary at random by up to 10%, by seed; nothing else is
random. Each point is the mean of one to three seeds, and error bars show their standard deviation.

Throughput is payload delivered at each node, averaged over nodes, in a steady part of the run; messages have 10 KB
(10,240 bytes) and the window is 100 slots unless something else is said. Latency is from the claim of a slot to
delivery, over all nodes. The paper measured a million messages of each sender; a run here has some hundred to a
thousand of each, after a warm-up.

## What it comes to

The model's parameters are the paper's own where it has them; where it hasn't, they are measurements of this project's
code or, where it says so, assumed. None of them is fitted to an outcome. With these the core shows **what the paper
claims of batching, by larger factors**: the baseline is as slow as the paper's, and what Spindle adds ends where the
link ends, instead of at 8 and then 9.7 GB/s. At the link's end there is nothing left to gain by unlocking before posts
or from late senders.

That difference has a reason that can be named: what the paper's system takes for each message, and that its senders
and its predicates exclude each other for as long as these last. The paper gives no numbers for that, but its code is
public. So there is a second table, of the **reference's code**: the paper's parameters, but with what that code was
measured to take for a message, and with its lock. What a predicate costs that fires is still the paper's, and how long
it takes a thread that sleeps at that lock to go on is assumed; nothing of it comes from an outcome. With it the same
model comes within a quarter of the paper's figures for the gain of batching with all, with half and with 16 senders, of
unlocking before posts and of a small window, for the final throughput and for the baseline's posts. How much hangs on
the assumption, and where it doesn't agree, is under [What the difference comes from](#what-the-difference-comes-from).

A third, **fitted table** is shown as well, as a dashed line and as the last column: a delivery costs {deliver:.0f} ns
instead of {measured:.0f}, and an application needs {work} us for each message. Two of the paper's figures gave these
two costs (9.7 GB/s with 4 members, and about that with 8 to 16); everything else that it gives is a prediction, and no
claim rests on it. How all of this was found is in [What the difference comes from](#what-the-difference-comes-from).

What there is to gain beyond the paper, with the same parameters, is in [Past the paper](#past-the-paper): the whole
link from 4 members on, and a small part of the latency.

"model / paper" divides the model's figure with the paper's parameters by the paper's figure, and "/ paper" that with
the costs of the reference's code; "-" is where the paper's text has no number (its drawings were not read off).
"""

CHAPTERS: Mapping[str, str] = {
    EVALUATION: "",
    PAST: """
The paper's configuration (all techniques, a window of 100, whole slots, a count at the end of each batch, one
connection to each peer, and a lock that is released before posts) beside what there is besides, with the same
parameters and in the same runs. Lines named "paper's" are the model's figures for that configuration. In lines named
"quick" one parameter is another: a predicate that fires costs 100 ns besides its posts and deliveries, which this
project's core does not exceed, where the table of parameters has the 4 us that the paper's shares leave for the
reference's code.
""".strip(),
}

# Costs of fewer cores than threads, or of a fabric that copies (measure.py): none of the paper's cluster.
MACHINE_ONLY = frozenset({
    "leave_ns", "leave_post_ns", "take_ns", "take_post_ns", "send_ns", "claim_shared_ns", "commit_shared_ns",
    "look_shared_ns", "yield_ns", "spin_ns", "switch_ns", "slice_ns", "ring_ns", "ring_busy_ns", "woken_ns",
    "busy_poll_ns",
})
SOURCES: Mapping[str, str] = {
    "post_first_ns": '"posting an RDMA request to the NIC takes ~1 us in our setting" (3.2)',
    "post_next_ns": "64.84 s for 18.2 million write requests, each to 15 members, less the first post (4.1.1)",
    "latency_ns": '"1.73 us for 1-byte data" (3.2, Figure 1), less the post: a program measures from before the call',
    "small_ns_per_byte": '"2.46 us for 4KB data" (3.2, Figure 1), less those bytes\' time on the wire',
    "bytes_s": '"a 12.5GB/s (100Gbps) RDMA Infiniband switch" (4)',
    "small_bytes": "the same figure: 4 KB is the last size it gives a number for",
    "packet_bytes": "InfiniBand's largest MTU",
    "packet_overhead_bytes": "headers of a reliable connection (InfiniBand Architecture 1.3, chapters 5 and 9)",
    "post_ns_per_byte": "the card reads memory by itself",
    "take_ns_per_byte": "the card writes memory by itself",
    "lap_ns": "measured: idle passes of views of 2 to 8 members and 1 to 16 topics, and a look at the clock after each",
    "subgroup_ns": "measured: the same passes, by their topics",
    "line_ns": "the last-level cache, into which the card writes: about 70 cycles at 3 GHz",
    "changed_line_ns": "the same",
    "trigger_ns": 'posts are "20-50% of the time spent in the entire predicated test and code block" (3.4): with the '
                  "costs of posts above, what remains is 4 us for 2 members and 3.6 us for 16",
    "deliver_ns": "measured: this project's deliver predicate with an empty upcall",
    "claim_ns": "measured",
    "commit_ns": "measured",
    "retry_ns": "measured: an application looks again whether a slot is free",
    "handover_ns": "measured: from one thread's letting go of a lock to another's having it, on two cores",
    "copy_ns": "measured: copies by size, of memory that is not in the cache where they are large",
}
REFERENCE_SOURCES: Mapping[str, str] = {
    "deliver_ns": "measured: 56 ns to receive a message, 52 ns to deliver it (16 members; 49 and 58 with 4), and 60 ns "
                  "where its slot's header is not in the core's cache",
    "claim_ns": "measured, with the next: parts of `send`, all of them under the lock, the predicate thread active on "
                "the other core: 280 ns with 4 members, 360 ns with 16 (alone: 160 to 270); there a thread that found "
                "the lock taken was let go on after an emulated 3 us instead of by the kernel",
    "commit_ns": "the same",
    "retry_ns": "measured: 120 to 450 ns of a look for a free slot, which takes the lock",
    "handover_ns": "assumed: its lock puts who waits to sleep, and the kernel wakes it (30 us on that virtual machine)",
}
UNITS = {"bytes_s": "bytes/s", "small_bytes": "bytes", "packet_bytes": "bytes", "packet_overhead_bytes": "bytes",
         "small_ns_per_byte": "ns/byte", "post_ns_per_byte": "ns/byte", "take_ns_per_byte": "ns/byte"}


def opening() -> str:
    return OPENING.strip().format(deliver=PAPER_PER_MESSAGE.node.deliver_ns, measured=PAPER.node.deliver_ns,
                                  work=PER_MESSAGE_WORK_US)


def value_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{size:,} B: {ns:,.0f}" for size, ns in sorted(value.items()))
    return f"{value:.3g}" if value and abs(value) < 1000 else f"{value:,.0f}"


def parameter_table() -> str:
    """Every parameter of PAPER. Raises KeyError for one without a source."""
    rows = ["## Parameters", "",
            "All that the model takes (`spindle_lab/paper/parameters.py`); another cluster is another table.", "",
            "| parameter | value | source |", "|---|---:|---|"]
    for part in (PAPER.network, PAPER.node):
        for field in dataclasses.fields(part):
            if field.name in MACHINE_ONLY:
                continue
            value = getattr(part, field.name)
            unit = UNITS.get(field.name, "ns")
            rows.append(f"| `{field.name}` | {value_text(value)} {unit} | {SOURCES[field.name]} |")
    rows.append(f"| jitter | {100 * PAPER.jitter:.0f}% | assumed: costs vary evenly by up to that |")
    rows.append("| disk of logged topics | 1 GB/s | assumed: the paper names an SSD without its speed |")
    rows += ["", "Of the reference's code, where it differs (Derecho-Project/derecho, commit 80f2da12 of January 2021: "
             "its predicates, state table and multicast group as they are, in one process, with posts that do nothing; "
             "g++ 12.2 with -O3, on the two-core virtual machine on which the above was measured). All that is not "
             "named here is as above, the cost of a predicate that fires among it:", "",
             "| parameter | value | source |", "|---|---:|---|",
             "| lock | held by predicates from their begin until they post, by `send` throughout | "
             "`multicast_group.cpp`, lines 760, 810, 1394 |"]
    for name, source in REFERENCE_SOURCES.items():
        rows.append(f"| `{name}` | {value_text(getattr(PAPER_REFERENCE.node, name))} ns | {source} |")
    return "\n".join(rows)
