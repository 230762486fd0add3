"""Goal: who may only read a topic takes nothing from those who write it. Method: a node in this process, with rules
about this user."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from spindle.client.embedding import embed
from spindle.config.settings import AccessRule, NodeConfig
from spindle.errors import AccessDenied
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec


def test_what_is_on_disk_is_given_up_by_those_who_may_write_it(runtime_dir: Path, tmp_path: Path) -> None:
    """And what is given up is taken back by them. A topic of which nothing is kept is anybody's who may declare it."""
    rule = AccessRule(uid=os.getuid(), publish=("ours",), subscribe=("ours", "theirs", "loose"))
    config = NodeConfig(runtime_dir=runtime_dir, journal_dir=tmp_path, access_rules=(rule,))
    with embed(config=config) as session:
        for name in ("ours", "theirs"):
            session.declare_topic(TopicSpec(name, level=Level.LOGGED))
        session.declare_topic(TopicSpec("loose"))
        for forbidden in (session.redefine_topic, session.delete_topic):
            with pytest.raises(AccessDenied, match="may not publish topic 'theirs'"):
                forbidden("theirs")
        session.redefine_topic("ours")
        session.delete_topic("ours")
        session.delete_topic("loose")
        assert {one.spec.name for one in session.topics()} == {"theirs"}


def test_what_is_forbidden_is_in_the_log_once(runtime_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: an operator sees who asks for what the rules forbid; whoever goes on asking doesn't fill the log."""
    caplog.set_level(logging.WARNING, "spindle.attachment")
    rule = AccessRule(uid=os.getuid(), publish=("ours",))
    with embed(config=NodeConfig(runtime_dir=runtime_dir, access_rules=(rule,)), name="curious") as session:
        for _ in range(5):
            for name in ("secret", "other"):
                with pytest.raises(AccessDenied):
                    session.declare_topic(TopicSpec(name))
    said = [one.getMessage() for one in caplog.records if "refused" in one.getMessage()]
    assert len(said) == 2 and "'curious'" in said[0] and "topic 'secret'" in said[0] and "topic 'other'" in said[1]
