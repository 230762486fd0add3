"""Goal: the demonstration says "all agree" only if all do. Method: findings that agree, then spoiled one way each."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spindle.demo.findings import Findings, JournalFinding, MonitorFinding, first_difference, text_of

NODES = [1, 2, 3]


def monitor(digest: str = "d1", heard: int = 9, turned_at: int = 4) -> MonitorFinding:
    return MonitorFinding(2, digest, heard, [{"node": 1, "sample": 0}, {"node": 3, "sample": turned_at}])


def agreeing() -> Findings:
    topics = {"a": 10, "b": 4}
    return Findings(
        seconds=3,
        speed=2,
        published=dict(topics),
        delivered={
            n: {t: {"count": c, "hash": t * 8, "payload_hash": t, "lost": 0} for t, c in topics.items()} for n in NODES
        },
        latency_us={n: {"write to take": {"p50": 90.0, "p99": 1200.0, "max": 4000.0}} for n in NODES},
        monitors={n: monitor() for n in NODES},
        late_alerts=monitor(),
        recorded=9,
        killed_at=3,
        journals={n: JournalFinding(True, {"a": 10}, {"a": "a"}) for n in NODES},
        counters={n: {"nulls": 3, "send_batches": 2, "send_messages": 5} for n in NODES},
        views=dict.fromkeys(NODES, 7),
    )


def test_agreement_is_said_and_shown() -> None:
    """Goal: nothing to complain about, and the figures are in the text."""
    found = agreeing()
    assert found.disagreements(NODES) == []
    text = text_of(found, NODES)
    assert "All agree: 14 messages" in text
    assert "same (aaaaaaaa)" in text
    assert "killed after 3 samples" in text and "from sample 4 on everybody heard that of node 3" in text
    assert "90 us" in text and "1.2 ms" in text and "2.50" in text
    assert max(map(len, text.splitlines())) <= 80
    assert json.loads(json.dumps(found.as_json(NODES)))["agreed"] is True


SPOILED: list[tuple[str, Callable[[Findings], object]]] = [
    ("10 published, 9 delivered on node 2", lambda f: f.delivered[2]["a"].update(count=9)),
    ("the order differs", lambda f: f.delivered[3]["b"].update(hash="other")),
    ("lost 1", lambda f: f.delivered[1]["a"].update(lost=1)),
    ("0 delivered on node 3", lambda f: f.delivered.pop(3)),
    ("nothing was published", lambda f: f.published.update(a=0)),
    ("the alerts differ", lambda f: f.monitors.update({2: monitor("d2")})),
    ("not every node's alert monitor", lambda f: f.monitors.pop(1)),
    ("not those of a monitor that came late", lambda f: setattr(f, "late_alerts", monitor("d3"))),
    ("who was heard of the air data differs", lambda f: f.monitors.update({2: monitor(turned_at=5)})),
    ("no other publisher", lambda f: [one.owners.pop() for one in f.monitors.values()]),
    ("no monitor came late", lambda f: setattr(f, "late_alerts", None)),
    ("recorder got 8 samples", lambda f: setattr(f, "recorded", 8)),
    ("the monitors {8, 9}", lambda f: f.monitors.update({2: monitor(heard=8)})),
    ("damaged: torn", lambda f: f.journals.update({1: JournalFinding(False, {"a": 10}, {"a": "a"}, "torn")})),
    ("9 of 10 in the journal of node 3", lambda f: f.journals.update({3: JournalFinding(True, {"a": 9})})),
    ("not what was delivered", lambda f: f.journals.update({3: JournalFinding(True, {"a": 10}, {"a": "b"})})),
    ("were not verified", lambda f: f.journals.pop(2)),
    ("daemon 1 ended", lambda f: f.trouble.append("daemon 1 ended with exit code 9")),
]


@pytest.mark.parametrize(("words", "spoil"), SPOILED, ids=[words for words, _ in SPOILED])
def test_every_disagreement_is_found(words: str, spoil: Callable[[Findings], object]) -> None:
    """Goal: each fault alone is enough, is named, and can be shown."""
    found = agreeing()
    spoil(found)
    assert any(words in one for one in found.disagreements(NODES))
    assert "DISAGREEMENT" in text_of(found, NODES)


def test_the_first_difference_is_located() -> None:
    """Goal: where two orders part, or where the shorter one ends."""
    assert "message 1 (node 1 62, node 2 78)" in first_difference({1: b"abc", 2: b"axc"}, 1)
    assert "after message 2" in first_difference({1: b"abc", 2: b"ab"}, 1)
