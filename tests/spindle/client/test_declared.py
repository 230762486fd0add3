"""What a program has declared stays declared for it, whoever else deletes it, until it deletes it itself.

Method: programs at two daemons, on one host and on hosts of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from spindle.client import Session, attach
from spindle.client.remote import attach_remote
from spindle.errors import TopicMismatch, TopicUnknown
from spindle.group.topics import TopicSpec
from tests.spindle.hosts import hosts

Attach = Callable[[], Session]


@pytest.fixture(scope="module", params=["of the host", "of another host"])
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attach]:
    with hosts(tmp_path_factory.mktemp("declared"), 1) as (host,):
        if request.param == "of the host":
            yield lambda: attach(runtime_dir=host.directory)
        else:
            yield lambda: attach_remote([host.address])


def test_what_somebody_else_has_deleted_is_there_again_when_it_is_opened(programs: Attach) -> None:
    with programs() as one, programs() as other:
        for open_it in (lambda: one.open_writer("t"),
                        lambda: one.open_reader("t", keep_all=True, from_history=False)):
            one.declare_topic(TopicSpec("t", size_max=100))
            other.delete_topic("t")
            with open_it() as port:
                assert port.topic.spec.size_max == 100


def test_who_has_not_declared_it_or_has_deleted_it_does_not_find_it(programs: Attach) -> None:
    with programs() as one, programs() as other:
        one.declare_topic(TopicSpec("u"))
        one.delete_topic("u")
        for session in (one, other):
            with pytest.raises(TopicUnknown):
                session.open_writer("u")


def test_another_topic_of_that_name_is_another_one(programs: Attach) -> None:
    with programs() as one, programs() as other:
        one.declare_topic(TopicSpec("v", size_max=100))
        other.delete_topic("v")
        other.declare_topic(TopicSpec("v", size_max=200))
        with pytest.raises(TopicMismatch):
            one.declare_topic(TopicSpec("v", size_max=100))
        one.open_writer("v").close()
