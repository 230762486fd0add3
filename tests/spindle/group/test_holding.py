"""Goal: of a topic that doesn't go on, the right node and programs are named; of one that does, nobody.

Method: the topic's part of a node's status, and endpoints, as nodes give them.
"""

from __future__ import annotations

import json

from spindle.group.endpoints import HALTED, TOPIC, Endpoint
from spindle.group.holding import holders, stuck


def topic(received: list[int], delivered: list[int], **more: object) -> dict[str, object]:
    numbers = {"members": [1, 2, 3], "senders": [1, 3], "received": received, "delivered": delivered}
    return {"name": "t", "level": "atomic", "window": 100, "stability": numbers, **more}


def reader(node_id: int, application: str, topic: str = "t", **qos: object) -> Endpoint:
    said = json.dumps({"qos": qos}).encode() if qos else b""
    return Endpoint(application.encode(), node_id, False, topic, said, application, 40 + node_id)


def test_in_flight_is_not_held_up() -> None:
    assert holders(topic([1000, 901, 950], [901, 901, 905]), []) == []
    assert holders(topic([], []), []) == holders({"name": "t"}, []) == []


def test_a_reader_that_keeps_all() -> None:
    """Not those of other nodes and topics, and not those that can't hold anybody up. Two senders have 200 slots."""
    listed = [reader(2, "slow"), reader(2, "also", Durability={"kind": "Volatile"}), reader(1, "elsewhere"),
              reader(2, "other", "u"), reader(2, "last", History={"kind": "KeepLast", "depth": 1}),
              reader(2, "easy", Reliability={"kind": "BestEffort"}),
              Endpoint(b"w", 2, True, "t", app_name="writes", writer_id=1)]
    [found] = holders(topic([1000, 1000, 1000], [1000, 800, 990]), listed)
    assert (found.node_id, found.behind, found.receives) == (2, 200, True)
    assert found.readers == (("slow", 42), ("also", 42))
    assert "one of slow (process 42), also (process 42) at node 2" in str(found)
    assert "node 2, where 200 messages" in str(holders(topic([1000, 1000, 1000], [1000, 800, 990]), [])[0])


def test_a_member_that_does_not_receive() -> None:
    """Nobody can deliver what it lacks, so the others' readers are not to blame."""
    [found] = holders(topic([1000, 850, 1000], [850, 850, 850]), [reader(1, "a"), reader(2, "b")])
    assert (found.node_id, found.receives, found.readers) == (2, False, ())
    assert str(found) == "node 2, which has not received 150 messages"


def test_a_journal_that_has_halted() -> None:
    """It is to blame as soon as it says so, though all have delivered everything yet, and goes on doing so."""
    said = json.dumps({"qos": {}, HALTED: "no room"}).encode()
    listed = [Endpoint(b"j", 2, False, "t", said, "journal", kind=TOPIC)]
    for now in ([1000] * 3, [1010] * 3):
        [found] = stuck(topic([1000] * 3, [1000] * 3), topic(now, now), listed)
        assert str(found) == "the journal of node 2: no room"


def test_the_slowest_comes_first() -> None:
    assert [one.node_id for one in holders(topic([1000] * 3, [890, 1000, 810]), [])] == [3, 1]


def test_unordered_topics_have_no_delivered_numbers() -> None:
    assert holders(topic([1000] * 3, [0] * 3, level="unordered"), []) == []


def test_who_gets_on_holds_nobody_up() -> None:
    """Also where the rings are full at both looks. A view in between begins to count anew."""
    full = topic([2000, 2000, 2000], [2000, 1800, 1990])
    assert [one.node_id for one in stuck(topic([1000] * 3, [1000, 1790, 990]), full, [])] == [2]
    assert stuck(topic([1000] * 3, [1000, 800, 990]), full, []) == []
    assert [one.node_id for one in stuck(topic([9000] * 3, [9000] * 3), full, [])] == [2]
    assert stuck({"name": "t"}, full, []) == [] and stuck(full, {"name": "t"}, []) == []
