"""What a call raises at its caller.

    RpcError                 a DDSException
      NoServer               no server was there (also a TimeoutError)
      TooManyCalls           this client has its limit of calls in flight; nothing was sent
      NotCarriedOut          the server says that it has not done it:
        ServerBusy             its queue is full
        UnknownOperation       it has no such operation
        InvalidArguments       the arguments don't fit its operation
      RemoteError            the operation raised an exception that the service doesn't declare
      OutcomeUnknown         carried out or not, nobody can say:
        ServerGone             the server closed, or its program or node died
        CallTimeout            no reply came in time (also a TimeoutError)

An exception that the service declares arrives as itself, and is none of these.
"""

from __future__ import annotations

from dds.exceptions import DDSException


class RpcError(DDSException):
    """A call has no result. `code` says why in the terms of DDS, `msg` in words."""

    default_code = DDSException.DDS_RETCODE_ERROR

    def __init__(self, msg: str) -> None:
        super().__init__(self.default_code, msg)


class NoServer(RpcError, TimeoutError):
    """No server of the service was there in the time that the call may wait for one. Nothing was sent."""

    default_code = DDSException.DDS_RETCODE_TIMEOUT


class TooManyCalls(RpcError):
    """The client has as many calls in flight as it may have. Nothing was sent."""

    default_code = DDSException.DDS_RETCODE_OUT_OF_RESOURCES


class NotCarriedOut(RpcError):
    """The server got the call and has not carried it out."""


class ServerBusy(NotCarriedOut):
    """Every server that was asked has its queue full."""

    default_code = DDSException.DDS_RETCODE_OUT_OF_RESOURCES


class UnknownOperation(NotCarriedOut):
    """The server's service has no operation of this name."""

    default_code = DDSException.DDS_RETCODE_UNSUPPORTED


class InvalidArguments(NotCarriedOut, TypeError):
    """The arguments are not those of the operation: of wrong types, or the two programs describe it differently."""

    default_code = DDSException.DDS_RETCODE_BAD_PARAMETER


class RemoteError(RpcError):
    """The operation raised an exception that the service doesn't declare.

    type_name  of the exception's class
    text       what it said
    """

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(f"the service raised {type_name}: {text}" if text else f"the service raised {type_name}")
        self.type_name = type_name
        self.text = text


class OutcomeUnknown(RpcError):
    """The call may have been carried out, or not, or be carried out later."""


class ServerGone(OutcomeUnknown):
    """The server that had the call is gone."""


class CallTimeout(OutcomeUnknown, TimeoutError):
    """No reply came in time."""

    default_code = DDSException.DDS_RETCODE_TIMEOUT


__all__ = [
    "CallTimeout", "InvalidArguments", "NoServer", "NotCarriedOut", "OutcomeUnknown", "RemoteError", "RpcError",
    "ServerBusy", "ServerGone", "TooManyCalls", "UnknownOperation",
]
