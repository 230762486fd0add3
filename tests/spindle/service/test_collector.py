"""Goal: what applications leave behind in a daemon is found soon, and cheaply. Method: a whole daemon in a process of
its own that looks at its collector."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

DAEMON = """
    import gc, json, os, signal, sys, threading
    from pathlib import Path
    from spindle.config.settings import NodeConfig
    from spindle.service.daemon import run_daemon

    serving = threading.Event()

    def look():
        serving.wait(30)
        print(json.dumps({"frozen": gc.get_freeze_count(), "looked at": len(gc.get_objects())}), flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

    class Out:
        def write(self, text):
            sys.__stdout__.write(text)
            if "ready" in text:
                threading.Timer(0.5, serving.set).start()
        def flush(self):
            sys.__stdout__.flush()

    threading.Thread(target=look, daemon=True).start()
    sys.stdout = Out()
    sys.exit(run_daemon(NodeConfig(node_id=1, runtime_dir=Path(sys.argv[1]))))
"""


@pytest.mark.slow
def test_a_daemon_that_is_up_looks_at_what_is_new_only(runtime_dir: Path) -> None:
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(DAEMON), str(runtime_dir)], capture_output=True,
                         text=True, timeout=60, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["frozen"] > 10_000 and found["looked at"] < found["frozen"] / 4
