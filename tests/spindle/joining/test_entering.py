"""Goal: a newcomer waits for nobody who has gone: neither for a life of a node that the view has no more, nor, once it
is a member, for any.

Method: the newcomer's part alone, with peers that never answer.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from spindle.config.settings import NodeConfig
from spindle.group.view import Member, View
from spindle.joining.entering import Entry
from spindle.membership import messages as m


def member(node_id: int, incarnation: int = 1) -> Member:
    return Member(node_id, incarnation, f"/run/node-{node_id}.sock", 100 + node_id, 0, f"n{node_id}", 0, b"here")


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


def entry(peers: Silent, heard: list[Any]) -> Entry:
    changes = SimpleNamespace(me=member(9), view=None, heard=lambda node_id, told: heard.append((node_id, told.view)))
    config = NodeConfig()
    return Entry(config, peers, changes, None, asyncio.Event(), *(5 * [None]))  # type: ignore[arg-type]


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
