"""Links over an RDMA device make nothing of it: what the device itself counts says so.

All of it needs an RDMA device: `make rdma-test ARGS=links` runs it on a guest that has one in software. Both hosts are
on the one device, which therefore counts the packets of both.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from spindle_core.links.exports import Exports
from spindle_core.links.finder import Finder
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.verbs_peers import needs_verbs
from tests.spindle_core.links.hosts import Host, Program, make_hosts, until

pytestmark = needs_verbs
LINKS = 200  # each has two descriptors, of which a guest gives a process 1024
MTU_MIN, MTU_MAX = 256, 4096


def queue_pairs() -> int:
    """That the device has."""
    said = subprocess.run(["rdma", "-j", "resource", "show"], capture_output=True, text=True, check=True).stdout
    return sum(int(one["qp"]) for one in json.loads(said))


def packets() -> int:
    """That the device has sent."""
    counters = Path("/sys/class/infiniband").glob("*/ports/*/hw_counters/sent_pkts")
    return sum(int(counter.read_text()) for counter in counters)


def settled(hosts: list[Host]) -> int:
    """packets(), once nothing is on the way."""
    seen, quiet = packets(), 0
    while quiet < 20:
        if sum(host.pool.run(0) for host in hosts) or packets() != seen:
            seen, quiet = packets(), 0
        else:
            quiet += 1
    return seen


@pytest.fixture
def hosts() -> list[Host]:
    return make_hosts("verbs", 2)


def test_links_make_no_queue_pair_and_send_nothing(hosts: list[Host]) -> None:
    a, b = hosts
    Program(a, b)
    pairs, sent = queue_pairs(), settled(hosts)
    assert pairs >= 2  # one end each
    links = [a.pool.open_link(b.id) for _ in range(LINKS)]
    assert queue_pairs() == pairs and settled(hosts) == sent
    for link in links:
        a.pool.close_link(link)
    a.pool.tidy()
    assert queue_pairs() == pairs and settled(hosts) == sent
    print(f"{LINKS} links: {queue_pairs() - pairs} queue pairs, {settled(hosts) - sent} packets")


def test_a_lookup_is_one_read(hosts: list[Host]) -> None:
    """One packet asks, and as many as 2 KB need answer; a second link to the region sends nothing."""
    a, b = hosts
    exports = Exports(b.pool)
    memory = Mapping.create("region", 4096)
    memory.view()[:8] = b"found it"
    exports.offer("region", memory)
    finder = Finder(a.pool, a.id)
    finder.add_node(b.id, b.node.regions.whole_grant(exports.key))
    found: list[tuple[int, str]] = []

    def find(program: Program) -> int:
        finder.open(program.link, "region", 0, lambda *what: found.append(what), False)

        def look() -> Any:
            finder.advance(0)
            return found

        until(hosts, look)
        handle, why = found.pop()
        assert handle >= 0, why
        return handle

    programs = [Program(a, b) for _ in range(2)]
    pairs, before = queue_pairs(), settled(hosts)
    handles = [find(programs[0])]
    looked_up = settled(hosts)
    handles.append(find(programs[1]))
    known = settled(hosts)
    assert queue_pairs() == pairs
    print(f"a lookup: {looked_up - before} packets; of a region that is known: {known - looked_up}")
    assert finder.reads == 1 and known == looked_up
    assert 1 + 2048 // MTU_MAX < looked_up - before <= 1 + 2048 // MTU_MIN
    for program, handle in zip(programs, handles, strict=True):
        program.user.read(handle, 0, 8, program.buffer)
        program.user.submit()
        until(hosts, program.user.take)
        assert bytes(program.memory.view()[:8]) == b"found it"
    print(f"a read: {(settled(hosts) - known) / 2} packets")
    assert settled(hosts) - known == 2 * 2 and queue_pairs() == pairs  # asked and answered, each


def test_messages_of_many_links_go_over_one_queue_pair(hosts: list[Host]) -> None:
    a, b = hosts
    server = Program(b, None)
    b.pool.bind(server.link, 7)
    programs = [Program(a, b, size=4096) for _ in range(64)]
    pairs, found = queue_pairs(), []
    for k, program in enumerate(programs):
        program.say(bytes([k]) * 8, port=7, cookie=k)

    def all_there() -> bool:
        found.extend(server.user.messages())
        return len(found) == len(programs)

    until(hosts, all_there)
    assert sorted(data for _, _, data in found) == sorted(bytes([k]) * 8 for k in range(len(programs)))
    assert queue_pairs() == pairs
