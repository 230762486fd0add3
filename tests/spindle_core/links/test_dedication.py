"""Links that talk much get connections of their own, few at a time, and the least used one is given up for who talks
more (spindle_core/links/dedication.py)."""

from __future__ import annotations

import importlib
import random
from typing import Any

import pytest

from spindle_core.links.dedication import LOOK_NS, Dedication, Wish
from spindle_core.memory import Mapping
from tests.spindle_core.fabric.regions.conformance import word
from tests.spindle_core.links.hosts import Host, Program, make_hosts, step, until


class Stage:
    """One host that dedicates connections to others, over `kind`; connections are made as daemons do, in two halves."""

    def __init__(self, kind: str, n: int, most: int) -> None:
        self.hosts = make_hosts(kind, n)
        self.a = self.hosts[0]
        self.connect = importlib.import_module(f"tests.spindle_core.fabric.regions.test_{kind}").connect
        self.dedication = Dedication(self.a.pool, most)
        self.now_ns = 0
        self.programs: list[Program] = []
        self.wishes: list[Wish] = []
        self.far_ends: dict[int, tuple[Host, int]] = {}
        self.fails = False
        self.making: list[int] | None = None  # nodes for which it takes its time, if it does

    def program(self, to: Host) -> tuple[Program, int, Mapping]:
        program, words = Program(self.a, to), Mapping.create("words", 4096)
        region = program.reach(to, words, atomics=True)
        self.programs.append(program)
        return program, region, words

    def make(self, node: int) -> None:
        """What follows from a wish for a connection."""
        if self.making is not None:
            self.making.append(node)
            return
        if self.fails:
            self.dedication.not_made(node)
            return
        other = next(host for host in self.hosts if host.id == node)
        numbers = self.a.node.numbers[other.node], other.node.numbers[self.a.node]
        self.connect(self.a.node, other.node)
        here, there = self.a.node.numbers[other.node], other.node.numbers[self.a.node]
        self.a.node.numbers[other.node], other.node.numbers[self.a.node] = numbers
        other.pool.add_connection(self.a.id, there)
        self.far_ends[here] = other, there
        if not self.dedication.made(node, here):
            self.give_up(here, known=False)

    def give_up(self, peer: int, known: bool = True) -> None:
        if known:
            self.a.pool.remove_connection(peer)
        else:
            self.a.node.regions.forget_peer(peer)
        other, there = self.far_ends.pop(peer)
        other.pool.remove_connection(there)

    def advance(self) -> list[Wish]:
        """A look, and what follows from it."""
        self.now_ns += LOOK_NS
        wishes = self.dedication.advance(self.now_ns, [one.link for one in self.programs if one.link.is_open])
        for wish in wishes:
            self.wishes.append(wish)
            if wish.make:
                self.make(wish.make)
            if wish.give_up >= 0:
                self.give_up(wish.give_up)
        return wishes

    def look(self, *busy: tuple[Program, int], requests: int = 100, on_the_way: tuple[Program, int] | None = None
             ) -> None:
        """One interval, in which these talk much; at its end `on_the_way` has a request there, where the network is
        simulated."""
        for program, region in busy:
            for k in range(requests):
                program.user.fetch_add(region, 0, 1)
                program.user.submit()
                if k % 200 == 199 or k == requests - 1:
                    until(self.hosts, lambda program=program: (program.user.take(), program.user.waiting == 0)[1],
                          self.now_ns)
        for _ in range(5):
            step(self.hosts, self.now_ns)
        for program in self.programs:
            program.user.take()
        if on_the_way is not None:
            on_the_way[0].user.fetch_add(on_the_way[1], 0, 1)
            on_the_way[0].user.submit()
            self.a.pool.run(self.now_ns)
        self.advance()


BUSY = 2400  # requests in an interval: more than `MUCH`


@pytest.fixture(params=["sim", "tcp", "shm"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_who_talks_much_gets_a_connection(kind):
    """One link talks, another one doesn't: the first gets its own connection, once, and its sums stay right; the other
    stays on the shared one. When it falls silent and nobody wants its place it keeps it."""
    stage = Stage(kind, 2, most=2)
    b = stage.hosts[1]
    loud, region, words = stage.program(b)
    quiet, other, _ = stage.program(b)
    shared = loud.link.peer
    for _ in range(4):
        stage.look((loud, region), requests=BUSY)
    assert loud.link.peer != shared and quiet.link.peer == shared
    assert stage.dedication.connections == {loud.link.peer: loud.link.id}
    assert stage.wishes == [Wish(make=b.id)] and word(words) == 4 * BUSY
    for _ in range(10):
        stage.look((quiet, other), requests=4)
    assert stage.wishes == [Wish(make=b.id)] and stage.a.pool.connections(b.id) == [shared, loud.link.peer]


def test_the_least_used_is_given_up_for_who_talks_more(kind):
    """Room for one: the second that talks much waits until the first has fallen silent; then that one goes back to the
    shared connection, the old connection is closed at both ends, a new one is made; nobody's requests are lost."""
    stage = Stage(kind, 3, most=1)
    b, c = stage.hosts[1:]
    first, region, words = stage.program(b)
    second, other, more = stage.program(c)
    shared = first.link.peer, second.link.peer
    for _ in range(3):
        stage.look((first, region), requests=BUSY)
    own = first.link.peer
    assert own != shared[0]
    stage.look((first, region), (second, other), requests=BUSY)
    assert first.link.peer == own and second.link.peer == shared[1]
    for _ in range(12):
        stage.look((second, other), requests=BUSY)
    assert first.link.peer == shared[0] and second.link.peer not in shared
    assert stage.wishes == [Wish(make=b.id), Wish(give_up=own), Wish(make=c.id)]
    assert stage.a.pool.connections(b.id) == [shared[0]] and len(b.pool.connections(stage.a.id)) == 1
    assert word(words) == 4 * BUSY and word(more) == 13 * BUSY
    stage.look((first, region), requests=4)
    assert word(words) == 4 * BUSY + 4


def test_who_talks_as_much_does_not_take_the_place(kind):
    """Room for one, and two that talk as much for many looks: who has the connection keeps it."""
    stage = Stage(kind, 3, most=1)
    b, c = stage.hosts[1:]
    first, region, _ = stage.program(b)
    second, other, _ = stage.program(c)
    stage.look((first, region), requests=BUSY)
    for _ in range(8):
        stage.look((first, region), (second, other), requests=BUSY)
    assert stage.wishes == [Wish(make=b.id)]
    assert list(stage.dedication.connections.values()) == [first.link.id]


def test_two_that_talk_much_to_one_node(kind):
    """There is room for both: one connection is asked for at a time, however long its making takes, and each link gets
    one in the end."""
    stage = Stage(kind, 2, most=4)
    b = stage.hosts[1]
    loud = [stage.program(b) for _ in range(2)]
    stage.making = []
    for _ in range(3):
        stage.look(*[one[:2] for one in loud], requests=BUSY)
    assert stage.wishes == [Wish(make=b.id)] and stage.making == [b.id]
    stage.making = None
    stage.make(b.id)
    for _ in range(3):
        stage.look(*[one[:2] for one in loud], requests=BUSY)
    assert stage.wishes == [Wish(make=b.id)] * 2
    assert sorted(stage.dedication.connections.values()) == sorted(program.link.id for program, _, _ in loud)
    assert len({program.link.peer for program, _, _ in loud} | {stage.a.pool.connections(b.id)[0]}) == 3


def test_a_connection_stays_until_its_link_has_moved():
    """A link that is to leave its connection has a request on the way: for as long as that takes, the connection is not
    given up; then it is, and nothing was lost."""
    stage = Stage("sim", 3, most=1)
    b, c = stage.hosts[1:]
    first, region, words = stage.program(b)
    second, other, _ = stage.program(c)
    for _ in range(3):
        stage.look((first, region), requests=BUSY)
    own, n = first.link.peer, 3 * BUSY
    while own in stage.dedication.connections:
        stage.look((second, other), requests=BUSY, on_the_way=(first, region))
        n += 1
    for _ in range(3):
        stage.a.pool.run(stage.now_ns)
        stage.a.pool.tidy()
        assert stage.advance() == [] and first.link.peer == own
    stage.look((second, other), requests=BUSY)
    assert Wish(give_up=own) in stage.wishes and first.link.peer != own and first.link.is_open
    assert word(words) == n and first.user.broken == ""


def test_a_connection_that_can_not_be_had(kind):
    """The link stays where it is, asks again, and gets one when there is one; a link that has gone by then leaves the
    connection to who made it."""
    stage = Stage(kind, 2, most=2)
    program, region, _ = stage.program(stage.hosts[1])
    stage.fails = True
    for _ in range(3):
        stage.look((program, region), requests=BUSY)
    assert len(stage.wishes) == 3 and stage.dedication.connections == {}
    stage.fails = False
    stage.look((program, region), requests=BUSY)
    stage.look((program, region), requests=BUSY)
    assert list(stage.dedication.connections.values()) == [program.link.id]
    assert not Dedication(stage.a.pool).made(stage.hosts[1].id, 200)


def test_a_link_that_is_closed_gives_its_connection_up(kind):
    """Its user goes: the connection has nobody, and is closed."""
    stage = Stage(kind, 2, most=2)
    b = stage.hosts[1]
    program, region, _ = stage.program(b)
    for _ in range(3):
        stage.look((program, region), requests=BUSY)
    own = program.link.peer
    stage.a.pool.close_link(program.link)
    stage.look()
    stage.look()
    assert stage.wishes[-1] == Wish(give_up=own) and len(stage.a.pool.connections(b.id)) == 1
    assert stage.dedication.connections == {}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_the_pool_does_not_grow_with_its_users(seed):
    """Forty links to three nodes whose talk comes and goes: never more connections than there may be, each dedicated
    one has one link, no request is lost and none comes out of order."""
    rng = random.Random(seed)
    stage = Stage("sim", 4, most=2)
    programs: list[Any] = [stage.program(rng.choice(stage.hosts[1:])) for _ in range(40)]
    asked = [0] * len(programs)
    for _ in range(25):
        busy = rng.sample(range(len(programs)), rng.randrange(4))
        stage.look(*[programs[k][:2] for k in busy], requests=BUSY)
        for k in busy:
            asked[k] += BUSY
        connections = [peer for host in stage.hosts[1:] for peer in stage.a.pool.connections(host.id)]
        assert len(connections) == len(set(connections)) <= 3 + 2
    assert [word(words) for _, _, words in programs] == asked and any(wish.give_up >= 0 for wish in stage.wishes)


@pytest.mark.parametrize("most", [-1, 65])
def test_limits(most):
    """How many there may be is bounded."""
    with pytest.raises(ValueError, match="64"):
        Dedication(make_hosts("sim", 2)[0].pool, most)
