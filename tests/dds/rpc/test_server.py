"""Goal: whatever a service's own code does, its server goes on and its callers hear what became of their calls.

Method: a service whose methods raise what nobody expects, or return what can't be sent; a loop that the program closes;
several threads that close it at the same moment.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dds import DomainParticipant, duration
from dds.rpc import Client, RemoteError, RpcError, Server, ServerBusy, raises, service
from tests.support import wait_until

SOON = duration(seconds=20)


@dataclasses.dataclass
class Unset(Exception):
    """Its fields are never set."""

    litres: float

    def __init__(self) -> None:
        pass


class Mute(Exception):
    def __str__(self) -> str:
        raise LookupError("no text")


class Nothing:
    def __repr__(self) -> str:
        raise LookupError("no text")


@service(raises=[])
class Failing:
    def __init__(self) -> None:
        self.gate = threading.Event()

    @raises(Unset)
    def raise_unset(self) -> int:
        raise Unset

    def raise_mute(self) -> int:
        raise Mute

    def return_nothing(self) -> int:
        return Nothing()  # type: ignore[return-value]

    def return_half_a_letter(self) -> str:
        return "\ud800"

    async def cancel(self) -> int:
        raise asyncio.CancelledError

    async def leave(self) -> int:
        sys.exit(3)

    def wait(self) -> int:
        self.gate.wait(20)
        return 1

    def add(self, one: int) -> int:
        return one + 1

    async def add_later(self, one: int) -> int:
        return one + 1


@pytest.mark.parametrize(("method", "error"), [
    ("raise_unset", RpcError), ("raise_mute", RemoteError), ("return_nothing", RpcError),
    ("return_half_a_letter", RpcError), ("cancel", RemoteError), ("leave", RemoteError)])
def test_a_method_that_fails_oddly_is_answered_and_ends_nothing(participant, caplog, method: str, error: type) -> None:
    with Server(participant, Failing()), Client(participant, Failing, timeout=SOON) as client:
        assert client.wait_for_servers()
        with pytest.raises(error) as raised:
            getattr(client, method)()
        assert not isinstance(raised.value, TimeoutError)
        assert client.add(1) == 2 and client.add_later(1) == 2
    assert caplog.text.encode(), "what is logged can be written to a file"


def test_the_loop_of_the_coroutines_may_end_before_the_server(participant) -> None:
    async def begin() -> Server:
        return Server(participant, Failing(), loop=asyncio.get_running_loop())

    with asyncio.run(begin()), Client(participant, Failing, timeout=SOON) as client:
        assert client.wait_for_servers()
        with pytest.raises(ServerBusy, match="loop"):
            client.add_later(1)
        assert client.add(1) == 2


def test_a_cancelled_future_leaves_room_for_other_calls(participant) -> None:
    implementation = Failing()
    with Server(participant, implementation), Client(participant, Failing, timeout=SOON, calls_max=2) as client:
        assert client.wait_for_servers()
        for _ in range(2):
            assert client.wait.future().cancel()
        assert client.add_later(1) == 2
        implementation.gate.set()


def test_several_threads_may_close_a_server_at_once(participant) -> None:
    """None is told of an error, nor does the thread of its coroutines end with one, which pytest would report."""
    for _ in range(20):
        server = Server(participant, Failing())
        together = threading.Barrier(4)

        def close(server: Server = server, together: threading.Barrier = together) -> None:
            together.wait(20)
            server.close()

        with ThreadPoolExecutor(4) as pool:
            for closed in [pool.submit(close) for _ in range(4)]:
                closed.result(20)


def test_a_server_that_ends_with_its_participant_is_no_news(caplog) -> None:
    """Goal: a program with a server that closes its participant, or comes to its end, gets no warning of that."""
    with DomainParticipant.embedded() as participant:
        server = Server(participant, Failing())
    assert server.wait(SOON)
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    wait_until(lambda: not [one.name for one in threading.enumerate() if one.name.endswith(" of Failing")])


def test_a_clock_that_is_set_ends_no_call(participant: DomainParticipant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a call isn't taken for one whose caller has given up because the host's clock was set after it came."""
    now_ns = time.time_ns
    with Server(participant, Failing()), Client(participant, Failing, timeout=SOON) as client:
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + duration(seconds=3600))
        with pytest.raises(RpcError, match="was carried out"):
            client.raise_unset()
