"""What operators ask of a node, and what it tells them of what has happened: a part of what serves an application.

Why for all applications: a page for people, or a command, is a program like others; who may what its permissions say.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spindle.logs import ABOUT_NODES, RECENT
from spindle.proto import attach_pb2 as pb

if TYPE_CHECKING:
    from spindle.node.node import Node
    from spindle.security.access import Permissions

Answer = tuple[pb.Reply, list[int]]


class Operators:
    """The requests of operators, for `spindle.applications.application`."""

    permissions: Permissions
    _node: Node

    async def _list_happenings(self, request: pb.Request) -> Answer:
        found = RECENT.after(request.list_happenings.after)
        if not self.permissions.sees_all:
            shown = {event.name for event in ABOUT_NODES}
            found = [one for one in found if one["event"] in shown]
        return pb.Reply(happenings=pb.HappeningList(json=json.dumps(found))), []

    async def _cast_out(self, request: pb.Request) -> Answer:
        self.permissions.check_operate("cast a node out of the group")
        self._node.operating.cast_out(request.cast_out.node_id, str(self))
        return pb.Reply(done=pb.Done()), []

    async def _leave_group(self, request: pb.Request) -> Answer:
        self.permissions.check_operate("make a node leave the group")
        self._node.operating.ask_to_leave(request.leave_group.node_id, str(self))
        return pb.Reply(done=pb.Done()), []
