"""A pass is memory in and data out: what has to leave is left to who drives it, at the moment at which it has to.

Method: rows are copied by a simulated network, which tells before it takes the bytes of a post; the sources are read.
"""

from __future__ import annotations

import ctypes
import re
import threading
from pathlib import Path

import pytest

from spindle_core.engine import SubgroupSpec, Switches
from spindle_core.fabric.sim import SimNetwork
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.test_control import HOOK
from tests.support import wait_until

CORE = Path(__file__).resolve().parents[2] / "spindle_core"
PREDICATES = ("send", "receive", "null_send", "deliver", "persist")
PURE = ["step", "sst", "smc", "log", *(f"predicates/{name}" for name in PREDICATES)]
OUTSIDE = re.compile(r"\bevent_\w+\(|\bevents cimport event|\bfabric\.(enter|leave|post_\w+|send|receive|poll|ring|cut|"
                     r"\w*wait)\b|\b(realtime|monotonic)_ns\b|\bcarry_out\b|\bmalloc\b|\bwith gil\b")


@pytest.mark.parametrize("name", PURE)
def test_no_predicate_reaches_outside(name: str) -> None:
    """Goal: no clock, post, doorbell, system call or Python object in what a step evaluates. (A topic's lock, which
    application threads hold for a few stores, is the one thing that it may wait for: lock_subgroup().)"""
    lines = (CORE / f"{name}.pxi").read_text().splitlines()
    assert not [line for line in lines if OUTSIDE.search(line)]
    assert not [line for line in lines if re.match(r"(cdef|cpdef|def) .*\(.*:$", line) and "noexcept nogil" not in line]


@pytest.mark.parametrize("off", ["post_after_unlock", ""])
def test_the_lock_is_held_until_the_posts_are_out_if_it_is_to_be(off: str) -> None:
    """Goal: without `post_after_unlock` an application can't claim a slot while its topic's posts go out; with it, it
    can. After the pass it can in either case.

    Method: at each post another thread claims.
    """
    network = SimNetwork(late=False)
    cluster = Cluster(2, window=64, network=network, switches=Switches(**({off: False} if off else {})))
    cluster.settle()
    free: list[bool] = []
    threads: list[threading.Thread] = []

    claims: list[object] = []

    def claim() -> None:
        claims.append(cluster.engines[0].claim(1, 10.0))

    def posts(node: int, offset: int, length: int) -> None:
        thread = threading.Thread(target=claim)
        thread.start()
        thread.join(2.0 if not off else 0.05)
        free.append(not thread.is_alive())
        threads.append(thread)

    hook = HOOK(posts)
    writer = cluster.writer(0)
    writer.write(b"1")
    network.call_before_posts(ctypes.cast(hook, ctypes.c_void_p).value)
    cluster.engines[0].step_once()
    network.call_before_posts(0)
    assert free and (not any(free) if off else all(free))
    for thread in threads:
        wait_until(lambda thread=thread: not thread.is_alive(), what="who claims goes on")  # type: ignore[misc]
    claims.clear()  # gives them up
    cluster.settle()


@pytest.mark.parametrize("switches", [Switches(), Switches(post_after_unlock=False), Switches(batch_send=False)],
                         ids=["all", "under the lock", "one by one"])
def test_a_batch_of_more_ranges_than_can_be_left_at_once(switches: Switches) -> None:
    """Goal (R4): a batch that takes more posts than a step can leave goes in several lists, its count behind them all.

    Method: 600 messages that use little of their slots, each a range of its own, to five members; what is published
    there must be there while it lands.
    """
    n, window = 6, 600
    network = SimNetwork(late=False, joins=False, range_cost=0, push_bytes=1 << 40)
    cluster = Cluster(n, window=window, size_max=512, senders=[0], switches=switches, network=network)
    readers = [cluster.reader(node) for node in range(n)]
    sender = cluster.engines[0]
    sent = [b"%04d" % k * (1 + k % 3) for k in range(window)]
    for message in sent:
        sender.write(1, message, 0, 0)
    while sender.step_once():
        pass
    landed = 0
    while network.land(1, 3, 16):
        published = cluster.epochs[2].stability(1)["published"][0]
        assert published in (0, window) or not switches.batch_send
        while landed < published:
            cluster.engines[2].step_once()
            row = bytes(cluster.epochs[2].fabric.row_of(0))
            assert all(row.find(message) >= 0 for message in sent[landed:published])
            landed = published
    assert landed == window
    cluster.settle()
    assert all(reader.take(10_000) == sent for reader in readers)
    assert sender.counters.snapshot()["posts"] > 5 * window
    cluster.stop()


@pytest.mark.parametrize("switches", [Switches(), Switches(post_after_unlock=False)], ids=["all", "under the lock"])
def test_a_silence_that_is_taken_back_takes_no_count_ahead_of_its_slots(switches: Switches) -> None:
    """Goal (R4): what says that a silence is over is in one line with the count. When slots that were filled in place
    are published in the same pass, that line leaves with the count of before.

    Method: half of the window is a silence, the other half is committed, and a writer finds no slot. What is published
    there must be there while it lands, line by line.
    """
    window = 8
    network = SimNetwork(late=False, joins=False)
    cluster = Cluster(2, window=window, senders=[0], switches=switches, network=network)
    sender = cluster.engines[0]
    sender.declare_silence(1, window // 2)
    while sender.step_once():
        pass
    sent = [b"message %d" % k for k in range(window // 2)]
    claims = [sender.claim(1, 1.0) for _ in sent]
    cluster.writer(0).write(b"one more")
    for claim, message in zip(claims, sent, strict=True):
        claim.commit(message)
    while sender.step_once():
        pass
    published = 0
    while network.land(1, 2, 1):
        published = cluster.epochs[1].stability(1)["published"][0]
        row = bytes(cluster.epochs[1].fabric.row_of(0))
        assert all(row.find(message) >= 0 for message in sent[: max(0, published - window // 2)])
    assert published == window
    cluster.stop()


def test_what_is_received_of_all_topics_is_acknowledged_before_anything_is_delivered() -> None:
    """Goal: nobody waits for what this node acknowledges of one topic while it delivers another one.

    Method: messages of two topics arrive together; with each post of the pass that follows, what was delivered so far.
    """
    network = SimNetwork(late=False)
    specs = [SubgroupSpec(topic_id, (0, 1), (0, 1), 64, 64, 1) for topic_id in (1, 2)]
    cluster = Cluster(2, specs, network=network)
    logs = [cluster.reader(1, topic_id) for topic_id in (1, 2)]
    writers = [cluster.writer(0, topic_id) for topic_id in (1, 2)]
    cluster.settle()
    for writer in writers:
        for k in range(5):
            writer.write(b"%d" % k)
    cluster.engines[0].step_once()
    network.land_all()
    delivered: list[int] = []
    hook = HOOK(lambda node, offset, length: delivered.append(sum(len(log.take(100)) for log in logs)))
    network.call_before_posts(ctypes.cast(hook, ctypes.c_void_p).value)
    cluster.engines[1].step_once()
    network.call_before_posts(0)
    assert delivered[:2] == [0, 0], "of each topic what was received"
    assert sum(delivered) == 2, "what follows waits for nulls"
    cluster.settle()
