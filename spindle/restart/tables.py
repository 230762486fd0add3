"""What a table of last values knows beside its messages, on its way to another member.

The messages of a table say what is kept. What they don't say (how much is missing, what time the order has said, which
keys are over and since when) goes before them: whoever is given the table is to decide from then on as all others do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from spindle.errors import WireError
from spindle.proto import node_pb2 as pb
from spindle.restart.chain import Order
from spindle.restart.codec import order_from_wire, order_to_wire

if TYPE_CHECKING:
    from spindle_core.delivery import DeliveryLog
    from spindle_core.memory import Mapping

OVER_AT_ONCE = 2048  # keys that are over in one chunk
KEY_BYTES_MIN = 128  # that a key takes in a table, at least


class Over(NamedTuple):
    """A key that is over, as DeliveryLog.table_over() says it."""

    key: int
    ns: int
    waits: bool


@dataclasses.dataclass
class TableState:
    """behind   the place in the order that comes after all that the table stands for
    said_ns     the latest time that the order has said by then, UTC; 0: none
    given_up    messages that found no room in it, and given_up_keys: how often that was all of a key
    limited     messages that went because of a limit of the topic
    over        keys that are over, in the order in which they go
    """

    behind: Order
    said_ns: int = 0
    given_up: int = 0
    given_up_keys: int = 0
    limited: int = 0
    over: list[Over] = dataclasses.field(default_factory=list)


def state_of(log: DeliveryLog, copy: Mapping) -> TableState:
    """Of the table of a log, and a copy of it that was made just now. While no engine delivers into it."""
    from spindle_core.table_copy import table_place

    figures = log.table_figures()
    return TableState(table_place(copy), log.said_ns, figures["given_up"], figures["given_up_keys"], figures["limited"],
                      [Over(*one) for one in log.table_over()])


def become(log: DeliveryLog, state: TableState) -> None:
    """The messages of that table have been noted: the table of this log is the same from here on."""
    log.table_stands_for(*state.behind, state.given_up, state.given_up_keys, state.limited, state.said_ns, state.over)


def to_chunks(state: TableState) -> Iterator[pb.HistoryChunk]:
    """The chunks that go before those of the messages."""
    yield pb.HistoryChunk(start=pb.HistoryStart(table=pb.KeyTable(
        behind=order_to_wire(state.behind), given_up=state.given_up, given_up_keys=state.given_up_keys,
        limited=state.limited, said_ns=state.said_ns)))
    for begin in range(0, len(state.over), OVER_AT_ONCE):
        yield pb.HistoryChunk(over=[pb.KeyOver(key=one.key, ns=one.ns, waits=one.waits)
                                    for one in state.over[begin : begin + OVER_AT_ONCE]])


def begun_by(table: pb.KeyTable) -> TableState:
    """Of the first chunk; add() takes the others. Raises WireError if it is behind no place in the order."""
    behind = order_from_wire(table.behind)
    if min(behind) < 0:
        raise WireError(f"a table of keys is behind view {behind[0]}, sequence {behind[1]}, which is no place")
    return TableState(behind, table.said_ns, table.given_up, table.given_up_keys, table.limited)


def add(state: TableState, chunk: pb.HistoryChunk, table_bytes: int) -> None:
    """What a chunk says of keys that are over. Raises WireError if a table of so many bytes has no room for them."""
    if (len(state.over) + len(chunk.over)) * KEY_BYTES_MIN > table_bytes:
        raise WireError(f"more than {table_bytes // KEY_BYTES_MIN} keys are over in a table of {table_bytes} bytes")
    state.over += [Over(one.key, one.ns, one.waits) for one in chunk.over]


__all__ = ["Over", "TableState", "add", "become", "begun_by", "state_of", "to_chunks"]
