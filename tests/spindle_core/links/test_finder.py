"""Regions are found by name in one read, used under a lease, and given back by their owner only when nobody can touch
them any more (spindle_core/links/{exports,finder}.py)."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import pytest

from spindle_core.links.directory import place_of
from spindle_core.links.exports import GRACE_NS, LEASE_NS, Exports
from spindle_core.links.finder import Finder
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.regions.conformance import word
from tests.spindle_core.links.hosts import Host, Program, make_hosts, world_of

MS = 1_000_000
FLIGHTS_MAX, LIST_MAX = 1024, 64  # regions.pxd


@pytest.fixture(params=["sim", "tcp", "shm"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


class Stage:
    """Hosts that offer regions and find those of others; `now_ns` is their time."""

    def __init__(self, kind: str, n: int) -> None:
        self.hosts, self.now_ns = make_hosts(kind, n), 0
        self.world = world_of(self.hosts)
        self.exports = {host: Exports(host.pool) for host in self.hosts}
        self.finders = {host: Finder(host.pool, host.id, self.mapper(host)) for host in self.hosts}
        self.given_back: list[Mapping] = []
        for host in self.hosts:
            for other in self.hosts:
                if other is not host:
                    grant = other.node.regions.grant(self.exports[other].key, other.node.number(host.node))
                    memory = host.node.mapped(other.node, self.exports[other].directory.memory)
                    self.finders[host].add_node(other.id, grant, memory)

    def mapper(self, host: Host) -> Any:
        def mapping_of(node: int, key: int) -> Mapping | None:
            owner = next(other for other in self.hosts if other.id == node)
            memory = owner.node.regions.memory_of(key)
            return None if memory is None else host.node.mapped(owner.node, memory)

        return mapping_of

    def run(self, ms: int = 1, land: bool = True) -> None:
        for _ in range(ms):
            self.now_ns += MS
            for host in self.hosts:
                host.pool.run(self.now_ns)
                self.finders[host].advance(self.now_ns)
                self.given_back += self.exports[host].advance(self.now_ns)
            if self.world is not None and land:
                self.world.run()

    def open(self, program: Program, name: str) -> tuple[int, str]:
        found: list[tuple[int, str]] = []
        self.finders[program.host].open(program.link, name, self.now_ns, lambda *how: found.append(how))
        for _ in range(2000):
            if found:
                return found[0]
            self.run()
        raise AssertionError("not found in time")

    def add(self, program: Program, handle: int, cookie: int = 0) -> tuple:
        program.user.fetch_add(handle, 0, 1, cookie=cookie)
        program.user.submit()
        for _ in range(5000):
            if found := program.user.take():
                return found[0][:2]
            self.run()
        raise AssertionError("not done in time")


def test_a_region_is_found_by_its_name(kind):
    """The first open reads the owner's directory once; those that follow within the lease read nothing; what isn't
    there and a node that isn't known say so."""
    stage = Stage(kind, 3)
    a, b, c = stage.hosts
    words = Mapping.create("words", 4096)
    stage.exports[b].offer("the words", words, atomics=True)
    programs = [Program(a, b) for _ in range(5)]
    for k, program in enumerate(programs):
        handle, why = stage.open(program, "the words")
        assert why == "" and stage.add(program, handle) == (0, "done") and word(words) == k + 1
    assert stage.finders[a].reads == 1
    assert stage.open(programs[0], "other words") == (-1, f"node {b.id} offers no region 'other words'")
    assert stage.open(Program(a, c), "the words")[0] == -1
    found: list[Any] = []
    stage.finders[a].look_up(999, "the words", stage.now_ns, lambda *how: found.append(how))
    assert found == [(None, "there is no connection to node 999")]
    with pytest.raises(ValueError, match="64"):
        stage.open(programs[0], "x" * 65)


def test_a_directory_beside_that_is_being_written_or_too_short_is_read_as_others_are(kind):
    """What is half written is looked at again a moment later; a directory that ends too early breaks nothing."""
    stage = Stage(kind, 2)
    a, b = stage.hosts
    exports, finder = stage.exports[b], stage.finders[a]
    exports.offer("table", Mapping.create("table", 64))
    view, place = exports.directory.memory.view(), place_of("table")
    whole = bytes(view[place : place + 8])
    view[place : place + 4] = b"torn"
    found = []
    finder.look_up(b.id, "table", stage.now_ns, lambda entry, why: found.append((entry, why)))
    stage.run(3)
    assert found == []
    view[place : place + 8] = whole
    stage.run(3)
    assert found[0][0].name == "table"
    if kind == "shm":
        finder._beside[b.id] = finder._beside[b.id][: place + 64]
        finder._cache.clear()
        finder.look_up(b.id, "table", stage.now_ns, lambda entry, why: found.append((entry, why)))
        stage.run(3)
        assert found[1] == found[0]


def test_what_is_forgotten_while_it_is_mapped_is_renewed_first(kind):
    """To map a region may have others look it up anew, and what they find is that it has gone."""
    stage = Stage(kind, 2)
    a, b = stage.hosts
    words = Mapping.create("words", 4096)
    stage.exports[b].offer("words", words, atomics=True)
    program, finder = Program(a, b), stage.finders[a]
    mapping_of = finder._mapping_of
    finder._mapping_of = lambda *which: finder._cache.clear() or mapping_of(*which)
    handle, why = stage.open(program, "words")
    assert why == "" and stage.add(program, handle) == (0, "done")


def test_many_who_ask_at_once_share_a_read(kind):
    """A hundred links ask for one name before the first answer has come: at most two reads, and each link gets it."""
    stage = Stage(kind, 2)
    a, b = stage.hosts
    stage.exports[b].offer("words", Mapping.create("words", 4096), atomics=True)
    links = [a.pool.open_link(b.id) for _ in range(100)]
    found: list[Any] = []
    for link in links:
        stage.finders[a].open(link, "words", stage.now_ns, lambda *how: found.append(how))
    while len(found) < 100:
        stage.run()
    assert found == [(0, "")] * 100 and stage.finders[a].reads <= 2


def test_only_the_writer_may_write(kind):
    """The node that the owner names may, another one finds the region and may read it."""
    stage = Stage(kind, 3)
    a, b, c = stage.hosts
    owned = Mapping.create("owned", 4096)
    stage.exports[c].offer("owned", owned, writer=a.id)
    for host, status in ((a, "done"), (b, "wrong")):
        program = Program(host, c)
        handle, _ = stage.open(program, "owned")
        program.memory.view()[0:8] = b"%8d" % host.id
        program.user.write(handle, 0, 8, program.buffer)
        program.user.submit()
        stage.run(50)
        assert [one[1] for one in program.user.take()] == [status]
        program.user.read(handle, 0, 8, program.buffer, 16)
        program.user.submit()
        stage.run(50)
        assert [one[1] for one in program.user.take()] == ["done"]
        assert bytes(program.memory.view()[16:24]) == b"%8d" % a.id
    with pytest.raises(ConnectionError, match="77"):
        stage.exports[c].offer("more", Mapping.create("more", 4096), writer=77)
    with pytest.raises(ValueError, match="owned"):
        stage.exports[c].offer("owned", owned)


def test_leases_are_renewed_while_somebody_uses_the_region(kind):
    """Five seconds of use: about one read of the directory each second, and no request fails."""
    stage = Stage(kind, 2)
    a, b = stage.hosts
    words = Mapping.create("words", 4096)
    stage.exports[b].offer("words", words, atomics=True)
    program = Program(a, b)
    handle, _ = stage.open(program, "words")
    for k in range(100):
        assert stage.add(program, handle, k) == (k, "done")
        stage.run(50)
    assert word(words) == 100 and 5 <= stage.finders[a].reads <= 8


def test_a_region_that_ends(kind):
    """Nobody finds it from then on; who has found it uses it until the lease ends, and not beyond; then the memory is
    given back, not before; a region of the same name is another one, and the old handle never reaches it."""
    stage = Stage(kind, 2)
    a, b = stage.hosts
    words = Mapping.create("words", 4096)
    stage.exports[b].offer("words", words, atomics=True)
    program, late = Program(a, b), Program(a, b)
    handle, _ = stage.open(program, "words")
    assert stage.add(program, handle) == (0, "done")
    due = stage.exports[b].end("words", stage.now_ns)
    assert due == stage.now_ns + LEASE_NS + GRACE_NS and stage.exports[b].next_ns == due
    again = Mapping.create("again", 4096)
    stage.exports[b].offer("words", again, atomics=True)
    assert stage.add(program, handle) == (0, "done") and word(words) == 2
    stage.run(1000)
    assert stage.add(program, handle) == (0, "ended")
    assert stage.given_back == []
    stage.run(1100)
    assert stage.given_back == [words] and word(words) == 2 and stage.exports[b].next_ns == 2**63 - 1
    new, why = stage.open(late, "words")
    assert why == "" and stage.add(late, new) == (0, "done") and word(again) == 1
    assert stage.add(program, handle) == (0, "ended") and word(again) == 1


def test_all_of_a_list_hears_that_its_region_has_ended(kind):
    """Its first request says how; the others that are signalled say that they have not happened, the last one too: who
    waits for that waits no longer than for any other."""
    stage = Stage(kind, 2)
    a, b = stage.hosts
    words = Mapping.create("words", 4096)
    stage.exports[b].offer("words", words, atomics=True)
    program = Program(a, b)
    handle, _ = stage.open(program, "words")
    stage.exports[b].end("words", stage.now_ns)
    stage.run(1001)
    for _ in range(2):  # its lease has run out, and later
        program.user.read(handle, 0, 8, program.buffer, cookie=1)
        program.user.fetch_add(handle, 0, 1, cookie=2, signalled=True)
        program.user.fetch_add(handle, 8, 1)
        program.user.fetch_add(handle, 0, 1, cookie=3)
        program.user.submit()
        stage.run(50)
        assert [one[:2] for one in program.user.take()] == [(1, "ended"), (2, "after"), (3, "after")]
    assert word(words) == 0


def test_a_lookup_waits_while_its_connection_is_full(kind):
    """Method: another user's reads are so many that nothing more fits on the way; then these complete."""
    stage = Stage(kind, 2)
    a, b = stage.hosts
    stage.exports[b].offer("words", Mapping.create("words", 4096), atomics=True)
    flood = Program(a, b)
    handle, _ = stage.open(flood, "words")
    stage.exports[b].offer("more", Mapping.create("more", 4096))
    for _ in range(FLIGHTS_MAX // LIST_MAX):
        for _ in range(LIST_MAX):
            flood.user.read(handle, 0, 8, flood.buffer)
        flood.user.submit()
        a.pool.run(stage.now_ns)
    found: list[tuple[int, str]] = []
    for name in ("more", "more", "none"):
        stage.finders[a].open(flood.link, name, stage.now_ns, lambda *how: found.append(how))
    stage.finders[a].advance(stage.now_ns)
    assert stage.finders[a].waits == (kind != "shm")  # there, all is done at once
    for _ in range(2000):
        stage.run()
        flood.user.take()
    assert [handle >= 0 for handle, _ in found] == [True, True, False] and "no region 'none'" in found[2][1]


def test_a_node_that_goes_is_forgotten(kind):
    """Lookups of it say so, also those on the way; links to others find what they look for."""
    stage = Stage(kind, 3)
    a, b, c = stage.hosts
    for host in (b, c):
        stage.exports[host].offer("words", Mapping.create("words", 4096), atomics=True)
    link, found = a.pool.open_link(b.id), []
    stage.finders[a]._beside.clear()  # as while the entry is being written: the lookup takes time
    stage.finders[a].open(link, "words", stage.now_ns, lambda *how: found.append(how))
    stage.finders[a].remove_node(b.id)
    a.pool.remove_connection(a.node.number(b.node))
    assert found == [(-1, f"node {b.id} has gone")]
    program = Program(a, c)
    handle, _ = stage.open(program, "words")
    assert stage.add(program, handle) == (0, "done")


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_touched_after_deregistration_and_lease(seed):
    """Simulated network, any order of landing, delays of up to half a second: programs open, use and forget regions
    that their owner offers and ends again and again. Memory that was given back is filled with a pattern, which nobody
    ever changes; each request completes once; what was `done` is in the sums."""
    rng = random.Random(seed)
    stage = Stage("sim", 3)
    a, b, c = stage.hosts
    world = stage.world
    assert world is not None
    programs = [Program(host, c) for host in (a, a, b)]
    handles: dict[Program, int] = {}
    live: dict[str, Mapping] = {}
    done = dict.fromkeys(programs, 0)
    asked = dict.fromkeys(programs, 0)
    filled: list[Mapping] = []
    late: dict[Any, int] = {}
    for _ in range(600):
        stage.run(rng.choice([1, 5, 20]), land=False)
        for memory in stage.given_back:
            memory.view()[0:8] = b"\xee" * 8
            filled.append(memory)
        stage.given_back = []
        # Each direction lands now and then, never later than half a second after what was posted first.
        for way in world.waiting:
            since = late.setdefault(way, stage.now_ns)
            if rng.random() < 0.2 or stage.now_ns - since > 400 * MS:
                world.land(*way)
                world.answer(*way)
                late.pop(way)
        if not live and rng.random() < 0.5:
            live["words"] = Mapping.private(4096)
            stage.exports[c].offer("words", live["words"], atomics=True)
        elif live and rng.random() < 0.03:
            stage.exports[c].end("words", stage.now_ns)
            del live["words"]
        program = rng.choice(programs)
        if program not in handles and rng.random() < 0.3:
            stage.finders[program.host].open(
                program.link, "words", stage.now_ns,
                lambda handle, _why, program=program: handles.setdefault(program, handle) if handle >= 0 else None)
        elif program in handles and program.user.waiting < 50:
            program.user.fetch_add(handles[program], 0, 1)
            program.user.submit()
            asked[program] += 1
        for program in programs:
            for _, status, _ in program.user.take():
                done[program] += 1
                if status == "ended" and program in handles:
                    stage.finders[program.host].close(program.link, handles.pop(program))
        assert all(bytes(memory.view()[0:8]) == b"\xee" * 8 for memory in filled)
    assert sum(done.values()) > 50 and len(filled) > 0


def test_a_region_that_is_closed_while_its_lease_is_renewed_keeps_nothing_waiting(kind):
    """Before the pool's errand is done, and while the owner's directory is read for it: the request that waited is
    wrong, those of other regions of the link go on, and a region that gets the same handle is not ended with it."""
    for looks in (0, 1):
        stage = Stage(kind, 2)
        program = Program(stage.hosts[0], stage.hosts[1])
        for name in ("first", "second", "third"):
            stage.exports[stage.hosts[1]].offer(name, Mapping.create(name, 4096), atomics=True)
        first, _ = stage.open(program, "first")
        second, _ = stage.open(program, "second")
        stage.now_ns += 2 * LEASE_NS
        program.user.fetch_add(first, 0, 1, cookie=1)
        program.user.submit()
        finder, pool = stage.finders[program.host], program.host.pool
        pool.run(stage.now_ns)  # leaves an errand
        if looks:
            finder.advance(stage.now_ns)  # begins a lookup
        finder.close(program.link, first)
        third, _ = stage.open(program, "third")
        assert third == first
        found = []
        for _ in range(100):
            found += program.user.take()
            stage.run()
        assert [one[:2] for one in found] in ([(1, "wrong")], [(1, "done")])  # with no region, or the one that is there
        assert stage.add(program, third, 2) == (2, "done") and stage.add(program, second, 3) == (3, "done")


def test_who_opens_a_region_over_a_link_that_has_gone_meanwhile_is_told(kind):
    stage = Stage(kind, 2)
    program = Program(stage.hosts[0], stage.hosts[1])
    stage.exports[stage.hosts[1]].offer("table", Mapping.create("table", 4096))
    opened: list[tuple[int, str]] = []
    stage.finders[program.host]._beside.clear()  # as while the entry is being written: the lookup takes time
    stage.finders[program.host].open(program.link, "table", stage.now_ns, lambda *how: opened.append(how))
    program.host.pool.close_link(program.link)
    for _ in range(100):
        stage.run()
    assert opened == [(-1, "this link is over")]


def test_what_could_not_be_offered_is_let_go(kind):
    stage = Stage(kind, 2)
    exports = stage.exports[stage.hosts[0]]
    memory = Mapping.create("refused", 4096)
    gone = weakref.ref(memory)
    with pytest.raises(ValueError, match="must have between 1 and 64"):
        exports.offer("x" * 65, memory)
    del memory
    gc.collect()
    assert gone() is None
