"""What a node opens for a program on another host is there whole or not at all, however little the node can have.

Method: a daemon whose limit of descriptors is set while it runs, to any number that it just has or a few more.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from spindle.client import Session, attach
from spindle.client.remote import attach_remote
from spindle.errors import NoResources
from spindle.group.topics import TopicSpec
from spindle.proto import attach_pb2 as pb
from spindle.proto import relay_pb2 as rb
from tests.spindle.client.test_remote_hostile import Hostile
from tests.spindle.hosts import hosts
from tests.support import wait_until

FEW = 24  # more than an opening needs


@contextlib.contextmanager
def descriptors(pid: int, left: int) -> Iterator[None]:
    """Meanwhile the process can have so many more, as its numbers go."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = {int(one) for one in os.listdir(f"/proc/{pid}/fd")}
    limit = next(number for number in range(max(used) + left + 2)
                 if number - len([one for one in used if one < number]) == left)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def open_there(session: Session) -> int:
    """What the node has open for its applications."""
    return sum(len(one["readers"]) + len(one["writers"]) for one in session.status()["applications"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["reader", "writer"])
def test_what_a_node_has_too_few_descriptors_for_is_not_left_open(tmp_path: Path, kind: str) -> None:
    """Or a reader that nobody has would hold up the topic's writers for ever."""
    outcomes = set()
    with hosts(tmp_path, 1) as (host,), attach_remote([host.address]) as session:
        session.declare_topic(TopicSpec("t", size_max=100))
        kept = session.open_writer("t"), session.open_reader("t", keep_all=False, from_history=False)  # no view changes
        for left in range(FEW):
            wait_until(lambda: open_there(session) == len(kept))
            handle = None
            with descriptors(session.node_pid, left):
                try:
                    if kind == "reader":
                        handle = session.open_reader("t", keep_all=True, from_history=False)
                    else:
                        handle = session.open_writer("t")
                except NoResources as error:
                    assert "descriptors" in str(error)
            outcomes.add(handle is not None)
            assert open_there(session) == len(kept) + (handle is not None)
            if handle is not None:
                handle.close()
    assert outcomes == {False, True}


@pytest.mark.slow
def test_a_reader_that_can_not_be_fed_is_told_why(tmp_path: Path) -> None:
    """Goal: its program goes on elsewhere, instead of waiting for ever. Method: when the node has no descriptor left,
    it is granted a large sample."""
    with hosts(tmp_path, 1) as (host,), attach(runtime_dir=host.directory) as local:
        local.declare_topic(TopicSpec("t", size_max=100))
        far = Hostile(host.address)
        port = far.request(open_reader=pb.OpenReader(topic="t", keep_all=True, start_index=-1)).reply.reader.port
        writer = local.open_writer("t")
        writer.inbox.write(bytes(5000), timeout_s=20)
        assert writer.inbox.wait_acknowledged(20)
        with descriptors(local.node_pid, 0):
            far.say(credit=rb.Credit(port=port, bytes=1 << 20))
            assert "descriptors" in far.cut_off()
        wait_until(lambda: open_there(local) == 1)
