"""What the core raises. Every message says what to do; limits are in it."""

from __future__ import annotations


class SpindleError(Exception):
    """Base of all errors of Spindle. `exit_code` is what a command that ends with this error returns to the shell."""

    exit_code = 1


class CoreError(SpindleError):
    """Base of all errors of the core that are not plain ValueError or OSError."""


class MessageTooLarge(CoreError, ValueError):
    """A message is larger than its topic's size_max."""


class WriteTimeout(CoreError, TimeoutError):
    """No slot came free in time, or no memory (`for_memory`): readers that keep all, or the group, hold the writer
    back."""

    for_memory = False


class NodeGone(CoreError, ConnectionError):
    """The node behind a writer or reader has stopped or died."""

    exit_code = 6


class ForkedChild(NodeGone):
    """What a process has opened doesn't work in its child after fork(): the memory behind it is the parent's."""


class Wedged(CoreError):
    """The epoch is over: nothing can be claimed until the next view is installed."""


class RdmaUnavailable(CoreError, OSError):
    """No RDMA here that can do what is needed: no library, device, active port, address, or memory to pin."""
