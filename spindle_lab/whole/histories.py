"""What late readers must have got of what was before them.

    H1  a reader that asks for the history of a topic gets all of it, as far as it fits the logs: at least what any
        reader has taken that opened before it and is still there
    H2  a reader that asks for none gets nothing from before its node became a member of the topic
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle_lab.whole.checks import Checks
    from spindle_lab.whole.programs import Reading

RECORD_COST = 128  # bytes that a message is taken to need in a log beside its payload


def look(checks: Checks) -> None:
    """When everybody has everything. Raises Violation."""
    for reading in checks.readings:
        if reading.ordered and not reading.from_history and not reading.compact and (
                reading.taken and reading.taken[0][0] < reading.entered):
            raise Violation("H2", f"{reading} asked for no history and takes {reading.taken[0]}, but its node became a "
                                  f"member with view {reading.entered}")
    if text := lacking(checks):
        raise Violation("H1", text)


def lacking(checks: Checks) -> str:
    """H1: what some reader has not got of the history that it asked for, if anything. A slow disk takes a while."""
    for reading in checks.readings:
        if reading.handle.topic.spec.effects:
            continue  # see spindle_lab.whole.tables
        if reading.keeps_history and reading.from_history and reading.keep_all and not reading.lost() and reading.open:
            if text := _lacks(checks, reading):
                return text
    return ""


def _lacks(checks: Checks, reading: Reading) -> str:
    order = checks.orders.get((reading.group_id, reading.topic), {})
    if sum(len(payload) + RECORD_COST for _, payload in order.values()) > reading.capacity // 2:
        return ""
    for other in checks.readings:
        if (other.topic == reading.topic and other.group_id == reading.group_id and other.open and other.taken
                and other.keep_all and not other.lost() and other.opened_ns < reading.asked_ns
                and not reading.program.world.renewals.is_older(reading.topic, other.taken[0][0])
                and (not reading.taken or reading.taken[0] > other.taken[0])):
            return (f"{reading} asked for the history, and its first message is {reading.taken[:1]}; {other} was there "
                    f"before, and took {other.taken[0]}")
    return ""
