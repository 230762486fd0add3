"""Every error that Spindle raises on purpose, in one place.

Why one place: an application catches `SpindleError` and has them all; the node sends an error to an application as its
class name and its text (`error_from_wire`), so both sides must know the same names.

Rules: the text says what happened, with the figures or names involved, and what to do about it. A subclass that also
fits a builtin kind (ConnectionError, ValueError...) inherits from it, so that plain Python code can catch it.
Each class carries the exit code that a command ending with it returns.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

# The base is the core's, so that its own errors (a dead node, a full ring) are caught with all others.
from spindle_core.errors import ForkedChild as ForkedChild
from spindle_core.errors import NodeGone as NodeGone
from spindle_core.errors import SpindleError

if TYPE_CHECKING:
    import threading


class ConfigError(SpindleError, ValueError):
    """A configuration value is unknown, malformed or impossible."""

    exit_code = 2


class NoDaemon(SpindleError, ConnectionError):
    """No node of this host serves the domain."""

    exit_code = 3


class AccessDenied(SpindleError, PermissionError):
    """The access rules, the credentials of a peer or the rights of a file forbid it."""

    exit_code = 4


class ProtocolMismatch(SpindleError, ConnectionError):
    """The two ends speak different versions, or belong to different domains."""

    exit_code = 5


class WireError(SpindleError, ConnectionError):
    """A frame on a control connection is malformed, truncated, too large or too slow; the connection is closed."""

    exit_code = 5


class ConnectionEnded(WireError):
    """The other end closed the connection between two frames (`clean`), or in the middle of one."""

    def __init__(self, message: str, clean: bool = True) -> None:
        super().__init__(message)
        self.clean = clean


class TopicError(SpindleError):
    """Base of the errors about one topic."""


class TopicMismatch(TopicError, ValueError):
    """A topic of this name exists in the group with another type, level or size."""


class TopicLimit(TopicError, ValueError):
    """A limit on topics is reached: their number, their members or their memory."""


class TopicUnknown(TopicError, KeyError):
    """Nobody has declared a topic of this name."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # KeyError would print the text in quotes


class TopicInUse(TopicError):
    """The topic can't be deleted: somebody has a reader or writer of it open, or its messages are kept on disk."""


class NodeStopped(SpindleError, ConnectionError):
    """The node is stopping, has stopped or never started; it cannot serve the call."""

    exit_code = 6


class NodeSilent(NodeStopped, TimeoutError):
    """The node is there and does not answer: it hangs, or is overloaded."""


class GroupSilent(SpindleError, TimeoutError):
    """The group did not agree on something in time: a member hangs."""


class NodeIdTaken(SpindleError):
    """Another live node of the domain has the wanted node id."""

    exit_code = 7


class JoinFailed(SpindleError):
    """The node could not enter the group in time."""

    exit_code = 8


class JournalError(SpindleError, OSError):
    """The journal of a logged topic cannot be written or read."""

    exit_code = 10


class MembershipError(SpindleError):
    """The membership protocol met something it must not meet; the node stops rather than guess."""

    exit_code = 11


class CastOut(SpindleError, ConnectionError):
    """The other members have gone on without this node, because they took it for dead: it hung, or lost touch."""

    exit_code = 12


class NoMajority(SpindleError, ConnectionError):
    """So many members are lost at once that the rest can't know whether it is the group or a splinter of it."""

    exit_code = 13


class ListenError(SpindleError, OSError):
    """The port for other hosts can't be had now: another process has it, or the address is not this host's (yet)."""

    exit_code = 14


class LinkError(SpindleError, ConnectionError):
    """A request over a link has failed; `status` says how: cut, ended, range, refused, after, nobody or wrong."""

    def __init__(self, message: str, status: str = "") -> None:
        super().__init__(message)
        self.status = status


class SampleMissing(SpindleError, ConnectionError):
    """No node that could have the bytes of a large sample gives them. `refused`: all that were asked have answered so,
    and none of them just could not be reached."""

    refused = False


def refusal(text: str, refused: bool = True) -> SampleMissing:
    """Who was asked for a large sample answers that it doesn't give it."""
    error = SampleMissing(text)
    error.refused = refused
    return error


class SampleUnfit(SpindleError, ValueError):
    """What is handed over as a large sample isn't one: the memory isn't sealed, or has another size."""


class NoResources(SpindleError, OSError):
    """This process can get no more memory, descriptors or threads. It is nobody else's failure."""

    exit_code = 15


NO_THREAD = "can't start new thread"  # what Python says then
_LIMITS = {
    "descriptors": "ulimit -n; LimitNOFILE= of its service",
    "memory": "ulimit -v and -l, vm.max_map_count, the memory of its control group",
    "threads": "ulimit -u; TasksMax= of its service, pids.max of its control group",
}
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN)  # of this process or this host


def shortage(error: BaseException, what: str) -> NoResources | None:
    """What to report if the call for `what` failed because something ran out here; None if it failed otherwise."""
    if isinstance(error, NoResources):
        return error
    if isinstance(error, OSError) and not isinstance(error, SpindleError) and error.errno in SHORTAGES:
        advice = "descriptors" if error.errno in (errno.EMFILE, errno.ENFILE) else "memory"
        reason = os.strerror(error.errno)
    elif isinstance(error, MemoryError):
        advice, reason = "memory", str(error) or "no memory"
    elif isinstance(error, ImportError) and str(error).endswith(os.strerror(errno.EMFILE)):
        advice, reason = "descriptors", os.strerror(errno.EMFILE)  # a module that is loaded when it is needed
    elif isinstance(error, RuntimeError) and str(error) == NO_THREAD:
        advice, reason = "threads", "as many run as may"
    else:
        return None
    limits = _LIMITS[advice]
    return NoResources(f"{what} needs {advice} that this process cannot get: {reason} ({limits})")


def start_thread(thread: threading.Thread, what: str) -> None:
    """Start it; `what` needs it. Raises NoResources where no more may run."""
    try:
        thread.start()
    except Exception as error:
        raise shortage(error, what) or error from error


KNOWN_EVERYWHERE = (__name__, SpindleError.__module__)  # modules whose error classes both ends of a connection have


def _classes() -> dict[str, type[SpindleError]]:
    found: dict[str, type[SpindleError]] = {}
    queue: list[type[SpindleError]] = [SpindleError]
    while queue:
        one = queue.pop()
        found[one.__name__] = one
        queue.extend(one.__subclasses__())
    return found


def error_from_wire(kind: str, message: str) -> SpindleError:
    """The error that the other end reported as class name and text; SpindleError if the name is unknown here."""
    return _classes().get(kind, SpindleError)(message)


def error_to_wire(error: BaseException) -> tuple[str, str]:
    """Class name and text of `error` for the other end. A subclass that is defined elsewhere travels as the nearest
    class that every end knows, a foreign exception as SpindleError with its own name in front of the text."""
    if isinstance(error, SpindleError):
        return next(one.__name__ for one in type(error).__mro__ if one.__module__ in KNOWN_EVERYWHERE), str(error)
    return SpindleError.__name__, f"{type(error).__name__}: {error}"


def of_signal(error: BaseException) -> BaseException | None:
    """What a signal handler of the program has raised in the middle of what failed with `error`, or with what that came
    of; None if no handler did."""
    import threading

    if threading.current_thread() is not threading.main_thread():
        return None  # handlers run in that one alone
    import signal

    given: list[object] = [signal.getsignal(one) for one in signal.valid_signals()]
    called = (one if hasattr(one, "__code__") else getattr(one, "__func__", type(one).__call__) for one in given
              if callable(one))
    handlers = {getattr(one, "__code__", None) for one in called} - {None}
    cause: BaseException | None = error
    while cause is not None and handlers:
        trace = cause.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in handlers:
                return cause
            trace = trace.tb_next
        cause = cause.__cause__
    return None


def give_way(error: BaseException) -> None:
    """Raise what a signal handler of the program has raised, if that is what failed. For who would else make something
    else of it: it says nothing of a sample, or of the node."""
    raised = of_signal(error)
    if raised is not None:
        raise raised
