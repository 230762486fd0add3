"""Goal: a duplex ends when one of its programs does, in whatever way, and both go on at once; what one program does to
what it shares with another, or to its own descriptors, hurts nobody else.

Method: real daemons on one host; programs that die, or have children, are processes.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from spindle.client.channel import Call
from spindle.errors import LinkError, SpindleError
from spindle.links import Link, Links, Message, Port, duplexes
from spindle.links.duplexes import FIRST
from spindle.proto import attach_pb2 as pb
from spindle_core.memory import Mapping
from tests.spindle.links.group import Group, group_of
from tests.spindle.links.test_duplexes import echoing, listener
from tests.spindle.links.test_ends import Doing
from tests.support import wait_until


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two of one host."""
    with group_of("one host", tmp_path_factory.mktemp("duplex-ends"), 2) as made:
        yield made


@pytest.fixture
def group(nodes: Group) -> Iterator[Group]:
    """The same; sessions end with the test."""
    with nodes.apart() as made:
        yield made


def says(link: Link, number: int) -> str:
    """How a call fails."""
    try:
        link.call(number, b"x")
    except LinkError as error:
        return error.status
    except TimeoutError:
        return ""
    return ""


def talk(link: Link, port: Port, number: int) -> None:
    """Until they have a duplex, for which they wait as long as a busy machine needs."""
    with (patch.object(duplexes, "ASK_S", 20.0), patch.object(duplexes, "TAKE_S", 20.0),
          patch.object(link, "timeout_s", 100.0)):  # of which a share goes to asking
        for _ in range(FIRST + 1):
            link.send(b"x", number)
            assert port.receive() is not None
    assert link._end.duplexes._open


def test_a_caller_that_ends_without_taking_its_answers_is_gone_at_once(group: Group) -> None:
    """Whose ring for them is full."""
    with Links(group.session(2)).listen(9) as port:
        link = Links(group.program(1)).open(2)
        talk(link, port, 9)
        link.timeout_s = 0.0
        calls: list[Message] = []
        for _ in range(8):
            with pytest.raises(TimeoutError):
                link.call(9, b"x")
            calls.append(port.receive() or pytest.fail())
        for one in calls[:4]:
            port.answer(one, bytes(16_000))
        link._end.close()
        began = time.monotonic()
        answer = Doing(lambda: port.answer(calls[4], bytes(16_000)))
        assert isinstance(answer.ended(), LinkError) and time.monotonic() - began < 2


def test_what_is_no_duplex_any_more_when_its_listener_comes_for_it_hurts_only_its_caller(group: Group) -> None:
    with Links(group.session(2)).listen(9) as port, Links(group.program(1)).open(2) as good:
        session = group.program(1)
        bad = Links(session).open(2)
        for _ in range(70):
            _, frame = session._channel.request(open_duplex=pb.OpenDuplex(link=bad.id, port=9))
            fds = frame.take_fds()
            if not fds:
                break
            Mapping.attach(fds[0], writable=True).view()[:8] = bytes(8)
            os.close(fds[1])
        for turn in range(3 * FIRST):
            good.send(b"%d" % turn, 9)
        came = [port.receive() for _ in range(3 * FIRST)]
        assert [one.data for one in came if one] == [b"%d" % turn for turn in range(3 * FIRST)]
        bad.close()


def test_a_link_gets_one_whenever_somebody_listens_anew(group: Group) -> None:
    with Links(group.program(1)).open(2) as link:
        for _ in range(7):
            with Links(group.session(2)).listen(9) as port:
                talk(link, port, 9)


def test_a_listener_whose_session_is_closed_is_nobody(group: Group) -> None:
    with Links(group.program(1)).open(2, timeout_s=5) as link:
        session = group.program(2)
        port = Links(session).listen(9)
        talk(link, port, 9)
        call = Doing(lambda: link.call(9, b"x"))
        call._thread.join(0.1)
        session.close()
        error = call.ended()
        assert isinstance(error, LinkError) and error.status == "cut"
        link.timeout_s = 1.0
        wait_until(lambda: says(link, 9) == "nobody")
        port.close()


def test_a_listener_needs_no_node_that_answers(group: Group) -> None:
    """While that hangs, and callers come and go."""
    with Links(group.session(2)).listen(9) as port:
        stays, goes = [Links(group.program(1)).open(2) for _ in range(2)]
        talk(stays, port, 9)
        talk(goes, port, 9)
        os.kill(group.daemon(2).pid, signal.SIGSTOP)
        try:
            goes._end.duplexes.close()
            began = time.monotonic()
            with echoing(port):
                for _ in range(10):
                    assert stays.call(9, b"x") == b"1:x"
            took = time.monotonic() - began
        finally:
            os.kill(group.daemon(2).pid, signal.SIGCONT)
        assert took < 3


HAS_CHILD = """
import os, sys, time
from spindle.client import attach
from spindle.links import Links
with attach(node_id=2, runtime_dir=sys.argv[1]) as session, Links(session).listen(7) as port:
    print("listens", flush=True)
    for number in range(1000000):
        message = port.receive(60)
        if message and message.call:
            port.answer(message, message.data)
        if number == 10:
            pid = os.fork()
            if pid == 0:
                if "closes" in sys.argv:
                    try:
                        port.close()
                    except Exception as error:
                        print(error, file=sys.stderr)
                    os._exit(0)
                time.sleep(30)
                os._exit(0)
            if "closes" in sys.argv:
                os.waitpid(pid, 0)
            print(pid, flush=True)
"""


@contextmanager
def with_child(group: Group, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[], int]]]:
    command = [sys.executable, "-c", HAS_CHILD, str(group.directory(2)), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "listens\n"
        try:
            yield process, lambda: int(process.stdout.readline())
        finally:
            process.kill()


def test_a_child_of_a_program_that_has_died_keeps_nobody_waiting(group: Group) -> None:
    with Links(group.program(1)).open(2, timeout_s=20) as link, with_child(group) as (process, child):
        for _ in range(20):
            assert link.call(7, b"x") == b"x"
        pid = child()
        try:
            os.kill(process.pid, signal.SIGSTOP)
            call = Doing(lambda: link.call(7, b"x"))
            call._thread.join(0.1)
            process.kill()
            began = time.monotonic()
            error = call.ended()
            assert isinstance(error, LinkError) and time.monotonic() - began < 2, error
        finally:
            os.kill(pid, signal.SIGKILL)


def test_a_child_that_closes_its_copies_takes_nothing_from_its_parent(group: Group) -> None:
    with Links(group.program(1)).open(2, timeout_s=3) as link, with_child(group, "closes") as (_, child):
        for _ in range(20):
            assert link.call(7, b"x") == b"x"
        child()
        for _ in range(5):
            time.sleep(0.02)  # it sleeps
            assert link.call(7, b"x") == b"x"


def test_a_call_goes_to_who_listens_now(group: Group) -> None:
    """Though the one that listened before has died without a word, and had taken nothing of it."""
    with Links(group.program(1)).open(2, timeout_s=5) as link, Links(group.program(1)).open(2, timeout_s=1) as other:
        with listener(group) as process:
            for one in (link, other):
                for _ in range(3 * FIRST):
                    one.call(7, b"x")
            with pytest.raises(TimeoutError):
                other.call(7, b"silence")  # it is awake, and says nothing
            process.kill()
        port = None
        while port is None:
            try:
                port = Links(group.session(2)).listen(7)
            except SpindleError:
                time.sleep(0.02)
        with port, echoing(port):
            assert link.call(7, b"y") == b"1:y"


def test_a_call_is_not_given_up_because_no_duplex_comes(group: Group) -> None:
    session = group.program(1)
    begin = session._channel.begin
    asked: list[Call] = []

    def late(*args: Any, **body: Any) -> Call:
        call = begin(*args, **body)
        if "open_duplex" not in body:
            return call
        asked.append(call)
        return Call(0)

    session._channel.begin = late  # type: ignore[method-assign]
    with Links(group.session(2)).listen(9) as port, echoing(port) as straight, Links(session).open(2) as link:
        link.timeout_s = 5.0
        for _ in range(2 * FIRST):
            assert link.call(9, b"x") == b"1:x"
        assert len(asked) == 1 and not any(straight)
        wait_until(asked[0].answered.is_set)
        link._end.duplexes._asked = 9, asked[0]  # now it comes
        assert link.call(9, b"x") == b"1:x" and straight[-1]


def test_a_listener_without_descriptors_goes_on(group: Group) -> None:
    session = group.session(2)
    links = [Links(group.program(1)).open(2) for _ in range(2)]
    with Links(session).listen(9) as port:
        talk(links[0], port, 9)
        for _ in range(FIRST - 1):
            links[1].send(b"x", 9)
            assert port.receive() is not None
        links[1].send(b"late", 9)  # straight, but nobody can come for it
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        least = os.dup(0)
        os.close(least)
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, limit[1]))
        try:
            links[0].send(b"soon", 9)
            assert (port.receive(5) or pytest.fail()).data == b"soon" and port.receive(0.1) is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
        assert (port.receive(5) or pytest.fail()).data == b"late"
        for link in links:
            link._end.close()
