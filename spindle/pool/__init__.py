"""The node's side of links: its pool, and the connections of that with other nodes."""
