"""Goal: memory that a node of this host hands over is taken only if it is what was asked for, and given only to such.

Method: real nodes on one host, one of which says what it shouldn't.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from spindle.errors import NoResources, SampleMissing, SampleUnfit, SpindleError
from spindle.large import handing, memory
from spindle.large.bringing import _Bring
from spindle.large.filling import Filling
from spindle.node.node import Node
from spindle.proto import node_pb2 as pb
from spindle.transport.wire import close_all
from tests.spindle.large.group import TOPIC, bring, pattern, run_on_hosts, sealed, until

SIZE = 100


def unsealed() -> int:
    fd = memory.make(SIZE)
    os.pwrite(fd, bytes(SIZE), 0)
    return fd


LIES = {
    "unsealed": (lambda: [unsealed()], SampleUnfit, "must be sealed"),
    "short": (lambda: [sealed(bytes(SIZE - 1))], SampleUnfit, "was to have 100 bytes; its memory has 99"),
    "long": (lambda: [sealed(bytes(SIZE + 1))], SampleUnfit, "was to have 100 bytes; its memory has 101"),
    "a file": (lambda: [os.open(__file__, os.O_RDONLY)], SampleUnfit, "must lie in a memfd"),
    "none": (lambda: [], SampleMissing, "with 0 descriptors"),
    "two": (lambda: [sealed(bytes(SIZE)), sealed(bytes(SIZE))], SampleMissing, "with 2 descriptors"),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_what_is_not_the_sample_is_not_taken(runtime_dir: Path, lie: tuple) -> None:
    """And the next source is asked."""
    make, kind, text = lie

    async def body(one: Node, two: Node, three: Node) -> None:
        def lies(peer: object, ask: pb.LargeAsk) -> None:
            fds = make()
            one._peers.send(2, pb.PeerMessage(large_here=pb.LargeHere(number=ask.number)), fds)
            close_all(fds)

        one.large.handing.heard_ask = lies  # type: ignore[method-assign]
        with pytest.raises(kind, match=f"^node 1.*{text}"):
            await two.large.handing.ask(two._peers.connected[1], 7, SIZE)
        with pytest.raises(SampleMissing, match=f"can't be had.*{text}"):
            await two.large.bring(7, SIZE, TOPIC, [1])
        three.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        assert await bring(two, 7, SIZE, [1, 3]) == pattern(SIZE)

    run_on_hosts(runtime_dir, [[1, 2, 3]], body)


@pytest.mark.slow
def test_answers_that_nobody_asked_for_are_closed(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        fd = sealed(pattern(SIZE))
        want = asyncio.ensure_future(bring(two, 7, SIZE, [1]))
        await until(lambda: one.large.handing._asked)
        number = one.large.handing._asked[0].number
        for wrong in (number, 99):  # of another node, the right number; and one that was never used
            three._peers.send(2, pb.PeerMessage(large_here=pb.LargeHere(number=wrong)), [fd])
            three._peers.send(2, pb.PeerMessage(large_lacking=pb.LargeLacking(number=wrong, why="a lie")))
            three._peers.send(2, pb.PeerMessage(large_coming=pb.LargeComing(number=wrong, reached=5)))
        one._peers.send(2, pb.PeerMessage(large_coming=pb.LargeComing(number=number, reached=SIZE + 1)))
        one._peers.send(2, pb.PeerMessage(large_here=pb.LargeHere(number=number)), [fd])
        one._peers.send(2, pb.PeerMessage(large_here=pb.LargeHere(number=number)), [fd])  # once more
        assert await want == pattern(SIZE)
        assert not any(asking.reached for asking in two.large.handing._asking.values())
        os.close(fd)

    run_on_hosts(runtime_dir, [[1, 2, 3]], body)


@pytest.mark.slow
def test_what_comes_when_nobody_waits_any_more_is_closed(runtime_dir: Path) -> None:
    """It is cancelled between the moment of the answer and its own next step."""
    async def body(one: Node, two: Node) -> None:
        one.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        want = asyncio.ensure_future(two.large.handing.ask(two._peers.connected[1], 7, SIZE))
        await asyncio.sleep(0)
        asking = next(iter(two.large.handing._asking.values()))
        asking.answer.add_done_callback(lambda _: want.cancel())
        with pytest.raises(asyncio.CancelledError):
            await want

    run_on_hosts(runtime_dir, [[1, 2]], body)


@pytest.mark.slow
def test_who_waits_no_more_is_handed_nothing(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        want = asyncio.ensure_future(two.large.bring(7, SIZE, TOPIC, [1]))
        await until(lambda: one.large.handing._asked)
        want.cancel()
        await until(lambda: not one.large.handing._asked)

    run_on_hosts(runtime_dir, [[1, 2]], body)


@pytest.mark.slow
def test_nodes_of_other_hosts_are_given_no_memory(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        one.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        with pytest.raises(SampleMissing, match="only nodes of its host are handed memory"):
            await two.large.handing.ask(two._peers.connected[1], 7, SIZE)

    run_on_hosts(runtime_dir, [[1], [2]], body)


@pytest.mark.slow
def test_of_another_size_it_has_nothing(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        one.large.store.put(7, sealed(bytes(SIZE + 1)), SIZE + 1, TOPIC)
        with pytest.raises(SampleMissing, match="the large sample 0x7 has 101 bytes there, not 100"):
            await two.large.handing.ask(two._peers.connected[1], 7, SIZE)

    run_on_hosts(runtime_dir, [[1, 2]], body)


@pytest.mark.slow
def test_a_node_that_can_open_no_more_says_so(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(one: Node, two: Node) -> None:
        def short(_fd: int) -> int:
            raise NoResources("no descriptor is left")

        one.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        with monkeypatch.context() as patched:
            patched.setattr(memory, "open_anew", short)
            with pytest.raises(SampleMissing, match="node 1 doesn't give it: no descriptor is left"):
                await two.large.handing.ask(two._peers.connected[1], 7, SIZE)
        assert await bring(two, 7, SIZE, [1]) == pattern(SIZE)

    run_on_hosts(runtime_dir, [[1, 2]], body)


@pytest.mark.slow
def test_a_node_of_another_user_is_handed_sealed_memory(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: it can't ask the kernel who may write, and gets what it need not ask of; a node of the same user can.

    Method: of samples that nobody has open to be written, two are asked for by a node that has another user: one of
    a writer there, and one that another node has made.
    """
    def closed() -> int:
        fd, again = memory.close(memory.make_closable(memory.REUSED_MIN))
        assert again
        return fd

    def is_sealed(node: Node, large_id: int) -> bool:
        held = node.large.store.find(large_id)
        assert held is not None
        return fcntl.fcntl(held.fd, fcntl.F_GET_SEALS) & memory.SEALS == memory.SEALS

    async def body(one: Node, two: Node) -> None:
        for large_id, spare in ((7, os.close), (8, os.close), (9, None)):
            one.large.store.put(large_id, closed(), memory.REUSED_MIN, TOPIC, spare)
        os.close(await two.large.handing.ask(two._peers.connected[1], 7, memory.REUSED_MIN))
        assert not is_sealed(one, 7)
        user = os.geteuid()
        with monkeypatch.context() as patched:
            patched.setattr(os, "geteuid", lambda: user + 1)
            for large_id in (8, 9, 9):
                os.close(await two.large.handing.ask(two._peers.connected[1], large_id, memory.REUSED_MIN))
        assert is_sealed(one, 8) and is_sealed(one, 9)

    run_on_hosts(runtime_dir, [[1, 2]], body)


@pytest.mark.slow
def test_a_flood_of_questions_is_refused(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(one: Node, two: Node) -> None:
        wants: Sequence[asyncio.Future[bytes]] = [
            asyncio.ensure_future(bring(two, large_id, SIZE, [1])) for large_id in range(1, 5)]
        await until(lambda: len(one.large.handing._asked) == 3)
        for large_id in range(1, 5):
            one.large.store.put(large_id, sealed(pattern(SIZE)), SIZE, TOPIC)
        found = await asyncio.gather(*wants, return_exceptions=True)
        assert found[:3] == [pattern(SIZE)] * 3
        assert isinstance(found[3], SampleMissing) and "3 questions wait already" in str(found[3])

    monkeypatch.setattr(handing, "ASKED_MAX", 3)
    run_on_hosts(runtime_dir, [[1, 2]], body)


@pytest.mark.slow
def test_who_is_bringing_it_says_how_far_it_is(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that who waits for a whole sample, however long it takes, doesn't take it for one that hangs."""
    from tests.spindle.large.test_relaying import source_at

    async def body(one: Node, two: Node) -> None:
        two.large.handing._silence_s = 1.0
        with source_at(one) as source:
            want = asyncio.ensure_future(bring(two, 7, source.filling.size, [1]))
            for _ in range(20):
                source.comes(1000)
                told = source.filling.reached
                await until(lambda told=told: want.done() or any(
                    asking.reached == told for asking in two.large.handing._asking.values()))
            source.whole()
            await want

    monkeypatch.setattr(handing, "TELL_S", 0.01)
    run_on_hosts(runtime_dir, [[1, 2]], body)


@pytest.mark.slow
def test_a_node_that_has_stopped_asks_and_answers_nobody(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        want = asyncio.ensure_future(two.large.bring(7, SIZE, TOPIC, [1]))
        await until(lambda: one.large.handing._asked)
        two.large.stop(SpindleError("the test stops it"))
        with pytest.raises(SpindleError, match="the test stops it"):
            await want
        for call in (two.large.bring(7, SIZE, TOPIC, [1]), two.large.handing.ask(two._peers.connected[1], 7, SIZE)):
            with pytest.raises(SpindleError, match="the test stops it"):
                await call
        fd = sealed(pattern(SIZE))
        two.large.heard(SimpleNamespace(), "large_here", pb.PeerMessage(), [fd])  # type: ignore[arg-type]
        with pytest.raises(OSError):
            os.fstat(fd)

    run_on_hosts(runtime_dir, [[1, 2]], body)


@pytest.mark.slow
def test_who_waits_for_its_turn_says_so(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of its host wait for it, but not for ever."""
    async def body(one: Node, two: Node) -> None:
        two.large.handing._silence_s = 0.5
        filling = Filling(7, SIZE, TOPIC, one.large._more)
        filling.waits = True
        one.large.bringing._under_way[7] = _Bring(filling, [], False)
        one.large.bringing._under_way[7].task = asyncio.ensure_future(asyncio.sleep(0, -1))
        peer = two._peers.connected[1]
        want = asyncio.ensure_future(two.large.handing.ask(peer, 7, SIZE))
        assert not (await asyncio.wait({want}, timeout=1.2))[0]
        del one.large.bringing._under_way[7]
        one.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        os.close(await want)
        one.large.store.drop(7)
        one.large.bringing._under_way[7] = _Bring(filling, [], False)
        one.large.bringing._under_way[7].task = asyncio.ensure_future(asyncio.sleep(0, -1))
        monkeypatch.setattr(handing, "WAITS_S", 0.2)
        with pytest.raises(SampleMissing, match="has come no further"):
            await two.large.handing.ask(peer, 7, SIZE)
        del one.large.bringing._under_way[7]

    monkeypatch.setattr(handing, "TELL_S", 0.01)
    run_on_hosts(runtime_dir, [[1, 2]], body)


@pytest.mark.slow
def test_two_who_want_it_of_each_other_are_told_so_soon(runtime_dir: Path) -> None:
    """Those who had it have gone: neither may take the other for one that is bringing it."""
    async def body(one: Node, two: Node) -> None:
        for node in (one, two):
            node.large.handing._silence_s = 0.3
        wants = [asyncio.ensure_future(node.large.bring(7, SIZE, TOPIC, [other]))
                 for node, other in ((one, 2), (two, 1))]
        for found in await asyncio.gather(*wants, return_exceptions=True):
            assert isinstance(found, SampleMissing)

    run_on_hosts(runtime_dir, [[1, 2]], body)
