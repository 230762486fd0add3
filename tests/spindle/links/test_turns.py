"""Goal: a link and a port serve one thread after the other, never one with what another has asked for; who is
interrupted by a signal, or has asked for nonsense, may go on with them, and loses no message; who waits hears that they
are closed.

Method: a node within the test, with both ends; interruptions at every place where a signal's handler may run.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spindle.client import embed
from spindle.client.session import Session
from spindle.errors import ConfigError, LinkError, SpindleError
from spindle.links import Link, Links, Port, duplexes
from spindle.links.duplexes import FIRST
from tests.interrupts import Alarm, interrupted_everywhere
from tests.spindle.links.test_ends import Doing
from tests.support import wait_until


@pytest.fixture
def session(runtime_dir: Path) -> Iterator[Session]:
    with embed() as made:
        yield made


@contextmanager
def echoing(port: Port) -> Iterator[None]:
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            if (message := port.receive(0.05)) is not None and message.call:
                port.answer(message, message.data)

    serving = Doing(serve)
    try:
        yield
    finally:
        over.set()
        assert serving.ended() is None


class OwnTimeout(TimeoutError):
    """As programs raise it in the handler of an alarm."""


@pytest.mark.parametrize("kind", [Alarm, OwnTimeout])
def test_who_is_interrupted_goes_on_with_the_link(session: Session, kind: type[Exception]) -> None:
    """In requests on memory, in what is found, in messages, and in calls through the pools and straight."""
    links = Links(session)
    with links.offer("words", 64, atomics=True), links.listen(7) as port, echoing(port), links.open(
            session.node_id, timeout_s=30) as link:
        words = link.region("words", change=True)
        added = 0

        def look_up() -> None:
            link.region("words").close()

        acts: list[Callable[[], object]] = [
            lambda: words.fetch_add(0, 1), lambda: words.read(0, 8), look_up, lambda: link.send(b"x", 7)]
        acts += [lambda: link.call(7, b"x")] * (FIRST + 1)
        for act in acts:

            def went_wrong(error: BaseException) -> None:
                nonlocal added
                assert isinstance(error, kind)
                before = words.fetch_add(0, 1 << 32)
                assert before >> 32 == added and link.call(7, b"y") == b"y"
                added += 1

            assert interrupted_everywhere(act, went_wrong, kind) > 3


def test_who_is_interrupted_loses_no_message(session: Session) -> None:
    """Of those that came through the pools as of those that came straight."""
    links = Links(session)
    with links.listen(7) as port, links.open(session.node_id) as link, links.open(session.node_id) as other:
        for _ in range(FIRST + 1):
            link.send(b"x", 7)
            assert port.receive() is not None
        numbers = itertools.count()
        sent: list[bytes] = []
        came: list[bytes] = []

        def send(_: object = None) -> None:
            for by in (link, other):
                sent.append(b"%d" % next(numbers))
                if by is link:
                    link.send(sent[-1], 7)
                else:
                    other._submit_message(sent[-1], 7, 0, 0)
                    other._completed(None, 1e18)

        got = [None]

        def receive() -> None:
            got[:] = (port.receive(0),)

        def interrupted(error: BaseException) -> None:
            keep()
            send()

        def keep() -> None:
            if got[0] is not None:
                came.append(got[0].data)
            got[0] = None

        send()
        assert interrupted_everywhere(receive, interrupted) > 3
        keep()
        while (message := port.receive(0)) is not None:
            came.append(message.data)
        assert sorted(came, key=int) == sent


class EndsBadly:
    """A turn in whose end, which calls nothing of Python's, a signal's handler runs."""

    def __init__(self, turn: Any) -> None:
        self._turn = turn

    def __enter__(self) -> None:
        self._turn.__enter__()

    def __exit__(self, *_: object) -> None:
        self._turn.__exit__(None, None, None)
        raise Alarm


def test_a_message_is_not_lost_in_the_last_moment(session: Session) -> None:
    links = Links(session)
    with links.listen(7) as port, links.open(session.node_id) as link:
        link.send(b"first", 7)
        link.send(b"second", 7)
        turn = port._receiving
        port._receiving = EndsBadly(turn)  # type: ignore[assignment]
        with pytest.raises(Alarm):
            port.receive()
        port._receiving = turn
        assert [(port.receive() or pytest.fail()).data for _ in range(2)] == [b"first", b"second"]


def test_what_an_alarm_raises_is_no_timeout_of_the_node(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a link asks for a shorter way, in which it doesn't matter what goes wrong."""

    def handler(*_: object) -> None:
        raise OwnTimeout

    links = Links(session)
    monkeypatch.setattr(duplexes, "has_room", lambda: signal.raise_signal(signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with links.listen(7), links.open(session.node_id) as link:
            for _ in range(FIRST - 1):
                link.send(b"x", 7)
            with pytest.raises(OwnTimeout):
                link.send(b"x", 7)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_threads_have_their_own_answers(session: Session) -> None:
    links = Links(session)
    with links.listen(7) as port, echoing(port), links.open(session.node_id, timeout_s=60) as link, links.offer(
            "words", 64, atomics=True):
        words = link.region("words", change=True)

        def call(who: int) -> int:
            for number in range(100):
                text = b"%d of %d" % (number, who)
                assert link.call(7, text) == text
                words.fetch_add(0, 1)
            return 100

        assert sum(one.ended(60) for one in [Doing(lambda who=who: call(who)) for who in range(4)]) == 400
        assert words.fetch_add(0, 0) == 400


def test_threads_take_a_ports_messages_once(session: Session) -> None:
    links = Links(session)
    with links.listen(7) as port, links.open(session.node_id) as link:
        came: list[int] = []

        def receive() -> None:
            while (message := port.receive(10)) is not None and message.data != b"enough":
                came.append(int(message.data))

        receiving = [Doing(receive) for _ in range(3)]
        for number in range(200):
            link.send(b"%d" % number, 7)
        for _ in receiving:
            link.send(b"enough", 7)
        assert [one.ended() for one in receiving] == [None] * 3
        assert sorted(came) == list(range(200))


def test_who_waits_hears_that_another_thread_closes(session: Session) -> None:
    links = Links(session)
    port, link, silent = links.listen(7), links.open(session.node_id, timeout_s=60), links.listen(8)
    waits = [Doing(lambda: port.receive(60)), Doing(lambda: link.call(8, b"nobody answers"))]
    wait_until(lambda: silent.receive(0.1))
    port.close()
    link.close()
    for wait in waits:
        ended = wait.ended()
        assert isinstance(ended, LinkError) and "is closed" in str(ended)
    with links.listen(7), links.open(session.node_id) as link:
        assert isinstance(link, Link)


def test_a_child_of_the_program_waits_for_no_thread_of_its_parent(session: Session) -> None:
    links = Links(session)
    with links.listen(7) as port, links.open(session.node_id, timeout_s=60) as link, links.listen(8) as silent:
        waits = [Doing(lambda: port.receive(60)), Doing(lambda: link.call(8, b"nobody answers"))]
        wait_until(lambda: silent.receive(0.1))
        if (child := os.fork()) == 0:
            refused = 0
            for act in (lambda: link.call(8, b"x"), lambda: port.receive(60), lambda: link.region("x")):
                try:
                    act()
                except SpindleError as error:
                    refused += "does not work in its child" in str(error)
            link.close()
            port.close()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    for wait in waits:
        assert isinstance(wait.ended(), LinkError)


def test_regions_of_closed_links_give_way(session: Session) -> None:
    """A program may have some hundreds of regions open: links that are kept for later count for nobody."""
    links = Links(session)
    for number in range(64):
        links.offer(f"region {number}", 8)
    opened = [links.open(session.node_id) for _ in range(6)]
    with pytest.raises(LinkError, match=r"region 'region .*all links of a program together"):
        for link in opened:
            for number in range(64):
                link.region(f"region {number}")
    for link in opened:
        link.close()
    with links.open(session.node_id) as link:
        for number in range(64):
            assert link.region(f"region {number}").read(0, 8) == bytes(8)


@pytest.mark.parametrize("port", [-1, 65536, 1 << 64])
def test_a_port_that_cant_be_is_refused_and_hurts_nothing(session: Session, port: int) -> None:
    links = Links(session)
    with links.listen(7) as served, echoing(served), links.open(session.node_id) as link:
        for act in (lambda: link.call(port, b"x"), lambda: link.send(b"x", port)):
            with pytest.raises(ConfigError, match="must be between 1 and 65535"):
                act()
        assert link.call(7, b"y") == b"y"
