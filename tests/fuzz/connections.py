"""Fuzz targets: the connections by which peers on other hosts write their rows here, and ask for regions of this node.

An input of both is a stream, before it the places at which it comes in pieces. What it does to memory is the same in
however many pieces it comes, and never more than its peer may.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
from collections.abc import Callable, Iterator

from spindle_core.fabric.regions.regions import GRANT, Regions
from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.fabric.regions.tcp import TcpPart
from spindle_core.fabric.tcp import TcpFabric
from spindle_core.memory import Mapping
from tests.fuzz.target import Cutter, target
from tests.spindle_core.fabric import tcp_peers as rows
from tests.spindle_core.fabric.regions import test_tcp_hostile as asking

SIZE = 4096
TURNS_MAX = 1000


def _pieces(data: bytes) -> tuple[bytes, list[int]]:
    """The stream of an input, and where to cut it."""
    cutter = Cutter(data)
    cuts = sorted(cutter.number(2) for _ in range(cutter.number() % 8))
    return cutter.rest, cuts


def _say(other: socket.socket, data: bytes, cuts: list[int], progress: Callable[[], int]) -> None:
    """Sends the stream piece by piece; each is taken before the next comes."""
    places = [0, *(min(cut, len(data)) for cut in cuts), len(data)]
    for begin, end in itertools.pairwise(places):
        with contextlib.suppress(OSError):  # it has been cut off
            other.sendall(data[begin:end])
        for _ in range(TURNS_MAX):
            if not progress():
                break


# ---- rows of a view ------------------------------------------------------------------------------------------------


def _streams() -> Iterator[bytes]:
    short, long = rows.frame(rows.WRITE, 64, bytes(range(8))), rows.frame(rows.WRITE, 128, bytes(range(250)) * 2)
    yield bytes([0]) + short + long + short
    yield bytes([3]) + bytes((5, 0, 40, 0, 90, 0)) + long + short + rows.frame(rows.RING, 0)
    yield bytes([1]) + bytes((17, 0)) + rows.frame(rows.RING, 0) + long + rows.frame(rows.GOODBYE, 0)
    yield bytes([0]) + rows.frame(rows.GOODBYE, 0) + short
    yield bytes([0]) + short[:-1]
    yield bytes([0]) + long + b"no frame of it.."
    for kind in range(5):
        yield bytes([0]) + rows.frame(kind, SIZE - 8, bytes(8)) + rows.frame(kind, SIZE - 4, bytes(8))


@target(_streams, size_max=2048, compiled=True)
def stream(data: bytes) -> None:
    """A peer's connection of a view that may bring anything: nothing is written but the copy of its row."""
    said, cuts = _pieces(data)
    assert _row_after(said, []) == _row_after(said, cuts)


def _row_after(data: bytes, cuts: list[int]) -> tuple[object, ...]:
    """What there is after a stream came in pieces, and the connection's end."""
    fabric = TcpFabric(0, 2)
    mine = fabric.make_row("row", SIZE)
    one, other = socket.socketpair()
    with other:
        fabric.connect(1, one.detach(), Mapping.private(SIZE))
        fabric.post_writes([(1, 0, 8), (1, 1024, 600)])
        _say(other, data, cuts, fabric.progress)
    for _ in range(10):
        fabric.progress()
    assert fabric.failures() or fabric.departed == {1}
    assert not any(mine.view())
    found = bytes(fabric.row_of(1)), fabric.failures()
    fabric.close()
    return found


# ---- regions -------------------------------------------------------------------------------------------------------

OPEN, OWNED, OTHERS = (1 << 32 | place for place in range(3))  # keys of a node's first regions


def _asks() -> Iterator[bytes]:
    changes = (asking.ask(asking.ADD, 0, OPEN, 8, 8, first=5) + asking.ask(asking.READ, 1, OPEN, 0, SIZE)
               + asking.ask(asking.SWAP, 2, OPEN, 8, 8, first=5, second=600))
    writes = (asking.ask(asking.WRITE, 0, OWNED, 16, 8, data=bytes(range(8)))
              + asking.ask(asking.WRITE, 1, OWNED, 32, 500, data=bytes(range(250)) * 2))
    answers = (asking.answer(0, asking.DONE, 7) + asking.answer(1, asking.DONE, data=bytes(range(150)) * 2)
               + asking.answer(2, asking.DONE, data=bytes(range(16))))
    message, taken = asking.frame(asking.MESSAGE, 0, b"a message"), asking.frame(asking.TAKEN, 16)
    yield bytes([0]) + changes + answers + message
    yield bytes([3]) + bytes((5, 0, 150, 0, 200, 1)) + writes + answers + taken
    yield bytes([2]) + bytes((70, 0, 71, 0)) + message + answers[:-1]
    yield bytes([0]) + b"".join(asking.answer(k, asking.AFTER if k else asking.ENDED) for k in range(3)) + changes
    yield bytes([0]) + asking.frame(asking.MESSAGE, 0, bytes(1000)) + changes + b"no frame of it.."
    yield bytes([0]) + writes[:-100]
    for key in (OTHERS, OPEN, OWNED + (1 << 32), 1 << 20):
        yield bytes([0]) + asking.ask(asking.WRITE, 0, key, 0, 8, left=1, data=b"\1" * 8) + asking.ask(
            asking.ADD, 1, key, SIZE - 4, 8, first=1) + asking.ask(asking.READ, 2, key, SIZE - 4, 8)


@target(_asks, size_max=2048, compiled=True)
def regions(data: bytes) -> None:
    """A peer's connection of regions that may bring anything: what it was not granted stays, every request to it
    completes once, others go on."""
    said, cuts = _pieces(data)
    assert _regions_after(said, []) == _regions_after(said, cuts)


def _regions_after(data: bytes, cuts: list[int]) -> tuple[object, ...]:
    """What there is after a stream came in pieces, and the connection's end."""
    node, honest = Regions(), Regions()
    part, there = TcpPart(node), TcpPart(honest)
    ends = [socket.socketpair() for _ in range(2)]
    number, stranger = part.connect(ends[0][0].detach()), part.connect(ends[1][0].detach())
    node_there, other = there.connect(ends[0][1].detach()), ends[1][1]
    open_, owned, others, mine = (Mapping.private(SIZE) for _ in range(4))
    keys = (node.register(open_, atomics=True), node.register(owned, writer=stranger),
            node.register(others, writer=number))
    assert keys == (OPEN, OWNED, OTHERS)
    theirs = node.reach(stranger, GRANT.pack(5, 1 << 20, 5, 0, 0))
    asker, requests = Asker(), RequestList()
    requests.fetch_add(theirs, 0, 1, cookie=1, signalled=True, found=mine)
    requests.read(theirs, 0, 300, mine, 64, cookie=2, signalled=True)
    requests.read(theirs, 0, 16, mine, 512, cookie=3)
    node.post(asker, requests)
    node.send(stranger, b"mine")
    with other:
        _say(other, data, cuts, node.progress)
        received = []
        while (one := node.receive()) is not None:
            received.append(one)
    for _ in range(10):
        node.progress()
    assert set(node.failures()) == {stranger} and not any(others.view())
    view = bytes(mine.view())
    assert not any(view[8:64]) and not any(view[364:512]) and not any(view[528:])
    found = bytes(open_.view()), bytes(owned.view()), view, asker.take(), received
    assert [one[0] for one in found[3]] == [1, 2, 3] and asker.waiting == 0
    _goes_on(node, honest, node_there, node.grant(OTHERS, number), others)
    honest.close()
    node.close()
    return found


def _goes_on(node: Regions, honest: Regions, number: int, grant: bytes, memory: Mapping) -> None:
    """The honest peer writes what it may."""
    source = Mapping.private(SIZE)
    source.view()[:8] = struct.pack("<Q", 77)
    asker, requests = Asker(), RequestList()
    requests.write(honest.reach(number, grant), 0, 8, source)
    honest.post(asker, requests)
    for _ in range(TURNS_MAX):
        node.progress()
        honest.progress()
        if done := asker.take():
            break
    assert [one[1] for one in done] == ["done"] and bytes(memory.view()[:8]) == source.view()[:8]


__all__ = ["regions", "stream"]
