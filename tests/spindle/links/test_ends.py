"""Goal: programs with links get a clear error, soon, when a node dies, hangs, leaves or is started anew; and links work
again as soon as it is there again.

Method: real daemons, killed, stopped and started in the middle of what links do; on one host and over TCP.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle.errors import ConnectionEnded, LinkError, NodeStopped, SpindleError
from spindle.links import Links
from tests.spindle.links.group import KINDS, Group, group_of
from tests.support import wait_until


@pytest.fixture(params=KINDS)
def group(request: pytest.FixtureRequest, runtime_dir: Path) -> Iterator[Group]:
    with group_of(request.param, runtime_dir, 2 if request.param == "one host" else 3) as made:  # a majority
        yield made


class Doing:
    """Does something on a thread; `ended()` waits for it and returns what it returned or raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work, self.result = work, None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:
            self.result = error

    def ended(self, within_s: float = 10.0) -> Any:
        self._thread.join(within_s)
        assert not self._thread.is_alive(), "it goes on"
        return self.result


def test_who_waits_hears_at_once_that_its_own_node_has_died(runtime_dir: Path) -> None:
    """In a wait for a message and in one for an answer, whatever their own bounds; later calls say so too."""
    with group_of("one host", runtime_dir, 1) as group:
        links = Links(group.session(1))
        port, silent, link = links.listen(7), links.listen(8), links.open(1, timeout_s=60)
        waits = [Doing(lambda: port.receive(60)), Doing(lambda: link.call(8, b"nobody answers"))]
        wait_until(lambda: silent.receive(0.1))
        group.daemon(1).kill()
        for wait in waits:
            assert isinstance(wait.ended(), NodeStopped)
        for call in (lambda: port.receive(60), lambda: link.call(8, b"x"), lambda: link.region("x")):
            with pytest.raises(NodeStopped):
                call()
        link.close()
        port.close()


def test_who_waits_for_an_answer_hears_that_nobody_listens_any_more(group: Group) -> None:
    """The listener's program has died, or closed the port, after it had got the call. A caller that asks is no message
    to one that is only slow, whose answer comes."""
    near, far = Links(group.session(1)), Links(group.session(2))
    slow, silent = far.listen(7), far.listen(8)
    with near.open(2, timeout_s=60) as link, near.open(2, timeout_s=60) as other:
        calls = [Doing(lambda: link.call(7, b"take your time")), Doing(lambda: other.call(8, b"nobody answers"))]
        message = slow.receive(10)
        assert message is not None and silent.receive(10)
        time.sleep(2.5)  # it has asked twice
        assert slow.receive(0) is None and silent.receive(0) is None
        slow.answer(message, b"here")
        assert calls[0].ended() == b"here"
        silent.close()
        ended = calls[1].ended()
        assert isinstance(ended, LinkError) and ended.status == "cut" and "has gone in the middle" in str(ended)
        with pytest.raises(LinkError) as refused:
            other.call(8, b"x")
        assert refused.value.status == "nobody"


def test_a_request_to_a_node_that_dies_ends(group: Group) -> None:
    """A call that waits for an answer, an open, and reads in a loop: each ends with an error that says so. What was
    opened before never works again, not even when the node is there anew; what is opened then does."""
    near, far = Links(group.session(1)), Links(group.session(2))
    table, silent = far.offer("table", 1 << 20, writer=1), far.listen(8)
    assert table.view is not None and silent is not None
    link, other = near.open(2, timeout_s=30), near.open(2, timeout_s=30)
    region = other.region("table", change=True)
    call = Doing(lambda: link.call(8, b"nobody answers"))

    def use() -> None:
        while True:
            region.write(0, region.read(8, 4096))

    uses = Doing(use)
    wait_until(lambda: silent.receive(0.1))
    group.daemon(2).kill()
    for ended in (call.ended(), uses.ended()):
        assert isinstance(ended, LinkError) and ended.status == "cut", ended
    with pytest.raises(ConnectionEnded):
        near.open(2)
    group.start(2)
    again = Links(group.session(2)).offer("table", 1 << 20)  # the writer is of no other life
    again.view[:3] = b"new"
    with pytest.raises(LinkError):
        region.read(0, 3)

    def reads() -> bool:
        try:
            with near.open(2) as new:
                return new.region("table").read(0, 3) == b"new"
        except ConnectionEnded:
            return False

    wait_until(reads, what="links to the node that is there anew")


def test_a_writer_that_is_started_anew_is_another_one(group: Group) -> None:
    """Its programs may only read, until the region is offered anew."""
    near = Links(group.session(1))
    with near.offer("table", 64, writer=2) as table:
        with Links(group.session(2)).open(1) as link:
            link.region("table", change=True).write(0, b"first")
        group.daemon(2).kill()
        group.start(2)
        with Links(group.session(2)).open(1) as link:
            assert link.region("table").read(0, 5) == b"first"
            with pytest.raises(SpindleError, match="reads only, for node"):
                link.region("table", change=True)
        assert bytes(table.view[:5]) == b"first"
    with near.offer("table2", 64, writer=2), Links(group.session(2)).open(1) as link:
        link.region("table2", change=True).write(0, b"again")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hangs", [1, 2])
def test_a_node_that_hangs_is_waited_for(runtime_dir: Path, kind: str, hangs: int) -> None:
    """An open waits up to its bound and says who doesn't answer; a second one too. When the node goes on, so do links,
    in both directions."""
    other = 3 - hangs
    with group_of(kind, runtime_dir, 2, "membership.suspect_timeout_s=60") as group:
        near, far = Links(group.session(other)), Links(group.session(hangs))
        port = far.listen(9)
        group.daemon(hangs).process.send_signal(signal.SIGSTOP)
        try:
            opens = [Doing(lambda: near.open(hangs)) for _ in range(2)]
            for one in opens:
                assert isinstance(error := one.ended(15), ConnectionEnded), error
                assert f"node {hangs} has not answered within 5 s" in str(error)
        finally:
            group.daemon(hangs).process.send_signal(signal.SIGCONT)
        with near.open(hangs) as link:
            link.send(b"late", 9)
            one = port.receive()
            assert one is not None and one.data == b"late"
            with far.open(other) as back, near.offer("here", 64):
                assert back.region("here").read(0, 8) == bytes(8)
                group.daemon(hangs).process.send_signal(signal.SIGSTOP)
                try:
                    call = Doing(lambda: link.call(9, b"x"))
                finally:
                    group.daemon(hangs).process.send_signal(signal.SIGCONT)
                message = port.receive()
                assert message is not None
                port.answer(message, b"y")
                assert call.ended() == b"y"


@pytest.mark.slow
def test_both_begin_at_once(group: Group) -> None:
    """Programs of both nodes open links at one time, many of them: each link works."""
    regions = [Links(group.session(node)).offer("region", 4096) for node in (1, 2)]
    for node, region in enumerate(regions, 1):
        region.view[:1] = b"%d" % node
    programs = [(group.program(node), 3 - node) for node in (1, 2) for _ in range(4)]
    start = threading.Barrier(len(programs))

    def use(number: int) -> list[bytes]:
        session, to = programs[number]
        start.wait()
        made = [Links(session).open(to) for _ in range(10)]
        read = [link.region("region").read(0, 1) for link in made]
        for link in made:
            link.close()
        return read

    doing = [Doing(lambda number=number: use(number)) for number in range(len(programs))]
    for (_, to), one in zip(programs, doing, strict=True):
        assert one.ended(20) == [b"%d" % to] * 10


@pytest.mark.slow
def test_a_node_that_leaves_takes_its_links_with_it_soon(group: Group) -> None:
    """Its programs and those of the other node hear of it; it is not held up by what they have open."""
    near, far = Links(group.session(1)), Links(group.session(2))
    port, offered = far.listen(9), far.offer("region", 4096, atomics=True)
    link = near.open(2)
    words = link.region("region", change=True)
    adds = Doing(lambda: [words.fetch_add(0, 1) for _ in iter(int, 1)])
    waits = Doing(lambda: port.receive(60))
    wait_until(lambda: offered.view[0])
    begun = time.monotonic()
    assert group.daemon(2).terminate() == 0
    assert time.monotonic() - begun < 5
    assert isinstance(waits.ended(), NodeStopped)
    ended = adds.ended()
    assert isinstance(ended, LinkError) and ended.status == "cut"
