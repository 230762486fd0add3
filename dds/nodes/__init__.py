"""The node that a participant is at, and the next one."""
