"""A node of the bare core in a process of its own: a static view, and what the nodes offer each other passed round.

Why without membership: what is measured is the multicast. The view's memory is the same as the node makes it, and so
are the predicate thread and the switches.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from spindle_lab.bench.channel import Channel
from spindle_lab.bench.pacing import precise_timers
from spindle_lab.bench.tally import Tally, monotonic_ns
from spindle_lab.bench.worker import cpu_s

TOPIC_ID = 1
IDLE_WINDOW = 16  # slots of a topic in which nobody sends
POLL_S = 0.002  # between looks at whether all has come; the time of the end is the receiver's own


def work(channel: Channel, config: dict[str, Any]) -> None:
    """One node: makes its row, gets its peers', sends and delivers, reports, and stays until all have reported."""
    from spindle.group.topics import choose_window
    from spindle_core.engine import Engine, SubgroupSpec, Switches
    from spindle_lab.bench import core_loops
    from spindle_lab.bench.options import LEVELS, SWITCHES
    from spindle_lab.bench.reach import REACHES

    precise_timers()
    rank, nodes, size = config["rank"], config["nodes"], config["size"]
    window = config["window"] or choose_window(size)
    members = tuple(range(nodes))
    spec = SubgroupSpec(
        topic_id=TOPIC_ID,
        members=members,
        senders=members[: config["n_senders"]],
        window=window,
        size_max=size,
        level=LEVELS.index(config["level"]),
    )
    idle = [
        SubgroupSpec(TOPIC_ID + 1 + number, members, spec.senders, IDLE_WINDOW, size, spec.level)
        for number in range(config["idle_topics"])
    ]
    switches = Switches(**{name: name in config["switches"] for name in SWITCHES}, skip_idle=config["skip_idle"])
    engine = Engine(rank + 1, switches=switches, busy_poll_us=config["busy_poll_us"])
    reach = REACHES[config["fabric"]](rank, nodes)
    epoch = engine.new_epoch(1, rank, tuple(member + 1 for member in members), (spec, *idle), reach.make(engine))
    values, fds = reach.offer(engine, epoch)
    channel.send({"event": "offer", "values": values}, tuple(fds))
    message, fds = channel.receive(config["timeout_s"])
    reach.attach(epoch, {peer: (values, [fds.pop(0) for _ in range(n)]) for peer, values, n in message["offers"]})
    tally = Tally(config["counts"])
    receiver = core_loops.CoreReceiver(tally, size)
    receiver.bind(engine, TOPIC_ID, batches="batch_delivery" in config["switches"])
    engine.install(epoch)
    engine.start()
    channel.send({"event": "ready"})
    channel.receive(config["timeout_s"])

    over = threading.Event()
    watchdog = threading.Timer(config["timeout_s"], over.set)
    watchdog.daemon = True
    watchdog.start()
    before_s = cpu_s()
    start_ns = monotonic_ns()
    count = config["counts"][rank]
    sent = 0
    if count:
        sent = core_loops.send(
            engine,
            epoch,
            TOPIC_ID,
            rank,
            count,
            size,
            config["claim"] or max(1, window // 8),
            config["sample_every"],
            int(config["delay_us"] * 1000) if count < 0 else 0,
            int(1e9 / config["pace_per_s"]) if config["pace_per_s"] else 0,
            tally,
        )
    while not tally.done and not over.is_set():
        time.sleep(POLL_S)
    channel.send(
        {
            "event": "done",
            "tally": tally.result(),
            "start_ns": start_ns,
            "report_ns": monotonic_ns(),
            "cpu_s": cpu_s() - before_s,
            "sent": sent,
            "window": window,
            "counters": engine.counters.snapshot(),
            "traffic": epoch.fabric.statistics(),
        }
    )
    watchdog.cancel()
    channel.receive(config["timeout_s"] + 30.0)
    engine.stop()
    channel.send({"event": "stopped"})
