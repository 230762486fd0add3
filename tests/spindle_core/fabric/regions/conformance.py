"""What every way to a peer must keep of the promise of regions (spindle_core/fabric/regions/regions.pxd). A part's test
module derives from RegionConformance.

`make_nodes(n)` gives n nodes, each connected with all others: `regions` (Regions), `number(k)` (the number of node k
here), `open(memory, to, **rights)` (registers memory and lets node `to` reach it: key, and the number there).
`pump(nodes)` lets a way without hardware make progress; `settle` tells whether the test's own processor may look at
what was written.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spindle_core.fabric.regions.regions import (
    INLINE_SIZE,
    MESSAGE_SIZE,
    MESSAGES_WAITING,
    REQUESTS_IN_LIST,
    REQUESTS_TO_PEER,
)
from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.memory import Mapping

BOUND_S = 20.0
SIZE = 64 << 10


def word(memory: Mapping, offset: int = 0) -> int:
    return int.from_bytes(memory.view()[offset : offset + 8], "little")


def put_word(memory: Mapping, value: int, offset: int = 0) -> None:
    memory.view()[offset : offset + 8] = value.to_bytes(8, "little")


class RegionConformance:
    make_nodes: Callable[[int], list[Any]]

    @staticmethod
    def pump(nodes: list[Any]) -> None:
        for node in nodes:
            node.regions.progress()

    def completions(self, nodes: list[Any], asker: Asker, n: int) -> list[tuple]:
        found: list[tuple] = []
        for _ in range(200_000):
            self.pump(nodes)
            found += asker.take()
            if len(found) >= n:
                return found
        raise AssertionError(f"{len(found)} completions of {n}")

    def run(self, nodes: list[Any], node: Any, requests: RequestList, n: int = 1) -> list[tuple]:
        asker = Asker()
        node.regions.post(asker, requests)
        found = self.completions(nodes, asker, n)
        assert asker.waiting == 0
        return found

    # ---- requests ----

    def test_a_write_and_a_read_bring_the_bytes(self):
        """The one who is granted writes; everybody reads; each list completes once, with the cookie of its last."""
        a, b, c = nodes = self.make_nodes(3)
        memory, mine = Mapping.create("owned", SIZE), Mapping.create("local", SIZE)
        key, region = b.open(memory, a, writer=True)
        mine.view()[0:300] = bytes(range(150)) * 2
        requests = RequestList()
        requests.write(region, 1000, 300, mine, 0, cookie=1)
        requests.write(region, 2000, 8, mine, 8, cookie=2)
        assert self.run(nodes, a, requests) == [(2, "done", 0, a.number(b))]
        assert bytes(memory.view()[1000:1300]) == bytes(range(150)) * 2
        there = c.reach(b, key)
        other = Mapping.create("local", SIZE)
        requests.clear()
        requests.read(there, 1000, 300, other, 16, cookie=3, signalled=True)
        requests.read(there, 2000, 8, other, 0, cookie=4)
        number = c.number(b)
        assert self.run(nodes, c, requests, 2) == [(3, "done", 0, number), (4, "done", 0, number)]
        assert bytes(other.view()[16:316]) == bytes(range(150)) * 2
        assert bytes(other.view()[0:8]) == bytes(range(8, 16))

    def test_a_long_write_and_read(self):
        """Ten megabytes and one odd byte, both ways; a short request behind the long one completes after it."""
        a, b = nodes = self.make_nodes(2)
        size = (10 << 20) + 1
        memory, mine = Mapping.create("owned", size), Mapping.create("local", size)
        _, region = b.open(memory, a, writer=True)
        data = random.Random(7).randbytes(size)
        mine.view()[0:size] = data
        requests = RequestList()
        requests.write(region, 0, size, mine, cookie=1, signalled=True)
        requests.read(region, size - 9, 9, mine, 0, cookie=2)
        assert [one[:2] for one in self.run(nodes, a, requests, 2)] == [(1, "done"), (2, "done")]
        assert bytes(memory.view()[0:size]) == data and bytes(mine.view()[0:9]) == data[-9:]
        mine.view()[0:size] = bytes(size)
        requests.clear()
        requests.read(region, 0, size, mine, cookie=3)
        self.run(nodes, a, requests)
        assert bytes(mine.view()[0:size]) == data

    def test_a_part_of_a_memory(self):
        """A region of some bytes of a memory: offsets count from its start, and nothing beyond is reached; what is no
        part of the memory is refused, and so is its grant to a peer of the same host, which maps all or nothing."""
        a, b = nodes = self.make_nodes(2)
        memory, mine = Mapping.create("owned", SIZE), Mapping.create("local", SIZE)
        for begin, size in ((-8, 8), (SIZE, 8), (0, 0), (8, SIZE), (0, -1)):
            with pytest.raises(ValueError, match=str(SIZE)):
                b.regions.register(memory, begin=begin, size=size)
        with pytest.raises(ValueError, match="8 bytes"):
            b.regions.register(memory, begin=4, size=8, atomics=True)
        memory.view()[0:1000] = bytes(k % 251 for k in range(1000))
        key = b.regions.register(memory, begin=496, size=104, writer=b.number(a))
        if b.regions.part_of(b.number(a)) == "shm":
            with pytest.raises(ValueError, match="this host"):
                b.regions.grant(key, b.number(a))
            return
        b.opened[key] = memory
        region, requests = a.reach(b, key), RequestList()
        mine.view()[0:8] = b"12345678"
        requests.write(region, 8, 8, mine)
        requests.read(region, 0, 104, mine, 64, cookie=1)
        assert self.run(nodes, a, requests) == [(1, "done", 0, a.number(b))]
        assert bytes(memory.view()[504:512]) == b"12345678"
        assert bytes(mine.view()[64:168]) == bytes(memory.view()[496:600])
        requests.clear()
        requests.read(region, 0, 105, mine)
        with pytest.raises(ValueError, match="beyond"):
            a.regions.post(Asker(), requests)
        with pytest.raises(ValueError, match="this host"):
            b.regions.whole_grant(key)

    def test_a_chain_happens_in_order(self):
        """A compare-and-swap and the read behind it, in one list: the read sees what the swap left; the words found lie
        in this node's memory although only the last request is signalled."""
        a, b = nodes = self.make_nodes(2)
        memory, mine = Mapping.create("owned", SIZE), Mapping.create("local", SIZE)
        _, region = b.open(memory, a, atomics=True)
        put_word(memory, 41, 64)
        requests = RequestList()
        requests.compare_swap(region, 64, 41, 42, found=mine, found_offset=0)
        requests.read(region, 64, 8, mine, 8)
        requests.fetch_add(region, 64, 8, found=mine, found_offset=16)
        requests.compare_swap(region, 64, 41, 7, found=mine, found_offset=24)
        requests.fetch_add(region, 64, 0, cookie=9)
        assert self.run(nodes, a, requests) == [(9, "done", 50, a.number(b))]
        assert [word(mine, offset) for offset in (0, 8, 16, 24)] == [41, 42, 42, 50]
        assert word(memory, 64) == 50

    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(st.lists(st.tuples(st.sampled_from(["swap", "add"]), st.integers(0, 3), st.integers(0, 3), st.booleans()),
                    min_size=1, max_size=REQUESTS_IN_LIST))
    def test_atomics_match_a_model(self, steps):
        """Lists of atomics: each finds what a model finds, signalled or not."""
        a, b = nodes = self.make_nodes(2)
        memory, mine = Mapping.create("owned", 4096), Mapping.create("local", 4096)
        _, region = b.open(memory, a, atomics=True)
        requests, model, found, told = RequestList(), 0, [], []
        for k, (kind, first, second, signalled) in enumerate(steps):
            found.append(model)
            if signalled or k == len(steps) - 1:
                told.append((k, "done", model, a.number(b)))
            if kind == "swap":
                requests.compare_swap(region, 8, first, second, cookie=k, signalled=signalled, found=mine,
                                      found_offset=8 * k)
                model = second if model == first else model
            else:
                requests.fetch_add(region, 8, first, cookie=k, signalled=signalled, found=mine, found_offset=8 * k)
                model += first
        assert self.run(nodes, a, requests, len(told)) == told
        assert [word(mine, 8 * k) for k in range(len(steps))] == found and word(memory, 8) == model

    def test_fetch_and_add_of_many_loses_nothing(self):
        """Atomics of two nodes on one word: the sum is exact, and every value found is another one."""
        nodes = self.make_nodes(3)
        memory = Mapping.create("owned", 4096)
        key, region = nodes[0].open(memory, nodes[1], atomics=True)
        reached = {1: region, 2: nodes[2].reach(nodes[0], key)}
        found: list[int] = []
        turn = threading.Lock()

        def add(k: int) -> None:
            asker, requests = Asker(), RequestList()
            for i in range(200):
                requests.clear()
                requests.fetch_add(reached[k], 0, 1, cookie=i)
                with turn:
                    nodes[k].regions.post(asker, requests)
                one: list[tuple] = []
                while not one:
                    with turn:
                        self.pump(nodes)
                        one = asker.take()
                found.append(one[0][2])

        threads = [threading.Thread(target=add, args=(k,), daemon=True) for k in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(BOUND_S)
        assert sorted(found) == list(range(400))

    def test_completions_come_back_to_who_asked_in_order(self):
        """Two users share the way: each gets its own completions, in its order, whatever the other does."""
        a, b = nodes = self.make_nodes(2)
        memory = Mapping.create("owned", 4096)
        _, region = b.open(memory, a, atomics=True)
        askers, requests = (Asker(), Asker()), RequestList()
        for k in range(100):
            requests.clear()
            requests.fetch_add(region, 0, 1, cookie=k)
            a.regions.post(askers[k % 3 == 0], requests)
            if k % 7 == 0:
                self.pump(nodes)
        for which in (0, 1):
            own = [k for k in range(100) if (k % 3 == 0) == bool(which)]
            assert [one[0] for one in self.completions(nodes, askers[which], len(own))] == own

    def test_what_has_no_room_is_refused_whole(self):
        """Requests on the way and completions not taken are bounded: BlockingIOError, nothing of the list happened, and
        once some were taken it goes on. Nothing is lost, nothing happens twice."""
        a, b = nodes = self.make_nodes(2)
        memory = Mapping.create("owned", 4096)
        _, region = b.open(memory, a, atomics=True)
        asker, posted = Asker(128), 0
        taken: list[int] = []
        for _ in range(2000):
            requests = RequestList()
            for k in range(10):
                requests.fetch_add(region, 0, 1, cookie=posted if k == 9 else 2**63)
            try:
                a.regions.post(asker, requests)
                posted += 1
            except BlockingIOError as error:
                assert str(REQUESTS_TO_PEER) in str(error) and "128" in str(error)
                self.pump(nodes)
                if posted >= 300:
                    break
                taken += [one[0] for one in asker.take()]
        taken += [one[0] for one in self.completions(nodes, asker, posted - len(taken))]
        assert taken == list(range(posted)) and posted >= 300 and word(memory) == 10 * posted

    def test_short_ranges_tear_no_word(self):
        """Aligned words in short writes and reads are whole, though two threads look and write all the time."""
        a, b = nodes = self.make_nodes(2)
        memory, mine = Mapping.create("owned", 4096), Mapping.create("local", 4096)
        _, region = b.open(memory, a, writer=True)
        requests, torn, stop = RequestList(), [], threading.Event()
        requests.write(region, 0, INLINE_SIZE, mine)
        words = memoryview(memory).cast("Q")

        def look() -> None:
            while not stop.is_set():
                value = words[3]
                if value not in (0, 2**64 - 1):
                    torn.append(value)

        looker = threading.Thread(target=look, daemon=True)
        looker.start()
        for k in range(500):
            mine.view()[0:INLINE_SIZE] = bytes([255 * (k & 1)]) * INLINE_SIZE
            self.run(nodes, a, requests)
        stop.set()
        looker.join(BOUND_S)
        assert torn == []

    def test_a_short_write_carries_its_bytes_as_they_are_at_the_post(self):
        """Memory of a short write may be used again at once."""
        a, b = nodes = self.make_nodes(2)
        memory, mine = Mapping.create("owned", 4096), Mapping.create("local", 4096)
        _, region = b.open(memory, a, writer=True)
        asker = Asker()
        for k in range(50):
            requests = RequestList()
            mine.view()[0:INLINE_SIZE] = bytes([k]) * INLINE_SIZE
            requests.write(region, 0, INLINE_SIZE, mine, signalled=True)
            requests.write(region, 8 * k + 256, 8, mine)
            a.regions.post(asker, requests)
            mine.view()[0:INLINE_SIZE] = bytes(INLINE_SIZE)
        self.completions(nodes, asker, 100)
        assert bytes(memory.view()[0:8]) == bytes([49]) * 8
        assert all(bytes(memory.view()[8 * k + 256 : 8 * k + 264]) == bytes([k]) * 8 for k in range(50))

    def test_memory_of_a_request_stays_mapped(self):
        """Who closes memory that a list was made of, or that requests on the way need, reads into nothing else; nor
        does an owner who closes a region's memory."""
        a, b = nodes = self.make_nodes(2)
        memory, into = Mapping.create("owned", SIZE), Mapping.create("local", SIZE)
        _, region = b.open(memory, a)
        memory.view()[0:3000] = bytes(range(250)) * 12
        memory.close()
        asker, requests = Asker(), RequestList()
        requests.read(region, 0, 3000, into, cookie=1)
        into.close()
        assert not any(into.view())
        a.regions.post(asker, requests)
        found = asker.take()
        if not found:
            requests.clear()
            into.close()
            assert len(into.view()) == SIZE  # a device may have read into it already
            found = self.completions(nodes, asker, 1)
        assert [one[:2] for one in found] == [(1, "done")]
        assert bytes(into.view()[0:3000]) == bytes(range(250)) * 12

    # ---- what is refused ----

    def test_each_request_is_checked_before_the_list_is_posted(self):
        """Wrong number, right, range, alignment or length: ValueError that names the request and the limit; nothing of
        the list happens, and the way is as good as before."""
        a, b, c = nodes = self.make_nodes(3)
        memory, mine = Mapping.create("owned", 4096), Mapping.create("local", 4096)
        _, region = b.open(memory, a, atomics=True)
        _, readable = b.open(Mapping.create("owned", 4096), a)
        _, of_other = c.open(Mapping.create("owned", 4096), a, atomics=True)
        wrong = {
            "beyond": lambda r: r.read(region, 4090, 8, mine),
            "far beyond": lambda r: r.read(region, 2**64 - 8, 16, mine),
            "misaligned": lambda r: r.fetch_add(region, 12, 1),
            "past the end": lambda r: r.fetch_add(region, 4096, 1),
            "empty": lambda r: r.read(region, 0, 0, mine),
            "no such region": lambda r: r.read(region + 77, 0, 8, mine),
            "forgotten": lambda r: r.read(region + (1 << 32), 0, 8, mine),
            "not granted": lambda r: r.write(region, 0, 8, mine),
            "no atomics": lambda r: r.fetch_add(readable, 0, 1),
            "another peer": lambda r: r.fetch_add(of_other, 0, 1),
        }
        for why, add in wrong.items():
            asker, requests = Asker(), RequestList()
            requests.fetch_add(region, 0, 1)
            add(requests)
            requests.fetch_add(region, 0, 1)
            with pytest.raises(ValueError, match="request 1"):
                a.regions.post(asker, requests)
            assert asker.waiting == 0, why
        with pytest.raises(ValueError, match=f"1 to {REQUESTS_IN_LIST}"):
            a.regions.post(Asker(), RequestList())
        full = RequestList()
        for _ in range(REQUESTS_IN_LIST):
            full.fetch_add(region, 0, 1)
        with pytest.raises(ValueError, match=str(REQUESTS_IN_LIST)):
            full.fetch_add(region, 0, 1)
        assert self.run(nodes, a, full)[0][1] == "done" and word(memory) == REQUESTS_IN_LIST

    def test_a_region_has_one_writer_or_atomics(self):
        """Both at once is refused; a reader's grant gives no right to write; what a peer may change is writable."""
        a, b, c = self.make_nodes(3)
        memory = Mapping.create("owned", 4096)
        with pytest.raises(ValueError, match="not to both"):
            b.regions.register(memory, writer=b.number(a), atomics=True)
        with pytest.raises(ConnectionError):
            b.regions.register(memory, writer=200)
        key, _ = b.open(memory, a, writer=True)
        requests = RequestList()
        requests.write(c.reach(b, key), 0, 8, memory)
        with pytest.raises(ValueError, match="grant"):
            c.regions.post(Asker(), requests)

    def test_an_ended_key_fails_and_the_rest_of_its_list_does_not_happen(self):
        """A list whose second region has ended: what is before it happened, it says `ended`, what is behind `after`;
        the next list goes on."""
        a, b = nodes = self.make_nodes(2)
        kept, gone, mine = (Mapping.create("memory", 4096) for _ in range(3))
        _, region = b.open(kept, a, atomics=True)
        key, ended = b.open(gone, a, atomics=True)
        b.regions.deregister(key)
        requests = RequestList()
        requests.fetch_add(region, 0, 1)
        requests.fetch_add(ended, 0, 1, cookie=5)
        requests.fetch_add(region, 0, 10)
        requests.read(region, 0, 8, mine, cookie=6, signalled=True)
        requests.fetch_add(region, 0, 100, cookie=7)
        found = self.run(nodes, a, requests, 3)
        assert [one[:2] for one in found] == [(5, "ended"), (6, "after"), (7, "after")]
        assert word(kept) == 1 and word(gone) == 0
        assert b.regions.idle(gone)
        requests.clear()
        requests.fetch_add(region, 0, 1, cookie=8)
        assert [one[:3] for one in self.run(nodes, a, requests)] == [(8, "done", 1)]

    def test_keys_never_come_back(self):
        """A thousand registrations, one after the other: each key is new, and an old one's way never leads to new
        memory."""
        a, b = nodes = self.make_nodes(2)
        memory = Mapping.create("owned", 4096)
        first, region = b.open(memory, a, atomics=True)
        b.regions.deregister(first)
        keys = {first}
        for _ in range(1000):
            key = b.regions.register(memory, atomics=True)
            assert key not in keys
            keys.add(key)
            b.regions.deregister(key)
        last, again = b.open(memory, a, atomics=True)
        requests = RequestList()
        requests.fetch_add(region, 0, 1)
        assert self.run(nodes, a, requests)[0][1] == "ended" and word(memory) == 0
        requests.clear()
        requests.fetch_add(again, 0, 1)
        assert self.run(nodes, a, requests)[0][1] == "done" and word(memory) == 1
        assert last not in keys

    def test_a_region_that_is_forgotten_is_reached_no_more(self):
        """forget() ends the number here, not the key; what was on the way goes on; the place is used again under
        another number."""
        a, b = nodes = self.make_nodes(2)
        memory = Mapping.create("owned", 4096)
        key, region = b.open(memory, a, atomics=True)
        asker, requests = Asker(), RequestList()
        requests.fetch_add(region, 0, 1, cookie=1)
        a.regions.post(asker, requests)
        a.regions.forget(region)
        assert self.completions(nodes, asker, 1)[0][:2] == (1, "done")
        with pytest.raises(ValueError, match="no such region"):
            a.regions.post(asker, requests)
        with pytest.raises(KeyError):
            a.regions.forget(region)
        numbers = {region}
        for _ in range(20):
            number = a.reach(b, key)
            assert number not in numbers
            numbers.add(number)
            a.regions.forget(number)

    # ---- messages ----

    def test_messages_come_once_in_order(self):
        """Empty, short, odd and the longest: each once, as it was sent, also when many wait."""
        a, b = nodes = self.make_nodes(2)
        rng = random.Random(3)
        sizes = [0, 1, 7, 8, 255, 4096, MESSAGE_SIZE, *[rng.choice((3, 300, 70_000)) for _ in range(200)]]
        sent, got = [rng.randbytes(size) for size in sizes], []
        queue = list(sent)
        for _ in range(200_000):
            while queue:
                try:
                    a.regions.send(a.number(b), queue[0])
                    queue.pop(0)
                except BlockingIOError:
                    break
            self.pump(nodes)
            while (one := b.regions.receive()) is not None:
                assert one[0] == b.number(a)
                got.append(one[1])
            if len(got) == len(sent):
                break
        assert got == sent
        with pytest.raises(ValueError, match=str(MESSAGE_SIZE)):
            a.regions.send(a.number(b), bytes(MESSAGE_SIZE + 1))

    def test_messages_that_nobody_takes_are_bounded(self):
        """BlockingIOError names the limit; the requests to that peer go on; once some were taken, messages too."""
        a, b = nodes = self.make_nodes(2)
        memory = Mapping.create("owned", 4096)
        _, region = b.open(memory, a, atomics=True)
        data, n = bytes(100_000), 0
        with pytest.raises(BlockingIOError, match=str(MESSAGES_WAITING)):
            for n in range(1000):  # noqa: B007
                a.regions.send(a.number(b), data)
                self.pump(nodes)
        assert n * len(data) > MESSAGES_WAITING // 2
        requests = RequestList()
        requests.fetch_add(region, 0, 1)
        assert self.run(nodes, a, requests)[0][1] == "done"
        got = 0
        for _ in range(100_000):
            self.pump(nodes)
            if b.regions.receive() is not None:
                got += 1
            if got == n:
                break
        assert got == n and b.regions.receive() is None
        a.regions.send(a.number(b), b"after")
        for _ in range(100_000):
            self.pump(nodes)
            if (one := b.regions.receive()) is not None:
                break
        assert one == (b.number(a), b"after")

    def test_many_senders_take_turns(self):
        """One who floods does not keep the others' messages from being received."""
        nodes = self.make_nodes(4)
        for _ in range(50):
            nodes[1].regions.send(nodes[1].number(nodes[0]), b"flood")
        nodes[2].regions.send(nodes[2].number(nodes[0]), b"two")
        nodes[3].regions.send(nodes[3].number(nodes[0]), b"three")
        for _ in range(1000):
            self.pump(nodes)
        first = [nodes[0].regions.receive()[1] for _ in range(6)]
        assert b"two" in first and b"three" in first

    # ---- ends ----

    def test_cut_completes_what_is_on_the_way_and_ends_all(self):
        """After cut(): each signalled request has completed, done or `cut`; what comes later is refused; other peers go
        on; the number can be connected anew after forget_peer."""
        a, b, c = nodes = self.make_nodes(3)
        memory = Mapping.create("owned", 4096)
        _, region = b.open(memory, a, atomics=True)
        _, other = c.open(Mapping.create("owned", 4096), a, atomics=True)
        asker, requests = Asker(), RequestList()
        requests.fetch_add(region, 0, 1, cookie=1, signalled=True)
        requests.fetch_add(region, 0, 1)
        requests.fetch_add(region, 0, 1, cookie=2)
        for _ in range(5):
            a.regions.post(asker, requests)
        number = a.number(b)
        a.regions.cut(number)
        a.regions.cut(number)
        found = asker.take()
        assert len(found) == 10 and {one[1] for one in found} <= {"done", "cut"} and asker.waiting == 0
        with pytest.raises(ConnectionError):
            a.regions.post(asker, requests)
        with pytest.raises(ConnectionError):
            a.regions.send(number, b"x")
        requests.clear()
        requests.fetch_add(other, 0, 1, cookie=3)
        assert self.run([a, c], a, requests)[0][:2] == (3, "done")
        a.regions.send(a.number(c), b"y")
        self.pump(nodes)
        assert asker.take() == []
        a.regions.forget_peer(number)
        with pytest.raises(ConnectionError):
            a.regions.cut(number)

    def test_who_goes_with_requests_on_the_way_hurts_nobody(self):
        """An asker that is abandoned gets nothing more; the requests of another one complete as ever."""
        a, b = nodes = self.make_nodes(2)
        memory = Mapping.create("owned", 4096)
        _, region = b.open(memory, a, atomics=True)
        gone, stays, requests = Asker(), Asker(), RequestList()
        for k in range(20):
            requests.clear()
            requests.fetch_add(region, 0, 1, cookie=k)
            a.regions.post(gone if k % 2 else stays, requests)
            if k == 10:
                a.regions.abandon(gone)
                gone = Asker()
        assert [one[0] for one in self.completions(nodes, stays, 10)] == list(range(0, 20, 2))
        for _ in range(100):
            self.pump(nodes)
        assert word(memory) == 20

    def test_a_writer_that_goes_leaves_no_right_to_its_number(self):
        """Who is connected under the number of a writer that went may not write what that one was granted."""
        a, b = self.make_nodes(2)
        memory = Mapping.create("owned", 4096)
        key, _ = b.open(memory, a, writer=True)
        number = b.number(a)
        b.regions.forget_peer(number)
        assert not b.regions.idle(memory)  # its key is open to readers still
        with pytest.raises(ConnectionError):
            b.regions.grant(key, number)
