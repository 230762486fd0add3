"""Goal: who looks on sees topics whatever becomes of the node that they are seen through: all that had come to it, and
then what comes to the next one.

Method: real daemons that are killed, and stand-ins for nodes that say other last words; the rest as in
test_foxglove.py.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("foxglove", reason="needs foxglove-sdk")
pytest.importorskip("websockets", reason="needs websockets")

import dds
from dds import Policy, Qos
from spindle.cli.common import Target
from spindle.cli.recordings.bridge import Bridge, ready
from spindle.client import Session
from spindle.errors import CastOut, JournalError, NodeStopped, NoMajority, SpindleError
from tests.spindle.cli.foxglove_client import WAIT_S, Fix, participant, read, served
from tests.spindle.daemons import daemons
from tests.spindle.hosts import hosts
from tests.spindle.stand_in import StandInNode
from tests.support import wait_until


@pytest.mark.slow
@pytest.mark.parametrize("first_there", ["the program", "the bridge"])
def test_it_goes_on_when_its_node_is_started_again(runtime_dir: Path, first_there: str) -> None:
    """Whether the topic is there again when it comes, or comes later: it is read once."""
    with daemons(runtime_dir, 1) as (first,), served(runtime_dir) as serving:
        client = serving.client()
        with participant(runtime_dir) as within:
            writer = dds.DataWriter(within, dds.Topic(within, "fixes", Fix))
            client.subscribe("fixes")
            read(within, "fixes", 1)
            writer.write(Fix("before", 1.0))
            client.until("fixes", 1)
            first.kill()
            if first_there == "the program":
                os.kill(serving.process.pid, signal.SIGSTOP)
        with daemons(runtime_dir, 1), participant(runtime_dir) as within:
            if first_there == "the bridge":
                serving.until_said("goes on at node 1")
            writer = dds.DataWriter(within, dds.Topic(within, "fixes", Fix))
            os.kill(serving.process.pid, signal.SIGCONT)
            read(within, "fixes", 1)  # by itself: the client has said nothing
            writer.write(Fix("after", 2.0))
            assert b"after" in client.until("fixes", 2)[1]
            fresh = dds.DataWriter(within, dds.Topic(within, "fresh", Fix))
            client.subscribe("fresh")
            read(within, "fresh", 1)
            fresh.write(Fix("fresh", 3.0))
            client.until("fresh", 1)
            read(within, "fixes", 1)
            assert len(client.of("fixes")) == 2
            assert serving.close()[1].count("has gone away") == 1


@pytest.mark.slow
def test_it_goes_on_at_another_node_where_it_stood(runtime_dir: Path) -> None:
    with daemons(runtime_dir, 2) as (first, _), served(runtime_dir, "--node", "1") as serving:
        client = serving.client()
        with participant(runtime_dir, node_id=2) as within:
            topic = dds.Topic(within, "fixes", Fix)
            writer = dds.DataWriter(within, topic)
            beside = dds.DataReader(within, topic, Qos(Policy.History.KeepLast(1)))  # so that node 2 has samples, too
            client.subscribe("fixes")
            read(within, "fixes", 2)
            for number in range(10):
                writer.write(Fix(f"<{number}>", 1.0))
            client.until("fixes", 10)
            first.kill()
            for number in range(10, 20):
                writer.write(Fix(f"<{number}>", 1.0))
            found = client.until("fixes", 20)
            assert all(b"<%d>" % number in payload for number, payload in enumerate(found))
            beside.close()


@pytest.mark.slow
def test_a_node_that_goes_while_nobody_looks(runtime_dir: Path) -> None:
    with daemons(runtime_dir, 1) as (first,), served(runtime_dir) as serving:
        client = serving.client()
        first.kill()
        with daemons(runtime_dir, 1), participant(runtime_dir) as within:
            writer = dds.DataWriter(within, dds.Topic(within, "fixes", Fix))
            client.subscribe("fixes")
            read(within, "fixes", 1)
            writer.write(Fix("a", 1.0))
            client.until("fixes", 1)


@pytest.mark.slow
def test_what_had_come_when_the_node_died_is_shown(runtime_dir: Path) -> None:
    """However much that is. Method: the bridge stands still while it comes, and while the node is killed."""
    count = 900  # more than it takes at once, and fewer than wait for a client
    with daemons(runtime_dir, 2) as (first, _), served(runtime_dir, "--node", "1") as serving:
        client = serving.client()
        with participant(runtime_dir, node_id=2) as within, participant(runtime_dir, node_id=1) as at_first:
            topic = dds.Topic(within, "fixes", Fix)
            writer = dds.DataWriter(within, topic)
            beside = dds.DataReader(within, topic, Qos(Policy.History.KeepLast(1)))  # so that node 2 has samples, too
            witness = dds.DataReader(at_first, dds.Topic(at_first, "fixes", Fix))
            client.subscribe("fixes")
            read(within, "fixes", 3)
            os.kill(serving.process.pid, signal.SIGSTOP)
            for number in range(count):
                writer.write(Fix(f"<{number}>", 1.0))
            wait_until(lambda: len(witness.read(count + 1)) == count, WAIT_S)
            first.kill()
            os.kill(serving.process.pid, signal.SIGCONT)
            read(within, "fixes", 2)
            writer.write(Fix("<after>", 1.0))
            shown = client.until("fixes", count + 1)
            assert [b"<%d>" % number in one for number, one in enumerate(shown[:-1])] == [True] * count
            assert b"<after>" in shown[-1] and beside is not None


@contextlib.contextmanager
def two_nodes(runtime_dir: Path) -> Iterator[tuple[StandInNode, StandInNode]]:
    (runtime_dir / "domain-0").mkdir()
    with StandInNode(runtime_dir / "domain-0" / "node-1.sock") as first, \
            StandInNode(runtime_dir / "domain-0" / "node-2.sock") as second:
        yield first, second


def end(node: StandInNode, error: SpindleError, session: Session) -> None:
    """That is the node's last word to its applications, and what those hear who come."""
    node.call(functools.partial(node.attachments.close, error))
    wait_until(lambda: session.gone, what="the end of the session")


@pytest.mark.parametrize("error", [NodeStopped("it stops"), CastOut("it was cast out"), NoMajority("too few"),
                                   JournalError("its disk is full")], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("when", ["before it listens", "before it looks", "while it looks", "later"])
def test_it_goes_on_whatever_its_node_says_last(runtime_dir: Path, error: SpindleError, when: str) -> None:
    """Method: stand-ins for nodes, one of which ends, and the bridge in this process."""
    with two_nodes(runtime_dir) as (first, second):
        session = Target().attach("bridge")
        if when == "before it listens":
            end(first, error, session)
        with Bridge(Target(), session, ["*"], True, True) as bridge:
            if when == "before it looks":
                end(first, error, session)
            ready(bridge)
            if when == "later":
                end(first, error, session)
            if when == "while it looks":
                look = bridge.look

                def ends() -> None:
                    bridge.look = look  # type: ignore[method-assign]
                    end(first, error, session)
                    raise error

                bridge.look = ends  # type: ignore[method-assign]
                bridge._news.set()
            with ThreadPoolExecutor() as pool:
                following = pool.submit(bridge.follow)
                wait_until(lambda: following.done() or second.attachments.apps, WAIT_S, "the bridge at the next node")
                bridge.stop()
                following.result(WAIT_S)
            assert second.attachments.apps


@pytest.mark.parametrize("begun", [True, False])
def test_without_reattaching_it_ends_with_what_its_node_says_last(runtime_dir: Path, begun: bool) -> None:
    with two_nodes(runtime_dir) as (first, _):
        session = Target().attach("bridge")
        with Bridge(Target(), session, ["*"], True, False) as bridge:
            if begun:
                ready(bridge)
            end(first, CastOut("it was cast out"), session)
            with pytest.raises(CastOut, match="it was cast out"):
                (bridge.follow if begun else functools.partial(ready, bridge))()


@pytest.mark.slow
def test_from_a_host_without_a_node(runtime_dir: Path, tmp_path: Path) -> None:
    """It reaches nodes over the network, and turns to the next when one dies."""
    with hosts(tmp_path, 3) as (first, second, _):
        addresses = f"{first.address},{second.address}"
        with served(runtime_dir, "--nodes", addresses) as serving, participant(second.directory) as within:
            client = serving.client()
            writer = dds.DataWriter(within, dds.Topic(within, "fixes", Fix))
            client.subscribe("fixes")
            read(within, "fixes", 1)
            writer.write(Fix("first", 1.0))
            client.until("fixes", 1)
            first.running.kill()

            def goes_on() -> bool:
                writer.write(Fix("second", 2.0))
                return any(b"second" in one for one in client.of("fixes"))

            wait_until(goes_on, WAIT_S, "samples over the next node", interval_s=0.05)
            fresh = dds.DataWriter(within, dds.Topic(within, "fresh", Fix))
            client.channel("fresh")
            fresh.close()


@pytest.mark.slow
def test_without_reattaching_it_ends_with_its_node(runtime_dir: Path) -> None:
    with daemons(runtime_dir, 1) as (first,), served(runtime_dir, "--no-reattach") as serving:
        first.kill()
        assert serving.process.wait(WAIT_S) == 6
        assert "node" in serving.close()[1]
