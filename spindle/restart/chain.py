"""The values that a restart of a logged topic is about, and the two questions asked of them.

Words:
- An *order* is (view id, sequence number): a message's place in its topic. View ids go on rising over restarts of the
  group (see `spindle.restart.ledger.view_floor`), so orders of one topic always compare.
- A *life* of a topic begins when its members take it up from journals (or from nothing), and ends when the last of them
  is gone. Journals whose lives are the same are prefixes of one sequence; where their lives part, so do their messages.
  All who have a life have the same ones before it. Of these only the last LIVES_MAX are kept, however often a topic is
  opened again: whoever was away for longer begins anew, with what the others have.
- The first life of all begins after nothing, and no message of a view before it belongs to the topic. What a node has
  of such views is from before the topic was declared anew.
- *Holders* are the members of the topic from one view on, until its members change. All of them have on disk whatever
  was acknowledged as persisted while they were the holders, since an acknowledgement needs every member.

Rules: values are immutable. What a node says of itself is believed: it is a member of the group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

Order = tuple[int, int]  # view id, sequence number
NOTHING: Order = (-1, -1)  # before every message
LIVES_MAX = 64


@dataclasses.dataclass(frozen=True)
class Life:
    """Messages of views from `first_view` on, until the next life begins; `after` is the last message before them.

    name  group id and view of its beginning; two lives are the same only if all of it is the same
    """

    name: str
    first_view: int
    after: Order = NOTHING

    @property
    def group_id(self) -> int:
        return int(self.name.partition(".")[0] or "0", 16)


@dataclasses.dataclass(frozen=True)
class Holders:
    """The members of the topic since view `view_id`."""

    view_id: int
    members: tuple[int, ...]

    def __str__(self) -> str:
        return f"nodes {', '.join(map(str, self.members))} since view {self.view_id}"

    def are_some_of(self, holders: Holders) -> bool:
        """True if these are the same ones, or some of them, since the same view."""
        return self.view_id == holders.view_id and set(self.members) <= set(holders.members)


@dataclasses.dataclass(frozen=True)
class Successor:
    """Who holds the topic after this node (or after the holders that it was one of).

    required  nodes that had to write this down before the new holders could begin; empty: they have begun for certain
    renews    with them the topic began anew: what those before them had is given up
    """

    holders: Holders
    required: tuple[int, ...] = ()
    renews: bool = False


@dataclasses.dataclass(frozen=True)
class Standing:
    """What a node keeps on disk of its place in a topic.

    lives      of the messages in its journal
    holders    the last ones that it was one of; None if it never was
    whole      its journal has all that those holders acknowledged. False while a tail that conflicted is cut and not
               yet replaced: such a journal counts for no majority
    successor  who came after, as far as this node knows
    seen_view  no message in the journal is of a later view
    """

    lives: tuple[Life, ...] = ()
    holders: Holders | None = None
    whole: bool = False
    successor: Successor | None = None
    seen_view: int = -1


@dataclasses.dataclass(frozen=True)
class Summary:
    """What a node says of its journal. begin is the first message in it, end the last; NOTHING without messages.

    problem  why its journal can't take part: damaged, or there is nowhere to keep one. Empty if it can
    serving  it is a member and whole now: no restart is needed, everything can be had from it
    type     name and hash, of its newest messages; an empty name if it isn't known
    """

    standing: Standing = Standing()
    begin: Order = NOTHING
    end: Order = NOTHING
    count: int = 0
    problem: str = ""
    serving: bool = False
    type: tuple[str, bytes] = ("", b"")


@dataclasses.dataclass(frozen=True)
class Decision:
    """Go on after `end`, which `source` has; None: there are no messages, the topic begins.

    lives     of the topic from now on, the new one last
    voters    nodes that held the topic when it was last whole
    type      of the source's messages, see Summary
    renews    it begins although there may be messages: they are of an earlier definition
    """

    source: int | None
    end: Order
    lives: tuple[Life, ...]
    voters: tuple[int, ...]
    type: tuple[str, bytes] = ("", b"")
    renews: bool = False


@dataclasses.dataclass(frozen=True)
class Missing:
    """No decision yet: `reason` for people, to be said behind "waits for"; `nodes` whose return would help, and the
    holders that are waited for."""

    reason: str
    nodes: tuple[int, ...] = ()
    holders: Successor | None = None


def agreed_end(lives: tuple[Life, ...], end: Order, others: tuple[Life, ...], others_end: Order) -> Order:
    """The last message that two journals have in common, given their lives and their ends."""
    last = next((life for life in reversed(lives) if life in others), None)
    if last is None:
        return NOTHING
    return min(_end_of(last, lives, end), _end_of(last, others, others_end))


def _end_of(life: Life, lives: tuple[Life, ...], end: Order) -> Order:
    """Where one of these lives ended, in a journal that goes up to `end`."""
    following = lives.index(life) + 1
    return min(end, lives[following].after) if following < len(lives) else end


def place_in(lives: tuple[Life, ...], group_id: int, place: Order) -> Order | None:
    """Where a reader that stood at `place` in a group goes on in a journal with these lives; None if they know nothing
    of the group. What it had from the end of a life, and the next life did not keep, doesn't count: other messages
    have come in its place."""
    of_group = [number for number, life in enumerate(lives) if life.group_id == group_id]
    if not of_group:
        return None
    lived = [number for number in of_group if lives[number].first_view <= place[0]]
    if not lived or lived[-1] + 1 == len(lives):  # among messages of earlier groups, or in the last life
        return place
    view_id, sequence = lives[lived[-1] + 1].after
    return min(place, (view_id, sequence + 1))


def is_outdated(lives: tuple[Life, ...], begin: Order) -> bool:
    """True if a journal that begins with this message is from before these lives, with which the topic began anew."""
    return bool(lives) and lives[0].after == NOTHING != begin and begin[0] < lives[0].first_view


def supersedes(lives: tuple[Life, ...], begin: Order, standing: Standing) -> bool:
    """True if a journal that begins with this message is from before these lives, with which the topic began anew, and
    its node's standing knows who began the last of them. Then the node need not say that it isn't whole while it takes
    over these lives: of the holders that it was one of, who have given up all that they had, it lacks nothing; and
    newer ones are asked first, if they have acknowledged anything. Else the death of the one that has begun would keep
    the topic from going on, although a majority of its holders is there."""
    return is_outdated(lives, begin) and knows(standing, Holders(lives[-1].first_view, ()))


def begin_life(lives: tuple[Life, ...], end: Order, name: str, view_id: int) -> tuple[Life, ...]:
    """The lives of a topic that goes on after `end` with view `view_id`. Those without a message are left out, and so
    are the oldest of too many."""
    before = [life for life in lives if life.after < end]
    return (*before[max(0, len(before) + 1 - LIVES_MAX):], Life(name, view_id, end))


def decide(answers: Mapping[int, Summary], name: str, view_id: int, mode: str = "majority",
           renewed_since: int | None = None) -> Decision | Missing:
    """Which journal to go on from in view `view_id`, if `answers` are those of all nodes of the view. `name` is that of
    the life that begins.

    The newest holders that anybody knows of decide: enough of them must be here, by `mode` a majority, all, or any.
    Of the journals with their lives the longest is the source: what it has beyond the others was delivered by some,
    acknowledged to none, and contradicts nothing.

    renewed_since: the topic has been declared anew in this group, after this view. It takes as many of the newest
    holders, since whoever is away must not be able to bring back what they had: then what began before doesn't count.
    So it doesn't matter either whether the journals can be read. What has begun since then goes on, whatever was made
    of the old journals in another group meanwhile.
    """
    usable = {node_id: one for node_id, one in answers.items() if not one.problem}

    def counts(lives: tuple[Life, ...]) -> bool:
        return renewed_since is None or began_after(lives, Life(name, view_id).group_id, renewed_since)

    begun = any(counts(one.standing.lives) for one in answers.values())
    chosen = _voters(answers, usable if begun else readable(answers), mode)
    if isinstance(chosen, Missing):
        return chosen
    ends = [one.end for one in usable.values()]
    if (not begun and renewed_since is not None) or _gave_up(chosen, answers):
        if max(ends, default=NOTHING)[0] >= view_id:
            return _is_ahead(max(ends), view_id)
        return Decision(None, NOTHING, begin_life((), NOTHING, name, view_id), chosen, renews=True)
    # One voter may have more lives than the others, if it was on its way to being whole among newer holders.
    known = [lives for node_id in chosen if counts(lives := usable[node_id].standing.lives)] or [
        one.standing.lives for one in usable.values() if counts(one.standing.lives)]
    lives = max(known, default=(), key=lambda one: (one[-1].first_view if one else -1, len(one)))
    newest = lives[-1:]  # whoever has this life has the same ones before it
    same = {node_id: one for node_id, one in usable.items() if one.end != NOTHING and one.standing.lives[-1:] == newest}
    end = max((one.end for one in same.values()), default=NOTHING)
    if end[0] >= view_id:
        return _is_ahead(end, view_id)
    # Of several that go as far, one that goes back furthest can serve everybody.
    source = min((node_id for node_id, one in same.items() if one.end == end),
                 key=lambda node_id: (not same[node_id].standing.whole, same[node_id].begin, node_id), default=None)
    return Decision(source, end, begin_life(lives, end, name, view_id), chosen,
                    usable[source].type if source is not None else ("", b""))


def _gave_up(voters: tuple[int, ...], answers: Mapping[int, Summary]) -> bool:
    """True if later holders than these may have begun, with whom the topic began anew: it was told as given up, whether
    they did or not."""
    standings = {node_id: one.standing for node_id, one in answers.items()}
    held = max((one.holders.view_id for node_id in voters if (one := standings[node_id]).holders is not None),
               default=-1)
    return any(one.successor is not None and one.successor.renews and one.successor.holders.view_id > held
               and _may_have_begun(one.successor, standings) for one in standings.values())


def _is_ahead(end: Order, view_id: int) -> Missing:
    return Missing(f"view {end[0] + 1} of the group, as its journals go up to view {end[0]} and the group is at view "
                   f"{view_id} only; start the nodes that have them again")


def readable(answers: Mapping[int, Summary]) -> dict[int, Summary]:
    """Those that know their standing in the topic, whatever is the matter with their journals."""
    return {node_id: one for node_id, one in answers.items() if not one.problem or one.standing != Standing()}


def began_after(lives: tuple[Life, ...], group_id: int, view_id: int) -> bool:
    """True if the newest of these lives began in that group after that view."""
    return bool(lives) and lives[-1].group_id == group_id and lives[-1].first_view > view_id


def known_of(standings: Mapping[int, Standing]) -> list[Successor]:
    """All holders that any of these nodes knows of, as successors, the newest last.

    A node outside the topic has noted only the members that were whole when it asked. A holder of the same view knows
    all holders since that view, also those that became whole later; so the holder's word replaces such a note.
    """
    begun = {one.holders for one in standings.values() if one.holders is not None}
    known = {Successor(holders) for holders in begun}
    told = {one.successor for one in standings.values() if one.successor is not None}
    known |= {one for one in told if not any(map(one.holders.are_some_of, begun)) and _may_have_begun(one, standings)}
    return sorted(known, key=lambda one: (one.holders.view_id, one.holders.members, -len(one.required)))


def knows(standing: Standing, holders: Holders) -> bool:
    """True if a node knows of these holders, or of later ones."""
    told = standing.successor.holders.view_id if standing.successor is not None else -1
    return max(told, standing.holders.view_id if standing.holders is not None else -1) >= holders.view_id


def _voters(answers: Mapping[int, Summary], usable: Mapping[int, Summary], mode: str) -> tuple[int, ...] | Missing:
    """The nodes whose word is enough; none if nobody ever held the topic."""
    standings = {node_id: one.standing for node_id, one in answers.items()}
    known = known_of(standings)
    damaged = set(answers) - set(usable)
    missing: Missing | None = None
    for told in reversed(known):
        holders = told.holders
        here = [node_id for node_id in holders.members if node_id in usable]
        voters = tuple(node_id for node_id in here if _is_whole(standings[node_id], holders))
        if voters and _enough(len(voters), len(here), len(holders.members), mode):
            return voters
        if not voters and any(_never_was(standings[node_id], holders) for node_id in here):
            # One of them never was whole among them, so together they never acknowledged anything: those before them
            # count.
            continue
        if missing is None:
            absent = tuple(node_id for node_id in holders.members if node_id not in here)
            missing = Missing(_explain(holders, absent, damaged, answers, mode), absent, told)
        if mode != "any":
            break
    if (missing is None or mode == "any") and not any(one.lives for one in standings.values()):
        return ()
    if mode == "any":
        end = max((one.end for one in usable.values()), default=NOTHING)
        # Without messages those that held it: who only heard of it doesn't know that there were none.
        longest = tuple(node_id for node_id, one in sorted(usable.items())
                        if one.end == end and (end != NOTHING or one.standing.holders is not None))
        if longest:
            return longest
    return missing or Missing("a whole journal, as none here is; " + _damage(damaged, answers) + (
        ", or set [journal] restart = \"any\" to go on with what is here" if mode != "any" else ""))


def _never_was(standing: Standing, holders: Holders) -> bool:
    """True if the node was never whole as one of `holders`, so that it acknowledged nothing as one of them."""
    return standing.holders is None or standing.holders.view_id < holders.view_id


def _is_whole(standing: Standing, holders: Holders) -> bool:
    return standing.whole and standing.holders == holders


def _may_have_begun(successor: Successor, standings: Mapping[int, Standing]) -> bool:
    """False if one of those who had to know of the new holders beforehand doesn't."""
    for node_id in successor.required:
        standing = standings.get(node_id)
        if standing is None:
            continue
        told = standing.successor is not None and standing.successor.holders.view_id >= successor.holders.view_id
        newer = standing.holders is not None and standing.holders.view_id >= successor.holders.view_id
        if not told and not newer:
            return False
    return True


def _enough(voters: int, here: int, members: int, mode: str) -> bool:
    if mode == "any" or here == members:
        return True
    return mode == "majority" and 2 * voters > members


def _explain(holders: Holders, absent: Collection[int], damaged: Collection[int], answers: Mapping[int, Summary],
             mode: str) -> str:
    needed = {"all": "all nodes", "any": "one of the nodes"}.get(mode, "a majority of the nodes")
    text = f"{needed} that held it last ({holders})"
    gone = [node_id for node_id in absent if node_id not in damaged]
    if gone:
        text += f"; node{'s' if len(gone) > 1 else ''} {', '.join(map(str, gone))} {_be(gone)} missing: start "
        text += f"{'them' if len(gone) > 1 else 'it'} again"
        text += ", or set [journal] restart = \"any\" to go on without" if mode != "any" else ""
    broken = [node_id for node_id in absent if node_id in damaged]
    return text + ("; " + _damage(broken, answers) if broken else "")


def _be(nodes: Collection[int]) -> str:
    return "are" if len(nodes) > 1 else "is"


def _damage(damaged: Collection[int], answers: Mapping[int, Summary]) -> str:
    return "; ".join(f"node {node_id}: {answers[node_id].problem}" for node_id in sorted(damaged)) or "start all nodes"
