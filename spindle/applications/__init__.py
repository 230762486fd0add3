"""The node's side of applications that are attached to it."""
