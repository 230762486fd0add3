"""Compares everything that all readers of a round got with what was written, and with itself. What the group itself
did is looked at in `group_checks`.

Why it can be trusted: it knows nothing of the protocol. It has lists of what was written and of what was delivered, and
says which promise two of them break. Each check is a function; each has a test with a fabricated history that breaks
just its promise. Properties have the names of docs/reliability.md.

What is compared:
- A reader keeps all, so what one life of it got is a *run*: a piece of the group's order without holes. All runs of a
  group must be pieces of one order, whether their node lived on or not (D2, D5, D6, D7, D8, D9).
- What a writer was told is acknowledged, every reader that was there and lived on has got (D10, D11).
- What it was told is persisted is in the order that the logged topic has at the end of the round, after all
  restarts; this order never goes backwards, and of each group that died altogether it holds a beginning (P1, P2, P4).
  The same holds where all that had the topic died and the group lived on: the checker believes the journals about which
  message was the last then, if nobody who lived on had more.
- No group is of use once another one exists (M4), and nothing of the old one appears in the new one (S32).
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spindle_lab.chaos.group_checks import (
    daemons_end_as_they_should,
    endpoints,
    formations,
    has_failed,
    one_group_at_a_time,
    unexplained_suspicions,
    views_agree,
    views_have_majorities,
)
from spindle_lab.chaos.history import (
    DRAINED,
    LOGGED,
    LOST,
    DaemonLife,
    Delivery,
    History,
    Key,
    Place,
    Reader,
    Session,
    TopicPlan,
    Writer,
)
from spindle_lab.chaos.violation import Violation, some

if TYPE_CHECKING:
    from spindle.restart.chain import Standing

TOLD_WITHIN_S = 5.0
"""How long after the end of its node an application may go without knowing. What is promised is one second; this
leaves room for a machine that does many other things, and still finds an application that is never told."""

AUDIT = "audit"
"""Lives of the readers that fetch the whole history at the end begin with this."""




def check(history: History) -> list[Violation]:
    """Everything that is not as promised; empty if all is well."""
    return [violation for one in CHECKS for violation in one(history)]


def deliveries_are_genuine(history: History) -> Iterator[Violation]:
    """D1, D3: whatever is delivered was written, whole, to this topic, by a writer at the node that is named as its
    sender; S32: and in this group, unless the topic is logged."""
    for reader in history.readers.values():
        for text in reader.damaged:
            yield Violation("D1", f"{reader} got {text}")
        wrong: dict[str, list[Key]] = defaultdict(list)
        for one in reader.deliveries:
            reason = _why_foreign(history, reader, one)
            if reason:
                wrong[reason].append(one.key)
        for reason, keys in wrong.items():
            yield Violation(reason[:2] if reason[0] == "D" else "S32", f"{reader}: {reason[4:]}: {some(keys)}")


def _why_foreign(history: History, reader: Reader, one: Delivery) -> str:
    writer = history.writers.get(one.key.epoch)
    if writer is None or writer.topic != reader.topic:
        return f"D1: of no writer of {reader.topic}"
    if one.key.number >= writer.attempted:
        return f"D1: writer {writer.epoch} has only tried {writer.attempted}"
    if writer.external:
        return ""
    if one.node != writer.session.node:
        return f"D3: said to be from node {one.node}, written at node {writer.session.node}"
    may_cross = reader.strayed or history.topics[reader.topic].kind == LOGGED
    if writer.session.group not in reader.groups and not may_cross:
        return f"S32: written in group {writer.session.group}, delivered in group {reader.session.group}"
    return ""


def senders_are_in_order(history: History) -> Iterator[Violation]:
    """D2, D5, D7 within one reader: of each writer every message, once, in its order; from the first one on, if the
    reader was there before the writer. Readers of unordered topics may be overtaken if they count it."""
    for reader in history.readers.values():
        if reader.overtaken and history.topics[reader.topic].ordered and not reader.moves:
            yield Violation("D7", f"{reader} of {reader.topic} keeps all, and counts {reader.overtaken} as lost")
        seen: set[Key] = set()
        again: list[Key] = []
        last: dict[int, int] = {}
        for one in reader.deliveries:
            epoch, number = one.key
            if (reader.moves or reader.crossed) and history.is_external(one.key):
                continue  # what it saw at a node that died with all that had it comes again
            if one.key in seen:
                # Nobody knows which unordered messages a reader saw at another node: some may still be on their way.
                if not reader.moves or history.topics[reader.topic].ordered:
                    again.append(one.key)
                continue
            seen.add(one.key)
            writer = history.writers.get(epoch)
            if epoch in last:
                expected = last[epoch] + 1
            else:
                early = writer is not None and reader.opened < writer.opened
                expected = 0 if early else number
            last[epoch] = number
            if number < expected:
                yield Violation("D5", f"{reader} got {one.key} of {reader.topic} after number {expected - 1}")
            elif number > expected and not (reader.overtaken or reader.crossed):
                yield Violation("D7", f"{reader} of {reader.topic} missed {epoch}#{expected} to {number - 1}")
        if again:
            yield Violation("D2", f"{reader} got {len(again)} of {reader.topic} twice: {some(again)}")


def places_rise(history: History) -> Iterator[Violation]:
    """D6: the places in the order of what a reader gets only rise, views included; also where it went on at another
    node, and for logged topics in another group."""
    for reader in history.readers.values():
        if not history.topics[reader.topic].ordered or (reader.crossed and history.topics[reader.topic].kind != LOGGED):
            continue
        for before, after in zip(reader.deliveries, reader.deliveries[1:], strict=False):
            if after.place <= before.place:
                yield Violation("D6", f"{reader} of {reader.topic} got {after.key} at {after.place}, after "
                                      f"{before.key} at {before.place}")
                break


def orders_agree(history: History) -> Iterator[Violation]:
    """D6: in one group a place of a topic's order holds one message, and a message has one place."""
    for (group, topic), readers in _by_group(history).items():
        at: dict[Place, tuple[Key, Reader]] = {}
        of: dict[Key, tuple[Place, Reader]] = {}
        for reader in readers:
            for one in reader.deliveries:
                key, other = at.setdefault(one.place, (one.key, reader))
                place, another = of.setdefault(one.key, (one.place, reader))
                if key != one.key:
                    yield Violation("D6", f"group {group}, {topic}, place {one.place}: {other} got {key}, {reader} "
                                          f"got {one.key}")
                    break
                if place != one.place and _is_final(history, one.key, (another, reader)):
                    yield Violation("D2", f"group {group}, {topic}, message {key}: {another} got it at {place}, "
                                          f"{reader} at {one.place}")
                    break


def _is_final(history: History, key: Key, readers: Sequence[Reader]) -> bool:
    """True if the message can't have been lost at one of its places with all members of the topic that had it: what an
    external writer wrote is sent again then."""
    return not history.is_external(key) or all(one.end == DRAINED and not one.moves for one in readers)


def runs_have_no_holes(history: History) -> Iterator[Violation]:
    """D7, D8, D9: of everything that anybody in the group was given, crashed members included, a reader has all
    between its first and its last; all of the views after it was opened; and all to the end if it lived on."""
    for (group, topic), readers in _by_group(history).items():
        order = merged(readers)
        places = sorted(place for place in order if not _may_be_lost(history, topic, place))
        for reader in readers:
            if reader.moves and reader.overtaken:
                continue  # it says itself that there may be holes
            got = {one.place for one in reader.deliveries}
            first = bisect.bisect_left(places, Place(reader.view + 1, 0))
            if reader.deliveries:
                first = min(first, bisect.bisect_left(places, min(got)))
            end = bisect.bisect_right(places, max(got)) if got else 0
            if reader.end == DRAINED:
                end = len(places)
            missed = [place for place in places[first:end] if place not in got]
            if missed:
                yield Violation("D9", f"{reader} of {topic} in group {group} missed {len(missed)} that others got: "
                                      + some([f"{order[place]} at {place}" for place in missed]))


def unordered_is_complete(history: History) -> Iterator[Violation]:
    """D7 for unordered topics: readers that were there before the writer and lived on got the same of it, if its node
    lived on, too. What a node that goes had on its way may reach some readers and not others."""
    lives = {one.pid: one for one in history.daemons}
    drained: dict[tuple[str, str], list[Reader]] = defaultdict(list)
    for reader in history.readers.values():
        whole = reader.end == DRAINED and not (reader.overtaken or reader.crossed)
        if whole and not history.topics[reader.topic].ordered:
            drained[reader.session.group, reader.topic].append(reader)
    for readers in drained.values():
        for epoch in {epoch for reader in readers for epoch in reader.counts}:
            most = max(readers, key=lambda one: one.counts[epoch])
            writer = history.writers.get(epoch)
            for reader in readers:
                if writer is None or writer.opened < reader.opened or reader.counts[epoch] == most.counts[epoch]:
                    continue
                life = lives.get(writer.session.pid)
                if life is None or _is_gone(life) or _was_born_again(history, writer.session):
                    continue
                yield Violation("D7", f"{reader} of {reader.topic} got {reader.counts[epoch]} messages of writer "
                                      f"{epoch}, {most} got {most.counts[epoch]}")


def acknowledged_is_delivered(history: History) -> Iterator[Violation]:
    """D10, D11: what a writer was told is acknowledged has reached every reader that was there and lived on."""
    for writer in history.writers.values():
        count = max((count for _, count in writer.acked), default=0)
        yield from _must_have(history, writer, count, "was acknowledged")


def survivors_keep_their_word(history: History) -> Iterator[Violation]:
    """D10: what was written at a node that lived on, or left in order, is delivered, however its application ended."""
    lives = {one.pid: one for one in history.daemons}
    for writer in history.writers.values():
        life = lives.get(writer.session.pid)
        if writer.end == LOST or life is None or _is_gone(life) or _was_born_again(history, writer.session):
            continue
        yield from _must_have(history, writer, writer.accepted, "was written at a node that lived on")


def _is_gone(life: DaemonLife) -> bool:
    return life.ended > 0 and not (life.asked == "leave" and life.code == 0)


def _was_born_again(history: History, session: Session) -> bool:
    """True if the process has begun another incarnation: then it was cast out of the group that this session knew."""
    return any(
        other.pid == session.pid and other.incarnation != session.incarnation
        for one in endpoints(history)
        for _, other in one.sightings
    )


def _must_have(history: History, writer: Writer, count: int, why: str) -> Iterator[Violation]:
    """Violations for the readers that should have the message before `count` and don't. Those before that one
    follow, since runs have no holes."""
    if not count:
        return
    key = Key(writer.epoch, count - 1)
    tried = writer.tried_at(key.number)
    for reader in history.readers.values():
        if (
            reader.topic == writer.topic
            and reader.session.group == writer.session.group
            and reader.end == DRAINED
            and not (reader.overtaken or reader.crossed)
            and reader.opened < tried
            and key not in reader.keys
        ):
            yield Violation("D10", f"{key} of {writer.topic} {why}, and {reader} never got it")


def the_log_survives(history: History) -> Iterator[Violation]:
    """P1, P2, P4 for logged topics: at the end all nodes tell the same history; it rises; it has all that was
    acknowledged as persisted; and of what any reader or journal ever had, it has a beginning."""
    for topic in history.topics.values():
        audits = [one for one in history.readers.values() if one.topic == topic.name and _is_audit(one)]
        if topic.kind == LOGGED and audits:
            yield from _log_of(history, topic, audits)


def _is_audit(reader: Reader) -> bool:
    return reader.life.startswith(AUDIT) and reader.end == DRAINED


def _log_of(history: History, topic: TopicPlan, audits: list[Reader]) -> Iterator[Violation]:
    longest = max(audits, key=lambda one: len(one.deliveries))
    log = [one.key for one in longest.deliveries]
    for audit in audits:
        if [one.key for one in audit.deliveries] != log:
            difference = _first_difference(audit.deliveries, longest.deliveries)
            yield Violation("P3", f"{audit} and {longest} have another history of {topic.name}: "
                                  f"{len(audit.deliveries)} and {len(log)} messages, {difference}")
    at = {key: place for place, key in enumerate(log)}
    # What an external writer wrote and no disk had in the end is in the log all the same, but further on.
    at_local = {key: place for place, key in enumerate(key for key in log if not history.is_external(key))}
    for writer in history.writers.values():
        if writer.topic == topic.name:
            lost = [Key(writer.epoch, number) for number in range(writer.persisted)
                    if Key(writer.epoch, number) not in at]
            if lost:
                yield Violation("P1", f"{len(lost)} of {topic.name} were acknowledged as persisted and are gone: "
                                      f"{some(lost)}")
    for reader in history.readers.values():
        if reader.topic == topic.name and reader not in audits and not reader.overtaken:
            deliveries = [one for one in _without_lost_ends(history, reader, at) if not history.is_external(one.key)]
            same_group = reader.session.group == longest.session.group
            yield from _is_beginning(str(reader), topic.name, deliveries, at_local, whole=same_group)
            yield from _lived_through(history, reader, at)
    for node, journal in history.journals.items():
        yield from _is_beginning(f"the journal of node {node}", topic.name, journal, at, whole=True)
        if journal and log and journal[-1].key != log[-1]:
            yield Violation("P1", f"the journal of node {node} ends with {journal[-1].key}, {topic.name} with "
                                  f"{log[-1]}")


def differing_lives(topic: str, standings: Mapping[int, Standing]) -> Iterator[Violation]:
    """P4: nodes that hold a topic together, and are whole, tell the same lives of it."""
    whole = {node: one for node, one in standings.items() if one.whole and one.holders is not None}
    for one, other in itertools.combinations(sorted(whole), 2):
        if whole[one].holders == whole[other].holders and whole[one].lives != whole[other].lives:
            yield Violation("P4", f"nodes {one} and {other} hold {topic} together, and tell other lives of it: "
                                  f"{whole[one].lives} and {whole[other].lives}")


def _may_be_lost(history: History, topic: str, place: Place) -> bool:
    """True between the end of one life of a logged topic and the beginning of the next: all that had it died."""
    return any(one.after < place < Place(one.first_view, 0) for one in history.topic_lives.get(topic, ()))


def _without_lost_ends(history: History, reader: Reader, at: dict[Key, int]) -> list[Delivery]:
    """What a reader got, without what was delivered and on no disk yet when all that had the topic died: between two
    lives of the topic; and, for a reader that went on in another group, at the end of what each earlier group had
    written, as far as the log doesn't have it."""
    lasting = [one for one in reader.deliveries
               if one.key in at or not _may_be_lost(history, reader.topic, one.place)]
    if not reader.crossed:
        return lasting

    def group_of(one: Delivery) -> str:
        writer = history.writers.get(one.key.epoch)
        return writer.session.group if writer is not None else ""

    kept: list[Delivery] = []
    for group, run in itertools.groupby(lasting, group_of):
        deliveries = list(run)
        while group != reader.session.group and deliveries and deliveries[-1].key not in at:
            deliveries.pop()
        kept += deliveries
    return kept


def _lived_through(history: History, reader: Reader, at: dict[Key, int]) -> Iterator[Violation]:
    """A new life of the topic began without messages that were delivered at a node that lived on in its group."""
    if reader.moves:
        return  # nobody knows at which of its nodes it got what
    for life in history.topic_lives.get(reader.topic, ()):
        lost = [one.key for one in reader.deliveries
                if one.key not in at and life.after < one.place < Place(life.first_view, 0)]
        began = min((one.at for one in history.views if one.session.group == life.group == reader.session.group
                     and one.view >= life.first_view), default=None)
        if lost and began is not None and not _has_gone_by(history, reader.session, began):
            yield Violation("P2", f"{reader} of {reader.topic} had {some(lost)} and lived on when the topic began "
                                  f"again without, in view {life.first_view}")


def _has_gone_by(history: History, session: Session, at: int) -> bool:
    """True if this life of the node was over by then, or on its way out of the group."""
    lives = [one for one in history.daemons if one.pid == session.pid]
    return _was_born_again(history, session) or any(
        one.asked == "leave" or has_failed(one) or 0 < one.ended <= at for one in lives)


def _is_beginning(who: str, topic: str, deliveries: Sequence[Delivery], at: dict[Key, int], whole: bool
                  ) -> Iterator[Violation]:
    """A run of the log, and after it at most messages that it doesn't have (none if it must be `whole`)."""
    kept = [(at[one.key], one.key) for one in deliveries if one.key in at]
    lost = [one.key for one in deliveries if one.key not in at]
    for (before, _), (place, key) in itertools.pairwise(kept):
        if place != before + 1:
            promise = "P4" if any(two < one for (one, _), (two, _) in itertools.pairwise(kept)) else "P2"
            yield Violation(promise, f"{who} of {topic} has {key} (number {place} of the log) after number {before}")
            return
    if lost and any(one.key in at for one in deliveries[-len(lost) :]):
        yield Violation("P2", f"{who} of {topic} had {some(lost)} before {kept[-1][1]}, of which only this is left")
        return
    if lost and whole:
        yield Violation("P2", f"{who} of {topic} ends with {some(lost)}, which nobody else has")


def applications_are_told(history: History) -> Iterator[Violation]:
    """An application whose node has ended knows it soon; and none met anything that the API doesn't announce."""
    for delay_s, one in told_delays(history):
        if delay_s > TOLD_WITHIN_S:
            yield Violation("told", f"an application of node {one.session.node} learned only {delay_s:.1f} s later "
                                    "that its daemon had ended")
    for text, times in Counter(history.trouble).items():
        yield Violation("trouble", text if times == 1 else f"{times} times: {text}")


def told_delays(history: History) -> list[tuple[float, Reader | Writer]]:
    """How long after the end of its daemon each reader and writer was told, s; those that go on elsewhere are not."""
    ended = {one.pid: one.ended for one in history.daemons if one.ended}
    return [((one.ended - ended[one.session.pid]) / 1e9, one) for one in endpoints(history)
            if one.end == LOST and one.session.pid in ended and not (isinstance(one, Reader) and one.wanders)]


def merged(readers: Iterable[Reader]) -> dict[Place, Key]:
    """Everything that any of the readers got, by its place."""
    return {one.place: one.key for reader in readers for one in reader.deliveries}


def _ordered(history: History) -> list[Reader]:
    """Readers of ordered topics that were in one group all the time."""
    return [one for one in history.readers.values() if history.topics[one.topic].ordered and not one.crossed]


def _by_group(history: History) -> dict[tuple[str, str], list[Reader]]:
    found: dict[tuple[str, str], list[Reader]] = defaultdict(list)
    for reader in _ordered(history):
        found[reader.session.group, reader.topic].append(reader)
    return found


def _first_difference(one: Sequence[Delivery], other: Sequence[Delivery]) -> str:
    for place, (left, right) in enumerate(zip(one, other, strict=False)):
        if left.key != right.key:
            return f"first at number {place}: {left.key} and {right.key}"
    return "one is the beginning of the other"


CHECKS = (
    deliveries_are_genuine,
    senders_are_in_order,
    places_rise,
    orders_agree,
    runs_have_no_holes,
    unordered_is_complete,
    acknowledged_is_delivered,
    survivors_keep_their_word,
    the_log_survives,
    views_agree,
    one_group_at_a_time,
    views_have_majorities,
    daemons_end_as_they_should,
    applications_are_told,
)

__all__ = ["CHECKS", "Violation", "check", "formations", "merged", "told_delays", "unexplained_suspicions"]
