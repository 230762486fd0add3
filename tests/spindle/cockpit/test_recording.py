"""Goal: a recording that is started from the page and ends by itself is told of.

Method: `spindle record` by a stand-in that ends as a full disk makes it end.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spindle.cockpit.recording import Recordings
from spindle.errors import SpindleError
from tests.support import wait_until

FULL = "import sys; sys.stdin.read(1); sys.stderr.write('spindle: the disk is full\\n'); sys.exit(10)"


def test_a_recording_that_ends_by_itself_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once; and it can be begun anew."""
    begun: list[subprocess.Popen[bytes]] = []

    def popen(_: list[str], **more: Any) -> subprocess.Popen[bytes]:
        begun.append(real([sys.executable, "-c", FULL], **{**more, "stdin": subprocess.PIPE}))
        return begun[-1]

    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", popen)
    told: list[tuple[str, str]] = []
    recordings = Recordings(tmp_path, [], lambda *one: told.append(one))
    path = recordings.start("t", 1)
    assert [one["topic"] for one in recordings.running()] == ["t"] and not told
    assert begun[0].stdin is not None
    begun[0].stdin.write(b"x")
    begun[0].stdin.close()
    begun[0].stdin = None
    wait_until(lambda: not recordings.running(), what="the end of the recording")
    assert not recordings.running()
    assert told == [("t", "the recording of topic t has ended by itself, with exit code 10: spindle: the disk is full; "
                          f"what there is, is in {path}")]
    with pytest.raises(SpindleError, match="is not being recorded"):
        recordings.stop("t")
    recordings.start("t", 1)
    recordings.close()
    assert begun[1].poll() is not None and len(told) == 1
