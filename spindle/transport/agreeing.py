"""Which settings keep two nodes from being of one group, when they connect.

Why so few: what a group goes by is in its view, in versions (`spindle.group.settings`), and a newcomer learns it. Only
two things can't be learnt. Data connections are encrypted or not, so all must say the same. And of nodes that look for
their group, each counts whether a majority of its contacts is there: two lists that differ by one host have no two
majorities without a host in common; two that differ by more may have, and then two groups could form and serve.

Rules: contacts and form are told and compared by nodes outside a group only. So a host is added or taken away by
changing one host's file after the other, while the group runs or while it starts; the next change comes after that.
"""

from __future__ import annotations

from collections.abc import Mapping

CONTACTS, FORM, ENCRYPT = "[network] contacts", "[network] form", "[network] encrypt"
APART_MAX = 1  # hosts that one list has and the other doesn't


def told(settings: Mapping[str, str], looks: bool) -> dict[str, str]:
    """What a node says of its settings, which holds them against others': all while it looks for its group."""
    return {name: value for name, value in settings.items() if looks or name == ENCRYPT}


def difference_between(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The first setting that keeps two nodes apart, for people; "" if none does. Of contacts and form only what both
    tell can."""
    for name in sorted(ours):
        mine, other = ours[name], theirs.get(name, "unknown" if name == ENCRYPT else ours[name])
        if mine == other:
            continue
        if name != CONTACTS:
            return f"{name} = {mine}, the other node {other}: set it alike on all nodes of a domain"
        one, two = _hosts(mine), _hosts(other)
        if not one or not two or len(one ^ two) > APART_MAX:
            return (f"{name} = {mine}, the other node {other}: while nodes look for their group, these may differ by "
                    "one host; change one host at a time, on all nodes, before the next")
    return ""


def _hosts(contacts: str) -> set[str]:
    return {one for one in contacts.split(", ") if one != "none"}
