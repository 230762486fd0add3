"""Goal: the queue of a server is bounded, fair between clients, and forgets what nobody waits for.

Method: the queue alone, with jobs of several clients.
"""

from __future__ import annotations

import pytest

from dds.rpc.queueing import Job, Waiting

A, B, C = b"a", b"b", b"c"


def job(client: bytes, number: int, expires_ns: int | None = None) -> Job:
    return Job(client, number, None, (), expires_ns)  # type: ignore[arg-type]


def taken(waiting: Waiting, now_ns: int = 0) -> list[tuple[bytes, int]]:
    found = []
    while (one := waiting.take(now_ns)) is not None:
        found.append((one.client, one.number))
    return found


def test_clients_are_served_in_turns() -> None:
    waiting = Waiting(100, 100)
    for number in range(3):
        assert not waiting.add(job(A, number))
    assert not waiting.add(job(B, 0)) and not waiting.add(job(C, 0)) and not waiting.add(job(B, 1))
    assert taken(waiting) == [(A, 0), (B, 0), (C, 0), (A, 1), (B, 1), (A, 2)] and len(waiting) == 0


@pytest.mark.parametrize("taken_between", range(6))
def test_an_ordered_service_knows_no_turns(taken_between: int) -> None:
    """Whenever a server reads and carries out, it is in the order in which the calls came."""
    order = [(b"a", 1), (b"a", 2), (b"b", 1), (b"a", 3), (b"b", 2), (b"b", 3)]
    waiting, found = Waiting(100, 100, in_order=True), []
    for k, (client, number) in enumerate(order):
        assert waiting.add(job(client, number)) == ""
        if k >= taken_between and (one := waiting.take(0)) is not None:
            found.append((one.client, one.number))
    assert found + taken(waiting) == order


def test_one_client_alone_is_served_in_order() -> None:
    waiting = Waiting(100, 100)
    for number in range(5):
        waiting.add(job(A, number))
    assert [number for _, number in taken(waiting)] == list(range(5))


def test_both_limits_are_named() -> None:
    waiting = Waiting(3, 2)
    assert not waiting.add(job(A, 0)) and not waiting.add(job(A, 1))
    assert "2 requests of this client" in waiting.add(job(A, 2)) and "client_max" in waiting.add(job(A, 2))
    assert not waiting.add(job(B, 0))
    assert "3 requests" in waiting.add(job(B, 1)) and "queue_max" in waiting.add(job(C, 0))
    assert len(waiting) == 3
    waiting.take(0)
    assert not waiting.add(job(C, 0))


def test_who_has_given_up_is_skipped() -> None:
    waiting = Waiting(10, 10)
    waiting.add(job(A, 0, 5))
    waiting.add(job(A, 1, 50))
    waiting.add(job(B, 0))
    assert taken(waiting, 5) == [(B, 0), (A, 1)] and waiting.skipped == 1 and len(waiting) == 0


def test_a_client_that_is_gone_takes_its_requests_along() -> None:
    waiting = Waiting(3, 3)
    waiting.add(job(A, 0))
    waiting.add(job(A, 1))
    waiting.add(job(B, 0))
    waiting.forget(A)
    waiting.forget(C)
    assert len(waiting) == 1 and taken(waiting) == [(B, 0)]
