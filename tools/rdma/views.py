"""One node of a group whose views change, over verbs alone: what `make rdma-test` runs on every guest.

The last node comes, leaves in order, comes again, and loses its power; topics are opened in between. The others say
what their kernels have: between those that stay, no queue pair is made and none destroyed, in any of these views; those
with the last node come and go with it.

NODE, NODES and PEERS are as guests.py says.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from group import PATIENCE_S, PORT, digest, read, say, until, write

from spindle.config.settings import NodeConfig
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.node.node import Node
from tests.spindle.ports import reader_of, writer_of

MESSAGES = 100
ORDERS_PORT = PORT + 1


def queue_pairs() -> frozenset[int]:
    """Numbers of the kernel's reliable connections."""
    said = subprocess.run(["rdma", "-j", "resource", "show", "qp"], capture_output=True, text=True, check=True).stdout
    return frozenset(one["lqpn"] for one in json.loads(said) if one.get("type") == "RC")


async def has(number: int) -> frozenset[int]:
    """Those numbers, as soon as there are so many: those that are over go when nobody drives."""
    await until(lambda: len(queue_pairs()) == number, f"{number} queue pairs, not {len(queue_pairs())}")
    return queue_pairs()


class Member:
    """This guest's node, and what it has of the topics."""

    def __init__(self, mine: int, contacts: tuple[str, ...], lives: int) -> None:
        directory = Path(f"/run/spindle-views-{lives}")
        directory.mkdir(exist_ok=True)
        self.mine, self.of = mine, len(contacts)
        self.node = Node(NodeConfig(runtime_dir=directory, node_id=mine + 1, listen=contacts[mine], contacts=contacts,
                                    plain=True, fabric="verbs", join_timeout_s=PATIENCE_S, suspect_timeout_s=8.0))
        self.reader: Any = None
        self.writer: Any = None

    async def together(self, members: int) -> None:
        await until(lambda: len(self.node.view().node_ids) == members, f"a view of {members}")

    async def share(self, topic: str, members: int) -> None:
        """All write, all read, and say in which order it came."""
        if self.mine == 0:
            await self.node.declare_topic(TopicSpec(topic, level=Level.ATOMIC, size_max=4000))
        await until(lambda: any(one.spec.name == topic for one in self.node.topics()), "the topic")
        self.reader = reader_of(self.node, await self.node.open_reader(topic, keep_all=True, from_history=False))
        self.writer = writer_of(self.node, await self.node.open_writer(topic))
        await until(lambda: all(len(one.members) == len(one.senders) == members
                                for one in self.node.topics() if one.spec.name == topic), "all reading and writing")
        await self.exchange(topic, members, MESSAGES)

    async def exchange(self, topic: str, members: int, acknowledged: int) -> None:
        await write(self.writer, self.mine, topic, MESSAGES)
        got = await read(self.reader, MESSAGES * members)
        await until(lambda: self.writer.acknowledged == acknowledged, "acknowledged")
        say(f"order {topic} {members} {digest(got)}")


class Orders:
    """What the first node tells the last one to do, and when."""

    def __init__(self) -> None:
        self.to: asyncio.StreamWriter | None = None

    async def listen(self) -> None:
        def take(kept: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            self.kept, self.to = kept, to  # without its reader a connection ends

        self.server = await asyncio.start_server(take, port=ORDERS_PORT)
        await until(lambda: self.to, "the last guest")

    def give(self, order: str) -> None:
        if self.to is not None:
            self.to.write(f"{order}\n".encode())


async def come_and_go(contacts: tuple[str, ...], first: str) -> None:
    """The last node: does what it is told."""
    orders: asyncio.StreamReader | None = None
    kept: asyncio.StreamWriter | None = None     # without it the connection ends
    deadline = time.monotonic() + PATIENCE_S
    while orders is None:
        try:
            orders, kept = await asyncio.open_connection(first, ORDERS_PORT)
        except OSError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
    lives, member = 0, None
    async for line in orders:
        order, _, topic = line.decode().strip().partition(" ")
        if order == "come":
            member, lives = Member(len(contacts) - 1, contacts, lives), lives + 1
            await member.node.start()
            await member.together(len(contacts))
            await member.share(topic, len(contacts))
        elif order == "leave":
            assert member is not None
            await member.node.stop()
            say("left")
        else:
            say("cut my power")
    raise SystemExit(f"the orders have ended: {kept}")


async def stay(member: Member, orders: Orders) -> None:
    """Of the nodes that stay: the same queue pairs after each view."""
    others = member.of - 2                       # that stay
    views = [member.node.view().view_id]

    async def seen(what: str, wanted: Callable[[], Awaitable[None]], pairs: int, before: frozenset[int]
                   ) -> frozenset[int]:
        begun = time.monotonic()
        await wanted()
        now = await has(2 * pairs)
        views.append(member.node.view().view_id)
        lost, made = len(staying - now), len(now - before)
        say(f"{what}: {len(now)} queue pairs, {made} of them new; of those that stay {lost} are lost"
            f" ({views[-1] - views[-2]} views, {time.monotonic() - begun:.1f} s)")
        if lost or made != 2 * max(0, pairs - len(before) // 2):
            raise SystemExit("a view change has made or destroyed queue pairs of those that stay")
        return now

    await member.together(member.of - 1)
    staying = now = await has(2 * others)
    now = await seen("topics open", lambda: member.share("first", member.of - 1), others, now)
    orders.give("come second")
    now = await seen("one has come", lambda: member.together(member.of), others + 1, now)
    now = await seen("one more topic", lambda: member.share("second", member.of), others + 1, now)
    orders.give("leave")
    now = await seen("one has left", lambda: member.together(member.of - 1), others, now)
    orders.give("come third")
    now = await seen("it has come again", lambda: member.together(member.of), others + 1, now)
    now = await seen("one more topic", lambda: member.share("third", member.of), others + 1, now)
    orders.give("crash")
    now = await seen("one has crashed", lambda: member.together(member.of - 1), others, now)
    await member.exchange("third", member.of - 1, 2 * MESSAGES)
    say(f"kept {views[-1] - views[0]} views")


async def main() -> None:
    mine, everybody = int(os.environ["NODE"]), os.environ["PEERS"].split(",")
    contacts = tuple(f"{address}:{PORT}" for address in everybody)
    if mine == len(everybody) - 1:
        await come_and_go(contacts, everybody[0])
        return
    orders = Orders()
    if mine == 0:
        await orders.listen()
    member = Member(mine, contacts, 0)
    await member.node.start()
    await stay(member, orders)
    await member.node.stop()
    say("done")


if __name__ == "__main__":
    asyncio.run(main())
