"""Many programs over one connection: the daemon of a host without a node, and what a node has of it."""
