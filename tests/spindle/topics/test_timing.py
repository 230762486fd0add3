"""Who says in a topic's order what time it is, and when.

Goal: what is over is said once, by the first that can, never early; by the next one where the first does not; not
where nobody is there to hear it; and a node gives back the part of a sender that it took for that.
Method: a loop and a clock that the test moves; topics that only have what the timekeeper looks at, with the core's
notes of time.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from spindle.client import embed
from spindle.errors import ConfigError, NodeStopped
from spindle.group.codec import spec_from_wire, spec_to_wire
from spindle.group.levels import Level
from spindle.group.topics import TIMING_FOR, TIMING_STAMPED, TIMING_WORD, TopicSpec
from spindle.topics.timing import AGAIN_S, PERIOD_S, TURN_S, Timekeeper
from spindle_core.timing import Timing
from tests.spindle.topics.test_leases import Clock
from tests.support import wait_until

S = 1_000_000_000
NOW_NS = 1_700_000_000_000_000_000
WORD, TIMED = 5, 6
TIMING = bytes({TIMED: TIMING_FOR, WORD: TIMING_WORD}.get(tag, 0) for tag in range(256))
SPEC = TopicSpec("topic", timing=TIMING)
TABLE = TopicSpec("topic", level=Level.VOLATILE, timing=TIMING, effects=bytes([1, *[0] * 255]))


class Voice:
    """A writer of the node's own. What it says is delivered when the test says so."""

    def __init__(self, node: Node) -> None:
        self.topic, self.closed, self.inbox = "topic", False, self
        self.committed = self.acknowledged = 0
        self._node = node

    def say(self, tag: int, now_ns: int) -> None:
        assert tag == WORD
        self._node.words.append(now_ns)
        if self._node.delivers:
            self._node.hears(now_ns)


class Node:
    """One of the members `members`, of which `senders` are senders."""

    def __init__(self, node_id: int, members: tuple[int, ...] = (1, 2), senders: tuple[int, ...] = (1,),
                 level: Level = Level.ATOMIC, readers: int = 1, writers: int = 1) -> None:
        self.loop, self.delivers, self.opens = Clock(), True, True
        self.words: list[int] = []
        self.ahead_ns = 0  # of its clock
        self.opened = self.closed = 0
        self.local: Any = SimpleNamespace(
            timing=Timing(TIMING), log=None, member=True, readers_wanted=readers, writers_wanted=writers, writers=[],
            spec=TopicSpec("topic", level=level, timing=TIMING))
        self.view: Any = SimpleNamespace(topic=lambda name: SimpleNamespace(members=members, senders=senders))
        engine: Any = SimpleNamespace(parked=contextlib.nullcontext)
        self.keeper = Timekeeper(engine, node_id, {"topic": self.local}, lambda: self.view, self._open, self._close)

    async def _open(self, name: str) -> Any:
        if not self.opens:
            raise NodeStopped("not now")
        voice = Voice(self)
        self.opened += 1
        self.local.writers.append(voice)
        self.local.writers_wanted += 1
        return voice

    async def _close(self, port: Any) -> None:
        self.closed += 1
        port.closed = True
        self.local.writers.remove(port)
        self.local.writers_wanted -= 1

    def hears(self, now_ns: int) -> None:
        self.local.timing.note(b"", WORD, 0, now_ns)

    def writes(self, span_s: float) -> None:
        self.writes_at(self.now_ns, span_s)
        self.look()

    def writes_at(self, source_ns: int, span_s: float) -> None:
        self.local.timing.note(int(span_s * 1e9).to_bytes(8, "little"), TIMED, 1, source_ns)

    def look(self) -> None:
        async def call() -> None:
            self.keeper.look()

        self.loop.run_until_complete(call())

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.005)):
            self.loop.pass_time(0.005)
            for _ in range(3):  # tasks
                self.loop.run_until_complete(asyncio.sleep(0))

    @property
    def now_ns(self) -> int:
        return NOW_NS + self.ahead_ns + int(self.loop.now * 1e9)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Any:
    made: list[Node] = []

    def make(*args: Any, **more: Any) -> Node:
        made.append(Node(*args, **more))
        monkeypatch.setattr(time, "time_ns", lambda: made[-1].now_ns)
        return made[-1]

    yield make
    for one in made:
        one.keeper.stop()
        one.loop.close()


def test_the_first_says_it_when_it_is_due(node: Any) -> None:
    first = node(1)
    first.writes(1.0)
    first.pass_time(0.99)
    assert first.words == []
    first.pass_time(0.1)
    assert len(first.words) == 1 and NOW_NS + 1e9 <= first.words[0] <= NOW_NS + 1.05e9
    first.pass_time(20)
    assert len(first.words) == 1 and first.opened == 1


def test_the_next_one_says_it_where_nobody_has(node: Any) -> None:
    second = node(2, senders=(1, 2))
    second.writes(1.0)
    second.pass_time(1.0 + TURN_S * 0.8)
    assert second.words == []
    second.pass_time(TURN_S)
    assert len(second.words) == 1


def test_the_next_one_is_silent_where_somebody_has(node: Any) -> None:
    second = node(2, senders=(1, 2))
    second.writes(1.0)
    second.pass_time(1.03)
    second.hears(second.now_ns)
    second.pass_time(5)
    assert second.words == [] and second.opened == 0


def test_who_is_no_sender_becomes_one_for_it(node: Any) -> None:
    reader = node(2, members=(1, 2), senders=(), writers=0)
    reader.view.topic = lambda name: SimpleNamespace(members=(2, 1), senders=())
    reader.writes(0.1)
    reader.writes(5.0)
    reader.pass_time(0.3)
    assert len(reader.words) == reader.opened == reader.closed == 1  # what is left is due much later
    reader.pass_time(6)
    assert len(reader.words) == reader.opened == reader.closed == 2 and not reader.local.writers


def test_a_sender_keeps_its_voice_as_long_as_a_program_writes(node: Any) -> None:
    first = node(1)
    first.writes(0.1)
    first.pass_time(0.3)
    first.writes(0.1)
    first.pass_time(0.3)
    assert len(first.words) == 2 and (first.opened, first.closed) == (1, 0)
    first.local.writers_wanted -= 1  # the last program's writer is closed
    first.look()
    first.pass_time(0.1)
    assert (first.opened, first.closed) == (1, 1)


@pytest.mark.parametrize(("level", "writers", "says"), [
    (Level.ATOMIC, 1, False), (Level.VOLATILE, 1, True), (Level.VOLATILE, 0, False)])
def test_nothing_is_said_that_nobody_could_hear(node: Any, level: Level, writers: int, says: bool) -> None:
    alone = node(1, members=(1,), level=level, readers=0, writers=writers)
    alone.writes(0.1)
    alone.pass_time(1)
    assert bool(alone.words) == says


def test_what_is_not_delivered_is_said_again_at_times(node: Any) -> None:
    first = node(1)
    first.delivers = False
    first.writes(0.1)
    first.pass_time(0.1 + 3.5 * AGAIN_S)
    assert 3 <= len(first.words) <= 5 and first.words == sorted(first.words)
    first.hears(first.words[-1])
    first.pass_time(5)
    assert 3 <= len(first.words) <= 5


def test_many_at_a_time_take_few_words(node: Any) -> None:
    first = node(1)
    for _ in range(100):
        first.writes(0.05)
        first.pass_time(0.005)
    first.pass_time(1)
    assert 10 < len(first.words) <= 0.6 / PERIOD_S + 2


def test_a_clock_that_was_set_back_says_nothing_that_is_earlier(node: Any) -> None:
    first = node(1)
    ahead = first.now_ns + 1_000_000
    first.hears(ahead)
    first.local.timing.note((5_000_000).to_bytes(8, "little"), TIMED, 1, first.now_ns - 2_000_000)
    first.look()
    first.pass_time(0.1)
    assert all(one >= ahead for one in first.words)


def test_what_a_clock_said_that_was_set_right_is_taken_back(node: Any) -> None:
    first = node(1)
    first.hears(first.now_ns + 3600 * S)
    first.look()
    first.pass_time(3)
    assert first.words == []  # nothing asks for it
    first.writes(1.0)
    first.pass_time(0.05)
    assert len(first.words) == 1 and 0 <= first.now_ns - first.words[0] < S // 10
    first.writes(1.0)
    first.pass_time(1.1)
    assert len(first.words) == 2 and first.now_ns - first.words[1] < S // 10


def test_what_is_taken_back_is_said_again_at_times(node: Any) -> None:
    first = node(1)
    first.delivers = False
    first.hears(first.now_ns + 3600 * S)
    first.writes(1.0)
    first.pass_time(3)
    assert 1 < len(first.words) <= 3 / AGAIN_S + 1 and max(first.words) < first.now_ns


def test_a_clock_that_is_set_right_while_what_it_said_is_doubted_is_heard_of(node: Any) -> None:
    """Goal: nothing rings for each message that is over as it comes, nor does one keep silent for ever."""
    first = node(1)
    first.ahead_ns = 3600 * S
    first.hears(first.now_ns)
    first.writes_at(first.now_ns - 3600 * S, 1.0)
    first.look()
    assert first.local.timing.doubted
    first.pass_time(AGAIN_S / 2)
    first.ahead_ns = 0
    first.pass_time(AGAIN_S)
    assert len(first.words) == 1 and first.words[0] <= first.now_ns and not first.local.timing.doubted
    first.hears(first.now_ns + 3600 * S)
    first.ahead_ns = 3600 * S
    first.writes_at(first.now_ns - 3600 * S, 1.0)
    first.look()
    first.pass_time(AGAIN_S / 2)
    assert first.local.timing.doubted  # as long as before, though it is the second time
    first.pass_time(2 * AGAIN_S)
    assert not first.local.timing.doubted  # so the next message rings again
    first.ahead_ns = 0
    first.writes_at(first.now_ns, 1.0)
    first.look()
    first.pass_time(AGAIN_S)
    assert len(first.words) == 2 and first.words[1] <= first.now_ns


def test_who_is_not_the_first_takes_nothing_back(node: Any) -> None:
    """And says nothing earlier, where it says something."""
    second = node(2, senders=(1, 2))
    second.hears(ahead := second.now_ns + 3600 * S)
    second.writes(1.0)
    second.pass_time(3)
    assert second.words == []
    second.local.timing.note((7200 * S).to_bytes(8, "little"), TIMED, 1, second.now_ns - 3601 * S)
    second.pass_time(1.0)
    second.local.timing.note((7201 * S).to_bytes(8, "little"), TIMED, 1, second.now_ns - 3600 * S)
    second.look()
    second.pass_time(1.0)
    assert all(one >= ahead for one in second.words)


def test_the_first_says_no_other_time_than_its_own_where_that_is_far_earlier(node: Any) -> None:
    first = node(1)
    first.local.timing.say(ahead := first.now_ns + 3600 * S)
    over(first, 1.0)
    first.look()
    first.pass_time(0.1)
    assert len(first.words) == 1 and first.words[0] < ahead - 3599 * S


def test_a_clock_that_is_ahead_is_worth_one_warning(node: Any, caplog: pytest.LogCaptureFixture) -> None:
    first = node(1)
    first.hears(first.now_ns + 5_000_000_000)
    with caplog.at_level(logging.WARNING):
        for _ in range(9):
            first.look()
    assert [one.getMessage().split(":")[0] for one in caplog.records] == [
        "a member of topic 'topic' says a time that is 5.0 s ahead of this host's clock"]


def test_a_voice_that_can_not_be_had_is_asked_for_again(node: Any) -> None:
    first = node(1)
    first.opens = False
    first.writes(0.1)
    first.pass_time(2)
    assert first.words == []
    first.opens = True
    first.pass_time(AGAIN_S + 0.2)
    assert len(first.words) == 1
    first.keeper.stop()
    first.writes(0.1)
    first.pass_time(2)
    assert len(first.words) == 1


def test_a_voice_of_a_topic_that_has_gone_is_used_no_more(node: Any) -> None:
    first = node(1)
    first.writes(0.1)
    first.pass_time(0.3)
    first.local.member = False
    first.look()
    first.local.member = True
    first.local.writers.clear()
    first.writes(0.1)
    first.pass_time(0.3)
    assert len(first.words) == first.opened == 2


@pytest.mark.parametrize("timing", [
    bytes(255), bytes(256), bytes([TIMING_WORD]) + bytes(255), bytes([0, TIMING_WORD, TIMING_WORD]) + bytes(253),
    bytes([0, TIMING_WORD, 8]) + bytes(253)])
def test_specifications_that_say_nonsense_of_time(timing: bytes) -> None:
    with pytest.raises(ConfigError, match="timing of topic 'topic'"):
        TopicSpec("topic", timing=timing)


def test_a_specification_says_it_to_others() -> None:
    assert spec_from_wire(spec_to_wire(SPEC)) == SPEC
    assert SPEC.time_tag == WORD and TopicSpec("topic").time_tag == 0
    assert not SPEC.stamped and not TopicSpec("topic").stamped
    stamped = dataclasses.replace(SPEC, timing=bytes(one + TIMING_STAMPED for one in TIMING))
    assert stamped.stamped and stamped.time_tag == WORD and spec_from_wire(spec_to_wire(stamped)) == stamped
    TopicSpec("topic").check_same(SPEC)
    SPEC.check_same(TopicSpec("topic"))


class Table:
    """What a log says of keys that are over."""

    def __init__(self) -> None:
        self.table_waits = self.table_due_ns = 0


def over(node: Any, cleanup_s: float, due_s: float = 0.0, waits: int = 1) -> None:
    """A key of the topic is over, which is kept for so long."""
    node.local.spec = dataclasses.replace(TABLE, cleanup_ns=int(cleanup_s * 1e9))
    node.local.log = node.local.log or Table()
    node.local.log.table_waits = waits
    node.local.log.table_due_ns = node.now_ns + int(due_s * 1e9) if due_s else 0
    node.look()


def test_the_delay_of_what_is_over_begins_soon(node: Any) -> None:
    """Within a small share of it, so that one word begins all delays of that time."""
    first = node(1)
    over(first, 64.0)
    first.pass_time(0.95)
    assert first.words == []
    first.pass_time(0.1)
    assert len(first.words) == 1
    first.local.log.table_waits = 0
    first.look()
    first.pass_time(5)
    assert len(first.words) == 1
    over(first, 64.0, waits=2)
    first.pass_time(1.05)
    assert len(first.words) == 2, "what is over since has a word of its own"


def test_what_is_over_goes_when_it_is_due(node: Any) -> None:
    first = node(1)
    over(first, 2.0, due_s=2.0, waits=0)
    first.pass_time(1.95)
    assert first.words == []
    first.pass_time(0.1)
    assert len(first.words) == 1 and first.words[0] >= first.local.log.table_due_ns
    first.local.log.table_due_ns = 0
    first.look()
    first.pass_time(5)
    assert len(first.words) == 1


def test_what_is_wanted_first_is_said_first(node: Any) -> None:
    first = node(1)
    over(first, 10.0, due_s=8.0, waits=0)
    first.writes(1.0)
    first.pass_time(1.05)
    assert len(first.words) == 1
    first.local.log.table_waits = 5
    first.look()
    first.pass_time(0.2)
    assert len(first.words) == 2


def test_what_a_topic_that_is_gone_waited_for_is_forgotten(node: Any) -> None:
    first = node(1)
    over(first, 64.0)
    first.local.log = None
    first.look()
    assert not first.keeper._waits and first.words == []


def test_a_reader_that_comes_when_nobody_listened_is_told_what_is_over() -> None:
    """Method: a real node; the only reader goes before a message is over, and another one comes before that, too."""
    with embed() as session:
        session.declare_topic(dataclasses.replace(SPEC, name="timed", level=Level.UNORDERED))
        with session.open_writer("timed") as writer:
            with session.open_reader("timed", keep_all=True, from_history=False) as first:
                over_ns = time.time_ns() + 50_000_000
                writer.inbox.write((50_000_000).to_bytes(8, "little"), over_ns - 50_000_000, tag=TIMED)
                wait_until(lambda: first.log.pending)
            with session.open_reader("timed", keep_all=True, from_history=False) as second:
                wait_until(lambda: second.log.said_ns >= over_ns)
