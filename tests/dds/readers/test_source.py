"""Where a reader's messages come from, over a change of nodes.

Goal: whoever reads, waits or counts meets one order, and hears of each gap once, wherever one node's log ends and the
next one's begins. Method: delivery logs without nodes, one after the other; in the place of the reader a program of the
test's own.
"""

import itertools
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dds import DataReader, DDSException, DDSNodeLost, Topic
from dds.readers.source import NEVER, LogSource, Losses
from dds.waiting.wake import Hub, wait_readable
from spindle_core.delivery import DeliveryLog
from spindle_core.timing import Timing
from tests.spindle_core.logs import add_reader

LONG_S = 30.0


@dataclass
class NodesLog:
    """One node's log, with a reader of it."""

    name: str
    keep_all: bool = True
    capacity: int = 65536
    continued: bool = True
    timing: Timing | None = None

    order: ClassVar = itertools.count()  # of all messages

    def __post_init__(self):
        self.delivery = DeliveryLog(self.capacity, keep_history=True, timing=self.timing)
        self.log, self._cursor = add_reader(self.delivery, self.keep_all)
        self.session, self.closed = SimpleNamespace(name=self.name), False

    def brings(self, *payloads):
        for one in payloads:
            assert self.delivery.append(one, 1, next(NodesLog.order), 1, 1)

    def dies(self):
        self.log.freeze()
        self.log.mark_gone()

    def close(self):
        self.closed = True
        self.log.close()


class Supply:
    """Whether another node may come."""

    def __init__(self):
        self.hopeful, self.lost_sessions = True, []

    def lost(self, session):
        self.lost_sessions.append(session.name)

    def lost_error(self, what):
        return DDSNodeLost(what)


class Taker:
    """A program that takes. `holds`: it has not let in all that it took."""

    def __init__(self, first, supply=None):
        self._open, self._lock, self.holds = True, threading.RLock(), False
        self.turns = []
        self.hub = Hub()
        self.source = LogSource(first, weakref.ref(self), self.hub, supply or Supply(), "topic")

    def _check_open(self):
        if not self._open:
            raise DDSException(DDSException.DDS_RETCODE_ALREADY_DELETED, "closed")

    def _is_through(self):
        return not self.holds and self._open

    def _turned(self, view_id):
        self.turns.append((self.source.session.name, view_id))

    def take(self, n=1000):
        return [payload for payload, _ in self.source.take_pairs(n, deque())]

    def take_all(self):
        found = self.take()
        while self.source.turn():
            found += self.take()
        return found


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6), st.data())
def test_all_logs_are_one_order(lives, data):
    """Method: nodes that bring some messages before and some after the next one is there, and a reader that takes
    anything in between."""
    nodes = [NodesLog(f"{k}") for k in range(len(lives))]
    taker, got, sent = Taker(nodes[0]), [], []
    for k, ((early, late, taken), node) in enumerate(zip(lives, nodes, strict=True)):
        for n in range(early):
            sent.append(b"%d early %d" % (k, n))
            node.brings(sent[-1])
        before = taker.source.index
        if data.draw(st.booleans()):
            got += taker.source.log.take(taken)
        elif data.draw(st.booleans()):
            got += taker.take_all()
        for n in range(late):
            sent.append(b"%d late %d" % (k, n))
            node.brings(sent[-1])
        assert before <= taker.source.index == len(got) and taker.source.newest is node
        if k + 1 < len(nodes):
            node.dies()
            assert taker.source.follow(nodes[k + 1], True)
    got += taker.take_all()
    assert got == sent and taker.source.index == taker.source.arrived == len(sent)
    assert taker.turns == [(f"{k}", 1 if any(any(one[:2]) for one in lives[:k]) and any(lives[k - 1][:2]) else 0)
                           for k in range(1, len(nodes))]
    assert (taker.source.lost, taker.source.gap_at, taker.source.breaks) == (0, NEVER, 0)
    assert [one.closed for one in nodes] == [True] * (len(nodes) - 1) + [False]


def test_a_log_is_read_to_its_end_before_the_next_one():
    first, second = NodesLog("first"), NodesLog("second")
    taker = Taker(first)
    source = taker.source
    assert not source.turn()  # there is no other
    first.brings(b"a")
    first.dies()
    second.brings(b"b")
    source.follow(second, True)
    assert not source.turn() and source.session.name == "first" and not source.is_over
    assert taker.take() == [b"a"]
    taker.holds = True  # what it has taken is not let in
    assert not source.turn() and taker.turns == []
    taker.holds = False
    assert source.turn() and source.session.name == "second" and first.closed and taker.take() == [b"b"]


def test_who_counts_before_the_turn_may_look_for_more():
    """Goal: whoever is asked whether he is through asks the source in his turn, and does not turn for ever."""
    first, second = NodesLog("first"), NodesLog("second")
    taker = Taker(first)
    inner = []
    taker._is_through = lambda: inner.append(taker.source.turn()) or True
    first.dies()
    taker.source.follow(second, True)
    assert taker.source.turn() and inner == [False] and taker.turns == [("second", 0)]


def test_what_is_lost_is_counted_through_all_logs():
    first, second = (NodesLog(name, keep_all=False, capacity=4096) for name in ("first", "second"))
    taker = Taker(first)
    source, losses = taker.source, Losses(taker.source, 0)
    first.brings(*[b"x" * 100] * 100)
    got = len(taker.take())
    assert source.lost == 100 - got > 0 and source.index == 100 and source.gap_at == 100 - got
    losses.look()
    assert losses.found == source.lost and source.pass_gap() and source.gap_at == NEVER and not source.pass_gap()
    first.dies()
    source.follow(second, True)
    assert source.turn() and (source.lost, source.gap_at, source.index) == (100 - got, NEVER, 100)
    second.brings(*[b"y" * 100] * 50)
    later = len(taker.take())
    assert source.lost == 150 - got - later and source.index == 150 and source.gap_at == 150 - later
    losses.look()
    assert losses.found == source.lost


def test_what_the_last_would_have_replaced_is_not_lost():
    node = NodesLog("node", keep_all=False, capacity=4096)
    taker = Taker(node)
    losses = Losses(taker.source, 70)
    node.brings(*[b"x" * 100] * 100)
    kept = len(taker.source.log.take(1)) + taker.source.log.pending
    losses.look()
    assert taker.source.lost == 100 - kept and losses.found == 70 - kept + 1


def test_a_gap_between_logs_is_in_front_of_the_next_message():
    first, second = NodesLog("first"), NodesLog("second", continued=False)
    taker = Taker(first)
    source = taker.source
    first.brings(b"a", b"b")
    first.dies()
    source.follow(second, False)
    assert source.breaks == 1 and source.gap_at == NEVER  # it is said when the reader stands there
    assert taker.take_all() == [b"a", b"b"] and source.gap_at == 2
    assert source.pass_gap() is False and source.gap_at == NEVER  # others have missed it, too
    second.brings(b"c", b"d")
    source.expect_gap()  # a session has turned to another node by itself
    second.brings(b"e")
    assert source.gap_at == 4 and taker.take() == [b"c", b"d", b"e"]


def test_the_time_that_the_order_has_said_is_that_of_the_log_that_is_read():
    first, second = (NodesLog(name, timing=Timing(bytes(256))) for name in ("first", "second"))
    taker = Taker(first)
    first.delivery.say_time(2000)
    second.delivery.say_time(1000)
    assert taker.source.said_ns == 2000
    first.dies()
    taker.source.follow(second, True)
    assert taker.source.turn() and taker.source.said_ns == 1000
    second.delivery.say_time(3000)
    assert taker.source.said_ns == 3000


def test_looking_goes_on_until_something_is_found_or_nothing_can_come():
    nodes = [NodesLog(name) for name in ("first", "second", "third")]
    supply = Supply()
    taker = Taker(nodes[0], supply)
    source = taker.source
    assert source.first(taker.take, []) == []  # its node lives: more may come
    nodes[0].dies()
    assert source.first(taker.take, []) == [] and not source.is_over  # another node may come
    for one in nodes[1:]:
        source.follow(one, True)
    nodes[1].dies()
    nodes[2].brings(b"a")
    assert source.first(taker.take, []) == [b"a"] and source.session.name == "third"
    assert source.first(taker.take, [b"found"]) == [b"found"]
    supply.hopeful = False
    assert source.first(taker.take, []) == [] and not source.is_over
    nodes[2].dies()
    assert source.is_over
    with pytest.raises(DDSNodeLost, match="topic 'topic'"):
        source.first(taker.take, [])
    assert supply.lost_sessions == ["third"]
    source.error = DDSException(DDSException.DDS_RETCODE_ERROR, "no right")
    with pytest.raises(DDSException, match="no right"):
        source.turn_or_end()
    taker._open = False
    with pytest.raises(DDSException, match="closed"):
        source.turn_or_end()


def test_an_error_of_one_node_is_over_with_the_next():
    first, second = NodesLog("first"), NodesLog("second")
    taker = Taker(first)
    first.dies()
    taker.source.error = DDSException(DDSException.DDS_RETCODE_ERROR, "no right")
    assert taker.source.is_over and not taker.source.hopeful
    taker.source.follow(second, True)
    assert taker.source.error is None and not taker.source.is_over and taker.source.turn_or_end()


def waits(source, waker, known):
    thread = threading.Thread(target=source.wait, args=(waker, LONG_S, known), daemon=True)
    thread.start()
    return thread


def test_who_waits_is_woken_by_the_log_that_grows():
    """Method: there is a later log while the first one is still being read; then there is none that a node appends to,
    and only the waker rings."""
    first, second = NodesLog("first"), NodesLog("second")
    taker = Taker(first)
    source, waker, other = taker.source, taker.hub.enter(), taker.hub.enter()
    assert source.bell is first.log and source.head == (0, 0)
    first.brings(b"a")
    first.dies()
    assert source.bell is None
    thread = waits(source, waker, 0)  # of a log whose node is gone
    waker.ring()
    thread.join(LONG_S)
    assert not thread.is_alive()
    source.follow(second, True)
    source.status.count()
    assert source.bell is second.log and source.head == (1, 0)
    known = source.arm()
    thread = waits(source, waker, known)
    second.brings(b"b")
    thread.join(LONG_S)
    assert not thread.is_alive() and source.head == (1, 1)
    assert wait_readable((waker.fd, other.fd), 0) == {other.fd}  # whoever hears the ring rings the others
    assert taker.take_all() == [b"a", b"b"]


def test_arming_goes_on_where_the_log_was_closed_for_the_next_one():
    first, second = NodesLog("first"), NodesLog("second")
    taker = Taker(first)
    source = taker.source
    second.brings(b"a")

    class Closing:
        """The first log, which another thread leaves just now."""

        def arm(self):
            source.newest = second
            raise ValueError("closed")

    source.newest = SimpleNamespace(log=Closing())
    assert source.arm() == 1


def test_what_the_log_refuses_is_said_in_the_reader_s_words():
    node = NodesLog("node")
    taker = Taker(node)
    source = taker.source
    node.brings(b"a", b"b")
    with source.log.take_block(1):
        for call in (lambda: source.take_pairs(1, deque()), lambda: source.skip_to_last(1)):
            with pytest.raises(DDSException, match="a batch is open") as raised:
                call()
            assert raised.value.code == DDSException.DDS_RETCODE_PRECONDITION_NOT_MET
    taker._open = False
    source.close()
    for call in (source.arm, lambda: source.take_pairs(1, deque())):
        with pytest.raises(DDSException, match="is closed") as raised:
            call()
        assert raised.value.code == DDSException.DDS_RETCODE_ALREADY_DELETED
    source.wait(taker.hub.enter(), LONG_S, 0)  # as one who has looked just before


def test_a_log_that_comes_after_the_end_is_given_back():
    first, second, third = NodesLog("first"), NodesLog("second"), NodesLog("third")
    taker = Taker(first)
    assert taker.source.follow(second, True)
    taker.source.close()
    assert first.closed and second.closed and not taker.source.hopeful
    assert taker.source.follow(third, True) is False and third.closed


def test_taking_while_another_thread_goes_on_at_the_next_node(participant):
    """Method: the log is closed, and another one in its place, between the reader's look at it and its call."""
    reader = DataReader(participant, Topic(participant, "topic", bytes))
    source = reader._source
    log = source.log

    class Left:
        meets_tagged, is_gone, pending = False, False, 0

        def take(self, *_):
            source.log = log
            raise ValueError("this reader is closed")

    source.log = Left()
    assert reader.take(1) == []
