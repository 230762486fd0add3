"""What a round shows of the group itself: its views, that there is one group at a time, and how its daemons end.

Each check is a function that says which promise a history breaks, as those of `checker`, which calls them all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from spindle.errors import CastOut
from spindle_lab.chaos.history import DaemonLife, History, Reader, Session, Writer
from spindle_lab.chaos.violation import SHOWN, Violation


def views_agree(history: History) -> Iterator[Violation]:
    """M1, M3, M5: one view id means the same members everywhere, oneself among them; and views only rise."""
    members: dict[tuple[str, int], tuple[tuple[int, ...], Session]] = {}
    last: dict[tuple[str, int, int], int] = {}
    for seen in history.views:
        session = seen.session
        if session.node not in seen.members:
            yield Violation("M1", f"node {session.node} was told of view {seen.view} of {seen.members}, without itself")
        known, other = members.setdefault((session.group, seen.view), (seen.members, session))
        if known != seen.members:
            yield Violation("M5", f"view {seen.view} of group {session.group}: {known} at node {other.node}, "
                                  f"{seen.members} at node {session.node}")
        life = (seen.source, session.pid, session.incarnation)
        if seen.view < last.get(life, -1):
            yield Violation("M3", f"{seen.source} at node {session.node} was told of view {seen.view} after "
                                  f"{last[life]}")
        last[life] = seen.view


def one_group_at_a_time(history: History) -> Iterator[Violation]:
    """M4: nothing is acknowledged in a group that was written after another, later group had formed."""
    formed = formations(history)
    for writer in history.writers.values():
        group = writer.session.group
        if writer.external:
            continue  # it may be acknowledged in a later group
        later = [other for other, at in formed.items() if at > formed[group]]
        for other in later:
            for _, count in writer.acked:
                if count and writer.tried_at(count - 1) > formed[other]:
                    yield Violation("M4", f"{writer.epoch}#{count - 1} of {writer.topic} was acknowledged in group "
                                          f"{group}, though group {other} existed when it was written")
                    break


def views_have_majorities(history: History) -> Iterator[Violation]:
    """M4: of a view's members that have not certainly ended, more than half go on to the next view."""
    first: dict[tuple[str, int], tuple[int, tuple[int, ...]]] = {}
    for seen in history.views:
        place = (seen.session.group, seen.view)
        if place not in first or seen.at < first[place][0]:
            first[place] = (seen.at, seen.members)
    for (group, view), (_, members) in first.items():
        following = first.get((group, view + 1))
        if following is None:
            continue
        staying = set(members) & set(following[1])
        ended = [node for node in set(members) - staying if _has_ended(history, group, view, node, following[0])]
        if 2 * len(staying) <= len(members) - len(ended):
            yield Violation("M4", f"group {group}: of view {view} {members} only {sorted(staying)} went on to view "
                                  f"{view + 1} {following[1]}, while only {ended} had ended")


def _has_ended(history: History, group: str, view: int, node: int, by: int) -> bool:
    """True if the life of the node that was a member of the view was over at `by`, or said farewell. A view may be
    installed with members that are dead already: then nobody at that node has seen it, and any life will do."""
    there = {one.session.pid for one in history.views
             if (one.session.group, one.view, one.session.node) == (group, view, node)}
    lives = [one for one in history.daemons if one.node == node and (one.pid in there or not there)]
    # Who fails says so before it ends.
    return any(one.asked == "leave" or has_failed(one) or 0 < one.ended <= by for one in lives)


def daemons_end_as_they_should(history: History) -> Iterator[Violation]:
    """A daemon ends only when it is told to, with the exit code for that, and its log shows no defect. A daemon that
    nothing stopped may be cast out all the same (M6): a machine may keep a process from running for as long."""
    expected = {"kill": {-9}, "leave": {0}, "": set()}
    for life in history.daemons:
        fine = expected[life.asked] | life.excused | {CastOut.exit_code}
        if life.asked == "leave" and has_failed(life):
            fine = fine | {-15}  # told to leave when it was about to end, and didn't listen to signals any more
        if life.ended and life.code not in fine:
            yield Violation("exit", f"{life} ended with code {life.code}{_last_line(life)}")
        for line in _suspicious_lines(life):
            yield Violation("log", f"{life} says: {line}")


def unexplained_suspicions(history: History) -> int:
    """Daemons that were cast out though nothing had stopped them."""
    return sum(one.code == CastOut.exit_code and CastOut.exit_code not in one.excused for one in history.daemons)


def has_failed(life: DaemonLife) -> bool:
    """True if it has said that it ends by itself."""
    return (life.code or 0) > 0 or any(" ERROR " in line for line in _lines(life))


def _lines(life: DaemonLife) -> list[str]:
    if life.log is None or not life.log.is_file():
        return []
    return life.log.read_text(errors="replace").splitlines()


def _last_line(life: DaemonLife) -> str:
    lines = _lines(life)
    return f": {lines[-1]}" if lines else ""


def _suspicious_lines(life: DaemonLife) -> list[str]:
    marks = ("Traceback (most recent call last)", "defect of Spindle", "was never awaited", "was never retrieved")
    lines = _lines(life)
    found = []
    for place, line in enumerate(lines):
        if any(mark in line for mark in marks):
            end = next((one for one in lines[place + 1 :] if one[:1] not in (" ", "")), "")
            found.append(f"{line} ... {end}")
    return found[:SHOWN]


def formations(history: History) -> dict[str, int]:
    """When each group was first seen."""
    formed: dict[str, int] = {}
    sightings = [(one.at, one.session) for one in history.views]
    for at, session in itertools.chain(sightings, *(one.sightings for one in endpoints(history))):
        formed[session.group] = min(at, formed.get(session.group, at))
    return formed


def endpoints(history: History) -> list[Reader | Writer]:
    """All readers and writers of a round."""
    return [*history.readers.values(), *history.writers.values()]
