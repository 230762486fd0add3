"""embed(): nodes inside this process.

Goal: an embedded node behaves like a daemon, several live in one process, and each leaves its group when its session
ends, however it ends. Method: embedded nodes in this process, beside daemons, and in programs that just end.
"""

from __future__ import annotations

import errno
import gc
import os
import queue
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from spindle.client import Event, attach, embed
from spindle.config.settings import NodeConfig
from spindle.errors import NoDaemon, NodeIdTaken, NodeStopped
from spindle.group.events import VIEW
from spindle.group.topics import TopicSpec
from spindle_core.engine import Engine
from tests.spindle.daemons import daemons
from tests.support import product_threads, wait_until


def test_two_embedded_nodes_in_one_process(runtime_dir: Path) -> None:
    """Goal: samples go from one to the other; closing one shrinks the other's view. Method: one writes, both read."""
    with embed() as one, embed() as two:
        assert (one.node_id, two.node_id) == (1, 2)
        assert one.embedded and one.node_pid == os.getpid()
        assert two.view().node_ids == (1, 2)
        spec = TopicSpec("altitude", size_max=64)
        one.declare_topic(spec)
        readers = [session.open_reader("altitude", keep_all=True, from_history=False) for session in (one, two)]
        with one.open_writer("altitude") as writer:
            for number in range(100):
                writer.inbox.write(b"%d" % number)
            for reader in readers:
                seen: list[bytes] = []
                while len(seen) < 100:
                    assert reader.log.wait(5)
                    seen += reader.log.take(100)
                assert seen == [b"%d" % number for number in range(100)]
        two.close()
        wait_until(lambda: one.view().node_ids == (1,))
        with pytest.raises(NodeStopped):
            two.view()
    assert not list((runtime_dir / "domain-0").glob("*.sock"))


def test_its_predicate_thread_never_runs_in_real_time(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the program's threads drive the node as well; none of them shall lose its core in the middle of that."""
    asked: list[tuple[object, object]] = []

    class Noted(Engine):  # type: ignore[misc]
        def __init__(self, *args: object, **kwargs: object) -> None:
            asked.append((kwargs["realtime"], kwargs["nice"]))
            super().__init__(*args, **kwargs)

    monkeypatch.setattr("spindle_core.engine.Engine", Noted)
    with embed(config=NodeConfig(runtime_dir=runtime_dir, realtime_priority=7)) as session:
        assert session.node_id == 1 and asked == [(0, -10)]


def test_domain_and_id_can_be_given(runtime_dir: Path) -> None:
    """Goal: arguments go before the configuration. Method: a configuration of another domain."""
    with embed(5, node_id=9, config=NodeConfig(domain_id=3)) as session:
        assert (session.domain_id, session.node_id) == (5, 9)
    with embed(config=NodeConfig(domain_id=3, node_id=4), name="named") as session:
        assert (session.domain_id, session.node_id, session.name) == (3, 4, "named")
        assert [app["name"] for app in session.status()["applications"]] == ["named"]


def test_what_keeps_a_node_from_starting_is_raised(runtime_dir: Path) -> None:
    """Goal: embed() fails with the node's own error and leaves no thread. Method: a taken id."""
    with embed(node_id=1):
        before = product_threads()
        with pytest.raises(NodeIdTaken):
            embed(node_id=1)
        wait_until(lambda: product_threads() == before)


@pytest.mark.slow
def test_an_embedded_node_joins_daemons_and_leaves_them(runtime_dir: Path) -> None:
    """Goal: an embedded node is a member like any other; others hear of it. Method: a listener on the daemon's side."""
    views: queue.SimpleQueue[Event] = queue.SimpleQueue()
    with daemons(runtime_dir, 1), attach() as session:
        session.add_listener(views.put)
        embedded = embed()
        assert embedded.node_id == 2
        event = views.get(timeout=5)
        assert event.kind == VIEW and event.view is not None and event.view.node_ids == (1, 2)
        embedded.close()
        event = views.get(timeout=5)
        assert event.kind == VIEW and event.view is not None and event.view.node_ids == (1,)


def test_other_programs_may_attach_if_they_ask_for_it(runtime_dir: Path) -> None:
    """Goal: tools can look into an embedded node, programs don't land on one by chance. Method: attach() both ways."""
    with embed() as session:
        with pytest.raises(NoDaemon, match="node 1 is embedded"):
            attach()
        with attach(embedded=True, name="tool") as tool:
            assert tool.node_id == session.node_id
            assert {app["name"] for app in session.status()["applications"]} >= {"tool"}


@pytest.mark.slow
def test_a_forgotten_session_ends_its_node(runtime_dir: Path) -> None:
    """Goal: no node outlives its session. Method: drop the last reference."""
    before = product_threads()
    session = embed()
    assert product_threads() > before
    del session
    gc.collect()
    wait_until(lambda: product_threads() == before)
    assert not list((runtime_dir / "domain-0").glob("*.sock"))


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "Thread(target=spin, daemon=True).start()"])
def test_a_program_that_just_ends_leaves_its_group(runtime_dir: Path, ending: str) -> None:
    """Goal: the end of a program is a clean leave of its node, and doesn't hang. Method: programs that end without
    close(), while a daemon watches; it would log that it goes on without after anything but a clean leave."""
    program = textwrap.dedent("""
        from threading import Thread
        from spindle.client import embed
        from spindle.group.topics import TopicSpec
        session = embed()
        session.add_listener(lambda event: None)
        session.declare_topic(TopicSpec("altitude"))
        reader = session.open_reader("altitude", keep_all=True, from_history=False)
        writer = session.open_writer("altitude")
        writer.inbox.write(b"9750 m")
        def spin():
            while True: pass
    """)
    with daemons(runtime_dir, 1) as (daemon,), attach() as session:
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-c", program + ending], capture_output=True, text=True, timeout=20)
        assert done.returncode == (3 if "3" in ending else 0)
        assert done.stderr == ""
        assert time.monotonic() - started < 10
        wait_until(lambda: session.view().node_ids == (1,))
        assert "goes on without" not in daemon.log


@pytest.mark.slow
def test_an_embedded_node_goes_on_without_a_lost_peer(runtime_dir: Path) -> None:
    """Goal: the application with an embedded node doesn't notice. Method: kill the daemon beside it, work on."""
    with daemons(runtime_dir, 1) as (daemon,), embed() as session:
        session.declare_topic(TopicSpec("altitude", size_max=64))
        reader = session.open_reader("altitude", keep_all=True, from_history=False)
        writer = session.open_writer("altitude")
        os.kill(daemon.pid, signal.SIGKILL)
        writer.inbox.write(b"9750 m")
        assert reader.log.wait(5) and reader.log.take(1) == [b"9750 m"]
        wait_until(lambda: session.view().node_ids == (session.node_id,))


@pytest.mark.slow
def test_a_forked_child_does_not_keep_the_node_alive(runtime_dir: Path) -> None:
    """Goal: when a program with an embedded node is killed, its forked children don't hide its death from the others.
    Method: the child of a killed program lives on; the daemon goes on without the node, as without any lost member."""
    program = textwrap.dedent("""
        import os, sys, time
        from spindle.client import embed
        session = embed()
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        time.sleep(60)
    """)
    with daemons(runtime_dir, 1), attach() as session:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            process.kill()
            process.wait(10)
            wait_until(lambda: session.view().node_ids == (1,), 5)
        finally:
            os.kill(child, signal.SIGKILL)
            process.stdout.close()


def test_a_node_whose_thread_has_no_loop_says_why_at_once(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody waits out the time for joining, nor is told that a node didn't come up in time, where it never
    began: descriptors had run out, say."""
    def new_loop() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("spindle.service.daemon.new_loop", new_loop)
    with pytest.raises(OSError, match="Too many open files"):
        embed(config=NodeConfig(join_timeout_s=3600))
