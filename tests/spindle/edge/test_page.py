"""docs/edges.md is true: its commands run as they stand there, with the addresses of a real node, and its file is one.

Method: the page's blocks, in their order, in a shell in a directory of its own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spindle.config.loading import parse_config
from tests.spindle.daemons import Daemon
from tests.support import free_ports, wait_until

PAGE = Path(__file__).resolve().parents[3] / "docs" / "edges.md"
LONG_S = 60.0


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_commands_of_the_page(runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                   "SPINDLE_RUNTIME_DIR": str(runtime_dir / "edge")}

    def shell(text: str) -> str:
        return subprocess.run(["bash", "-ec", text], env=environment, check=True, timeout=LONG_S, text=True,
                              stdout=subprocess.PIPE).stdout

    make_keys, run_edge, use = blocks("sh")
    shell("spindle keys authority site; spindle keys node site --id 1")
    shell(make_keys)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    node = Daemon(1, "--set", f'network.listen="{address}"', "--set", 'network.certificate="site/node-1.crt"', "--set",
                  'network.key="site/node-1.key"', "--set", 'network.authority="site/authority.crt"',
                  runtime_dir=runtime_dir)
    edge = None
    try:
        node.wait_ready()
        assert "host1,host2:7402" in run_edge
        command = "exec " + run_edge.replace("host1,host2:7402", f"127.0.0.1:1,{address}")
        edge = subprocess.Popen(["bash", "-ec", command], env=environment, text=True, stdout=subprocess.PIPE)
        assert edge.stdout is not None
        ready = edge.stdout.readline()
        assert re.fullmatch(r"spindle: edge ready, domain 0, at \S+/domain-0/edge\.sock\n", ready), ready
        said = shell(use)
        assert "2L open\n" in said and "node 1  " in said
        edge.terminate()
        assert edge.wait(LONG_S) == 0
    finally:
        if edge is not None:
            edge.kill()
            edge.communicate()
        node.stop()
    wait_until(lambda: "edge" in node.log)


def test_the_file_of_the_page() -> None:
    (text,) = blocks("toml")
    config = parse_config(text)
    assert config.edge_nodes == ("host1:7402", "host2:7402") and config.certificate is not None
