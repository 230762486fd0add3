"""What the DDS interface raises, and how errors of the layers below become that.

Why subclasses: `DDSException` with its code is what DDS programs catch; plain Python programs catch TimeoutError,
ValueError or ConnectionError. One object is both.

Rules: `code` is one of DDSException.DDS_RETCODE_*, with the numbers of DDS 1.4, 2.2.1.1; the text says what happened
and what to do. Wrong types of arguments raise TypeError, as everywhere in Python.
"""

from __future__ import annotations

from typing import Any, NoReturn

from spindle.errors import give_way, shortage


class DDSException(Exception):
    """An operation failed. `code` says how in the terms of DDS, `msg` says it in words."""

    DDS_RETCODE_OK = 0
    DDS_RETCODE_ERROR = -1
    DDS_RETCODE_UNSUPPORTED = -2
    DDS_RETCODE_BAD_PARAMETER = -3
    DDS_RETCODE_PRECONDITION_NOT_MET = -4
    DDS_RETCODE_OUT_OF_RESOURCES = -5
    DDS_RETCODE_NOT_ENABLED = -6
    DDS_RETCODE_IMMUTABLE_POLICY = -7
    DDS_RETCODE_INCONSISTENT_POLICY = -8
    DDS_RETCODE_ALREADY_DELETED = -9
    DDS_RETCODE_TIMEOUT = -10
    DDS_RETCODE_NO_DATA = -11
    DDS_RETCODE_ILLEGAL_OPERATION = -12
    DDS_RETCODE_NOT_ALLOWED_BY_SECURITY = -13

    error_message_mapping: dict[int, tuple[str, str]] = {
        DDS_RETCODE_OK: ("DDS_RETCODE_OK", "No error"),
        DDS_RETCODE_ERROR: ("DDS_RETCODE_ERROR", "The operation failed"),
        DDS_RETCODE_UNSUPPORTED: ("DDS_RETCODE_UNSUPPORTED", "Spindle doesn't have this"),
        DDS_RETCODE_BAD_PARAMETER: ("DDS_RETCODE_BAD_PARAMETER", "An argument has an impossible value"),
        DDS_RETCODE_PRECONDITION_NOT_MET: ("DDS_RETCODE_PRECONDITION_NOT_MET", "Something else must be done first"),
        DDS_RETCODE_OUT_OF_RESOURCES: ("DDS_RETCODE_OUT_OF_RESOURCES", "A limit is reached"),
        DDS_RETCODE_NOT_ENABLED: ("DDS_RETCODE_NOT_ENABLED", "This is not switched on"),
        DDS_RETCODE_IMMUTABLE_POLICY: ("DDS_RETCODE_IMMUTABLE_POLICY", "The policy can't be changed any more"),
        DDS_RETCODE_INCONSISTENT_POLICY: ("DDS_RETCODE_INCONSISTENT_POLICY", "Policies contradict each other"),
        DDS_RETCODE_ALREADY_DELETED: ("DDS_RETCODE_ALREADY_DELETED", "The entity is closed"),
        DDS_RETCODE_TIMEOUT: ("DDS_RETCODE_TIMEOUT", "It took too long"),
        DDS_RETCODE_NO_DATA: ("DDS_RETCODE_NO_DATA", "There is no data"),
        DDS_RETCODE_ILLEGAL_OPERATION: ("DDS_RETCODE_ILLEGAL_OPERATION", "This entity has no such operation"),
        DDS_RETCODE_NOT_ALLOWED_BY_SECURITY: ("DDS_RETCODE_NOT_ALLOWED_BY_SECURITY", "The access rules forbid it"),
    }

    def __init__(self, code: int, msg: str | None = None) -> None:
        super().__init__(code, msg)
        self.code = code
        self.msg = msg or ""

    def __str__(self) -> str:
        name, meaning = self.error_message_mapping.get(self.code, (f"code {self.code}", "Unknown code"))
        return f"[{name}] {meaning}: {self.msg}" if self.msg else f"[{name}] {meaning}"

    __repr__ = __str__


class DDSTimeout(DDSException, TimeoutError):
    """Something didn't happen in the time given; for a write: Reliability.max_blocking_time passed, and the sample was
    not written."""

    def __init__(self, msg: str) -> None:
        super().__init__(self.DDS_RETCODE_TIMEOUT, msg)


class DDSSampleTooLarge(DDSException, ValueError):
    """A sample is larger than its node takes, or a topic on its way: the text names the limit."""

    def __init__(self, msg: str) -> None:
        super().__init__(self.DDS_RETCODE_OUT_OF_RESOURCES, msg)


class DDSNodeLost(DDSException, ConnectionError):
    """No node serves this participant: none was found, or it has stopped or died."""

    def __init__(self, msg: str) -> None:
        super().__init__(self.DDS_RETCODE_ERROR, msg)


class DDSUnacknowledged(DDSException):
    """The node of a writer went away with samples that it had not acknowledged; the participant goes on at another.

    samples: these samples (dds.status.Unacknowledged), oldest first; nothing else reports them from now on. Each was
    delivered everywhere, or nowhere. The call did nothing more; calling again goes on.
    """

    def __init__(self, msg: str, samples: list[Any]) -> None:
        super().__init__(self.DDS_RETCODE_ERROR, msg)
        self.samples = samples


class DDSUnsupported(DDSException, NotImplementedError):
    """DDS has this, Spindle doesn't."""

    def __init__(self, msg: str) -> None:
        super().__init__(self.DDS_RETCODE_UNSUPPORTED, msg)


def closed(what: object) -> DDSException:
    return DDSException(DDSException.DDS_RETCODE_ALREADY_DELETED, f"{what} is closed")


def forked(what: object) -> DDSNodeLost:
    return DDSNodeLost(f"{what} was made before fork(), in the parent, and doesn't work in the child: make another one "
                       "there (with multiprocessing, prefer the start method 'spawn')")


def not_enabled(what: object) -> DDSException:
    return DDSException(
        DDSException.DDS_RETCODE_NOT_ENABLED,
        f"{what} was made disabled, as the EntityFactory of what it is in says, or because that was: call enable()")


def translate(error: BaseException, doing: str = "") -> DDSException:
    """The DDS form of an error of the layers below, `doing` in front of its text. For `raise translate(e) from e`.
    Raises what a signal handler has raised."""
    if isinstance(error, DDSException):
        return error
    give_way(error)
    name = type(error).__name__
    said = str(error) or name
    text = said if not doing or said.startswith(doing) else f"{doing}: {said}"
    if isinstance(error, TimeoutError):
        return DDSTimeout(text)
    if isinstance(error, ConnectionError):
        return DDSNodeLost(text)
    short = shortage(error, doing or "this")
    if short is not None:
        text = text if short is error else str(short)
        return DDSException(DDSException.DDS_RETCODE_OUT_OF_RESOURCES, text)
    if isinstance(error, PermissionError):
        return DDSException(DDSException.DDS_RETCODE_NOT_ALLOWED_BY_SECURITY, text)
    if name == "MessageTooLarge":
        return DDSSampleTooLarge(text)
    if name == "TopicMismatch":
        return DDSException(DDSException.DDS_RETCODE_INCONSISTENT_POLICY, text)
    if name == "TopicLimit":
        return DDSException(DDSException.DDS_RETCODE_OUT_OF_RESOURCES, text)
    if isinstance(error, ValueError):
        return DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER, text)
    return DDSException(DDSException.DDS_RETCODE_ERROR, text)


def undecodable(topic: str, error: Exception) -> DDSException:
    """That a sample was not of the reader's type."""
    return DDSException(DDSException.DDS_RETCODE_ERROR,
                        f"a sample of topic {topic!r} can't be read and is skipped: {error}")


def is_about_sample(error: BaseException) -> bool:
    """True for what says that a sample can't be written, whoever writes it: of another type, or dds.idl.Unencodable."""
    return isinstance(error, (TypeError, BufferError)) or type(error).__name__ == "Unencodable"


def of_topic(error: Exception, topic: str) -> Exception:
    """What was raised for a wrong sample, with the name of its topic; itself if that says more than a text. Raises what
    a signal handler has raised."""
    give_way(error)
    if type(error).__name__ == "Unencodable":
        return ValueError(f"topic {topic!r}: {error}")
    if type(error) in (TypeError, ValueError, OverflowError):
        return type(error)(f"topic {topic!r}: {error}")
    return error


def unsupported(what: str, instead: str = "") -> NoReturn:
    """Raise DDSUnsupported: `what` is missing, `instead` says what to use."""
    raise DDSUnsupported(f"{what} is not part of Spindle{'; ' + instead if instead else ''}")


__all__ = ["DDSException", "DDSNodeLost", "DDSSampleTooLarge", "DDSTimeout", "DDSUnacknowledged", "DDSUnsupported",
           "translate"]
