"""The values of a restart as protobuf messages (node.proto), and back. What comes in is checked by its types alone: who
sends it is a member of the group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spindle.proto import node_pb2 as pb
from spindle.restart.chain import Holders, Life, Order, Standing, Successor, Summary


def order_to_wire(order: Order) -> pb.Order:
    return pb.Order(view_id=order[0], sequence=order[1])


def order_from_wire(message: pb.Order) -> Order:
    return message.view_id, message.sequence


def lives_to_wire(lives: tuple[Life, ...]) -> list[pb.Life]:
    return [pb.Life(name=one.name, first_view=one.first_view, after=order_to_wire(one.after)) for one in lives]


def lives_from_wire(messages: object) -> tuple[Life, ...]:
    return tuple(Life(one.name, one.first_view, order_from_wire(one.after)) for one in messages)  # type: ignore[attr-defined]


def relayed_to_wire(relayed: Mapping[int, int]) -> list[pb.RelayedWriter]:
    return [pb.RelayedWriter(writer=writer, source_ns=source_ns) for writer, source_ns in relayed.items()]


def relayed_from_wire(messages: Iterable[pb.RelayedWriter]) -> dict[int, int]:
    return {one.writer: one.source_ns for one in messages}


def holders_to_wire(holders: Holders) -> pb.Holders:
    return pb.Holders(view_id=holders.view_id, members=holders.members)


def holders_from_wire(message: pb.Holders) -> Holders:
    return Holders(message.view_id, tuple(message.members))


def successor_to_wire(successor: Successor) -> pb.Successor:
    return pb.Successor(holders=holders_to_wire(successor.holders), required=successor.required,
                        renews=successor.renews)


def successor_from_wire(message: pb.Successor) -> Successor:
    return Successor(holders_from_wire(message.holders), tuple(message.required), message.renews)


def summary_to_wire(summary: Summary, topic: str, view_id: int) -> pb.RestartSummary:
    standing = summary.standing
    message = pb.RestartSummary(
        topic=topic, view_id=view_id, lives=lives_to_wire(standing.lives), whole=standing.whole,
        seen_view=standing.seen_view, begin=order_to_wire(summary.begin), end=order_to_wire(summary.end),
        count=summary.count, problem=summary.problem, serving=summary.serving,
        type_name=summary.type[0], type_hash=summary.type[1])
    if standing.holders is not None:
        message.holders.CopyFrom(holders_to_wire(standing.holders))
    if standing.successor is not None:
        message.successor.CopyFrom(successor_to_wire(standing.successor))
    return message


def summary_from_wire(message: pb.RestartSummary) -> Summary:
    standing = Standing(
        lives_from_wire(message.lives), holders_from_wire(message.holders) if message.HasField("holders") else None,
        message.whole, successor_from_wire(message.successor) if message.HasField("successor") else None,
        message.seen_view)
    return Summary(standing, order_from_wire(message.begin), order_from_wire(message.end), message.count,
                   message.problem, message.serving, (message.type_name, message.type_hash))
