"""What a program sees of the group, by asking and by what it is told: in the end both must be how things are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spindle.group.events import ENDPOINT_ADDED, ENDPOINT_REMOVED, MISSED, VIEW, Event
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle.client.session import Session
    from spindle.group.endpoints import Endpoint
    from spindle_lab.whole.objects import Port
    from spindle_lab.whole.programs import Reading, Writing
    from spindle_lab.whole.world import World


class Watching:
    """What a session's listener was told: it need never ask again."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.endpoints: dict[bytes, Endpoint] = {}
        self.view_id = -1
        self.whole = True  # nothing was missed
        gone = self._gone = set[bytes]()  # meanwhile: the answer may be older than what another thread is told
        session.add_listener(self._heard)
        for endpoint in session.endpoints():
            if endpoint.guid not in gone:
                self.endpoints[endpoint.guid] = endpoint
        self.since = session.view().view_id  # what is told of earlier views says nothing new

    def _heard(self, event: Event) -> None:
        if event.kind == VIEW:
            assert event.view is not None
            if event.view.view_id <= self.view_id:
                raise Violation("M1", f"view {event.view.view_id} is told after view {self.view_id}")
            self.view_id = event.view.view_id
        elif event.kind == ENDPOINT_ADDED:
            assert event.endpoint is not None
            self.endpoints[event.endpoint.guid] = event.endpoint
        elif event.kind == ENDPOINT_REMOVED:
            assert event.endpoint is not None
            self.endpoints.pop(event.endpoint.guid, None)
            self._gone.add(event.endpoint.guid)
        elif event.kind == MISSED:
            self.whole = False


def difference(world: World, session: Session, watching: Watching | None, outside: bool = False) -> str:
    """What the program, on a host without a node if `outside`, is told of the group that isn't so, or isn't so yet."""
    view = session.view()
    members = {slot.node_id for slot in world.nodes if slot.running}
    if set(view.node_ids) != members:
        return f"it sees the members {view.node_ids} of {sorted(members)}"
    seen = {one.guid: (one.is_writer, one.topic, one.app_name) for one in session.endpoints()}
    ports: list[Reading | Writing | Port] = [*world.checks.readings, *world.checks.writings]
    if world.objects is not None:
        ports += world.objects.ports
    there = {one.guid: (one.is_writer, one.topic, one.program.process.name) for one in ports if one.open and one.guid}
    if seen != there:
        return f"of endpoints it sees {_named(seen, there)}, and doesn't see {_named(there, seen)}"
    if watching is not None and watching.whole:
        told = {one.guid: (one.is_writer, one.topic, one.app_name) for one in watching.endpoints.values()}
        if told != there:
            return f"of endpoints it was told {_named(told, there)}, and not {_named(there, told)}"
        if max(watching.view_id, watching.since) != view.view_id:
            return f"of views it was told {watching.view_id} last, and the last one is {view.view_id}"
    there_too = [one for one in world.programs
                 if one.process.alive and one.session is not None and not one.session.gone
                 and (one.session.node_id, one.session.node_pid) == (session.node_id, session.node_pid)]
    here = sorted(one.process.name for one in there_too)
    attached = sorted(one["name"] for one in session.status()["applications"])
    if outside and world.guard is not None:  # of others it is shown what they have open
        needed = {one.process.name for one in there_too if one.readings or one.writings}
        as_it_is = needed <= set(attached) <= set(here)
    else:
        as_it_is = attached == here
    return "" if as_it_is else f"it sees {attached} attached to node {session.node_id}, of {here}"


def _named(these: dict[bytes, tuple[bool, str, str]], without: dict[bytes, tuple[bool, str, str]]) -> list[str]:
    return sorted(f"{'writer' if is_writer else 'reader'} of {topic!r} at {name}"
                  for guid, (is_writer, topic, name) in these.items() if without.get(guid) != (is_writer, topic, name))
