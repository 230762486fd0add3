"""How a connection begins: what the first message is known by, and the version of what follows between nodes.

The version of what follows between application and node stands beside its messages, in `spindle.group.codec`.
"""

MAGIC = 0x4E495053  # "SPIN", see opening.proto
PROTOCOL = 25  # of node.proto, of the rows' layout and of what brings them to other hosts
EDGE_PROTOCOL = 2  # of edge.proto
STREAM_BYTES = 1 << 20  # of each stream of an edge, in each direction: what may be on the way
