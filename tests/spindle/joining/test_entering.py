"""Goal: a newcomer waits for nobody who has gone: neither for a life of a node that the view has no more, nor, once it
is a member, for any. It does wait for a member that it can't have a connection to because of that member's keys.

Method: the newcomer's part alone, with peers that never answer, or refuse.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from spindle.config.settings import NodeConfig
from spindle.errors import AccessDenied, NodeIdTaken, ProtocolMismatch, SpindleError
from spindle.group.view import Member, View
from spindle.joining.entering import Entry
from spindle.membership import messages as m
from tests.spindle.node.test_node import until


def member(node_id: int, incarnation: int = 1, host: bytes = b"here") -> Member:
    return Member(node_id, incarnation, f"/run/node-{node_id}.sock", 100 + node_id, 0, f"n{node_id}", 0, host,
                  f"{host.decode()}:{7400 + node_id}", ("shm", "tcp"))


class Silent:
    """Peers of whom only node 1 answers; `asked` has the lives that are waited for, `given_up` those no more."""

    def __init__(self) -> None:
        self.refusing = None
        self.asked: list[tuple[int, int]] = []
        self.given_up: list[tuple[int, int]] = []

    async def reach(self, one: Member, _: float) -> None:
        if one.node_id == 1:
            return
        self.asked.append(one.life)
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up.append(one.life)


def entry(peers: Silent, heard: list[Any], me: Member | None = None, failed: Any = None) -> Entry:
    changes = SimpleNamespace(me=me or member(9), view=None,
                              heard=lambda node_id, told: heard.append((node_id, told.view)))
    config = NodeConfig()
    return Entry(config, peers, changes, None, asyncio.Event(), None, None, failed, None, None)  # type: ignore[arg-type]


class Refusing(Silent):
    """Peers of whom these refuse this node, or are refused, as long as they are here."""

    def __init__(self, **refusals: SpindleError) -> None:
        super().__init__()
        self.refusals = {int(node[1:]): error for node, error in refusals.items()}

    async def reach(self, one: Member, _: float) -> None:
        self.asked.append(one.life)
        if one.node_id in self.refusals:
            raise self.refusals[one.node_id]


def view(number: int, *members: Member) -> View:
    return View(7, number, members, ())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_who_is_in_the_view_no_more_is_not_waited_for() -> None:
    async def scenario() -> None:
        peers, heard = Silent(), []  # type: ignore[var-annotated]
        one = entry(peers, heard)
        teller: Any = SimpleNamespace(node_id=1)
        first = asyncio.ensure_future(one.meet(teller, m.CurrentView(view(4, member(1), member(3)))))
        await turns()
        assert peers.asked == [(3, 1)]
        again = asyncio.ensure_future(one.meet(teller, m.CurrentView(view(5, member(1), member(3)))))
        await turns()
        assert not peers.given_up  # it is a member still, and may be slow
        await one.meet(teller, m.CurrentView(view(6, member(1))))
        await turns()
        assert first.done() and again.done() and set(peers.given_up) == {(3, 1)}
        assert [(node_id, told.view_id) for node_id, told in heard] == [(1, 6)]

    asyncio.run(scenario())


def test_another_life_of_a_node_is_another_one() -> None:
    async def scenario() -> None:
        peers, heard = Silent(), []  # type: ignore[var-annotated]
        one = entry(peers, heard)
        teller: Any = SimpleNamespace(node_id=1)
        tasks = [asyncio.ensure_future(one.meet(teller, m.CurrentView(view(4, member(1), member(3)))))]
        await turns()
        tasks.append(asyncio.ensure_future(one.meet(teller, m.CurrentView(view(6, member(1), member(3, 2))))))
        await turns()
        assert peers.given_up == [(3, 1)] and peers.asked == [(3, 1), (3, 2)] and tasks[0].done()
        tasks[1].cancel()  # the node stops
        await asyncio.wait(tasks)
        assert peers.given_up == [(3, 1), (3, 2)] and not heard

    asyncio.run(scenario())


@pytest.mark.parametrize("refusal", [AccessDenied("it has expired"), ProtocolMismatch("it is another program")])
def test_a_member_whose_keys_are_wrong_is_waited_for(refusal: SpindleError, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are met meanwhile. Once that member is started anew, this newcomer is let in."""
    monkeypatch.setattr("spindle.joining.entering.REFUSED_AGAIN_S", 0.001)

    async def scenario() -> None:
        peers, heard, failed = Refusing(n3=refusal), [], []  # type: ignore[var-annotated]
        one = entry(peers, heard, member(9, host=b"me"), failed.append)
        teller: Any = SimpleNamespace(node_id=1)
        group = view(4, member(1, host=b"a"), member(3, host=b"b"), member(4, host=b"c"))
        meeting = asyncio.ensure_future(one.meet(teller, m.CurrentView(group)))
        await until(lambda: failed or peers.asked.count((3, 1)) > 4, "it tries again")
        assert not failed and not heard and not meeting.done()
        assert peers.asked.count((1, 1)) == peers.asked.count((4, 1)) == 1
        assert str(refusal) in one._unmet  # what it says if the time is over
        peers.refusals.clear()
        await meeting
        assert [node_id for node_id, _ in heard] == [1] and not failed

    asyncio.run(scenario())


@pytest.mark.parametrize(("me", "refusals"), [
    (b"me", {"n3": AccessDenied("wrong"), "n4": AccessDenied("wrong")}),  # its own keys are wrong
    (b"b", {"n3": AccessDenied("another user")}),  # of the same host
    (b"me", {"n3": NodeIdTaken("taken")}),  # whoever that says it, it stays true
])
def test_who_is_wrong_itself_ends_at_once(me: bytes, refusals: dict[str, SpindleError]) -> None:
    async def scenario() -> None:
        heard, failed = [], []  # type: ignore[var-annotated]
        one = entry(Refusing(**refusals), heard, member(9, host=me), failed.append)
        await asyncio.wait_for(one.meet(SimpleNamespace(node_id=1), m.CurrentView(  # type: ignore[arg-type]
            view(4, member(1, host=me), member(3, host=b"b"), member(4, host=b"c")))), 10)
        assert failed == [refusals["n3"]] and not heard

    asyncio.run(scenario())
