"""Calls between programs: a service is a class with annotations, a client a proxy that is called like it.

    @service
    class Calculator:
        def add(self, a: int, b: int) -> int:
            return a + b

    server = Server(participant, Calculator())            # in one program
    client = Client(participant, Calculator)              # in others
    client.add(1, 2)

After OMG DDS-RPC 1.0; requests and replies are samples of two topics. `dds.rpc.errors` says what a call may raise.
"""

from __future__ import annotations

from dds.rpc.client import Client, RemoteOperation
from dds.rpc.errors import (
    CallTimeout,
    InvalidArguments,
    NoServer,
    NotCarriedOut,
    OutcomeUnknown,
    RemoteError,
    RpcError,
    ServerBusy,
    ServerGone,
    TooManyCalls,
    UnknownOperation,
)
from dds.rpc.interface import oneway, raises
from dds.rpc.server import Server
from dds.rpc.service import service

__all__ = [
    "CallTimeout", "Client", "InvalidArguments", "NoServer", "NotCarriedOut", "OutcomeUnknown", "RemoteError",
    "RemoteOperation", "RpcError", "Server", "ServerBusy", "ServerGone", "TooManyCalls", "UnknownOperation", "oneway",
    "raises", "service",
]
