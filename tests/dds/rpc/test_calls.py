"""Goal: every call of a client is settled exactly once, by whatever happens first, and is never carried out twice.

Method: the state machine alone, step by step; then random sequences of everything that can happen to it.
"""

from __future__ import annotations

import random

import pytest

from dds.rpc.calls import Answer, Call, Calls, Effects
from dds.rpc.errors import CallTimeout, NoServer, OutcomeUnknown, RpcError, ServerBusy, ServerGone, TooManyCalls
from dds.rpc.messages import Code

A, B = b"a" * 16, b"b" * 16
DONE = Answer(Code.OK, "", b"result")
BUSY = Answer(Code.OUT_OF_RESOURCES, "", b"its queue is full")


def calls(**more) -> Calls:
    settings = {"calls_max": 10, "patience_ns": 50, **more}
    return Calls("Service", **settings)


def begin(machine: Calls, now_ns: int = 0, timeout_ns: int = 100, keep: bool = True) -> Call:
    return machine.begin("get", b"", b"", now_ns, timeout_ns, keep)


def only(effects: Effects) -> tuple[Call, Answer | RpcError]:
    assert len(effects.settled) == 1 and not effects.send
    return effects.settled[0]


def test_a_reply_settles_the_call_of_the_server_that_has_it() -> None:
    machine = calls()
    machine.server_came(A)
    machine.server_came(B)
    first, second = begin(machine), begin(machine)
    assert {first.server, second.server} == {A, B}
    other = B if first.server == A else A
    assert machine.replied(other, first.number, DONE) == Effects()  # another server can't answer for it
    assert only(machine.replied(first.server, first.number, DONE)) == (first, DONE)
    assert machine.replied(first.server, first.number, DONE) == Effects()  # once
    assert machine.replied(first.server, 99, DONE) == Effects() and len(machine) == 1


def test_calls_go_to_the_server_with_the_fewest() -> None:
    machine = calls()
    machine.server_came(A)
    begin(machine)
    begin(machine)
    machine.server_came(B)
    assert [begin(machine).server for _ in range(2)] == [B, B]
    assert {begin(machine).server, begin(machine).server} == {A, B}


def test_calls_wait_for_a_server_and_no_longer_than_they_may() -> None:
    machine = calls()
    patient, hurried = begin(machine), begin(machine, timeout_ns=20)
    assert patient.server is None and machine.next_ns == 20
    call, error = only(machine.pass_time(20))
    assert call is hurried and isinstance(error, NoServer)
    assert machine.server_came(A).send == [patient] and patient.server == A
    assert machine.pass_time(60) == Effects()
    call, error = only(machine.pass_time(100))
    assert call is patient and isinstance(error, CallTimeout) and isinstance(error, TimeoutError)
    assert machine.replied(A, patient.number, DONE) == Effects() and machine.next_ns is None
    lonely = calls()
    begin(lonely)
    assert isinstance(only(lonely.pass_time(50))[1], NoServer)  # not at its deadline, 100


def test_the_end_of_a_server_is_told_to_its_calls_alone() -> None:
    machine = calls()
    machine.server_came(A)
    machine.server_came(B)
    lost, kept = sorted((begin(machine), begin(machine)), key=lambda one: one.server)
    call, error = only(machine.server_gone(A))
    assert call is lost and isinstance(error, ServerGone) and isinstance(error, OutcomeUnknown)
    assert only(machine.replied(B, kept.number, DONE))[0] is kept
    assert begin(machine).server == B and machine.server_gone(A) == Effects()


def test_only_who_says_that_it_has_not_done_it_is_followed_by_another() -> None:
    machine = calls()
    machine.server_came(A)
    machine.server_came(B)
    call = begin(machine)
    first = call.server
    assert machine.replied(first, call.number, BUSY).send == [call]
    assert call.server not in (None, first)
    settled, error = only(machine.replied(call.server, call.number, BUSY))
    assert settled is call and isinstance(error, ServerBusy) and "its queue is full" in str(error)
    failed = begin(machine)
    assert only(machine.replied(failed.server, failed.number, Answer(Code.UNKNOWN_EXCEPTION, "E", b"")))[0] is failed


def test_the_limit_is_named() -> None:
    machine = calls(calls_max=2)
    machine.server_came(A)
    first = begin(machine)
    begin(machine)
    with pytest.raises(TooManyCalls, match=r"2 calls .*calls_max"):
        begin(machine)
    machine.drop(first)
    begin(machine)


def test_one_way_calls_are_forgotten_at_once() -> None:
    machine = calls()
    with pytest.raises(NoServer):
        begin(machine, keep=False)
    machine.server_came(A)
    assert begin(machine, keep=False).server == A and len(machine) == 0
    assert machine.server_gone(A) == Effects()


def test_ordered_calls_take_the_first_reply_and_end_with_the_last_server() -> None:
    machine = calls(ordered=True)
    waiting = begin(machine)
    assert machine.server_came(A).send == [waiting]
    assert machine.server_came(B) == Effects()
    assert machine.server_gone(A) == Effects()
    assert only(machine.replied(B, waiting.number, DONE))[0] is waiting
    last = begin(machine)
    assert only(machine.server_gone(B))[0] is last


def test_uncertainty_spares_what_was_not_sent() -> None:
    machine = calls()
    waits = begin(machine)
    assert machine.uncertain("why") == Effects()
    machine.server_came(A)
    assert only(machine.uncertain("why"))[0] is waits
    begin(machine)
    assert isinstance(only(machine.overtaken(A))[1], OutcomeUnknown)


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_each_call_is_settled_once(seed: int) -> None:
    """Method: random servers, replies, refusals and time; at the end everything is over."""
    chance = random.Random(seed)
    machine = calls(calls_max=20, ordered=seed % 5 == 0)
    begun: list[Call] = []
    settled: list[Call] = []
    now_ns = 0

    def take(effects: Effects) -> None:
        settled.extend(call for call, _ in effects.settled)
        assert all(call.server is not None for call in effects.send)

    servers = [bytes([65 + k]) * 16 for k in range(4)]
    for _ in range(400):
        step = chance.randrange(7)
        one = chance.choice(servers)
        if step == 0:
            take(machine.server_came(one))
        elif step == 1 and chance.random() < 0.3:
            take(machine.server_gone(one))
        elif step == 2:
            now_ns += chance.randrange(30)
            take(machine.pass_time(now_ns))
        elif step == 3 and chance.random() < 0.1:
            take(machine.uncertain("why") if chance.random() < 0.5 else machine.overtaken(one))
        elif step in (4, 5) and begun:
            take(machine.replied(one, chance.choice(begun).number, BUSY if step == 4 else DONE))
        else:
            try:
                begun.append(begin(machine, now_ns, chance.randrange(1, 100)))
            except TooManyCalls:
                pass
    take(machine.end(RpcError("over")))
    assert sorted(call.number for call in settled) == [call.number for call in begun]
    assert len(machine) == 0
