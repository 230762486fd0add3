"""Inboxes without a session: both ends in this process, and the places of the shared fields (include/layout.h)."""

from __future__ import annotations

import os

from spindle_core.engine import Engine
from spindle_core.inbox import Inbox
from spindle_core.inbox_writer import InboxWriter
from spindle_core.memory import Mapping

# struct inbox_header, struct slot_header, struct inbox_progress
COMMITTED, SPACE_WAITING, SLOTS = 8, 16, 4096
SLOT_INDEX, SLOT_SIZE, SLOT_KIND, SLOT_SOURCE = 0, 8, 12, 24
SLOT_HEADER = 32
PROGRESS_SIZE_MAX, PROGRESS_SLOTS = 32, 40


def slot_stride(size_max: int) -> int:
    return (SLOT_HEADER + size_max + 63) // 64 * 64


def alone(size_max: int = 64, slots: int = 16, within: bool = False) -> tuple[InboxWriter, Inbox, Engine]:
    """A writer whose node takes nothing: the ring is all there is."""
    inbox, engine = Inbox(size_max, slots, 7, within=within), Engine(1)
    return attach(inbox, engine), inbox, engine


def attach(inbox: Inbox, engine: Engine) -> InboxWriter:
    return InboxWriter(
        Mapping.attach(os.dup(inbox.ring.fd), True),
        Mapping.attach(os.dup(inbox.progress.fd)),
        os.dup(inbox.their_fd),
        Mapping.attach(os.dup(engine.bell.fd)),
        os.dup(engine.bell_fd),
    )
