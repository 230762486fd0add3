"""Goal: the commands do together what an operator wants of them: publish here, see it there in the same order, and
look at it meanwhile.

Method: three real daemons for all tests of this file; the commands as processes where they run at the same time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from spindle.cli.common import Target
from spindle.group.endpoints import Endpoint
from spindle.group.topics import TopicSpec
from tests.spindle.cli.support import Cli, spawn
from tests.spindle.daemons import Daemon, daemons
from tests.support import wait_until


@pytest.fixture
def group(runtime_dir: Path, tmp_path: Path) -> Iterator[list[Daemon]]:
    with daemons(runtime_dir, 3, ["--journal-dir", str(tmp_path / "journal")]) as started:
        yield started


def ends_of(topic: str) -> list[Endpoint]:
    """Announced readers and writers, as node 1 knows them."""
    with Target(node=1).attach("test") as session:
        return session.endpoints(topic)


def readers_of(topic: str) -> int:
    return sum(not one.is_writer for one in ends_of(topic))


def finish(process: subprocess.Popen[bytes], timeout_s: float = 20.0) -> tuple[int, bytes, bytes]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


@pytest.mark.slow
def test_published_here_seen_everywhere_in_one_order(cli: Cli, group: list[Daemon]) -> None:
    subscribers = [
        spawn("sub", "t", "--create", "--node", node, "--count", 400, "--keep-all", "--json", "-t", 20)
        for node in (1, 2, 3)
    ]
    wait_until(lambda: readers_of("t") == 3, what="three subscribers")
    publishers = [spawn("pub", "t", "--node", node, "--readers", 3, "--json") for node in (1, 3)]
    for node, publisher in zip((1, 3), publishers, strict=True):
        assert publisher.stdin is not None
        publisher.stdin.write(b"".join(b"%d/%d\n" % (node, n) for n in range(200)))
        publisher.stdin.close()
        publisher.stdin = None
    for publisher in publishers:
        code, out, err = finish(publisher)
        assert code == 0, err
        found = json.loads(out)
        assert found["published"] == 200 and found["delivered"] is True
    seen = []
    for subscriber in subscribers:
        code, out, err = finish(subscriber)
        assert code == 0, err
        samples = [json.loads(line) for line in out.splitlines()]
        seen.append([(one["node"], one["writer"], one["sequence"], one["text"]) for one in samples])
    assert len(seen[0]) == 400 and seen[0] == seen[1] == seen[2]
    for node in (1, 3):
        assert [text for sender, _, _, text in seen[0] if sender == node] == [f"{node}/{n}" for n in range(200)]


@pytest.mark.slow
def test_a_file_of_megabytes_is_one_message(cli: Cli, group: list[Daemon], tmp_path: Path) -> None:
    """Goal: a large file goes through whole, and a terminal gets the beginning of it.

    Method: one subscriber takes the bytes, one prints them; the file is text, and then it isn't.
    """
    subscribers = [spawn("sub", "image", "--create", "--node", node, "-f", style, "-c", 2, "--keep-all", "-t", 20)
                   for node, style in ((2, "raw"), (3, "text"))]
    wait_until(lambda: readers_of("image") == 2, what="two subscribers")
    data = b"\xff".join([b"0123456789abcdef" * 200_000] * 2)
    for name, content in (("text", data[:3_000_000]), ("binary", data[3_200_000:])):
        (tmp_path / name).write_bytes(content)
        published = cli("pub", "image", "--node", 1, "--file", tmp_path / name, "--readers", 2, "--json")
        assert published.code == 0 and published.json["bytes"] == len(content), published.err
    assert finish(subscribers[0])[:2] == (0, data[:3_000_000] + data[3_200_000:])
    code, out, err = finish(subscribers[1])
    text, binary = out.splitlines()
    assert code == 0 and len(text) < 5000 and text.endswith(b"abcdef... (3000000 bytes)"), err
    assert len(binary) < 15000 and b"  ff 30 31 32" in binary and binary.endswith(b" ... (3200001 bytes)")


@pytest.mark.slow
def test_first_steps_of_the_help(cli: Cli, group: list[Daemon], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spindle.cli.pub.READERS_GRACE_S", 20.0)  # the default is for machines with nothing else to do
    with spawn("sub", "greetings", "--create", "-f", "lines") as subscriber:
        assert subscriber.stdout is not None
        assert cli("pub", "greetings", "hello").code == 0, "waits for the subscriber that is just starting"
        assert subscriber.stdout.readline() == b"hello\n"
        subscriber.terminate()
        assert finish(subscriber)[0] == 0


@pytest.mark.slow
def test_a_waiting_subscriber_sees_the_first_message(cli: Cli, group: list[Daemon]) -> None:
    """Method: the topic is declared by the publisher, while the subscriber waits for it on another node."""
    with spawn("sub", "late", "--node", 2, "-f", "lines", "-c", 1, "-t", 20) as subscriber:
        assert subscriber.stderr is not None
        assert b"waiting for topic" in subscriber.stderr.readline()
        assert cli("pub", "late", "first", "--readers", 1).code == 0
        code, out, _ = finish(subscriber)
        assert (code, out) == (0, b"first\n")


@pytest.mark.slow
@pytest.mark.parametrize("level", ["volatile", "logged"])
def test_history_for_those_who_come_late(cli: Cli, group: list[Daemon], level: str, tmp_path: Path) -> None:
    with spawn("sub", "kept", "--create", "--level", level, "-f", "lines") as first:
        assert first.stdout is not None
        wait_until(lambda: readers_of("kept") == 1, what="a subscriber that keeps")
        assert cli("pub", "kept", "a", "b", "c", "--node", 2).code == 0
        late = cli("sub", "kept", "--node", 3, "--history", "-f", "lines", "-c", 3, "-t", 20)
        assert (late.code, late.out) == (0, "a\nb\nc\n")
        assert [first.stdout.readline() for _ in range(3)] == [b"a\n", b"b\n", b"c\n"]
        first.terminate()
        assert finish(first)[0] == 0
    if level == "logged":
        exported = cli("journal", "export", tmp_path / "journal", "-t", "kept", "-n", 1, "-p", "text").out
        assert [json.loads(line)["value"] for line in exported.splitlines()] == ["a", "b", "c"]
        assert cli("journal", "verify", tmp_path / "journal").code == 0


@pytest.mark.slow
def test_status_and_topics_tell_the_same(cli: Cli, group: list[Daemon]) -> None:
    with Target(node=2).attach("writer app") as session:
        session.declare_topic(TopicSpec("flight/air", size_max=1000))
        with session.open_writer("flight/air", guid=b"w" * 16), spawn("sub", "flight/air", "--node", 3) as subscriber:
            wait_until(lambda: readers_of("flight/air") == 1, what="a subscriber")
            for node in (1, 2, 3):
                state = cli("status", "--node", node, "--json").json
                assert [one["node_id"] for one in state["members"]] == [1, 2, 3]
                assert [one["pid"] for one in state["members"]] == [daemon.pid for daemon in group]
                (topic,) = state["topics"]
                assert (topic["name"], topic["writers"], topic["readers"]) == ("flight/air", 1, 1)
                assert (topic["members"], topic["senders"]) == ([2, 3], [2])
            apps = cli("status", "--node", 2, "--json").json["applications"]
            assert {"name": "writer app", "pid": os.getpid()}.items() <= apps[0].items()
            assert apps[0]["writers"] == ["flight/air"]
            ends = cli("topics", "flight/air", "--json").json["endpoints"]
            assert {(one["kind"], one["node"], one["pid"]) for one in ends} == {
                ("writer", 2, os.getpid()),
                ("reader", 3, subscriber.pid),
            }
            shown = cli("status", "--node", 2).out
            assert "writer app" in shown and "flight/air" in shown
            subscriber.terminate()


@pytest.mark.slow
def test_top_shows_the_traffic(cli: Cli, group: list[Daemon]) -> None:
    with spawn("sub", "load", "--create", "--node", 2, "-f", "raw", stdout=subprocess.DEVNULL) as subscriber:
        with spawn("pub", "load", "x", "--rate", 500, "--count", 0, "--readers", 1) as publisher:

            def delivering() -> bool:
                nodes = {one["node"]: one for one in cli("top", "--once", "-i", "0.2", "--json").json["nodes"]}
                return (
                    set(nodes) == {1, 2, 3}
                    and nodes[1]["per_s"]["send_messages"] > 0
                    and nodes[2]["per_s"]["delivery_messages"] > 0
                    and nodes[2]["topics"]["load"]["messages"] > 0
                    and nodes[3]["per_s"]["delivery_messages"] == 0
                )

            wait_until(delivering, what="traffic from node 1 to node 2")
            publisher.send_signal(2)
            assert publisher.wait(15) == 0, "Ctrl-C is the usual end of --count 0"
        subscriber.terminate()


@pytest.mark.slow
def test_a_subscriber_outlives_its_node(cli: Cli, group: list[Daemon]) -> None:
    """Goal: nothing missing, nothing twice, in order. Method: numbers from node 1 while node 3, where the subscriber
    is, is killed in the middle; a reader at node 2 keeps the topic."""
    assert cli("pub", "t", "begin", "--readers", 0, "--level", "volatile").code == 0
    with spawn("sub", "t", "--node", 3, "-f", "lines", "--keep-all", "-c", 400, bufsize=0) as subscriber, \
            spawn("sub", "t", "--node", 2, "-f", "lines") as other, \
            spawn("pub", "t", "--node", 1, "--readers", 2) as publisher:
        wait_until(lambda: readers_of("t") == 2, what="two subscribers")
        assert publisher.stdin is not None and subscriber.stderr is not None
        publisher.stdin.write(b"".join(b"%d\n" % n for n in range(200)))
        publisher.stdin.flush()
        assert subscriber.stdout is not None
        seen = [subscriber.stdout.readline()]
        group[2].kill()
        publisher.stdin.write(b"".join(b"%d\n" % n for n in range(200, 400)))
        publisher.stdin.close()
        publisher.stdin = None
        code, out, err = finish(subscriber)
        seen += out.splitlines(keepends=True)
        assert code == 0 and seen == [b"%d\n" % n for n in range(400)]
        assert b"node 3 has gone away" in err and b"goes on at node 1" in err and b"missing" not in err
        assert finish(publisher)[0] == 0
        other.terminate()


@pytest.mark.slow
def test_a_subscriber_waits_for_the_next_daemon(cli: Cli, runtime_dir: Path) -> None:
    """Method: the only daemon is killed, and another one started, whose group knows nothing of the topic."""
    with contextlib.ExitStack() as stack:
        subscriber = None
        for text in ("before", "after"):
            with daemons(runtime_dir, 1) as (daemon,):
                if subscriber is None:
                    subscriber = stack.enter_context(spawn("sub", "t", "--create", "-f", "lines", "-c", 2, "-t", 60))
                wait_until(lambda: readers_of("t") == 1, what="the subscriber", timeout_s=20)
                assert cli("pub", "t", text, "--readers", 1).code == 0
                assert subscriber.stdout is not None and subscriber.stdout.readline() == f"{text}\n".encode()
                daemon.kill()
        assert subscriber is not None
        code, _, err = finish(subscriber)
        assert code == 0 and b"has gone away" in err


@pytest.mark.slow
@pytest.mark.parametrize("words", [["sub", "t"], ["pub", "t", "x", "--count", 0, "--rate", 50]], ids=["sub", "pub"])
def test_the_end_of_its_node_has_its_exit_code(cli: Cli, runtime_dir: Path, words: list[object]) -> None:
    """Goal: 6, as the documents say. Method: the only daemon is killed while messages flow."""
    with daemons(runtime_dir, 1) as (daemon,):
        assert cli("pub", "t", "x", "--readers", 0).code == 0
        with spawn(*words, "--no-reattach") as process:
            def busy() -> bool:
                with Target().attach("test") as session:
                    return any(one.app_name.startswith("spindle ") for one in session.endpoints("t"))

            wait_until(busy, what="the command has the topic open")
            daemon.kill()
            code, _, err = finish(process)
            assert code == 6 and b"has stopped" in err


@pytest.mark.slow
def test_a_publisher_outlives_its_node(cli: Cli, group: list[Daemon]) -> None:
    """Goal: nothing is missing, in order but for what comes twice. Method: numbers from node 3, which is killed in the
    middle; a reader at node 2. The second half is written when the first node is gone."""
    with spawn("sub", "outlives", "--create", "--node", 2, "-f", "lines", "--keep-all", bufsize=0) as subscriber, \
            spawn("pub", "outlives", "--node", 3, "--readers", 1) as publisher:
        wait_until(lambda: readers_of("outlives") == 1, what="the subscriber")
        assert publisher.stdin is not None and subscriber.stdout is not None
        publisher.stdin.write(b"".join(b"%d\n" % n for n in range(200)))
        publisher.stdin.flush()
        seen = [int(subscriber.stdout.readline()) for _ in range(50)]
        group[2].kill()
        publisher.stdin.write(b"".join(b"%d\n" % n for n in range(200, 400)))
        publisher.stdin.close()
        publisher.stdin = None
        code, _, err = finish(publisher)
        assert code == 0 and b"node 3 has gone away" in err and b"goes on at node 1" in err, err
        while seen[-1] != 399:
            seen.append(int(subscriber.stdout.readline()))
        assert sorted(set(seen)) == list(range(400))
        first = [n for at, n in enumerate(seen) if n not in seen[:at]]
        assert first == list(range(400))
        subscriber.terminate()


@pytest.mark.slow
def test_who_follows_a_logged_topic_waits_for_the_whole_group(cli: Cli, runtime_dir: Path, tmp_path: Path) -> None:
    """Goal: a reader and a writer outlive the death of all nodes, though the first one is alone for longer than the
    group may take. Method: three daemons are killed; one comes back, then the others."""
    settings = ["--journal-dir", str(tmp_path / "journal")]
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(daemons(runtime_dir, 3, settings))
        assert cli("pub", "logged", "begin", "--readers", 0, "--level", "logged", "--timeout", 30).code == 0
        subscriber = stack.enter_context(spawn("sub", "logged", "-n", 3, "-f", "lines", "--history", bufsize=0))
        publisher = stack.enter_context(spawn("pub", "logged", "-n", 2, "--readers", 1, "--timeout", 60, bufsize=0))
        assert subscriber.stdout is not None and publisher.stdin is not None
        publisher.stdin.write(b"before\n")
        for text in (b"begin\n", b"before\n"):
            assert subscriber.stdout.readline() == text
        for daemon in started:
            daemon.kill()
        publisher.stdin.write(b"between\n")
        for node_id in (1, 2, 3):
            daemon = Daemon(node_id, *settings, "--set", "limits.open_timeout_s=0.5", runtime_dir=runtime_dir)
            stack.callback(daemon.stop)
            daemon.wait_ready()
            for command in (subscriber, publisher) if node_id == 1 else ():
                assert command.stderr is not None
                while b"asking again" not in (said := command.stderr.readline()):
                    assert said, f"it ended with exit code {command.wait(10)}"
        while (line := subscriber.stdout.readline()) != b"between\n":
            assert line, "it has ended"
        publisher.stdin.close()
        publisher.stdin = None
        assert finish(publisher)[0] == 0
        subscriber.terminate()
        assert finish(subscriber)[0] == 0


@pytest.mark.slow
def test_a_publisher_without_any_node_ends(cli: Cli, runtime_dir: Path) -> None:
    with daemons(runtime_dir, 1) as (daemon,):
        assert cli("pub", "t", "x", "--readers", 0).code == 0
        with spawn("pub", "t", "x", "--count", 0, "--rate", 50, "--timeout", 0.5, "--readers", 0) as publisher:
            wait_until(lambda: any(one.is_writer for one in ends_of("t")), what="the publisher")
            daemon.kill()
            code, _, err = finish(publisher)
            assert code == 6 and b"no other one was there within 0.5 s" in err


@pytest.mark.slow
def test_sizes_left_open_are_the_nodes(cli: Cli, runtime_dir: Path) -> None:
    settings = ["--set", "topics.size_max=1000", "--set", "topics.window=5"]
    with daemons(runtime_dir, 1, settings):
        assert cli("pub", "open", "x", "--readers", 0).code == 0
        assert cli("pub", "said", "x", "--readers", 0, "--size-max", 2000).code == 0
        assert cli("pub", "open", "x" * 1001, "--readers", 0).code == 0  # beside the order
        sizes = {one["name"]: (one["size_max"], one["window"]) for one in cli("topics", "--json").json}
        assert sizes == {"open": (1000, 5), "said": (2000, 5)}
        with Target().attach("test") as session:
            assert session.declare_topic(TopicSpec("said")).spec.size_max == 2000, "the group's, not the node's"


@pytest.mark.slow
def test_metrics_of_a_daemon(cli: Cli, runtime_dir: Path) -> None:
    with daemons(runtime_dir, 1, ["--metrics", "127.0.0.1:0"]) as (daemon,):
        address = wait_until(lambda: [line for line in daemon.log.splitlines() if "http://" in line], what="address")
        url = address[0].partition("metrics on ")[2]
        with urllib.request.urlopen(url, timeout=10) as answer:
            text = answer.read().decode()
        assert 'spindle_up{domain="0",node="1"} 1.0' in text
        assert 'spindle_members{domain="0",node="1"} 1.0' in text


@pytest.mark.slow
def test_doctor_counts_the_running(cli: Cli, group: list[Daemon]) -> None:
    """Goal: doctor sees who runs, and what a killed one left, while the others go on. Method: kill one of three."""
    checks = {one["name"]: one for one in cli("doctor", "--json").json["checks"]}
    assert "3 nodes running" in checks["cores"]["detail"]
    assert checks["stale files"]["verdict"] == "ok"
    group[2].kill()
    with Target(node=1).attach("test") as session:
        wait_until(lambda: session.view().node_ids == (1, 2), what="the others go on")
    checks = {one["name"]: one for one in cli("doctor", "--json").json["checks"]}
    assert "2 nodes running" in checks["cores"]["detail"]
    assert checks["stale files"]["verdict"] == "warn" and "node-3.sock" in checks["stale files"]["detail"]
