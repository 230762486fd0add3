"""Q1: what waits anywhere has a bound. A check looks at it whenever something is put there. The bounds are the
product's own, with the values that they have in this run.

Between nodes the sender keeps the bound, never by ending the connection: so a queue to a node that reaches the limit of
its connection breaks the promise, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from spindle.client import channel
from spindle.group.levels import Level
from spindle.journal import writer
from spindle.restart import catching_up, giving, pieces, streams
from spindle.restart.history import Donation
from spindle.topics.local_topic import LocalTopic
from spindle.transport import peers, wire
from spindle_lab.whole.tags import DEPARTURE
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle_lab.whole.system import System

CONTROL_BYTES = 256 << 10  # of views and words that may wait for a node beside what is large: a view of all topics fits


def _connection(conn: Any, *_: Any) -> str:
    """Bytes that wait for another node."""
    if conn.limits.frame_bytes_max != peers.FRAME_BYTES_MAX:
        return ""
    most = peers.BULK_QUEUED_MAX + pieces.CHUNK_COST_MAX + CONTROL_BYTES
    return f"{conn._out_bytes} bytes wait for {conn.label}, at most {most}" if conn._out_bytes > most else ""


def _window(window: Any, *_: Any) -> str:
    """What of a history is on its way."""
    ahead, most = window._sent - window._taken, streams.AHEAD_BYTES + pieces.CHUNK_COST_MAX
    return f"a history is {ahead} bytes ahead, at most {most}" if ahead > most else ""


def _asked(gives: Any, node_id: int, *_: Any) -> str:
    """Histories that one node is given."""
    count = sum(1 for asker, _ in gives._given if asker == node_id)
    return f"node {node_id} is given {count} histories at once" if count > giving.ASKED_MAX else ""


def _history(topic: Any, messages: list[Any]) -> str:
    """Before more of a history is taken: what of it has no room in the log yet."""
    if messages and topic.history_waiting > catching_up.WAITING_MAX:
        return (f"{topic.history_waiting} bytes of {topic.spec.name!r} wait for the log, and more is taken; at most "
                f"{catching_up.WAITING_MAX}")
    return ""


def _owed(topic: Any, *_: Any) -> str:
    """What was delivered and the log has no room for: it is of one epoch, so at most a window of each sender. That
    nodes have gone comes on top."""
    views = {one.view_id for one in topic._backlog if not isinstance(one, Donation) and one.tag != DEPARTURE}
    if len(views) > 1 and topic.spec.level is not Level.UNORDERED:
        return f"readers of {topic.spec.name!r} are owed messages of {len(views)} epochs"
    return ""


def _events(dispatcher: Any, *_: Any) -> str:
    """Events that a slow callback has not been given."""
    count = len(dispatcher._events)
    return f"{count} events wait for a callback" if count > channel.EVENTS_WAITING_MAX + 1 else ""


def _batch(journal: Any, batch: list[Any]) -> str:
    """What is committed at once: nothing was taken beyond what makes a commit."""
    before = sum(len(payload) for payload, _ in batch[: -journal._take_count])
    return f"{before} bytes are committed and more was taken" if before >= writer.COMMIT_BYTES else ""


BEFORE: tuple[tuple[type, str, Callable[..., str]], ...] = (
    (LocalTopic, "append_history", _history), (writer.Journal, "_commit", _batch))
AFTER: tuple[tuple[type, str, Callable[..., str]], ...] = (
    (wire.Connection, "_put", _connection), (streams.Window, "sent", _window), (giving.Giving, "asked", _asked),
    (LocalTopic, "keep", _owed),
    (channel.Dispatcher, "put", _events))


@contextmanager
def watched(system: System) -> Iterator[None]:
    """While in it, every call that puts something where it waits is checked."""

    def look(text: str) -> None:
        if text and system.broken is None:
            system.broken = Violation("Q1", f"{system.current}: {text}")
            system.defective = True

    def looked_at(function: Callable[..., Any], check: Callable[..., str], before: bool) -> Callable[..., Any]:
        def call(one: Any, *arguments: Any, **more: Any) -> Any:
            if before:
                look(check(one, *arguments))
            result = function(one, *arguments, **more)
            if not before:
                look(check(one, *arguments))
            return result

        return call

    with ExitStack() as stack:
        for checks, before in ((BEFORE, True), (AFTER, False)):
            for kind, name, check in checks:
                stack.enter_context(patch.object(kind, name, looked_at(vars(kind)[name], check, before)))
        yield
