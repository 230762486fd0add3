"""The daemon as a process: readiness, ending, leftovers of the dead, and its applications' fate.

Goal: what operators and service managers rely on. Method: real daemons as subprocesses, told by signals.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spindle.client import attach
from spindle.config.directories import check_journal_dir
from spindle.errors import AccessDenied, GroupSilent, JournalError, NodeStopped, SpindleError
from spindle.group.topics import TopicSpec
from spindle.service.daemon import SAME_REQUEST_S
from spindle.transport.wire import HEADER
from spindle_core.errors import NodeGone
from tests.spindle.daemons import Daemon, daemons
from tests.support import halt, wait_until


def test_ready_line_clean_leave_and_nothing_left(runtime_dir: Path) -> None:
    """Goal: one ready line, exit code 0 after SIGTERM, no socket left. Method: one daemon."""
    with daemons(runtime_dir, 1) as (daemon,):
        assert daemon.ready_line == "spindle: node 1 ready, domain 0, view 0, members 1"
        with attach() as session:
            assert session.node_pid == daemon.pid
            assert session.status()["pid"] == daemon.pid
        assert daemon.terminate() == 0
    assert not list(runtime_dir.glob("domain-0/*.sock"))


def test_a_slip_in_the_journal_directory_is_told_at_the_start(tmp_path: Path) -> None:
    """Method: a file in its way, and one above it. What need not be there yet, and can be made, is none."""
    file = tmp_path / "file"
    file.touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "gone" / "away")
    for slip in (file, file / "below", tmp_path / "dangling"):
        with pytest.raises(JournalError, match=r"no journals can be kept .*is no directory; choose another"):
            check_journal_dir(slip)
    check_journal_dir(tmp_path / "not" / "yet")
    done = subprocess.run([sys.executable, "-m", "spindle.cli", "daemon", "--journal-dir", str(file)], text=True,
                          capture_output=True, timeout=60)
    assert done.returncode == JournalError.exit_code and "is no directory" in done.stderr


@pytest.mark.slow
def test_names_that_nobody_has_are_warned_of(runtime_dir: Path) -> None:
    """Goal: a slip in [access] is seen at the start, where it lets nobody in. Method: one daemon and its log."""
    with daemons(runtime_dir, 1, ["--set", 'access.users=["root", "rooot"]']) as (daemon,):
        pass
    assert '[access] users: "rooot"' in daemon.log and '"root"' not in daemon.log


@pytest.mark.slow
def test_interrupt_while_applications_are_attached(runtime_dir: Path) -> None:
    """Goal: Ctrl-C ends a daemon in order and its applications learn why. Method: SIGINT with a session open."""
    with daemons(runtime_dir, 1) as (daemon,):
        session = attach()
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.wait() == 0
        wait_until(lambda: session.gone)
        with pytest.raises(NodeStopped, match="was stopped"):
            session.view()
        session.close()


@pytest.fixture(autouse=True)
def _not_under_nohup() -> Iterator[None]:
    """Daemons inherit what this process does at SIGHUP: nothing, where somebody began the tests with nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_terminal_that_goes_away_makes_it_leave(runtime_dir: Path) -> None:
    """Goal: SIGHUP is no crash: the node leaves its group in order, with 0, although nobody reads its log any more.
    Method: a daemon with a terminal of its own beside another daemon; the terminal's other end is closed. The signal
    comes again until the process has ended."""
    with daemons(runtime_dir, 1) as (daemon,):
        main, terminal = pty.openpty()
        program = "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY); from spindle.cli import main; main()"
        second = subprocess.Popen([sys.executable, "-c", program, "daemon", "--runtime-dir", str(runtime_dir)],
                                  stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
        os.close(terminal)
        shown = b""
        while b"members 1 2" not in shown:
            shown += os.read(main, 65536)
        with attach(node_id=1) as watching, attach(node_id=2) as session:
            os.close(main)
            with contextlib.suppress(ProcessLookupError):
                while second.poll() is None:
                    second.send_signal(signal.SIGHUP)
                    time.sleep(0.05)
            assert second.wait(15) == 0
            wait_until(lambda: session.gone)
            with pytest.raises(NodeStopped, match="was stopped"):
                session.view()
            wait_until(lambda: watching.view().node_ids == (1,))
        assert "goes on without" not in daemon.log, "it left, and was not missed"


@pytest.mark.slow
def test_a_late_sighup_insists_on_nothing(runtime_dir: Path) -> None:
    """Goal: of the signals that a closed terminal sends only the first counts, though a leave takes its time. Method:
    the other member stands still, so that the leave waits; the second signal comes later than SAME_REQUEST_S."""
    with daemons(runtime_dir, 2) as (one, two), attach(node_id=2) as session:
        halt(one.pid)
        try:
            two.process.send_signal(signal.SIGHUP)
            wait_until(lambda: session.gone)  # it has heard the first
            time.sleep(SAME_REQUEST_S + 0.1)
            two.process.send_signal(signal.SIGHUP)
        finally:
            os.kill(one.pid, signal.SIGCONT)
        assert two.wait() == 0 and "again" not in two.log


@pytest.mark.slow
def test_started_with_nohup_it_stays(runtime_dir: Path) -> None:
    """Goal: who ignores SIGHUP for it keeps it. Method: as nohup does, then the signal, then work."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        daemon = Daemon(1, runtime_dir=runtime_dir)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        daemon.wait_ready()
        daemon.process.send_signal(signal.SIGHUP)
        with attach() as session:
            session.declare_topic(TopicSpec("altitude"))
        assert daemon.terminate() == 0
    finally:
        daemon.stop()


def test_a_left_over_socket_is_replaced(runtime_dir: Path) -> None:
    """Goal: kill -9 leaves nothing that a restart stumbles over. Method: kill, see the socket, start again."""
    with daemons(runtime_dir, 1) as (daemon,):
        daemon.kill()
    assert (runtime_dir / "domain-0" / "node-1.sock").exists()
    with daemons(runtime_dir, 1), attach() as session:
        assert session.view().node_ids == (1,)


@pytest.mark.slow
def test_a_taken_node_id_is_refused(runtime_dir: Path) -> None:
    """Goal: two nodes never share an id; the error and its exit code say so. Method: start node 1 twice."""
    with daemons(runtime_dir, 1):
        second = Daemon(1, runtime_dir=runtime_dir)
        assert second.wait() == 7
        second.stop()
        assert "1" in second.log.splitlines()[-1] and "Traceback" not in second.log


@pytest.mark.slow
def test_a_start_that_waits_can_be_stopped(runtime_dir: Path) -> None:
    """Goal: SIGTERM ends a daemon that is not a member yet, with 0 and nothing left. Method: hold the lock under which
    newcomers look for the group."""
    (runtime_dir / "domain-0").mkdir(mode=0o700)
    with (runtime_dir / "domain-0" / "bootstrap.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        daemon = Daemon(1, runtime_dir=runtime_dir)
        try:
            wait_until(lambda: "starts a node" in daemon.log)
            assert daemon.terminate() == 0
        finally:
            daemon.stop()
    assert "Traceback" not in daemon.log
    assert not list(runtime_dir.glob("domain-0/*.sock"))


@pytest.mark.slow
def test_noise_on_the_socket_disturbs_nobody(runtime_dir: Path) -> None:
    """Goal: whatever connects to a daemon's socket, it goes on serving. Method: bytes of many kinds as the first frame,
    some followed by the end of the connection, some by silence, while a session works."""
    path = str(runtime_dir / "domain-0" / "node-1.sock")
    noises = [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 100, HEADER.pack(1 << 31, 0, 0),
              HEADER.pack(4, 0, 0) + b"xx", HEADER.pack(0, 0, 0), HEADER.pack(4, 0, 0) + b"\xff" * 4,
              HEADER.pack(0, 9, 0)]  # fmt: skip
    with daemons(runtime_dir, 1, ["--set", "limits.handshake_timeout_s=0.3"]) as (daemon,), attach() as session:
        silent = []
        for noise in noises:
            for close in (True, False):
                sock = socket.socket(socket.AF_UNIX)
                sock.settimeout(5)
                sock.connect(path)
                sock.send(noise)
                if close:
                    sock.close()
                else:
                    silent.append(sock)
                assert session.view().view_id == 0
        for sock in silent:  # each is closed after its last word
            while sock.recv(4096):
                pass
            sock.close()
        assert daemon.process.poll() is None
        assert "Traceback" not in daemon.log


@pytest.mark.slow
def test_a_dead_daemon_is_noticed_within_a_second(runtime_dir: Path) -> None:
    """Goal: NodeGone for blocked calls, at most a second after kill -9. Method: a reader that waits."""
    with daemons(runtime_dir, 1) as (daemon,), attach() as session:
        session.declare_topic(TopicSpec("altitude", size_max=64))
        writer = session.open_writer("altitude")
        reader = session.open_reader("altitude", keep_all=True, from_history=False)
        os.kill(daemon.pid, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(NodeGone):
            reader.log.wait(10)
        assert time.monotonic() - killed < 1.0
        with pytest.raises(NodeGone):
            writer.inbox.write(b"9750 m")
        with pytest.raises(SpindleError, match="stopped or died"):
            session.topics()


def test_applications_go_on_when_another_daemon_is_killed(runtime_dir: Path) -> None:
    """Goal: kill -9 of a daemon costs the applications of the others nothing. Method: three daemons; a writer and a
    reader at two of them work on while the third, the leader, is killed and started again."""
    with daemons(runtime_dir, 3) as (one, two, three), attach(node_id=2) as writing, attach(node_id=3) as reading:
        writing.declare_topic(TopicSpec("altitude", size_max=64))
        reader = reading.open_reader("altitude", keep_all=True, from_history=False)
        writer = writing.open_writer("altitude")
        writer.inbox.write(b"9750 m")
        one.kill()
        for k in range(1000):
            writer.inbox.write(b"%d m" % k, timeout_s=5)
        got: list[bytes] = []
        wait_until(lambda: got.extend(reader.log.take(100)) or len(got) == 1001)
        assert got == [b"9750 m", *(b"%d m" % k for k in range(1000))]
        wait_until(lambda: writing.view().node_ids == (2, 3))
        again = Daemon(1, runtime_dir=runtime_dir)
        try:
            assert again.wait_ready().ready_line.endswith("members 2 3 1")
        finally:
            again.stop()
        assert two.process.poll() is None and three.process.poll() is None


def hang(daemon: Daemon, cast_out: Callable[[], object]) -> None:
    """Stops a daemon until `cast_out` tells that the others go on without it, then lets it go on."""
    halt(daemon.pid)
    try:
        wait_until(cast_out, 15)
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_daemon_that_was_cast_out_says_so(runtime_dir: Path) -> None:
    """Goal: exit code 12, a last line that tells what to do, and the applications learn it. Method: SIGSTOP one of
    three daemons for longer than suspect_timeout."""
    with daemons(runtime_dir, 3, ["--set", "membership.suspect_timeout_s=0.3"]) as (_, two, three):
        with attach(node_id=1) as watching, attach(node_id=2) as session:
            hang(two, lambda: watching.view().node_ids == (1, 3))
            assert two.wait() == 12
            assert "rejoin" in two.log.splitlines()[-1] and "Traceback" not in two.log
            wait_until(lambda: session.gone)
        assert three.process.poll() is None


def test_a_daemon_that_was_cast_out_rejoins(runtime_dir: Path) -> None:
    """Goal: with [membership] rejoin it comes back as a new member with its id, says ready again, and serves. Method:
    SIGSTOP one of three daemons for longer than suspect_timeout, twice; the second time it is the leader."""
    settings = ["--set", "membership.suspect_timeout_s=0.3", "--set", "membership.rejoin=true"]
    with daemons(runtime_dir, 3, settings) as (one, two, _), attach(node_id=3) as watching:
        for daemon, after in ((two, (1, 3, 2)), (one, (3, 2, 1))):
            hang(daemon, lambda: daemon.node_id not in watching.view().node_ids)  # noqa: B023 (called in the loop)
            wait_until(lambda: watching.view().node_ids == after, 15)  # noqa: B023
            assert "ready" in daemon.wait_ready().ready_line
            with attach(node_id=daemon.node_id) as session:
                assert session.view().node_ids == after
        assert one.terminate() == two.terminate() == 0


@pytest.mark.slow
def test_a_hanging_member_does_not_keep_others_from_joining(runtime_dir: Path) -> None:
    """Goal: a newcomer waits for a hanging member no longer than the group does. Method: SIGSTOP one of three daemons,
    start another at once; it is ready after the suspicion, and the zombie, still stopped, doesn't delay the next."""
    settings = ["--set", "membership.suspect_timeout_s=0.5"]
    with daemons(runtime_dir, 3, settings) as (one, _, _):
        halt(one.pid)
        try:
            for node_id in (4, 5):
                newcomer = Daemon(node_id, *settings, runtime_dir=runtime_dir)
                newcomer.wait_ready()
                assert " 1 " not in newcomer.ready_line.partition("members")[2]
                newcomer.stop()
        finally:
            os.kill(one.pid, signal.SIGCONT)
        assert one.wait() == 12


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_needs_the_access_list(runtime_dir: Path) -> None:
    """Goal: by default a foreign user is kept out; once admitted, rules hold. Method: a program that becomes
    user 54321."""
    runtime_dir.parent.chmod(0o755)
    program = textwrap.dedent(f"""
        import os
        import google.protobuf.message, spindle.group.codec, spindle.config.settings  # while they can be read
        import spindle_core.counters, spindle_core.inbox_writer, spindle_core.memory, spindle_core.reader
        from spindle.client import attach
        from spindle.group.topics import TopicSpec
        from spindle.errors import AccessDenied
        os.setgroups([])
        os.setresgid(54321, 54321, 54321)
        os.setresuid(54321, 54321, 54321)
        try:
            session = attach(runtime_dir={str(runtime_dir)!r})
        except AccessDenied as error:
            raise SystemExit(f"kept out: {{error}}")
        session.declare_topic(TopicSpec("flight/altitude"))
        session.open_reader("flight/altitude", keep_all=False, from_history=False)
        try:
            session.open_writer("flight/altitude")
        except AccessDenied as error:
            print(f"denied: {{error}}")
    """)

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)

    with daemons(runtime_dir, 1):
        assert "kept out: " in run().stderr
    settings = runtime_dir / "spindle.toml"
    settings.write_text(
        '[access]\nallow_uids = [54321]\nrules = [{ uid = 54321, publish = [], subscribe = ["flight/*"] }]\n'
    )
    with daemons(runtime_dir, 1, ["--config", str(settings)]):
        done = run()
        assert done.stdout.startswith("denied: user 54321"), done.stderr
    assert AccessDenied.exit_code == 4


@pytest.mark.slow
def test_a_start_imports_nothing_that_it_does_not_use(runtime_dir: Path) -> None:
    """Goal: ready below 300 ms from exec. How long it takes is measured by `spindle bench startup`; here is what makes
    it long, the same on every machine. Method: the interpreter's own list of what it imported until the ready line."""
    daemon = Daemon(1, runtime_dir=runtime_dir, environment={"PYTHONPROFILEIMPORTTIME": "1"})
    try:
        daemon.wait_ready()
        lines = [line for line in daemon.log.splitlines() if line.startswith("import time:")]
        modules = {line.rpartition("|")[2].strip() for line in lines}
    finally:
        daemon.stop()
    most = 400 if sys.version_info < (3, 14) else 408  # whose library is cut into more modules
    assert "spindle.node.node" in modules and len(modules) <= most, f"{len(modules)} modules"
    unused = {"numpy", "rich", "mcap", "prometheus_client", "cryptography", "http", "logging_journald", "dds",
              "spindle_lab", "spindle.journal.writer", "spindle.edge.bundle", "difflib", "tomllib", "tomli"}
    assert unused & modules == set()


@pytest.mark.slow
def test_a_member_that_hangs_makes_openings_fail_and_not_hang(runtime_dir: Path) -> None:
    """Goal: what needs the group's agreement ends with a clear error while a member hangs, and works when it goes on.
    Method: SIGSTOP one of two daemons, declare and open through the other, SIGCONT, open again."""
    with daemons(runtime_dir, 2, ["--set", "limits.open_timeout_s=0.5"]) as (one, two), attach(node_id=1) as session:
        session.declare_topic(TopicSpec("before"))
        halt(two.pid)
        try:
            with pytest.raises(GroupSilent, match=r"0\.5 s.*node 2.*hangs"):
                session.declare_topic(TopicSpec("meanwhile"))
            with pytest.raises(GroupSilent, match="before"):
                session.open_writer("before")
        finally:
            os.kill(two.pid, signal.SIGCONT)
        wait_until(lambda: any(topic.spec.name == "meanwhile" for topic in session.topics()), 15)
        with contextlib.closing(session.open_writer("before")) as writer:
            writer.inbox.write(b"goes on")
            assert writer.inbox.wait_acknowledged(10)
        assert one.terminate() == two.terminate() == 0
