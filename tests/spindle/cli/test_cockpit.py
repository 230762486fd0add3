"""Goal: `spindle cockpit` says what is missing, with the exit code that scripts go by.

Method: in this process, where no node is, and with a package that can't be found. What it serves is tested in
tests/spindle/cockpit.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from spindle.errors import ConfigError, NoDaemon
from spindle.service.web import check_installed
from tests.spindle.cli.support import Cli
from tests.spindle.daemons import daemons


def test_without_a_daemon(cli: Cli, runtime_dir: Path) -> None:
    result = cli("cockpit")
    assert result.code == NoDaemon.exit_code and "spindle daemon" in result.err


def test_without_its_package(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without(name: str, *more: Any) -> Any:
        return None if name == "aiohttp" else find(name, *more)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    result = cli("cockpit")
    assert result.code == 1 and "pip install aiohttp" in result.err
    with pytest.raises(ConfigError, match="pip install aiohttp"):
        check_installed()


@pytest.mark.slow
def test_an_address_for_others_takes_certificates(cli: Cli, runtime_dir: Path) -> None:
    with daemons(runtime_dir, 1):
        result = cli("cockpit", "--listen", "0.0.0.0:0")
        assert result.code == ConfigError.exit_code and "takes TLS" in result.err
        result = cli("cockpit", "--listen", "nowhere")
        assert result.code == ConfigError.exit_code
