"""Which settings keep two nodes from being of one group, when they connect.

Why so few: what a group goes by is in its view, in versions (`spindle.group.settings`), and a newcomer learns it. Only
two things can't be learnt. Data connections are encrypted or not, so all must say the same. And each node that looks
for its group counts whether a majority of its contacts is there. If two lists of contacts differ by one host, every
majority of one has a host in common with every majority of the other. If they differ by more, two majorities may have
none, and two groups could form and serve.

Rules: only nodes outside a group tell and compare contacts and form. So to add or remove a host, change the file of one
host after the other, while the group runs or starts; begin the next change only when all files have this one.
"""

from __future__ import annotations

from collections.abc import Mapping

CONTACTS, FORM, ENCRYPT = "[network] contacts", "[network] form", "[network] encrypt"
APART_MAX = 1  # hosts that one list has and the other doesn't


def told(settings: Mapping[str, str], looks: bool) -> dict[str, str]:
    """The settings that a node tells and compares with others': all while it looks for its group, then only ENCRYPT."""
    return {name: value for name, value in settings.items() if looks or name == ENCRYPT}


def difference_between(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """The first setting that keeps two nodes apart, for people; "" if none does. Contacts and form count only if both
    nodes tell them."""
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
