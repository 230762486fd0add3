"""What the disks hold at the end of a run, whatever failed before.

    P1  what somebody was told to be persisted is in the journal of each whole holder of the topic
    P2  no journal is damaged: a crash leaves at worst a torn tail
    P4  journals that have lived the same lives hold the same, as far as both go
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from spindle.errors import JournalError
from spindle.group.levels import Level
from spindle.journal.files import OsFiles
from spindle.restart.chain import NOTHING, Order, Standing, known_of
from spindle.restart.disk import Store, messages_after
from spindle.restart.ledger import Ledger
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle_lab.whole.world import World

EVERYTHING: Order = (1 << 62, 0)
LEAST_HELD = 20_000  # bytes; `log_capacity` in a run, less the largest message, is more
RECORD_COST = 128


def look(world: World) -> None:
    """Raises Violation."""
    for spec in world.all_specs:
        if spec.level is Level.LOGGED:
            _look_at(world, spec.name)


def _look_at(world: World, topic: str) -> None:
    standings: dict[int, Standing] = {}
    held: dict[int, dict[Order, bytes]] = {}
    for slot in world.nodes:
        if slot.process is None:
            continue
        directory = world.base / slot.host / f"journal-{slot.node_id}"
        try:
            with world.system.within(slot.process):
                standings[slot.node_id] = Ledger(directory, topic, slot.node_id).read()
                held[slot.node_id] = _content(directory, topic, slot.node_id)
                if world.checks.types.look_at_journal(directory, topic, slot.node_id):
                    world.met("a journal has the types of its messages")
        except JournalError as error:
            raise Violation("P2", f"the journal of node {slot.node_id}: {error}") from error
    for one, other in itertools.combinations(sorted(held), 2):
        if standings[one].lives == standings[other].lives:
            _compare(topic, one, held[one], other, held[other])
    known = known_of(standings)
    if not known:
        return
    for node_id in known[-1].holders.members:
        standing = standings.get(node_id, Standing())
        if standing.whole and standing.holders == known[-1].holders:
            there = set(held[node_id].values())
            # A node that had no journal got only the end of another node's, but no less than a log holds.
            enough = sum(len(payload) + RECORD_COST for payload in held[node_id].values()) > LEAST_HELD
            begin = min(held[node_id]) if enough else NOTHING
            # A group that began without anybody of an earlier group, and the topic anew, holds nothing of that group.
            lived = {life.group_id for life in standing.lives}
            for (group_id, name), order in world.checks.orders.items():
                if group_id not in lived:
                    continue
                lost = [at for at, (_, payload) in sorted(order.items()) if begin <= at and payload not in there
                        and world.checks.was_safe((group_id, name), at)]
                if name == topic and lost:
                    raise Violation("P1", f"{lost[:5]} ({len(lost)} in all) of topic {topic!r} were persisted, and "
                                          f"node {node_id}, which holds it, has them no more")


def _content(directory: Path, topic: str, node_id: int) -> dict[Order, bytes]:
    store = Store(directory, topic, node_id, OsFiles())
    return {(one.view_id, one.sequence): one.payload for one in messages_after(store, NOTHING, EVERYTHING)}


def _compare(topic: str, one: int, mine: dict[Order, bytes], other: int, theirs: dict[Order, bytes]) -> None:
    if not mine or not theirs:
        return
    first, last = max(min(mine), min(theirs)), min(max(mine), max(theirs))
    here, there = ({at: payload for at, payload in held.items() if first <= at <= last} for held in (mine, theirs))
    if here != there:
        at = min(here.items() ^ there.items())[0]
        raise Violation("P4", f"at {at} of topic {topic!r} the journal of node {one} has {here.get(at)!r}, that of "
                              f"node {other} {there.get(at)!r}, and their lives are the same")
