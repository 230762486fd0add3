"""Goal: commands get on with any terminal, and with one that goes away: nothing that was recorded is lost, nothing runs
on for nobody, and what was started to outlive its terminal does.

Method: commands on pseudo-terminals, with a stand-in node or a daemon; the terminal is closed, or a signal sent.
"""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle.cli import common
from spindle.cli.common import stopped_by_signals
from spindle.cli.screen import ends
from spindle.client import attach
from spindle.group.topics import TopicSpec
from tests.spindle.cli.support import ROOT, Spawned, spawn
from tests.spindle.daemons import daemons
from tests.spindle.stand_in import StandInNode
from tests.support import wait_until


class Terminal:
    """What commands are run on, each as the leader of a session whose terminal this is."""

    def __init__(self) -> None:
        self.main, self.theirs = pty.openpty()
        self.before = termios.tcgetattr(self.theirs)
        self.seen = b""

    def spawn(self, *args: object, ignored: bool = False, **options: Any) -> Spawned:
        return spawn(*args, **self._options(ignored, options))

    def spawn_shell(self, script: str) -> Spawned:
        """A shell with job control, in which $SPINDLE is the command."""
        environment = {**os.environ, "SPINDLE": f"{sys.executable} -m spindle.cli"}
        return Spawned(["sh", "-mc", script], cwd=ROOT, **self._options(False, {"env": environment}))

    def _options(self, ignored: bool, more: dict[str, Any]) -> dict[str, Any]:
        def begin() -> None:
            import fcntl

            fcntl.ioctl(self.theirs, termios.TIOCSCTTY, 0)
            if ignored:  # as nohup has it
                signal.signal(signal.SIGHUP, signal.SIG_IGN)

        streams = {"stdin": self.theirs, "stdout": self.theirs, "stderr": self.theirs}
        return {"start_new_session": True, "preexec_fn": begin, **streams, **more}

    def until(self, wanted: bytes) -> None:
        def came() -> bool:
            if select.select([self.main], [], [], 0.05)[0]:
                self.seen += os.read(self.main, 65536)
            return wanted in self.seen

        wait_until(came, 20, f"{wanted!r}")

    def press(self, keys: bytes) -> None:
        os.write(self.main, keys)

    def ends(self, process: Spawned) -> int:
        """Its exit code."""
        def ended() -> bool:
            if self.main >= 0 and select.select([self.main], [], [], 0.05)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self.main, 65536)
            return process.poll() is not None

        wait_until(ended, 20, "its end")
        return process.returncode

    def close(self) -> None:
        for fd in (self.theirs, self.main):
            if fd >= 0:
                os.close(fd)
        self.theirs = self.main = -1


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    one = Terminal()
    try:
        yield one
    finally:
        one.close()


@pytest.mark.slow
@pytest.mark.parametrize("command", [("top",), ("topics", "--watch")], ids=" ".join)
def test_a_screen_whose_terminal_goes_ends(stand_in: StandInNode, terminal: Terminal, command: tuple[str, ...]) -> None:
    """Also where it was told to ignore SIGHUP, as it shows something to nobody then. It used a core for ever."""
    with terminal.spawn(*command, "-i", "60", ignored=True) as process:
        terminal.until(b"q quits")
        terminal.close()
        terminal.ends(process)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_screen_that_is_ended_leaves_the_terminal_as_it_was(stand_in: StandInNode, terminal: Terminal,
                                                              number: signal.Signals) -> None:
    with terminal.spawn("top", "-i", "60") as process:
        terminal.until(b"q quits")
        process.send_signal(number)
        assert terminal.ends(process) == 0
        terminal.until(b"\x1b[?1049l")  # back from the other screen
        assert termios.tcgetattr(terminal.theirs) == terminal.before


@pytest.mark.slow
@pytest.mark.parametrize("command", ["top", "topics --watch"])
def test_a_screen_that_is_stopped_gives_the_terminal_back(stand_in: StandInNode, terminal: Terminal,
                                                          command: str) -> None:
    """It left the shell on the other screen, without a cursor, and `fg` showed nothing."""
    twice = 'echo "stopped: $?"; read answer; fg; echo "again: $?"; read answer; fg; echo "ended: $?"'
    with terminal.spawn_shell(f"$SPINDLE {command} -i 60; {twice}") as shell:
        for said in (b"stopped: 148", b"again: 148"):
            terminal.until(b"q quits")
            terminal.press(b"\x1a")
            terminal.until(said)
            assert terminal.seen.index(b"\x1b[?1049l") < terminal.seen.index(said)
            assert termios.tcgetattr(terminal.theirs) == terminal.before
            terminal.seen = b""
            terminal.press(b"\n")
        terminal.until(b"q quits")
        terminal.press(b"q")
        terminal.until(b"ended: 0")
        assert terminal.ends(shell) == 0


@pytest.mark.slow
def test_a_screen_that_can_not_have_its_terminal_says_so(stand_in: StandInNode, terminal: Terminal) -> None:
    """Goal: no internal error in the background of a shell that has ended. Method: a shell in a shell; it begins when
    the inner one has gone."""
    inner = "(while kill -0 $$; do sleep 0.01; done; exec $SPINDLE top) 2>&1 &"
    with terminal.spawn_shell(f"sh -mc '{inner}'; read answer") as shell:
        terminal.until(b"nobody can bring it to the front")
        terminal.press(b"\n")
        assert terminal.ends(shell) == 0


def test_a_signal_that_comes_as_a_wait_begins_ends_it() -> None:
    """Its handler has run, or will with the next step of the interpreter, which is behind the wait."""
    with stopped_by_signals(lambda: None), ends() as ended:
        os.kill(os.getpid(), signal.SIGTERM)
        began = time.monotonic()
        assert not ended(began + 60) and time.monotonic() - began < 30


@pytest.mark.slow
@pytest.mark.parametrize("keys", [b"q", b"\x1b", b"\x04"], ids=["q", "escape", "end"])
def test_a_screen_ends_by_its_keys_alone(stand_in: StandInNode, terminal: Terminal, keys: bytes) -> None:
    """An arrow key begins with the character that Escape is; wheels of mice send arrow keys there."""
    with terminal.spawn("top", "-i", "0.1") as process:
        terminal.until(b"q quits")
        terminal.press(b"\x1b[A")
        terminal.press(b"x")
        terminal.seen = b""
        terminal.until(b"q quits")
        terminal.seen = b""
        terminal.until(b"q quits")
        assert process.poll() is None
        terminal.press(keys)
        assert terminal.ends(process) == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", [("top",), ("topics", "--watch")], ids=" ".join)
def test_a_terminal_that_replaces_nothing_gets_one_screen_below_the_other(
        stand_in: StandInNode, terminal: Terminal, command: tuple[str, ...]) -> None:
    stand_in.call(lambda: stand_in.declare_topic(TopicSpec("flight/air")))
    with terminal.spawn(*command, "-i", "0.1", env={**os.environ, "TERM": "dumb"}) as process:
        terminal.until(b"flight/air")
        terminal.seen = b""
        terminal.until(b"flight/air")
        terminal.press(b"q")
        assert terminal.ends(process) == 0
    assert b"\x1b" not in terminal.seen


def recording(runtime_dir: Path, terminal: Terminal, path: Path, then: Callable[[Spawned], None],
              **options: Any) -> int:
    """The exit code of a recording of five messages that then(process) ends."""
    with daemons(runtime_dir, 1), attach(runtime_dir=runtime_dir) as session:
        session.declare_topic(TopicSpec("t"))
        with session.open_writer("t") as writer, terminal.spawn("record", "t", "-o", path, **options) as process:
            terminal.until(b"0 messages")
            for number in range(5):
                writer.inbox.write(b"%d" % number)
            assert writer.inbox.wait_acknowledged(20)
            then(process)
            return terminal.ends(process)


def read(path: Path) -> list[bytes]:
    """Its messages. It must have an end, which says how many there are."""
    from mcap.reader import make_reader

    with path.open("rb") as file:
        summary = make_reader(file).get_summary()
        assert summary is not None and summary.statistics is not None and summary.statistics.message_count == 5
        return [message.data for _, _, message in make_reader(file).iter_messages()]


@pytest.mark.slow
def test_a_recording_whose_terminal_goes_is_finished(runtime_dir: Path, terminal: Terminal, tmp_path: Path) -> None:
    """It lost what had come in the last second, and its end: what others read such files by."""
    path = tmp_path / "t.mcap"
    recording(runtime_dir, terminal, path, lambda _: terminal.close())
    assert read(path) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.slow
def test_a_recording_that_is_to_outlive_its_terminal_does(runtime_dir: Path, terminal: Terminal,
                                                          tmp_path: Path) -> None:
    """It ended when it had no place any more to say how far it was."""
    path = tmp_path / "t.mcap"

    def end(process: Spawned) -> None:
        terminal.close()
        wait_until(lambda: path.stat().st_size > 200, 20, "it writes what it has, and more than once says so in vain")
        process.send_signal(signal.SIGTERM)

    assert recording(runtime_dir, terminal, path, end, ignored=True) == 0
    assert read(path) == [b"0", b"1", b"2", b"3", b"4"]


def test_what_can_not_be_said_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", full)
        common.note("recorded")
        common.progress("half of it")
        with contextlib.suppress(OSError):
            full.close()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", [("pub", "t", "x", "--count", "0", "--rate", "10"), ("sub", "t")],
                         ids=["pub", "sub"])
def test_publishing_and_printing_end_as_with_ctrl_c(runtime_dir: Path, terminal: Terminal, number: signal.Signals,
                                                    command: tuple[str, ...]) -> None:
    with daemons(runtime_dir, 1), attach(runtime_dir=runtime_dir) as session:
        session.declare_topic(TopicSpec("t"))
        with terminal.spawn(*command) as process:
            terminal.until(b"published" if command[0] == "pub" else b"Ctrl-C ends")
            process.send_signal(number)
            assert terminal.ends(process) == 0


@pytest.mark.slow
def test_a_publisher_whose_terminal_goes_has_published_what_was_typed(runtime_dir: Path, terminal: Terminal) -> None:
    """To who reads a terminal that goes, the kernel tells an end or an error, whichever comes first."""
    with daemons(runtime_dir, 1), attach(runtime_dir=runtime_dir) as session:
        session.declare_topic(TopicSpec("t"))
        reader = session.open_reader("t", keep_all=True, from_history=False)
        with terminal.spawn("pub", "t", ignored=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            terminal.press(b"typed\n")
            assert reader.log.wait(20) and reader.log.take(10) == [b"typed"]
            terminal.close()
            assert terminal.ends(process) == 0


@pytest.mark.slow
def test_a_publisher_in_the_background_says_what_it_can_not_read(stand_in: StandInNode, terminal: Terminal) -> None:
    """It said `[Errno 5] Input/output error`. (Where SIGTTIN isn't ignored, the shell says that it is stopped.)"""
    stand_in.call(lambda: stand_in.declare_topic(TopicSpec("t")))
    with terminal.spawn_shell('(trap "" TTIN; exec $SPINDLE pub t) & wait $!; echo "ended: $?"') as shell:
        terminal.until(b"ended: 1")
        assert terminal.ends(shell) == 0
    assert b"it is a terminal that another program reads" in terminal.seen


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [False, True])
def test_a_cockpit_ends_with_its_terminal_unless_it_is_to_outlive_it(runtime_dir: Path, terminal: Terminal,
                                                                     ignored: bool) -> None:
    with daemons(runtime_dir, 1), terminal.spawn("cockpit", "--listen", "0", ignored=ignored) as process:
        terminal.until(b"#token=")
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert bool(int(re.findall(r"SigIgn:\s*(\w+)", status)[0], 16) & 1 << signal.SIGHUP - 1) == ignored
        terminal.close()
        if ignored:
            process.send_signal(signal.SIGTERM)
        assert terminal.ends(process) == 0
