"""What is asked on a connection to a node of another host, until it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spindle.client.channel import closings_within
from spindle.locks import Latch

if TYPE_CHECKING:
    from spindle.errors import SpindleError
    from spindle.proto import attach_pb2 as pb


class Lost(Exception):
    """The connection ended while something was asked on it."""


class Call:
    """closings: where is noted what closes again what it opens, see `whole_or_closed()`."""

    __slots__ = ("answered", "closings", "error", "reply")

    def __init__(self) -> None:
        self.closings = closings_within()
        self.answered = Latch()
        self.reply: pb.Reply | None = None
        self.error: SpindleError | None = None
