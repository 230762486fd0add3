"""Memory of other nodes that outlives views, reached one-sidedly; and messages."""
