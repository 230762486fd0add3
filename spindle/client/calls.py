"""What is asked on a connection to a node of another host, until it is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spindle.locks import Latch

if TYPE_CHECKING:
    from spindle.errors import SpindleError
    from spindle.proto import attach_pb2 as pb


class Lost(Exception):
    """The connection ended while something was asked on it."""


class Call:
    __slots__ = ("answered", "error", "reply")

    def __init__(self) -> None:
        self.answered = Latch()
        self.reply: pb.Reply | None = None
        self.error: SpindleError | None = None
