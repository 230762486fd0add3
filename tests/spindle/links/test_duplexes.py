"""Goal: programs of one host that talk much do so past their nodes, with the same order, rights, bounds and ends; where
that can't be, through the pools as before.

Method: real daemons on one host, and on hosts of their own; programs that die are processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spindle.client.embedding import embed
from spindle.client.session import Session
from spindle.config.settings import AccessRule, NodeConfig
from spindle.errors import ConfigError, LinkError, NodeStopped, SpindleError
from spindle.links import Link, Links, Port, duplexes
from spindle.links.duplexes import FIRST, LATER
from spindle.links.port import StraightMessage
from spindle.proto import attach_pb2 as pb
from spindle.transport.wire import close_all
from tests.spindle.links.group import Group, descriptors_of, group_of
from tests.spindle.links.test_ends import Doing
from tests.support import wait_until


@pytest.fixture(autouse=True)
def patient() -> Iterator[None]:
    """On a busy machine, too, whoever asks for a duplex waits until it is there: programs go on through the pools."""
    with patch.object(duplexes, "ASK_S", 20.0), patch.object(duplexes, "TAKE_S", 20.0), patch.object(
            duplexes, "ASK_SHARE", 1.0):
        yield


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two of one host."""
    with group_of("one host", tmp_path_factory.mktemp("duplexes"), 2) as made:
        yield made


@pytest.fixture
def group(nodes: Group) -> Iterator[Group]:
    """The same; sessions end with the test."""
    with nodes.apart() as made:
        yield made


@contextmanager
def echoing(port: Port) -> Iterator[list[bool]]:
    """Answers calls with what they say; whether each came through a duplex."""
    straight: list[bool] = []
    over = threading.Event()

    def answer() -> None:
        while not over.is_set():
            if (message := port.receive(0.02)) is not None:
                straight.append(isinstance(message, StraightMessage))
                if message.call:
                    port.answer(message, b"%d:" % message.node_id + message.data)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield straight
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("server", [1, 2])
def test_who_calls_again_and_again_calls_past_the_nodes(group: Group, server: int) -> None:
    """Programs of one node, and of two."""
    with Links(group.session(server)).listen(7) as port, echoing(port) as straight:
        links = [Links(group.program(node)).open(server) for node in (1, 2)]
        for turn in range(20):
            for node, link in enumerate(links, 1):
                assert link.call(7, b"%d" % turn) == b"%d:%d" % (node, turn)
        assert straight == [False] * 2 * (FIRST - 1) + [True] * 2 * (21 - FIRST)
        for link in links:
            link.close()


def test_who_calls_seldom_needs_none(group: Group) -> None:
    with Links(group.session(2)).listen(7) as port, echoing(port) as straight:
        for _ in range(3):
            with Links(group.program(1)).open(2) as link:
                for _ in range(FIRST - 1):
                    link.call(7, b"x")
        assert not any(straight)


def test_the_order_is_kept_where_the_way_changes(group: Group) -> None:
    """Whether or not the receiver has taken what went through the pools before."""
    for _ in range(10):
        with Links(group.session(2)).listen(9) as port, Links(group.program(1)).open(2) as link:
            for number in range(3 * FIRST):
                link.send(b"%d" % number, 9)
            assert [(port.receive() or pytest.fail()).data for _ in range(3 * FIRST)] == [
                b"%d" % number for number in range(3 * FIRST)]
            assert port.receive(0.0) is None


class SendsAfterTheBox:
    """An end of a port, for which something is sent right after it was looked into its box."""

    def __init__(self, end: Any, send: Callable[[], None]) -> None:
        self._end, self._send, self.user = end, send, self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._end, name) if hasattr(self._end, name) else getattr(self._end.user, name)

    def messages(self, into: Any) -> None:
        self._end.user.messages(into)
        send, self._send = self._send, lambda: None
        send()


def test_the_order_is_kept_whenever_the_receiver_looks(group: Group) -> None:
    """One message goes through the pools, the next one straight, and both come while it looks."""
    with Links(group.session(2)).listen(9) as port, Links(group.program(1)).open(2) as link:
        for _ in range(FIRST + 1):
            link.send(b"before", 9)
            assert port.receive() is not None

        def send() -> None:
            link._submit_message(b"first", 9, 0, 0)
            link._completed(None, time.monotonic() + 10)
            link.send(b"second", 9)

        port._end = SendsAfterTheBox(port._end, send)  # type: ignore[assignment]
        came = [(port.receive() or pytest.fail()) for _ in range(2)]
        assert [(one.data, isinstance(one, StraightMessage)) for one in came] == [(b"first", False), (b"second", True)]


def test_many_senders_each_in_order(group: Group) -> None:
    """More than a port has duplexes: the others go through the pools."""
    with Links(group.session(2)).listen(9) as port:
        links = [Links(group.session(number)).open(2) for number in (1, 2) for _ in range(70)]
        straight = 0
        for turn in range(FIRST + 1):
            for link in links:
                link.send(b"%d" % turn, 9)
            last: dict[tuple[int, int], int] = {}
            for _ in links:
                message = port.receive()
                assert message is not None and int(message.data) == turn
                last[message.node_id, message.sender] = turn
                straight += isinstance(message, StraightMessage)
            assert len(last) == len(links)
        assert 2 <= straight <= 2 * 64
        for link in links:
            link._end.close()


LISTENS = """
import sys, time
from spindle.client import attach
from spindle.links import Links
with attach(node_id=2, runtime_dir=sys.argv[1]) as session, Links(session).listen(7) as port:
    print("listens", flush=True)
    while True:
        message = port.receive(60)
        if message and message.data == b"silence":
            time.sleep(60)
        if message and message.call:
            port.answer(message, message.data)
"""


@contextmanager
def listener(group: Group) -> Iterator[subprocess.Popen[str]]:
    """A program that answers at port 7 of node 2."""
    command = [sys.executable, "-c", LISTENS, str(group.directory(2))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "listens\n"
        try:
            yield process
        finally:
            process.kill()


def says(link: Link) -> str:
    """How a call fails."""
    try:
        link.call(7, b"x")
    except LinkError as error:
        return error.status
    except TimeoutError:  # the node has not heard yet that who listened has died
        return ""
    return ""


@pytest.mark.parametrize("asleep", [True, False])
def test_who_calls_hears_at_once_that_who_was_called_has_died(group: Group, asleep: bool) -> None:
    """And reaches the next one that listens there."""
    with Links(group.program(1)).open(2, timeout_s=60) as link:
        for _ in range(2):
            with listener(group) as process:
                for _ in range(2 * FIRST):
                    assert link.call(7, b"x") == b"x"
                assert link._end.duplexes._open
                if asleep:
                    os.kill(process.pid, signal.SIGSTOP)
                call = Doing(lambda: link.call(7, b"silence"))
                call._thread.join(0.1)
                process.kill()
                error = call.ended()
                assert isinstance(error, LinkError) and error.status == "cut" and "port 7 of node 2" in str(error)
            with Links(group.session(1)).open(2, timeout_s=1) as other:
                wait_until(lambda: says(other) == "nobody")


def test_what_is_sent_to_a_program_that_has_died_is_refused(group: Group) -> None:
    with Links(group.program(1)).open(2) as link:
        with listener(group):
            for _ in range(2 * FIRST):
                link.call(7, b"x")
        with pytest.raises(LinkError, match="nobody"):
            for _ in range(1000):
                link.send(b"x", 7)


def test_who_waits_hears_at_once_that_its_own_node_has_died(runtime_dir: Path) -> None:
    with group_of("one host", runtime_dir, 1) as group:
        links = Links(group.session(1))
        with links.listen(8) as port, echoing(port):
            link = links.open(1, timeout_s=60)
            for _ in range(2 * FIRST):
                link.call(8, b"x")
            assert link._end.duplexes._open
        silent = links.listen(9)
        for _ in range(FIRST + 1):
            link.send(b"x", 9)
        assert 9 in link._end.duplexes._open
        call, wait = Doing(lambda: link.call(9, b"nobody answers")), Doing(lambda: until_none(silent))
        call._thread.join(0.05)
        group.daemon(1).kill()
        assert isinstance(call.ended(), NodeStopped) and isinstance(wait.ended(), NodeStopped)


def until_none(port: Port) -> None:
    while port.receive(60) is not None:
        pass


def test_nothing_is_left_of_those_that_have_ended(group: Group) -> None:
    """In the nodes and in the program."""
    def have() -> list[list[str]]:
        return [descriptors_of(pid) for pid in (os.getpid(), group.daemon(1).pid, group.daemon(2).pid)]

    def talk() -> None:
        with Links(group.session(2)).listen(9) as port:
            for _ in range(3):
                link = Links(group.session(1)).open(2)
                for _ in range(FIRST + 2):
                    link.send(b"x", 9)
                    assert port.receive() is not None
                assert link._end.duplexes._open
                link._end.close()
            for _ in range(3):  # those that it never comes for
                link = Links(group.session(1)).open(2)
                for _ in range(FIRST + 2):
                    link.send(b"x", 9)
                link._end.close()

    talk()
    before = have()
    talk()
    wait_until(lambda: have() == before)


def test_who_comes_for_none_gets_no_more(group: Group) -> None:
    """What nobody has come for is bounded, and what is sent comes all the same."""
    with Links(group.session(2)).listen(9) as port:
        links = [Links(group.session(1)).open(2) for _ in range(40)]
        for turn in range(FIRST + 1):
            for link in links:
                link.send(b"%d" % turn, 9)
        assert sum(len(link._end.duplexes._open) for link in links) == 16
        came = []
        while (message := port.receive(0.1)) is not None:
            came.append((message.sender, int(message.data)))
        for link in links:
            assert [turn for sender, turn in came if sender == link.id] == list(range(FIRST + 1))
            link._end.close()


def asked(session: Session, link: int, port: int) -> tuple[bool, int]:
    """What a node answers to a program that asks for a duplex: whether that is elsewhere, and how many descriptors."""
    reply, frame = session._channel.request(open_duplex=pb.OpenDuplex(link=link, port=port))
    fds = frame.take_fds()
    close_all(fds)
    return reply.duplex.elsewhere, len(fds)


def test_requests_that_make_no_sense_are_refused(group: Group) -> None:
    session, other = group.program(1), group.program(1)
    with Links(session).listen(9) as port, Links(session).open(2) as link, Links(other).open(1) as others:
        for number, at in ((0, 9), (1 << 63, 9), (others.id, 9), (port._end.id, 9), (link.id, 0), (link.id, 65536)):
            with pytest.raises(ConfigError, match=r"is not open|must be between 1 and 65535"):
                asked(session, number, at)
        for number in (0, link.id, others.id):
            with pytest.raises(ConfigError, match="is not open, or not bound to a port"):
                session._channel.request(take_duplex=pb.TakeDuplex(link=number))
        reply, _ = session._channel.request(take_duplex=pb.TakeDuplex(link=port._end.id, over=1 << 31))
        assert not reply.duplex_taken.life
        assert asked(session, link.id, 77) == (False, 0)  # nobody listens there


def test_one_link_and_one_program_have_so_many(group: Group) -> None:
    with group.program(2) as listens, group.program(1) as session:
        ports = [Links(listens).listen(number) for number in range(20, 26)]
        made = [[asked(session, link.id, number)[1] for number in range(20, 26)]
                for link in [Links(session).open(2) for _ in range(17)]]
        assert made[0] == [2, 2, 2, 2, 0, 0] and sum(map(sum, made)) == 2 * 64
        for port in ports:
            port.close()


def test_only_to_ports_that_the_rules_allow(runtime_dir: Path) -> None:
    rule = AccessRule(uid=os.getuid(), publish=("port/7",), subscribe=("port/*",))
    with embed(config=NodeConfig(runtime_dir=runtime_dir, access_rules=(rule,))) as session:
        links, node = Links(session), session.node_id
        with links.listen(7) as seven, links.listen(8), links.open(node, port=7) as named, links.open(node) as unnamed:
            for link, port in ((named, 8), (unnamed, 7), (unnamed, 8)):
                with pytest.raises(SpindleError, match=f"may not send to port {port}: name the port"):
                    asked(session, link.id, port)
            for _ in range(2 * FIRST):
                named.send(b"x", 7)
            assert named._end.duplexes._open
            assert sum(seven.receive(0.1) is not None for _ in range(2 * FIRST)) == 2 * FIRST


def test_between_hosts_there_is_none_and_nobody_asks_again(runtime_dir: Path) -> None:
    with group_of("hosts", runtime_dir, 2) as group:
        requests = 0
        session = group.session(1)
        begin = session._channel.begin

        def counted(*args: object, **body: object) -> object:
            nonlocal requests
            requests += "open_duplex" in body
            return begin(*args, **body)  # type: ignore[arg-type]

        session._channel.begin = counted  # type: ignore[method-assign, assignment]
        with Links(group.session(2)).listen(7) as port, echoing(port) as straight, Links(session).open(2) as link:
            for turn in range(FIRST * LATER + 5):
                assert link.call(7, b"%d" % turn) == b"1:%d" % turn
            assert requests == 1 and not any(straight)


def test_where_none_was_to_be_had_it_asks_again_later(group: Group) -> None:
    def calls(link: Link, count: int) -> None:
        for _ in range(count):
            link.call(7, b"x")

    with Links(group.program(1)).open(2) as link:
        for _ in range(FIRST):
            with pytest.raises(LinkError, match="nobody"):
                link.call(7, b"x")
        with Links(group.session(2)).listen(7) as port, echoing(port) as straight:
            calls(link, FIRST * LATER)
            assert straight == [False] * (FIRST * LATER - FIRST - 1) + [True] * (FIRST + 1)
