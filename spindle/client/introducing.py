"""What sessions of both kinds say and check when they introduce themselves, to a node of this host or elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from spindle.errors import ProtocolMismatch, WireError, error_from_wire
from spindle.transport.opening import MAGIC
from spindle.transport.wire import Frame


def check_opening(reply: object, protocol: int, label: str) -> None:
    """Raises what an OpeningReply refuses with, and ProtocolMismatch."""
    magic, kind = getattr(reply, "magic", 0), getattr(reply, "kind", "")
    theirs, text = getattr(reply, "protocol", 0), getattr(reply, "message", "")
    if magic != MAGIC:
        raise ProtocolMismatch(f"{label} does not speak Spindle's protocol")
    if kind:
        raise error_from_wire(kind, text)
    if theirs != protocol:
        raise ProtocolMismatch(f"{label} speaks version {theirs} of the attachment protocol, this library version "
                               f"{protocol}: use the same release of Spindle for both")


def parse(kind: Callable[[], object], frame: Frame, label: str):  # type: ignore[no-untyped-def]
    """The message in a frame. Raises WireError."""
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(frame.body)  # type: ignore[attr-defined]
    except DecodeError as error:
        frame.close_fds()
        raise WireError(f"{label} sent a message that can't be read: {error}") from None


def release() -> str:
    """Of this library."""
    from spindle import __version__

    return __version__
