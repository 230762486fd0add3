"""What an application has open on a topic, as its node sees it: the memory that the two share."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from spindle.group.leases import Lease
    from spindle.group.position import Position
    from spindle_core.delivery import Cursor
    from spindle_core.inbox import Inbox
    from spindle_core.memory import Mapping


@dataclasses.dataclass(eq=False)
class WriterPort:
    """A writer of an application: its inbox, which the node reads.

    relayed   identity of a writer on a host without a node, 0 for others; see `spindle.relay`
    farewell  tag of the message without payload that follows its last one when it ends, for whatever reason; 0: none
    lease     how long it may give no sign of life, and what is said then; None: for ever
    type_key  of the type of its samples; empty if nothing is said of it
    draining  after close: done when all that was committed is delivered everywhere
    """

    topic: str
    topic_id: int
    inbox: Inbox
    slots: int = 0
    relayed: int = 0
    farewell: int = 0
    lease: Lease | None = None
    type_key: bytes = b""
    closed: bool = False
    draining: asyncio.Task[None] | None = None


@dataclasses.dataclass(eq=False)
class ReaderPort:
    """A reader of an application: its cursor, and the log that it reads (descriptors for the application).

    start      where it begins in the order; a reader that goes on drops earlier messages that the log still brings
    continued  nothing is missing between the position that it went on from and `start`
    """

    topic: str
    topic_id: int
    cursor: Cursor
    log_mapping: Mapping
    start: Position
    continued: bool = True
    said_ns: int = 0  # the latest time that the order had said, UTC; 0: none
    ends: tuple[Position, ...] = ()  # where the orders of earlier groups end, see spindle.group.position.places
    types: tuple[bytes, ...] = ()  # of what the topic keeps, and of what may be written to it
    closed: bool = False
