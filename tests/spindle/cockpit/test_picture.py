"""Goal: a look at a large group costs a cockpit little. Method: a look as of ten nodes that read two hundred topics,
with endpoints that count how often they are asked what they are."""

from __future__ import annotations

from typing import Any

from spindle.cockpit.picture import Look, figures
from spindle.group.endpoints import PORT


class Counted:
    """A reader; `asked` counts for all."""

    asked = 0
    is_writer, app_name, pid, endpoint = False, "display", 17, b"{}"

    def __init__(self, topic: str, node_id: int) -> None:
        self.topic, self.node_id = topic, node_id

    @property
    def kind(self) -> int:
        Counted.asked += 1
        return PORT


def test_each_topic_is_looked_for_among_its_own_readers() -> None:
    """And whom it waits for is found there."""
    names, nodes = [f"topic-{number}" for number in range(200)], list(range(1, 11))
    by_topic: dict[str, Any] = {name: [Counted(name, node) for node in nodes] for name in names}
    told = [{"name": name, "topic_id": number, "window": 10, "level": "atomic", "stability": {
        "members": nodes, "senders": [1], "received": [100] * 10, "delivered": [100] * 9 + [0 if number == 7 else 100]}}
        for number, name in enumerate(names)]
    look = Look(1, 1, 0.0, {"members": [], "topics": told}, {}, by_topic=by_topic,
                endpoints=tuple(one for of in by_topic.values() for one in of))
    [held] = figures(look, None, lambda topic: True)["held"]
    assert held["topic"] == "topic-7" and held["node"] == 10 and held["readers"] == ["display (process 17)"]
    assert Counted.asked <= 2 * len(names) * len(nodes)
