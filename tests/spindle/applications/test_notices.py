"""Goal: an application hears of participants and topics what the access rules let it see, as long as they do, and no
more; and nobody takes away what another one has announced.

Method: the real list of announcements and the real rules, with two viewers: one from whom nothing is hidden, and a
stranger with a rule.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from spindle.applications.notices import Notices
from spindle.config.settings import AccessRule, NodeConfig
from spindle.errors import AccessDenied, ConfigError, SpindleError, TopicLimit
from spindle.group.codec import endpoint_to_wire
from spindle.group.endpoints import PARTICIPANT, PORT, TOPIC, Endpoint
from spindle.group.events import Event
from spindle.proto import attach_pb2 as pb
from spindle.security.access import PeerCredentials, Permissions
from spindle.topics.announcements import Announcements

STRANGER = 54321
OWNER = b"owner" + bytes(7)


def guid(number: int, owner: bytes = OWNER) -> bytes:
    return owner + number.to_bytes(4, "big")


class Stage:
    """One node with two viewers: `mine` sees all, `stranger` what has to do with public topics."""

    def __init__(self, **settings: Any) -> None:
        rule = AccessRule(uid=STRANGER, publish=("public/*",), subscribe=("public/*",))
        config = NodeConfig(allow_uids=(STRANGER,), access_rules=(rule,), **settings)
        self.announcements = Announcements(lambda message: None, lambda node_id, message: None, self.tell)
        self.heard: dict[str, list[tuple[str, bytes]]] = {"mine": [], "stranger": []}
        node: Any = SimpleNamespace(
            config=config, node_id=1, announce_endpoint=self.announcements.announce,
            withdraw_endpoint=self.announcements.withdraw, endpoints=self.announcements.list,
            endpoints_of=self.announcements.of_owner)
        self.permissions = {
            "mine": Permissions(config, PeerCredentials(os.getpid(), os.geteuid(), 0, frozenset({0}))),
            "stranger": Permissions(config, PeerCredentials(2, STRANGER, STRANGER, frozenset({STRANGER})))}
        self.viewers: dict[str, Notices] = {}
        for name, one in self.permissions.items():
            self.viewers[name] = Notices(node, f"application {name}", name, one, self.holder)

    def holder(self, guid: bytes) -> Permissions | None:
        return next((self.permissions[name] for name, one in self.viewers.items() if guid in one.own), None)

    def tell(self, event: Event) -> None:
        for name, viewer in self.viewers.items():
            for one in viewer.events(event):
                assert one.endpoint is not None
                self.heard[name].append((one.kind, one.endpoint.guid))

    def news(self, name: str) -> list[tuple[str, bytes]]:
        found, self.heard[name] = self.heard[name], []
        return found

    def elsewhere(self, number: int, topic: str = "", kind: int = PORT, owner: bytes = OWNER) -> None:
        """Another node announces something."""
        self.announcements.heard(2, endpoint_to_wire(Endpoint(guid(number, owner), 2, False, topic, kind=kind)))


def test_participants_come_and_go_with_what_may_be_seen_of_them() -> None:
    stage = Stage()
    stage.elsewhere(0, kind=PARTICIPANT)
    stage.elsewhere(1, "secret")
    assert stage.news("stranger") == []
    assert stage.news("mine") == [("announced", guid(0)), ("endpoint_added", guid(1))]
    assert stage.viewers["stranger"].listed("", True) == []
    stage.elsewhere(2, "public/a")
    assert stage.news("stranger") == [("endpoint_added", guid(2)), ("announced", guid(0))]
    stage.elsewhere(3, "public/b", TOPIC)
    assert stage.news("stranger") == [("announced", guid(3))]
    assert {one.guid for one in stage.viewers["stranger"].listed("", True)} == {guid(0), guid(2), guid(3)}
    assert [one.guid for one in stage.viewers["stranger"].listed("", False)] == [guid(2)]
    stage.announcements.heard_gone(2, guid(2))
    assert stage.news("stranger") == [("endpoint_removed", guid(2))]
    stage.announcements.heard_gone(2, guid(3))
    assert stage.news("stranger") == [("withdrawn", guid(3)), ("withdrawn", guid(0))]
    stage.announcements.drop_node(2)
    assert stage.news("stranger") == []


def test_a_participant_that_is_listed_is_withdrawn() -> None:
    """Whoever lists before anything happens hears of the end of what was listed."""
    stage = Stage()
    stage.elsewhere(1, "public/a")
    stage.elsewhere(0, kind=PARTICIPANT)
    stage.news("stranger")
    late = stage.viewers["stranger"]
    late._shown.clear()
    assert {one.guid for one in late.listed("", True)} == {guid(0), guid(1)}
    stage.announcements.drop_node(2)
    assert stage.news("stranger") == [("endpoint_removed", guid(1)), ("withdrawn", guid(0))]


def test_what_is_ones_own_is_seen() -> None:
    stage = Stage()
    stranger = stage.viewers["stranger"]
    stranger.announce(pb.Announce(guid=guid(0), kind=PARTICIPANT, endpoint=b"x"))
    assert [one.endpoint for one in stranger.listed("", True)] == [b"x"]
    stranger.announce(pb.Announce(guid=guid(0), kind=PARTICIPANT, endpoint=b"y"))
    assert [one.endpoint for one in stranger.listed("", True)] == [b"y"]
    stranger.end()
    assert stage.viewers["mine"].listed("", True) == []
    assert [kind for kind, _ in stage.news("mine")] == ["announced", "announced", "withdrawn"]


def test_what_an_application_may_not_announce() -> None:
    stage = Stage(max_endpoints_per_app=2)
    mine, stranger = stage.viewers["mine"], stage.viewers["stranger"]
    with pytest.raises(AccessDenied, match="may neither publish nor subscribe"):
        stranger.announce(pb.Announce(guid=guid(1), kind=TOPIC, topic="secret"))
    for wrong in (pb.Announce(guid=guid(1), kind=PORT, topic="t"), pb.Announce(guid=guid(1), kind=9, topic="t"),
                  pb.Announce(guid=guid(1), kind=PARTICIPANT, topic="t"), pb.Announce(guid=guid(1), kind=TOPIC),
                  pb.Announce(guid=b"", kind=PARTICIPANT),
                  pb.Announce(guid=guid(1), kind=PARTICIPANT, endpoint=bytes(5000))):
        with pytest.raises(ConfigError):
            mine.announce(wrong)
    mine.announce(pb.Announce(guid=guid(1), kind=TOPIC, topic="public/t"))
    with pytest.raises(AccessDenied, match="is announced already"):
        stranger.announce(pb.Announce(guid=guid(1), kind=TOPIC, topic="public/t"))
    with pytest.raises(SpindleError, match="has announced no topic or participant"):
        stranger.withdraw(guid(1))
    mine.announce(pb.Announce(guid=guid(2), kind=PARTICIPANT))
    mine.announce(pb.Announce(guid=guid(2), kind=PARTICIPANT, endpoint=b"anew"))
    with pytest.raises(TopicLimit, match=r"2 topics and participants, the limit.*max_endpoints_per_app"):
        mine.announce(pb.Announce(guid=guid(3), kind=TOPIC, topic="t"))
    mine.withdraw(guid(1))
    mine.announce(pb.Announce(guid=guid(3), kind=TOPIC, topic="t"))
    assert stage.announcements.list() == [] and len(stage.announcements.list(everything=True)) == 2
