"""What may be done from the page: cast a node out, have it leave, delete a topic, record topics.

Rules: only who acts() may, and beside that the node decides, as for any program of this user. Everything that is done,
or refused, is logged with who wanted it, and stands in the time line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spindle.cockpit.recording import Recordings
from spindle.errors import AccessDenied, NoDaemon, SpindleError

if TYPE_CHECKING:
    from spindle.client import Session
    from spindle.cockpit.entry import Viewer
    from spindle.cockpit.observing import Observer

LOG = logging.getLogger("spindle.cockpit")


class Actions:
    """Of one cockpit, carried out over its session."""

    def __init__(self, observer: Observer, recordings: Recordings) -> None:
        self._observer = observer
        self._recordings = recordings

    @property
    def records(self) -> bool:
        """True if topics can be recorded here."""
        return self._recordings.possible

    async def act(self, viewer: Viewer, who: str, asked: dict[str, Any]) -> str:
        """Does what is asked; returns what was done, in words. Raises SpindleError, OSError."""
        name = asked.get("action")
        work = self._work(name, asked)
        LOG.warning("%s wants: %s", who, work[0])
        if not viewer.acts:
            raise AccessDenied("this cockpit only shows: [web] actions of the node's configuration, or "
                               "`spindle cockpit --actions`, lets those with the token act")
        try:
            done = await asyncio.get_running_loop().run_in_executor(None, work[1])
        except SpindleError as error:
            self._observer.happenings.say(
                "act", "warn", f"{work[0]}, which {who} wanted, was refused: {error}", **work[2])
            raise
        self._observer.happenings.say("act", "warn", f"{done or work[0]}, as {who} wanted", **work[2])
        self._observer.look_now()
        return done or f"done: {work[0]}"

    def _work(self, name: Any, asked: dict[str, Any]) -> tuple[str, Callable[[], str | None], dict[str, Any]]:
        """What it is in words, how it is done, and what the time line has to know of it."""
        session = self._observer.session
        if session is None:
            raise NoDaemon("there is no node at the moment")
        if name in ("cast_out", "leave"):
            node = asked.get("node")
            if not isinstance(node, int):
                raise SpindleError("which node is meant isn't said")
            if name == "cast_out":
                return f"node {node} is cast out", lambda: session.cast_out(node), {"nodes": [node]}
            return f"node {node} leaves", lambda: session.make_leave(node), {"nodes": [node]}
        topic = asked.get("topic")
        if not isinstance(topic, str) or not topic:
            raise SpindleError("which topic is meant isn't said")
        if name == "delete_topic":
            return f"topic {topic} is deleted", lambda: session.delete_topic(topic), {"topic": topic}
        if name == "record":
            return f"topic {topic} is recorded", lambda: self._record(session, topic), {"topic": topic}
        if name == "stop_recording":
            return (f"the recording of topic {topic} ends", lambda: self._recordings.stop(topic), {"topic": topic})
        raise SpindleError(f"nobody knows how to {name!r}")

    def _record(self, session: Session, topic: str) -> str:
        return f"topic {topic} is recorded to {self._recordings.start(topic, session.node_id)}"

    def recorded(self) -> list[dict[str, Any]]:
        """Recordings that run: topic, path, since when."""
        return self._recordings.running()

    def close(self) -> None:
        """Ends what runs for it."""
        self._recordings.close()


__all__ = ["Actions"]
