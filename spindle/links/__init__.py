"""Links: one-sided memory of other nodes, and calls, for programs; in microseconds, over connections that nodes keep.

    from spindle.links import Links

    links = Links(session)
    table = links.offer("table", 4096)              # memory that others may read
    with links.open(node_id) as link:
        link.region("table").read(0, 8)
        answer = link.call(7, b"how are you?")

The structure stands in `spindle_core.links`, the node's side in `spindle.pool`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spindle.links.program import Link, Links, Message, OfferedRegion, Port, Region

__all__ = ["Link", "Links", "Message", "OfferedRegion", "Port", "Region"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from spindle.links import program

        return getattr(program, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
