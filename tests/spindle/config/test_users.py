"""Goal: names of users and groups mean whom the host says at the time, and a name service that hangs hangs no node.

Method: what the host says is the test's.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from spindle.config import users
from spindle.config.settings import NodeConfig
from spindle.config.users import AccessRule, Names
from spindle.errors import NO_THREAD
from tests.support import wait_until


class Host:
    """Users by name. While `answers` is not set, nobody is told anything."""

    def __init__(self) -> None:
        self.users = {"pilot": 1, "crew": 2}
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[str] = []

    def say(self, kind: str, name: str) -> int | None:
        self.asked.append(name)
        self.answers.wait(60)
        return self.users.get(name) if kind == "user" else None


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    host = Host()
    monkeypatch.setattr(users, "_asked", host.say)
    monkeypatch.setattr(users, "_NAMES", Names())
    return host


def test_who_is_made_later_counts_and_who_is_removed_does_not(
        host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "FRESH_S", 0.0)
    config = NodeConfig(allow_users=("pilot", "late"))
    assert config.admits(1, []) and not config.admits(9, [])
    host.users = {"late": 9}
    assert config.admits(9, []) and not config.admits(1, [])
    assert not AccessRule(group="pilot", publish=("*",)).matches(1, [1])


def test_a_name_service_that_hangs_hangs_nobody_and_what_it_said_counts(
        host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(users, "FRESH_S", 0.0)
    monkeypatch.setattr(users, "ANSWER_TIMEOUT_S", 0.01)
    caplog.set_level(logging.WARNING, "spindle.node")
    config = NodeConfig(allow_users=("pilot", "crew"))
    assert not config.admits(9, [])
    host.answers.clear()
    asked = len(host.asked)
    for _ in range(5):
        assert config.admits(2, []) and not config.admits(9, [])
    assert users.uid_of("stranger") is None
    assert len(host.asked) == asked + 1, "who doesn't answer is not asked again"
    assert len(caplog.records) == 1 and "nsswitch" in caplog.text
    host.users["crew"] = 3
    host.answers.set()
    wait_until(lambda: config.admits(3, []))
    assert not config.admits(2, [])


def test_one_decision_asks_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "FRESH_S", 60.0)
    rules = tuple(AccessRule(user="pilot", publish=(topic,)) for topic in "abcdefgh")
    config = NodeConfig(access_rules=rules)
    assert config.may_publish(1, [], "h") and not config.may_publish(1, [], "x")
    assert host.asked == ["pilot"]


def test_without_a_thread_it_is_asked_all_the_same(host: Host) -> None:
    with patch.object(threading.Thread, "start", side_effect=RuntimeError(NO_THREAD)):
        assert users.uid_of("pilot") == 1


def test_the_users_of_this_host() -> None:
    name = next(line.split(":")[0] for line in Path("/etc/group").read_text().splitlines() if line)
    assert users.uid_of("root") == 0 and users.gid_of(name) is not None
    assert users.uid_of("nobody-of-that-name") is users.gid_of("nobody-of-that-name") is None


def test_what_no_name_can_be_is_nobody() -> None:
    """It ended the thread that asks, with a traceback."""
    assert users._asked("user", "a\0b") is None
    assert users._asked("group", "\ud800") is None
