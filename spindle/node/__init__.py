"""The node: its life, its views and their memory, its health."""
