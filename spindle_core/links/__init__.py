"""Links: many users share the connections of their host to other nodes, as if each had its own."""
