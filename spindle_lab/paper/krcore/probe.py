"""What this project's pool takes for its work, on the machine at hand: `spindle paper krcore --measure`.

Method: a pool with links over simulated ways, so that no network passes; each figure is a difference of two runs of the
pool, of which one has more of what is measured. Medians of many.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from spindle_core.links.pool import Pool
from spindle_core.memory import Mapping
from spindle_lab.paper.krcore.hosts import DAEMON, KERNEL, Host, Program, make_hosts

FEW, MANY = 8, 64  # links; requests in a list
ROUNDS = 300


def _median_ns(pool: Pool, rounds: int, prepare: Callable[[], None], after: Callable[[], None]) -> float:
    times = []
    for _ in range(rounds):
        prepare()
        before = time.perf_counter_ns()
        pool.run(0)
        times.append(time.perf_counter_ns() - before)
        after()
    return statistics.median(times)


def _programs(n: int) -> tuple[Host, list[Program], Callable[[], None]]:
    _, net, hosts = make_hosts(2, KERNEL)
    memory = Mapping.create("probe", 4096)
    programs = [Program(hosts[0], hosts[1]) for _ in range(n)]
    for program in programs:
        program.reach(hosts[1], memory)

    def settle() -> None:
        net.world.run()
        hosts[0].pool.run(0)
        for program in programs:
            program.user.take()

    return hosts[0], programs, settle


def _finding(rounds: int) -> tuple[float, float]:
    """(of a region that is known, of a lookup besides), of the pool's thread."""
    _, net, (server, client) = make_hosts(2, DAEMON)
    program = Program(client, server)
    memory = Mapping.create("probe", 4096)
    known, looked_up = [], []

    def find(name: str) -> float:
        raw = name.encode()
        program.memory.view()[: len(raw)] = raw
        program.user.find(len(raw), program.buffer)
        spent = 0
        while not (found := program.user.take()):
            before = time.perf_counter_ns()
            client.run()
            spent += time.perf_counter_ns() - before
            net.world.run()
        program.user.forget(found[0][2])
        while not program.user.take():
            client.run()
        return spent

    for k in range(rounds):
        server.exports.offer(f"region {k}", memory)
        looked_up.append(find(f"region {k}"))
        known.append(find(f"region {k}"))
    return statistics.median(known), statistics.median(looked_up) - statistics.median(known)


def measure(rounds: int = ROUNDS) -> dict[str, float]:
    """{name of a cost: ns}, as costs.py has them."""
    few, some, settle_few = _programs(FEW)
    many, all_of_them, settle_many = _programs(MANY)

    def submit(programs: list[Program], n: int) -> Callable[[], None]:
        def do() -> None:
            for program in programs:
                program.submit(n)

        return do

    def land() -> None:
        submit(all_of_them, 1)()
        many.pool.run(0)
        many.net.world.run()

    idle_few = _median_ns(few.pool, rounds, lambda: None, lambda: None)
    idle = _median_ns(many.pool, rounds, lambda: None, lambda: None)
    lists = _median_ns(many.pool, rounds, submit(all_of_them, 1), settle_many)
    longer = _median_ns(few.pool, rounds, submit(some, MANY), settle_few)
    short = _median_ns(few.pool, rounds, submit(some, 1), settle_few)
    done = _median_ns(many.pool, rounds, land, settle_many)
    found, looked_up = _finding(rounds)
    per_link = (idle - idle_few) / (MANY - FEW)
    return {
        "pool_run": idle_few - FEW * per_link,
        "pool_link": per_link,
        "pool_list": (lists - idle) / MANY,
        "pool_request": (longer - short) / (FEW * (MANY - 1)),
        "pool_done": (done - idle) / MANY,
        "pool_find": found,
        "pool_lookup": looked_up,
    }
