"""The application's side of Spindle: attach to the host's daemon or embed a node, open writers and readers.

    from spindle.client import attach
    from spindle.group.topics import TopicSpec

    with attach() as session:
        session.declare_topic(TopicSpec("altitude"))
        with session.open_writer("altitude") as writer:
            writer.inbox.write(b"9750 m")

Most programs use the DDS layer (`import dds`) on top of this. Importing this package imports nothing slow: what
attaching needs is imported when it is needed, and embedding a node brings the rest.
"""

from __future__ import annotations

from spindle.client.attaching import attach
from spindle.client.embedding import embed
from spindle.client.session import ReaderHandle, Session, Unacknowledged, WriterHandle
from spindle.group.endpoints import Endpoint
from spindle.group.events import Event, ViewInfo
from spindle.group.leases import Lease
from spindle.group.position import Position
from spindle_core.slices import be_prompt

__all__ = ["Endpoint", "Event", "Lease", "Position", "ReaderHandle", "Session", "Unacknowledged", "ViewInfo",
           "WriterHandle", "attach", "be_prompt", "embed"]
