"""Goal: Tab completes commands, options and topic names, and never prints anything else.

Method: click's completion protocol is spoken as the shells' scripts do, with and without a node; the scripts themselves
are given to bash to parse.
"""

from __future__ import annotations

import shutil
import subprocess

import pytest

from spindle.group.topics import TopicSpec
from tests.spindle.cli.support import Cli
from tests.spindle.stand_in import StandInNode


@pytest.fixture
def complete(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    def ask(words: str, at: int) -> list[str]:
        monkeypatch.setenv("_SPINDLE_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(at))
        result = cli()
        assert result.err == ""
        return [line.partition(",")[2] for line in result.out.splitlines() if line]

    return ask


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(cli: Cli, shell: str) -> None:
    result = cli("completion", shell)
    assert result.code == 0 and "_SPINDLE_COMPLETE" in result.out and "spindle" in result.out


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_takes_the_script(cli: Cli) -> None:
    script = cli("completion", "bash").out
    done = subprocess.run(["bash", "-n"], input=script.encode(), capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert "complete" in script


def test_unknown_shell(cli: Cli) -> None:
    assert cli("completion", "tcsh").code == 2


def test_commands_and_options(complete) -> None:
    assert complete("spindle ", 1)[:2] == ["demo", "daemon"]
    assert complete("spindle d", 1) == ["demo", "daemon", "doctor"]
    assert complete("spindle journal v", 2) == ["verify"]
    assert "--history" in complete("spindle sub x --h", 3)


def test_topics_from_the_node(complete, stand_in: StandInNode) -> None:
    for name in ("flight/air", "flight/attitude", "log"):
        stand_in.call(lambda name=name: stand_in.declare_topic(TopicSpec(name)))
    assert complete("spindle sub flight", 2) == ["flight/air", "flight/attitude"]
    assert complete("spindle topics l", 2) == ["log"]
    assert complete("spindle sub --domain 3 flight", 4) == [], "another domain"


def test_no_node_no_names(complete) -> None:
    assert complete("spindle sub ", 2) == []
