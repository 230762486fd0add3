"""Goal: what a logged topic is can be given up in a running group, while nobody has it open: the next declaration says
what it is, and nothing of before comes back, whoever was away, and whatever is killed meanwhile.
Method: real daemons with one journal directory; the command of docs/operations.md."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spindle.client import attach
from spindle.errors import GroupSilent, TopicInUse, TopicMismatch, TopicUnknown
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.journal.tools import read
from tests.spindle.restart.test_daemons import SPEC, TOPIC, WAIT_S, Site, numbered, take, write
from tests.support import wait_until

OTHER = TopicSpec(TOPIC, "another", level=Level.LOGGED, size_max=512)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


def command(site: Site, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "spindle.cli", "topics", "--runtime-dir", site.run, *arguments],
                          capture_output=True, text=True, timeout=60, check=False)


def close(site: Site) -> None:
    """What programs have open."""
    for session in site.sessions:
        session.close()
    site.sessions.clear()


def held_by_three(site: Site) -> None:
    """Five messages, acknowledged as persisted; then all are killed."""
    site.start(1, 2, 3)
    for node_id in (1, 2, 3):
        site.open(node_id).open_reader(TOPIC, keep_all=True, from_history=True)
    write(site, 1, numbered(0, 5))
    site.kill(1, 2, 3)
    close(site)


def give_up(site: Site) -> None:
    """As soon as the group has heard that nobody has it open."""
    done = wait_until(lambda: (found := command(site, TOPIC, "--redefine")).returncode == 0 and found)
    assert done.stdout == f"{TOPIC} is what the next declaration says; until then --delete takes it back\n"


def put(site: Site, node_id: int, payloads: list[bytes]) -> None:
    """Written with the new definition, and on the disks of all who have it open."""
    with attach(0, runtime_dir=site.run, node_id=node_id) as session:
        session.declare_topic(OTHER)
        with session.open_writer(TOPIC) as writer:
            for payload in payloads:
                writer.inbox.write(payload)
            assert writer.inbox.wait_acknowledged(WAIT_S, persisted=True)


def got(site: Site, node_id: int, count: int) -> list[bytes]:
    with attach(0, runtime_dir=site.run, node_id=node_id) as session:
        assert session.declare_topic(OTHER).spec.type_name == "another"
        return take(session.open_reader(TOPIC, keep_all=True, from_history=True), count)


def test_a_logged_topic_is_declared_anew_while_the_group_runs(site: Site) -> None:
    site.start(1, 2)
    site.open(2).open_reader(TOPIC, keep_all=True, from_history=True)
    write(site, 1, numbered(0, 5))
    refused = command(site, TOPIC, "--redefine")
    assert refused.returncode == 1 and "nodes 1 2 have readers or writers of it; close them first" in refused.stderr
    close(site)
    give_up(site)
    shown, = (one for one in json.loads(command(site, "--json").stdout) if one["name"] == TOPIC)
    assert shown["awaits_definition"] and "what the next declaration says" in command(site, TOPIC).stdout
    put(site, 1, [b"new"])
    assert got(site, 2, 1) == [b"new"]
    for node_id in (1, 2):
        assert [payload for _, _, payload in site.disk(node_id)] == [b"new"]
        kept, = site.journal.glob(f"{TOPIC}-{node_id}-*.mcap.aside")
        assert [one.payload for one in read(kept)] == numbered(0, 5)
    # It goes on as any other, also when all were killed at once.
    close(site)
    site.kill(1, 2)
    site.start(2, 1)
    put(site, 2, [b"more"])
    assert got(site, 1, 2) == [b"new", b"more"]


def test_who_was_away_brings_nothing_back(site: Site) -> None:
    """One of three holders is away. It is the first after a restart of all, when the group has forgotten that the topic
    was declared anew; and it comes back to those who go on with it."""
    held_by_three(site)
    site.start(1, 2)
    give_up(site)
    put(site, 2, [b"new"])
    assert got(site, 1, 1) == [b"new"]
    site.kill(1, 2)
    site.start(3, limits__open_timeout_s="1")
    with attach(0, runtime_dir=site.run, node_id=3) as session:
        session.declare_topic(SPEC)
        with pytest.raises(GroupSilent, match=r"held it last \(nodes 1, 2, 3 .*nodes 1, 2 are missing"):
            session.open_reader(TOPIC, keep_all=True, from_history=True)
        site.start(1, 2)
        with pytest.raises(TopicMismatch, match=r"node . has messages of another type of it on disk: another"):
            session.open_reader(TOPIC, keep_all=True, from_history=True)
    assert len(site.disk(3)) == 5
    site.kill(1, 2, 3)
    site.start(1, 2)
    put(site, 1, [b"more"])
    site.start(3)
    assert got(site, 3, 2) == got(site, 2, 2) == [b"new", b"more"]
    assert [payload for _, _, payload in site.disk(3)] == [b"new", b"more"]
    assert [one.payload for one in read(next(site.journal.glob(f"{TOPIC}-3-*.forked")))] == numbered(0, 5)


@pytest.mark.slow
def test_without_a_majority_of_its_holders_it_waits(site: Site) -> None:
    held_by_three(site)
    site.start(1, limits__open_timeout_s="2")
    give_up(site)
    with attach(0, runtime_dir=site.run, node_id=1) as session:
        session.declare_topic(OTHER)
        with pytest.raises(GroupSilent, match="nodes 2, 3 are missing"):
            session.open_writer(TOPIC)
        assert len(site.disk(1)) == 5 and not list(site.journal.glob("*.aside"))
        site.start(3)
        with session.open_writer(TOPIC) as writer:
            writer.inbox.write(b"new")
            assert writer.inbox.wait_acknowledged(WAIT_S, persisted=True)
    assert [payload for _, _, payload in site.disk(1)] == [b"new"]


@pytest.mark.slow
def test_after_a_restart_of_all_nodes_and_taken_back(site: Site) -> None:
    """Nobody has declared it yet: the node that has journals of it takes the command all the same."""
    site.start(1)
    write(site, 1, numbered(0, 5))
    close(site)
    site.kill(1)
    site.start(1)
    with attach(0, runtime_dir=site.run, node_id=1) as session:
        with pytest.raises(TopicMismatch, match=f"topics {TOPIC} --redefine"):
            session.declare_topic(OTHER)
        with pytest.raises(TopicUnknown, match="node 1 has no journal of it"):
            session.redefine_topic("nobody's")
        several = command(site, TOPIC, "nobody's", "--redefine")
        assert several.returncode == 1 and "1 redefined, 1 not" in several.stderr
        with pytest.raises(TopicMismatch, match="has been given up"):
            session.open_reader(TOPIC, keep_all=True, from_history=True)
        session.delete_topic(TOPIC)
        with pytest.raises(TopicMismatch):
            session.declare_topic(OTHER)
        give_up(site)
        session.declare_topic(OTHER)
        with pytest.raises(TopicInUse, match="--redefine"):
            session.delete_topic(TOPIC)
    put(site, 1, [b"new"])
    assert [payload for _, _, payload in site.disk(1)] == [b"new"]


@pytest.mark.parametrize("damaged", [1, 2])
def test_damage_in_what_is_given_up_keeps_nothing_from_beginning(site: Site, damaged: int) -> None:
    """At the node where it is opened first, and at the other one."""
    site.start(1, 2)
    site.open(2).open_reader(TOPIC, keep_all=True, from_history=True)
    writer = site.open(1).open_writer(TOPIC).inbox
    for payload in numbered(0, 50):
        writer.write(payload)
        assert writer.wait_acknowledged(WAIT_S, persisted=True)
    site.kill(1, 2)
    close(site)
    path, = site.journal.glob(f"{TOPIC}-{damaged}-*.mcap")
    data = bytearray(path.read_bytes())
    data[data.index(b"spindle.commit") + 2000] ^= 1
    path.write_bytes(data)
    site.start(1, 2)
    give_up(site)
    put(site, 1, [b"new"])
    assert got(site, 2, 1) == [b"new"]
    for node_id in (1, 2):
        assert [payload for _, _, payload in site.disk(node_id)] == [b"new"]
        assert list(site.journal.glob(f"{TOPIC}-{node_id}-*.mcap.aside"))
    site.kill(1, 2)
    site.start(2, 1)
    assert got(site, 1, 1) == [b"new"]


def test_declared_as_one_that_is_not_logged_it_puts_nothing_aside(site: Site) -> None:
    """What is on disk counts again when the topic is logged one day, unless it is given up once more."""
    site.start(1)
    write(site, 1, numbered(0, 5))
    close(site)
    give_up(site)
    plain, other = TopicSpec(TOPIC, size_max=64), TopicSpec(TOPIC, level=Level.LOGGED, size_max=128)
    with attach(0, runtime_dir=site.run, node_id=1) as session:
        assert session.declare_topic(plain).spec.level is Level.ATOMIC
        session.open_writer(TOPIC).inbox.write(b"unlogged")
    with attach(0, runtime_dir=site.run, node_id=1) as session:
        def declared() -> bool:
            with contextlib.suppress(TopicMismatch):
                return session.declare_topic(other).spec.size_max == 128
            return False

        wait_until(declared)
        with session.open_reader(TOPIC, keep_all=True, from_history=True) as reader:
            assert take(reader, 5) == numbered(0, 5)
    assert not list(site.journal.glob("*.aside"))
