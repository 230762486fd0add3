"""What a program has declared stays declared for it, whoever else deletes it, until it deletes it itself.

Method: programs at two daemons, on one host and on hosts of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from spindle.client import Session, attach
from spindle.client.remote import attach_remote
from spindle.errors import TopicMismatch, TopicUnknown
from spindle.group.topics import TopicSpec
from tests.spindle.hosts import hosts
from tests.support import wait_until

Attach = Callable[[], Session]


@pytest.fixture(scope="module", params=["of the host", "of another host"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attach]:
    with hosts(tmp_path_factory.mktemp("declared"), 1) as (host,):
        if request.param == "of the host":
            yield lambda: attach(runtime_dir=host.directory)
        else:
            yield lambda: attach_remote([host.address])


@pytest.mark.slow
def test_what_somebody_else_has_deleted_is_there_again_when_it_is_opened(programs: Attach) -> None:
    with programs() as one, programs() as other:
        for open_it in (lambda: one.open_writer("t"),
                        lambda: one.open_reader("t", keep_all=True, from_history=False)):
            one.declare_topic(TopicSpec("t", size_max=100))
            other.delete_topic("t")
            with open_it() as port:
                assert port.topic.spec.size_max == 100


@pytest.mark.slow
def test_who_has_not_declared_it_or_has_deleted_it_does_not_find_it(programs: Attach) -> None:
    with programs() as one, programs() as other:
        one.declare_topic(TopicSpec("u"))
        one.delete_topic("u")
        for session in (one, other):
            with pytest.raises(TopicUnknown):
                session.open_writer("u")


def test_who_has_deleted_it_has_declared_nothing(programs: Attach) -> None:
    with programs() as one, programs() as other:
        one.declare_topic(TopicSpec("w", "numpy(a:f8)", size_max=100))
        one.delete_topic("w")
        other.declare_topic(TopicSpec("w", "numpy(a:f4)", size_max=200))
        with one.open_writer("w") as port:
            assert port.topic.spec.size_max == 200


def test_what_nobody_has_open_can_be_declared_anew(programs: Attach) -> None:
    """And who had declared it otherwise is told when it opens it, and nothing of his is written in it."""
    with programs() as one, programs() as other:
        one.declare_topic(TopicSpec("v", "numpy(a:f8)", size_max=100))
        assert other.declare_topic(TopicSpec("v", "numpy(a:f4)", size_max=200)).spec.size_max == 200
        for open_it in (lambda: one.open_writer("v"),
                        lambda: one.open_reader("v", keep_all=True, from_history=False)):
            with pytest.raises(TopicMismatch, match="a is f4 there, f8 here"):
                open_it()
        one.declare_topic(TopicSpec("v", "numpy(a:f8)"))
        with one.open_writer("v") as writer:
            assert writer.topic.spec.type_name == "numpy(a:f8)"
            with pytest.raises(TopicMismatch, match="can be declared anew as soon as no program"):
                other.declare_topic(TopicSpec("v", "numpy(a:f4)"))
        wait_until(lambda: not [info for info in other.topics() if info.spec.name == "v" and info.members])
        other.declare_topic(TopicSpec("v", "numpy(a:f4)"))
        other.open_writer("v").close()


def test_many_who_want_it_differently_at_once(programs: Attach) -> None:
    """Each gets its topic or is told; whoever has it open has it as he wants it."""
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(programs()) for _ in range(6)]

        def work(session: Session, number: int) -> list[int]:
            sizes = []
            for _ in range(10):
                try:
                    session.declare_topic(TopicSpec("w", size_max=100 + number))
                    with session.open_writer("w") as writer:
                        sizes.append(writer.topic.spec.size_max)
                except (TopicMismatch, TopicUnknown):
                    pass
            return sizes

        with ThreadPoolExecutor(6) as pool:
            found = list(pool.map(work, sessions, range(6)))
        assert all(set(sizes) <= {100 + number} for number, sizes in enumerate(found)) and any(found)
