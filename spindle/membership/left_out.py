"""Who is left out of a view that can't be prepared: the rule by which the leader decides, once it has waited enough.

Why a rule of its own: a member that lives, answers, and still can't exchange memory with another one (a firewall that
drops new connections and lets old ones live) is no reason for suspicion: nothing is silent. Waiting doesn't help
either, and would keep every later view from coming.

Rules, in this order, until nobody is left who lacks somebody:
- A newcomer that has said nothing by then is left out: whoever hangs must not hold up the others.
- Of the newcomers that lack somebody or are lacked, whoever has the most such pairs is left out; a member is never left
  out for a newcomer's sake.
- Of the members that lack each other, whoever has the most such pairs is left out: so of two sides that can't connect
  the smaller one goes. Among equals it is the one of higher rank.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spindle.group.view import View

Lacks = Mapping[int, Mapping[int, str]]  # by node id: the node ids that it lacks, with what it knows of why


def left_out(view: View, joiners: Collection[int], unprepared: Collection[int], lacks: Lacks) -> dict[int, str]:
    """Node ids of `view` that have to go, with the reasons for people. `unprepared`: who has not said that it is ready;
    `lacks`: what was reported."""
    gone = {node_id: "it did not say within the time for it that it is ready, nor what it waits for"
            for node_id in joiners if node_id in unprepared and node_id not in lacks}
    pairs = {
        frozenset((one, other)): (one, other, why)
        for one, missing in sorted(lacks.items()) if one in unprepared
        for other, why in sorted(missing.items()) if view.rank_of(other) is not None and view.rank_of(one) is not None}
    while True:
        counts: dict[int, int] = {}
        for pair in pairs:
            if not pair & gone.keys():
                for node_id in pair:
                    counts[node_id] = counts.get(node_id, 0) + 1
        if not counts:
            return gone
        chosen = max(counts, key=lambda node_id: (node_id in joiners, counts[node_id], view.rank_of(node_id)))
        gone[chosen] = "; ".join(f"node {one} lacks node {other}: {why}" for pair, (one, other, why) in pairs.items()
                                 if chosen in pair and not (pair - {chosen}) & gone.keys())
