"""Limits of the table of last values, and keys that are over: what goes, in which order, and when.

Goal: limits hold, over keys go first, nothing that is over goes before its delay has passed by the agreed time,
whatever clocks and timestamps say; a word is wanted when something waits for it, and never otherwise; whoever is given
a table decides from there on as everybody does. Method: as in test_lasts.py, with a model and messages drawn at random;
then each rule alone.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from spindle.group.levels import Level
from spindle.group.topics import TIMING_STAMPED, TIMING_WORD, TopicSpec
from spindle_core.delivery import CLEANUP_NEVER, DeliveryLog
from spindle_core.table_copy import table_messages, table_place
from spindle_core.timing import Timing
from spindle_lab.whole.lasts import Lasts
from spindle_lab.whole.said import Said
from tests.spindle_core.test_lasts import (
    EFFECTS,
    ENDS,
    LEAVES,
    OF_WRITER,
    RANKS,
    SAMPLE,
    SHARED,
    arguments,
    kept,
    random_messages,
    said,
)
from tests.support import seeds

WORD, ALONE, ALONE_ENDS = 100, 101, 102
MS, S = 1_000_000, 1_000_000_000
NOW = 1_700_000_000 * S
ALL = bytes({ALONE: SAMPLE | 32, ALONE_ENDS: SAMPLE | 32 | LEAVES | ENDS}.get(tag, EFFECTS[tag]) for tag in range(256))
TIMING = bytes(TIMING_WORD if tag == WORD else 0 for tag in range(256))
OVER = LEAVES | ENDS


def spec_of(depth: int = 1, room: int = 1 << 16, ranks: bytes = b"", **limits: int) -> TopicSpec:
    return TopicSpec("t", level=Level.VOLATILE, size_max=16, history_depth=depth, history_bytes=room,
                     effects=bytes(0 if one & 128 else one for one in ALL) if ranks == RANKS else ALL,
                     timing=TIMING, ranks=ranks, **limits)


def log_of(spec: TopicSpec) -> DeliveryLog:
    return DeliveryLog(1 << 16, keep_history=True, history_depth=spec.history_depth, effects=spec.effects,
                       table_bytes=spec.table_bytes, timing=Timing(spec.timing), samples_max=spec.samples_max,
                       keys_max=spec.keys_max, cleanup_ns=spec.cleanup_ns, ranks=spec.ranks)


def message(one: Said) -> tuple[Any, ...]:
    """Of DeliveryLog.append and note."""
    found = list(arguments(one))
    found[4] = one.source_ns
    return tuple(found)


def word(sequence: int, now_ns: int, writer: int = 0) -> Said:
    return dataclasses.replace(said(sequence, 0, WORD, writer, size=0), source_ns=now_ns)


class Topic:
    """A log, and the next place in its order."""

    def __init__(self, **limits: int) -> None:
        self.log, self.place = log_of(spec_of(**limits)), 0

    def say(self, key: int, tag: int = 0, writer: int = 1, source_ns: int = NOW, size: int = 8) -> None:
        one = said(self.place, key, tag, writer, size=size)
        self.log.append(*message(dataclasses.replace(one, source_ns=source_ns)))
        self.place += 1

    def ends(self, key: int, **more: int) -> None:
        self.say(key, OVER, **more)

    def tell(self, now_ns: int, writer: int = 0) -> None:
        self.log.append(*message(word(self.place, now_ns, writer)))
        self.place += 1

    @property
    def keys(self) -> list[int]:
        """Those of which samples are kept, in the order."""
        return [one.key for one in self.kept if ALL[one.tag] & SAMPLE]

    @property
    def kept(self) -> list[Said]:
        return kept(self.log)

    @property
    def figures(self) -> dict[str, int]:
        return self.log.table_figures()


# --- against the model

RANKS_OF = {"ranked": RANKS, "shared": SHARED, "shared groups": SHARED}


def drawn(rng: random.Random, count: int, keys: int, large: int, kind: str) -> list[Said]:
    """As in test_lasts.py, with words and samples that are of no key among them; all have timestamps, mostly those of
    the time that goes by."""
    now, found = NOW, []
    for one in random_messages(rng, count, keys, large, "groups" in kind, ranked=bool(RANKS_OF.get(kind))):
        now += rng.choice((0, 0, MS, 20 * MS, S))
        chance = rng.random()
        if chance < 0.1:
            now_ns = now + rng.choice((0, 0, 0, -50 * MS, 90 * S if rng.random() < 0.5 else 10 * S))
            one = word(one.order[1], now_ns, rng.choice((0, 0, 0, 5)))
        elif chance < 0.2:
            key = rng.choice((one.key, 1 << 63 | rng.randrange(1 << 20)))
            one = dataclasses.replace(one, tag=rng.choice((ALONE, ALONE, ALONE_ENDS)), key=key, writer=one.writer or 1,
                                      last=0, rank=0)
        if one.tag != WORD:
            stamps = (now, now, now, 0, now + 20 * S, now + 90 * S, 1 << 63)
            one = dataclasses.replace(one, source_ns=rng.choice(stamps))
        found.append(one)
    return found


def drawn_spec(rng: random.Random, kind: str) -> TopicSpec:
    spec = spec_of(
        rng.choice((0, 0, 1, 3)), rng.choice((4096, 8192, 1 << 20)), samples_max=rng.choice((0, 0, 1, 4, 20)),
        keys_max=rng.choice((0, 0, 1, 3, 10)), cleanup_ns=rng.choice((0, 1, 30 * MS, 2 * S, 40 * S, CLEANUP_NEVER)),
        ranks=RANKS_OF.get(kind, b""))
    # Whether nodes look at source timestamps is nothing to the table, which knows the words all the same.
    return dataclasses.replace(spec, timing=bytes(one + rng.choice((0, TIMING_STAMPED)) for one in spec.timing))


@pytest.mark.parametrize("kind", ["plain", "groups", *RANKS_OF])
@pytest.mark.parametrize("seed", seeds(80, quick=15))
def test_the_table_is_what_the_model_says(seed: int, kind: str) -> None:
    rng = random.Random(seed)
    spec = drawn_spec(rng, kind)
    log, model = log_of(spec), Lasts(spec)
    for one in drawn(rng, 300, rng.choice((1, 4, 30)), rng.choice((8, 200, 900)), kind):
        log.append(*message(one))
        model.note(one)
        assert kept(log) == model.kept
        figures = log.table_figures()
        assert log.table_over() == model.over and figures["over"] == len(model.over)
        wants = bool(log.table_due_ns or log.table_waits)
        assert wants == (0 < spec.cleanup_ns < CLEANUP_NEVER and bool(model.over))
    assert (figures["given_up"], figures["limited"]) == (model.given_up, model.limited)
    assert figures["bytes"] <= spec.table_bytes


@pytest.mark.parametrize("kind", ["plain", "groups", *RANKS_OF])
@pytest.mark.parametrize("seed", seeds(40, quick=10))
def test_a_table_that_is_given_goes_on_as_the_one_that_it_was(seed: int, kind: str) -> None:
    """Also of what goes because of a limit, and of what is over, in the same order and at the same time."""
    rng = random.Random(seed)
    spec = drawn_spec(rng, kind)
    log, joiner = log_of(spec), log_of(spec)
    messages = drawn(rng, 400, rng.choice((3, 40)), 300, kind)
    entered, cut = sorted(rng.sample(range(len(messages)), 2))
    for one in messages[:cut]:
        log.append(*message(one))
    give(log, joiner)
    for one in messages[entered:cut]:
        joiner.append(*message(one))  # had been on their way to it all the while
    for one in messages[cut:]:
        log.append(*message(one))
        joiner.append(*message(one))
        assert kept(joiner) == kept(log) and joiner.table_over() == log.table_over()
        assert joiner.table_due_ns == log.table_due_ns and bool(joiner.table_waits) == bool(log.table_waits)
    assert joiner.table_figures() == log.table_figures()


def give(log: DeliveryLog, joiner: DeliveryLog) -> None:
    copy = log.copy_table(shared=False)
    joiner.restore_table()
    for one in table_messages(copy):
        joiner.note(*one)
    figures, over = log.table_figures(), log.table_over()
    joiner.table_stands_for(*table_place(copy), figures["given_up"], figures["given_up_keys"], figures["limited"],
                            log.said_ns, over)
    assert kept(joiner) == kept(log) and joiner.table_over() == over


# --- limits

def test_the_oldest_sample_of_all_goes() -> None:
    topic = Topic(depth=0, samples_max=4)
    for key in (1, 2, 1, 1, 2, 3):
        topic.say(key)
    assert [one.order[1] for one in topic.kept] == [2, 3, 4, 5]
    assert topic.figures["limited"] == 2 and topic.figures["given_up"] == 0
    topic.say(4)
    topic.say(4)
    assert topic.keys == [2, 3, 4, 4] and topic.figures["keys"] == 3


def test_what_the_depth_replaces_makes_room_first() -> None:
    topic = Topic(depth=2, samples_max=4)
    for key in (1, 2, 2, 1, 2, 2):
        topic.say(key)
    assert [one.order[1] for one in topic.kept] == [0, 3, 4, 5] and topic.figures["limited"] == 0


def test_the_key_that_was_silent_longest_goes_with_all_its_samples() -> None:
    topic = Topic(depth=2, keys_max=2)
    for key in (1, 1, 2, 1, 3, 3):
        topic.say(key)
    assert topic.keys == [1, 1, 3, 3]
    topic.say(4)
    assert topic.keys == [3, 3, 4] and topic.figures["limited"] == 1 + 2


def test_what_is_over_goes_first_the_longest_over_first() -> None:
    topic = Topic(keys_max=4, cleanup_ns=CLEANUP_NEVER)
    for key in (1, 2, 3, 4):
        topic.say(key)
    topic.ends(3)
    topic.ends(2)
    topic.say(5)
    assert topic.keys == [1, 2, 4, 5]
    topic.say(6)
    assert topic.keys == [1, 4, 5, 6]
    topic.say(7)
    assert topic.keys == [4, 5, 6, 7] and topic.figures["limited"] == 3


def test_what_is_over_goes_first_when_there_are_too_many_samples_or_bytes() -> None:
    topic = Topic(depth=0, samples_max=3, cleanup_ns=CLEANUP_NEVER)
    for key in (1, 2, 2):
        topic.say(key)
    topic.ends(2)
    topic.say(3)
    assert topic.keys == [1, 3] and topic.figures["limited"] == 2
    topic = Topic(room=4096, cleanup_ns=CLEANUP_NEVER)
    topic.say(1)
    topic.say(2)
    topic.ends(2)
    for key in range(3, 23):
        topic.say(key)
        assert topic.keys[0] == 1 or topic.figures["given_up"] > 1
    assert 2 not in topic.keys and topic.figures["given_up"] >= 1 and topic.figures["limited"] == 0


def test_without_a_depth_the_oldest_sample_goes_for_want_of_memory() -> None:
    """And no key for being silent, as long as what others say is older."""
    topic = Topic(depth=0, room=4096)
    topic.say(1)
    for _ in range(30):
        topic.say(2)
    topic.say(3)
    assert topic.keys[-1] == 3 and set(topic.keys) == {2, 3}
    assert topic.figures["given_up"] == topic.place - len(topic.keys)
    while topic.keys.count(2) > 3:
        topic.say(4)
    assert topic.keys[:4] == [2, 2, 2, 3]


def test_samples_of_no_key_count_as_samples_and_not_as_keys() -> None:
    topic = Topic(depth=1, keys_max=1, samples_max=4)
    topic.say(1)
    for number in range(3):
        topic.say(1 << 63 | number, ALONE)
    assert topic.keys == [1, *(1 << 63 | number for number in range(3))]
    topic.say(2)
    assert topic.keys == [*(1 << 63 | number for number in range(3)), 2] and topic.figures["limited"] == 1
    topic.say(1 << 63 | 3, ALONE)
    assert topic.keys == [1 << 63 | 1, 1 << 63 | 2, 2, 1 << 63 | 3] and topic.figures["limited"] == 2


def test_a_key_whose_last_living_sample_goes_is_over() -> None:
    """It had ended; the one writer that hadn't left it is one of whom nothing is kept any more."""
    topic = Topic(depth=0, samples_max=3)
    topic.say(1, writer=2)
    topic.say(1)
    topic.ends(1)
    topic.say(2)
    assert topic.keys == [1, 1, 2]
    topic.say(3)
    assert topic.keys == [2, 3], "the sample of the other writer went, and with it the key"
    assert topic.figures["limited"] == 1


def test_an_end_whose_sample_makes_room_for_it_ends_the_key_all_the_same() -> None:
    topic = Topic(depth=0, room=4096, cleanup_ns=CLEANUP_NEVER)
    topic.say(1)
    topic.say(1, writer=2)
    topic.ends(1, writer=2)
    while topic.figures["bytes"] + 192 <= 4096:
        topic.say(2)
    assert topic.keys[:2] == [1, 1] and topic.figures["over"] == 0
    topic.say(1, LEAVES)
    assert topic.keys[:2] == [1, 2] and topic.figures["given_up"] == topic.figures["over"] == 1


def test_the_end_of_a_writer_ends_no_key_in_which_nothing_of_it_is_kept() -> None:
    """Who is given the table couldn't know of which keys it was the end."""
    limits = {"depth": 0, "samples_max": 2, "cleanup_ns": S}
    topic, joiner = Topic(**limits), log_of(spec_of(**limits))
    topic.say(1, writer=1)
    topic.say(1, writer=2)
    topic.say(0, OF_WRITER | OVER, writer=1, size=0)
    topic.say(2, writer=3)  # takes the place of what writer 1 has said
    assert [(one.key, one.tag) for one in topic.kept] == [(1, 0), (2, 0)]
    give(topic.log, joiner)
    topic.say(1, LEAVES, writer=2)
    assert topic.log.table_over() == []


# --- the delay

def test_without_a_delay_a_key_goes_at_once() -> None:
    topic = Topic()
    topic.say(1)
    topic.ends(1)
    assert topic.kept == [] and topic.log.table_waits == topic.log.table_due_ns == 0


def test_the_delay_begins_with_the_first_word_behind_the_end() -> None:
    topic = Topic(cleanup_ns=10 * S)
    topic.tell(NOW)
    topic.say(1)
    assert topic.log.table_waits == topic.log.table_due_ns == 0, "an idle topic is silent"
    topic.ends(1, source_ns=NOW + 3 * S)
    assert topic.log.table_waits and not topic.log.table_due_ns
    topic.tell(NOW + 5 * S)
    assert not topic.log.table_waits
    assert NOW + 15 * S <= topic.log.table_due_ns <= NOW + 15 * S + 10 * S // 64
    topic.tell(NOW + 15 * S - 1)
    assert [one.order[1] for one in topic.kept] == [1, 2]
    topic.tell(NOW + 15 * S)
    assert topic.kept == [] and not topic.log.table_due_ns
    assert topic.figures["given_up"] == topic.figures["limited"] == 0, "nothing of that is lost"


def test_a_word_that_was_on_its_way_for_long_cuts_no_delay_short() -> None:
    topic = Topic(cleanup_ns=S)
    topic.say(1)
    topic.ends(1, source_ns=NOW + 20 * S)
    topic.tell(NOW)
    topic.tell(NOW + 21 * S - 1)
    assert topic.keys == [1]
    topic.tell(NOW + 21 * S)
    assert topic.keys == []


def test_a_timestamp_far_ahead_is_not_believed() -> None:
    topic = Topic(cleanup_ns=S)
    topic.say(1)
    topic.ends(1, source_ns=NOW + 31 * S)
    topic.tell(NOW)
    topic.tell(NOW + S)
    assert topic.keys == []


def test_only_a_node_says_the_time() -> None:
    topic = Topic(cleanup_ns=S)
    topic.say(1)
    topic.ends(1)
    topic.tell(NOW, writer=3)
    topic.tell(NOW + 60 * S, writer=3)
    assert topic.keys == [1] and topic.log.table_waits
    topic.tell((1 << 63) + 5)
    assert topic.keys == [1] and topic.log.table_waits, "no time at all"


def test_a_sample_brings_a_key_back() -> None:
    topic = Topic(cleanup_ns=S)
    topic.say(1)
    topic.ends(1)
    topic.tell(NOW)
    topic.say(1)
    assert topic.log.table_due_ns == topic.log.table_waits == topic.figures["over"] == 0
    topic.tell(NOW + 60 * S)
    assert topic.keys == [1]
    topic.ends(1)
    topic.tell(NOW + 61 * S)
    topic.tell(NOW + 62 * S - 1)
    assert topic.keys == [1], "the delay begins anew"
    topic.tell(NOW + 62 * S)
    assert topic.keys == []


def test_another_end_of_what_is_over_changes_nothing() -> None:
    topic = Topic(cleanup_ns=10 * S)
    topic.say(1)
    topic.ends(1)
    topic.tell(NOW)
    topic.say(1, ENDS, writer=2)
    due_ns = topic.log.table_due_ns
    topic.tell(NOW + 5 * S)
    assert topic.log.table_due_ns == due_ns and not topic.log.table_waits
    topic.tell(NOW + 10 * S)
    assert topic.keys == []


def test_a_key_is_not_over_while_a_writer_of_it_is_left() -> None:
    topic = Topic(depth=2, cleanup_ns=S)
    topic.say(1)
    topic.say(1, writer=2)
    topic.ends(1)
    topic.tell(NOW)
    topic.tell(NOW + 60 * S)
    assert topic.keys == [1, 1] and not topic.log.table_waits
    topic.say(0, OF_WRITER | LEAVES, writer=2, size=0)
    assert topic.log.table_waits
    topic.tell(NOW + 60 * S)
    topic.tell(NOW + 61 * S)
    assert topic.keys == []


def test_each_word_that_is_waited_for_has_a_number_of_its_own() -> None:
    topic = Topic(cleanup_ns=S)
    for key in (1, 2):
        topic.say(key)
    topic.ends(1)
    first = topic.log.table_waits
    topic.ends(2)
    assert topic.log.table_waits == first > 0
    topic.tell(NOW)
    topic.say(3)
    topic.ends(3)
    assert topic.log.table_waits not in (0, first)


def test_what_is_over_for_ever_needs_no_word() -> None:
    topic = Topic(cleanup_ns=CLEANUP_NEVER)
    topic.say(1)
    topic.ends(1)
    assert topic.keys == [1] and topic.log.table_waits == topic.log.table_due_ns == 0
    topic.tell(NOW + 10 ** 6 * S)
    assert topic.keys == [1] and topic.figures["over"] == 1


def test_what_is_told_of_keys_that_are_not_over_is_left_out() -> None:
    """By another member, which must have been mistaken; and what it should have told is over all the same."""
    log, joiner = (log_of(spec_of(cleanup_ns=S)) for _ in range(2))
    for one in (said(0, 1), said(1, 2), said(2, 2, OVER), said(3, 3), said(4, 3, OVER)):
        log.append(*message(one))
    copy = log.copy_table(shared=False)
    joiner.restore_table()
    for one in table_messages(copy):
        joiner.note(*one)
    joiner.table_stands_for(*table_place(copy), over=[(1, NOW, False), (9, NOW, False), (2, NOW, True), (2, NOW, True)])
    assert joiner.table_over() == [(2, NOW, True), (3, 0, True)] and joiner.table_waits
    joiner.append(*message(word(5, NOW)))
    joiner.append(*message(word(6, NOW + S)))
    assert [one.key for one in kept(joiner)] == [1]


def test_a_delay_takes_messages_that_say_the_time() -> None:
    with pytest.raises(ValueError, match="messages that say the time"):
        DeliveryLog(1 << 16, effects=EFFECTS, table_bytes=8192, cleanup_ns=1)
    DeliveryLog(1 << 16, effects=EFFECTS, table_bytes=8192, cleanup_ns=CLEANUP_NEVER)
