"""Who is at the other end of a connection of the pool: one life of a node. A node that has come back is another writer
than the one that a region named (regions.pxd: of a plain write its grant names the only one).
"""

from __future__ import annotations

# A connection for a single link: whether this node has asked for it, the other node's life, the asking one's number
OwnConnection = tuple[bool, int, int]


def life_of(node_id: int, incarnation: int) -> int:
    """The identity of a node's life for regions: between 1 and 2**63 - 1."""
    return (incarnation & 0x7FFFFFFF) << 32 | node_id


def node_of(life: int) -> int:
    """The id of its node."""
    return life & 0xFFFFFFFF
