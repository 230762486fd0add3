"""Goal: what one application has announced no other one takes away, at whatever node it is.

Method: the list of one node, told by two others.
"""

from __future__ import annotations

import pytest

from spindle.errors import AccessDenied
from spindle.group.codec import endpoint_to_wire
from spindle.group.endpoints import Endpoint
from spindle.group.events import Event
from spindle.topics.announcements import Announcements

GUID = bytes(range(16))


def endpoint(node_id: int) -> Endpoint:
    return Endpoint(guid=GUID, node_id=node_id, is_writer=True, topic="t", endpoint=b"", app_name="a", pid=1)


def test_a_guid_is_its_first_holders_alone() -> None:
    told: list[Event] = []
    announcements = Announcements(lambda message: None, lambda node_id, message: None, told.append)
    announcements.heard(2, endpoint_to_wire(endpoint(2)))
    announcements.heard(3, endpoint_to_wire(endpoint(3)))
    with pytest.raises(AccessDenied, match="node 2"):
        announcements.announce(endpoint(1))
    announcements.heard_gone(3, GUID)
    assert [one.node_id for one in announcements.list()] == [2] and len(told) == 1
    announcements.drop_node(2)
    announcements.announce(endpoint(1))
    announcements.heard(3, endpoint_to_wire(endpoint(3)))
    announcements.drop_node(3)
    assert [one.node_id for one in announcements.list()] == [1] and len(told) == 3
