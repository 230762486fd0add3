"""Goal: the helpers that guard the other tests do guard.

Method: conditions that hold late or never; a real process, and an orphan of one, left running on purpose.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support import descendants, left_behind, product_threads, threads_left_behind, wait_until


def test_wait_until_returns_what_became_true() -> None:
    answers = iter([0, None, "ready"])
    assert wait_until(lambda: next(answers)) == "ready"


def test_wait_until_names_what_it_waited_for() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.01 s: the tide"):
        wait_until(lambda: False, 0.01, what="the tide")


def test_a_running_child_is_found_and_killed() -> None:
    before = descendants()
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        assert [line.split(":")[0] for line in left_behind(before, grace_s=0)] == [str(child.pid)]
    finally:
        assert child.wait(10) == -9
        assert child.stdin is not None
        child.stdin.close()


def test_an_orphan_is_found(tmp_path: Path) -> None:
    """The child ends at once and leaves a grandchild in a session of its own."""
    script = (
        "import subprocess, sys\n"
        "command = [sys.executable, '-c', 'import signal; signal.pause()']\n"
        "print(subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL).pid)\n"
    )
    before = descendants()
    orphan = int(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True).stdout)
    assert [line.split(":")[0] for line in left_behind(before, grace_s=0)] == [str(orphan)]
    assert os.waitpid(orphan, 0)[1] == 9


def test_a_session_that_nobody_closed_is_found() -> None:
    """Method: a thread named as those of embedded nodes; what was there before is not told of."""
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait, name="spindle node", daemon=True)
    before = product_threads()
    thread.start()
    try:
        assert threads_left_behind(before, grace_s=0) == ["spindle node"]
        assert threads_left_behind(product_threads(), grace_s=0) == []
    finally:
        ends.set()
        thread.join(10)
    assert threads_left_behind(before, grace_s=0) == []


def test_the_runtime_directory_is_private_short_and_the_default(runtime_dir: Path) -> None:
    assert runtime_dir.stat().st_mode & 0o777 == 0o700
    assert len(str(runtime_dir)) < 60
    assert str(runtime_dir) == os.path.join(os.environ["XDG_RUNTIME_DIR"], "spindle")
