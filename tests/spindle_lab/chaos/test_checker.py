"""Goal: the checker finds each promise that is broken, and nothing in a history that keeps them all.

Method: a fabricated history of a group of three, in which everything is right; each test breaks one thing in it and
asks for the name of the promise. The last one holds that every check of the checker is broken by some test here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spindle.restart.chain import Holders, Life, Standing
from spindle_lab.chaos.checker import CHECKS, Violation, check, differing_lives
from spindle_lab.chaos.history import (
    CLOSED,
    DRAINED,
    FINISHED,
    LOST,
    DaemonLife,
    Delivery,
    History,
    Key,
    Move,
    Place,
    Reader,
    Session,
    TopicLife,
    ViewSeen,
    Writer,
    load,
)

ATOMIC, LOGGED, UNORDERED = "chaos/atomic", "chaos/logged", "chaos/unordered"
SECOND = 1_000_000_000
NODES = (1, 2, 3)
BROKEN_BY: dict[str, Callable[[History], None]] = {}


def session(node: int, group: str = "g", life: int = 0) -> Session:
    return Session(node, 100 + node + 10 * life, life, group)


def delivery(view: int, sequence: int, epoch: int, number: int, node: int) -> Delivery:
    return Delivery(Place(view, sequence), Key(epoch, number), node)


def order(epochs: dict[int, int], count: int, view: int = 3) -> list[Delivery]:
    """Round by round, `count` messages of each writer; epochs gives the node of each."""
    return [
        delivery(view, number * len(epochs) + rank, epoch, number, node)
        for number in range(count)
        for rank, (epoch, node) in enumerate(epochs.items())
    ]


def whole() -> History:
    """Three nodes, in views 2 and 3; node 3 is killed in view 3, after it got half of the messages."""
    history = History()
    history.daemons = [DaemonLife(node, session(node).pid, SECOND) for node in NODES]
    history.daemons[2].ended, history.daemons[2].asked, history.daemons[2].code = 50 * SECOND, "kill", -9
    for node in NODES:
        history.views.append(ViewSeen(2 * SECOND, session(node), 2, (1, 2, 3), f"app {node}"))
        if node != 3:
            history.views.append(ViewSeen(51 * SECOND, session(node), 3, (1, 2), f"app {node}"))
    for number, topic in enumerate((UNORDERED, ATOMIC, LOGGED)):
        writers = {10 * (number + 1) + node: node for node in NODES}
        for epoch, node in writers.items():
            writer = Writer(epoch, topic, session(node), 10 * SECOND, 2)
            writer.attempts, writer.accepted = [(11 * SECOND, 4), (12 * SECOND, 6)], 6
            writer.acked, writer.end = [(13 * SECOND, 6)], FINISHED if node != 3 else LOST
            writer.persisted, writer.ended = 6 if topic == LOGGED else 0, 50 * SECOND + SECOND // 10
            history.writers[epoch] = writer
        for node in NODES:
            reader = Reader(f"r{node}{number}", topic, session(node), 5 * SECOND, 2, False)
            reader.deliveries = order(writers, 6) if node != 3 else order(writers, 3)
            reader.end, reader.ended = (DRAINED, 60 * SECOND) if node != 3 else (LOST, 50 * SECOND + SECOND // 10)
            history.readers[reader.life] = reader
    for node in (1, 2):
        audit = Reader(f"audit{node}", LOGGED, session(node), 55 * SECOND, 3, True)
        audit.deliveries, audit.end = order({31: 1, 32: 2, 33: 3}, 6), DRAINED
        history.readers[audit.life] = audit
        history.journals[node] = list(audit.deliveries)
    return history


def breaks(promise: str, *checks: str) -> Callable[[Callable[[History], None]], Callable[[History], None]]:
    """Marks a function that breaks `promise`; `checks` are those that must notice."""

    def mark(function: Callable[[History], None]) -> Callable[[History], None]:
        BROKEN_BY[f"{promise} {function.__name__}"] = function
        NOTICED[f"{promise} {function.__name__}"] = checks
        return function

    return mark


NOTICED: dict[str, tuple[str, ...]] = {}


def later_group(history: History) -> None:
    """A second group after all of the first had ended, with one reader and one writer of each topic."""
    for node in (1, 2):
        life = history.daemons[node - 1]
        life.ended, life.asked, life.code = 70 * SECOND, "kill", -9
    for node in NODES:
        history.daemons.append(DaemonLife(node, session(node, "h", 1).pid, 71 * SECOND))


@breaks("D1", "deliveries_are_genuine")
def a_payload_that_nobody_wrote(history: History) -> None:
    history.readers["r11"].damaged.append("a message of 7 bytes")


@breaks("D1", "deliveries_are_genuine")
def more_than_was_tried(history: History) -> None:
    history.readers["r11"].deliveries.append(delivery(3, 90, 21, 6, 1))


@breaks("D1", "deliveries_are_genuine")
def a_message_of_another_topic(history: History) -> None:
    history.readers["r11"].deliveries.append(delivery(3, 90, 31, 0, 1))


@breaks("D3", "deliveries_are_genuine")
def a_wrong_sender(history: History) -> None:
    history.readers["r11"].deliveries[0] = delivery(3, 0, 21, 0, 2)


@breaks("S32", "deliveries_are_genuine")
def a_message_of_a_dead_group(history: History) -> None:
    later_group(history)
    reader = Reader("late", ATOMIC, session(1, "h", 1), 72 * SECOND, 0, False)
    reader.deliveries = [delivery(1, 0, 21, 5, 1)]
    history.readers["late"] = reader


@breaks("D2", "senders_are_in_order")
def a_message_twice(history: History) -> None:
    history.readers["r10"].deliveries.append(history.readers["r10"].deliveries[-1])


@breaks("D5", "senders_are_in_order")
def two_of_a_sender_exchanged(history: History) -> None:
    one = history.readers["r10"].deliveries
    one[3], one[6] = one[6], one[3]


@breaks("D7", "senders_are_in_order")
def one_of_a_sender_left_out(history: History) -> None:
    del history.readers["r10"].deliveries[6]


@breaks("D7", "senders_are_in_order")
def the_first_of_a_sender_left_out(history: History) -> None:
    del history.readers["r10"].deliveries[0]


@breaks("D6", "places_rise")
def places_that_fall(history: History) -> None:
    one = history.readers["r11"].deliveries
    one[4], one[5] = one[5], one[4]


@breaks("D6", "orders_agree")
def two_senders_exchanged_at_one_node(history: History) -> None:
    one = history.readers["r11"].deliveries
    one[3], one[4] = (delivery(*one[3].place, *one[4].key, one[4].node), delivery(*one[4].place, *one[3].key, 1))


@breaks("D2", "orders_agree")
def a_message_at_two_places(history: History) -> None:
    for node in (1, 2):
        reader = history.readers[f"r{node}1"]
        reader.deliveries.append(delivery(3, 80 + node, 21, 6, 1))
    history.writers[21].attempts.append((14 * SECOND, 7))


@breaks("D9", "runs_have_no_holes")
def one_survivor_misses_the_last(history: History) -> None:
    for epoch in (21, 22, 23):
        history.writers[epoch].acked, history.writers[epoch].accepted = [], 0
    del history.readers["r11"].deliveries[-1]


@breaks("D9", "runs_have_no_holes")
def survivors_miss_what_the_dead_one_got(history: History) -> None:
    history.writers[23].acked = []
    for node in (1, 2):
        del history.readers[f"r{node}1"].deliveries[17]
    history.readers["r31"].deliveries = order({21: 1, 22: 2, 23: 3}, 6)


@breaks("D9", "runs_have_no_holes")
def a_reader_begins_late(history: History) -> None:
    reader = history.readers["r11"]
    history.writers[21].opened = history.writers[22].opened = history.writers[23].opened = 0
    del reader.deliveries[:3]


@breaks("D7", "unordered_is_complete")
def less_of_an_unordered_sender(history: History) -> None:
    for writer in history.writers.values():
        writer.acked, writer.accepted = [], 0
    del history.readers["r10"].deliveries[-2]


@breaks("D10", "acknowledged_is_delivered")
def acknowledged_and_never_delivered(history: History) -> None:
    history.writers[21].attempts.append((14 * SECOND, 7))
    history.writers[21].acked.append((15 * SECOND, 7))


@breaks("D10", "survivors_keep_their_word")
def accepted_by_a_survivor_and_never_delivered(history: History) -> None:
    history.writers[21].attempts.append((14 * SECOND, 7))
    history.writers[21].accepted, history.writers[21].end = 7, CLOSED


@breaks("P1", "the_log_survives")
def persisted_and_gone(history: History) -> None:
    for node in (1, 2):
        del history.readers[f"audit{node}"].deliveries[-1]
        del history.journals[node][-1]


@breaks("P3", "the_log_survives")
def two_histories(history: History) -> None:
    del history.readers["audit2"].deliveries[-1]


@breaks("P2", "the_log_survives")
def a_hole_in_the_log(history: History) -> None:
    del history.journals[1][4]


@breaks("P2", "the_log_survives")
def a_journal_that_knows_more(history: History) -> None:
    history.journals[1].append(delivery(3, 90, 31, 6, 1))


@breaks("P1", "the_log_survives")
def a_journal_that_ends_early(history: History) -> None:
    del history.journals[1][-2:]


@breaks("P4", "the_log_survives")
def a_log_that_goes_backwards(history: History) -> None:
    one = history.journals[1]
    one[4], one[5] = one[5], one[4]


@breaks("P2", "the_log_survives")
def a_new_life_without_what_a_node_had_that_lived_on(history: History) -> None:
    all_holders_die(history)
    history.readers["r12"].end = CLOSED
    history.daemons[0].ended = 0


@breaks("M1", "views_agree")
def a_view_without_oneself(history: History) -> None:
    history.views.append(ViewSeen(52 * SECOND, session(3), 3, (1, 2), "app 3"))


@breaks("M3", "views_agree")
def a_view_that_falls(history: History) -> None:
    history.views.append(ViewSeen(52 * SECOND, session(1), 2, (1, 2, 3), "app 1"))


@breaks("M5", "views_agree")
def two_views_of_one_number(history: History) -> None:
    history.views.append(ViewSeen(52 * SECOND, session(2), 3, (2, 3), "app 2"))


@breaks("M4", "one_group_at_a_time")
def two_groups_at_once(history: History) -> None:
    writer = Writer(99, ATOMIC, session(2, "h", 1), 5 * SECOND, 0)
    history.writers[99] = writer
    for reader in history.readers.values():
        reader.opened = min(reader.opened, 4 * SECOND)


@breaks("M4", "views_have_majorities")
def a_splinter_goes_on(history: History) -> None:
    history.daemons[2].ended, history.daemons[2].asked, history.daemons[2].code = 0, "", None
    history.views[:] = [one for one in history.views if one.view == 2]
    history.views.append(ViewSeen(51 * SECOND, session(1), 3, (1,), "app 1"))


@breaks("exit", "daemons_end_as_they_should")
def a_daemon_ends_by_itself(history: History) -> None:
    history.daemons[2].asked, history.daemons[2].code = "", 11


@breaks("told", "applications_are_told")
def an_application_that_is_told_late(history: History) -> None:
    history.readers["r31"].ended = 58 * SECOND


@breaks("trouble", "applications_are_told")
def an_application_in_trouble(history: History) -> None:
    history.trouble.append("ZeroDivisionError")


def promises(found: list[Violation]) -> set[str]:
    return {one.promise for one in found}


def test_a_history_that_keeps_every_promise_is_accepted() -> None:
    """Also with what a crash may do: the dead node's reader stopped in the middle."""
    assert check(whole()) == []


@pytest.mark.parametrize("name", sorted(BROKEN_BY))
def test_a_broken_promise_is_found(name: str) -> None:
    """The named promise is among the violations, and the check that is for it reports it."""
    history = whole()
    BROKEN_BY[name](history)
    promise = name.split()[0]
    assert promise in promises(check(history))
    for check_name in NOTICED[name]:
        one = next(one for one in CHECKS if one.__name__ == check_name)
        assert promise in promises(list(one(history)))


def test_the_end_of_an_unordered_sender_that_died_may_reach_some_only() -> None:
    """What node 3 had on the way, and nobody had acknowledged."""
    history = whole()
    history.writers[13].acked = []
    history.readers["r10"].deliveries.pop()
    assert check(history) == []


def test_every_check_is_broken_by_some_test() -> None:
    assert {check_name for names in NOTICED.values() for check_name in names} == {one.__name__ for one in CHECKS}


def test_what_a_total_failure_may_lose_is_no_violation() -> None:
    """All nodes die; of the logged topic what was not persisted may be gone, what comes later follows."""
    history = whole()
    later_group(history)
    for epoch in (31, 32, 33):
        history.writers[epoch].persisted, history.writers[epoch].accepted = 4, 6
    kept = order({31: 1, 32: 2, 33: 3}, 4)
    writer = Writer(77, LOGGED, session(1, "h", 1), 75 * SECOND, 5)
    writer.attempts, writer.accepted, writer.persisted, writer.end = [(76 * SECOND, 1)], 1, 1, FINISHED
    history.writers[77] = writer
    for reader in history.readers.values():
        if reader.end == DRAINED:
            reader.end = LOST
    for name in ("audit1", "audit2"):
        audit = history.readers[name]
        audit.end, audit.first_session = DRAINED, session(audit.session.node, "h", 1)
        audit.deliveries = [*kept, delivery(5, 0, 77, 0, 1)]
    history.journals = {node: list(history.readers["audit1"].deliveries) for node in NODES}
    assert check(history) == []
    # but not in the middle
    del history.readers["r12"].deliveries[5]
    assert promises(check(history)) >= {"P2"}


def all_holders_die(history: History) -> None:
    """Those who had the logged topic die, while node 4 keeps the group alive; nodes 5 and 6 begin a new life of it from
    the journals, without the last three messages."""
    for node in (1, 2):
        life = history.daemons[node - 1]
        life.ended, life.asked, life.code = 53 * SECOND, "kill", -9
    history.views.append(ViewSeen(54 * SECOND, session(4), 7, (4, 5, 6), "app 4"))
    history.topic_lives[LOGGED] = [TopicLife("g", 1, Place(-1, -1)), TopicLife("g", 7, Place(3, 14))]
    for epoch in (31, 32, 33):
        history.writers[epoch].persisted = 5
    writer = Writer(77, LOGGED, session(5), 55 * SECOND, 7)
    writer.attempts, writer.accepted, writer.persisted, writer.end = [(56 * SECOND, 1)], 1, 1, FINISHED
    history.writers[77] = writer
    for reader in history.readers.values():
        if reader.end == DRAINED:
            reader.end, reader.ended = LOST, 53 * SECOND
    for node in (1, 2):
        audit = history.readers[f"audit{node}"]
        audit.deliveries[-3:] = [delivery(7, 0, 77, 0, 5)]
        audit.end, audit.first_session = DRAINED, session(4 + node)
        history.journals[node] = list(audit.deliveries)


def test_what_is_lost_with_all_holders_is_no_violation_though_the_group_lives_on() -> None:
    """Nobody who lived on had it, and it was on no disk. A reader that goes on elsewhere may have it, too."""
    history = whole()
    all_holders_die(history)
    assert check(history) == []
    wandering(history, "g", 5, "r22")
    history.readers["r22"].deliveries.append(delivery(7, 0, 77, 0, 5))
    assert check(history) == []
    del history.readers["r22"].deliveries[5]
    assert promises(check(history)) >= {"D9", "P2"}


def wandering(history: History, group: str, node: int, *readers: str) -> None:
    """The dead node's readers go on: at another node, in this group or a later one."""
    for life in readers:
        reader = history.readers[life]
        reader.wanders, reader.end, reader.ended = True, DRAINED, 90 * SECOND
        reader.moves.append(Move(56 * SECOND, session(node, group, 1 if group == "h" else 0)))


def test_a_reader_that_goes_on_at_another_node_is_held_to_one_order() -> None:
    """In the same group it must get all; a gap is no violation if it says so; nothing may come twice."""
    history = whole()
    wandering(history, "g", 1, "r31", "r32")
    for life in ("r31", "r32"):
        history.readers[life].deliveries = list(history.readers[f"r1{life[2]}"].deliveries)
    assert check(history) == []
    del history.readers["r31"].deliveries[9:12]
    assert promises(check(history)) >= {"D9"}
    history.readers["r31"].overtaken = 1
    assert check(history) == []
    history.readers["r31"].deliveries.append(history.readers["r31"].deliveries[-1])
    assert promises(check(history)) >= {"D2"}


def test_what_is_on_its_way_to_a_reader_s_next_node_may_come_twice_if_it_has_no_order() -> None:
    history = whole()
    readers = [history.readers[life] for life in ("r30", "r31")]  # unordered, and atomic
    for reader in readers:
        reader.deliveries = list(history.readers[f"r1{reader.life[2]}"].deliveries)
        reader.deliveries.append(reader.deliveries[-1])
    assert {one.promise for one in check(history)} >= {"D2"}
    wandering(history, "g", 1, "r30", "r31")
    assert {str(one) for one in check(history) if "chaos/unordered" in str(one)} == set()
    assert [one.promise for one in check(history) if "chaos/atomic" in str(one)].count("D2") == 1


def test_what_an_external_writer_sends_again_is_no_violation_but_in_the_log_it_is_once() -> None:
    """All nodes die, and with them the last message of a writer elsewhere, which some had seen: it comes again, further
    on. Twice in the log is a violation, and so is one that is gone though it was persisted."""
    history = whole()
    later_group(history)
    external = Writer(88, LOGGED, session(1), 10 * SECOND, 2, external=True)
    external.attempts, external.accepted, external.persisted, external.end = [(40 * SECOND, 2)], 2, 2, FINISHED
    history.writers[88] = external
    first, lost, again = delivery(3, 18, 88, 0, 1), delivery(3, 19, 88, 1, 1), delivery(5, 0, 88, 1, 2)
    for life in ("r12", "r22"):
        history.readers[life].deliveries += [first, lost]
    for reader in history.readers.values():
        if reader.end == DRAINED:
            reader.end = LOST
    wandering(history, "h", 1, "r22")
    history.readers["r22"].deliveries.append(again)
    for name in ("audit1", "audit2"):
        audit = history.readers[name]
        audit.end, audit.first_session = DRAINED, session(audit.session.node, "h", 1)
        audit.deliveries += [first, again]
    history.journals = {node: list(history.readers["audit1"].deliveries) for node in NODES}
    assert check(history) == []
    for name in ("audit1", "audit2"):
        history.readers[name].deliveries.insert(-1, lost)
    assert promises(check(history)) >= {"D2"}
    for name in ("audit1", "audit2"):
        del history.readers[name].deliveries[-2:]
    assert promises(check(history)) >= {"P1"}


def test_a_reader_that_goes_on_in_the_next_group() -> None:
    """All nodes die; its next group exists from when it came there, not from when it was opened. Of the logged topic it
    may have had what was on no disk yet, at the end of what the old group wrote; never in the middle."""
    history = whole()
    later_group(history)
    for node in NODES:
        writer = Writer(60 + node, LOGGED, session(node, "h", 1), 75 * SECOND, 5)
        writer.attempts, writer.accepted, writer.acked = [(76 * SECOND, 1)], 1, [(77 * SECOND, 1)]
        writer.persisted, writer.end = 1, FINISHED
        history.writers[writer.epoch] = writer
    for epoch in (31, 32, 33):
        history.writers[epoch].persisted = 4
    old, new = order({31: 1, 32: 2, 33: 3}, 6), order({61: 1, 62: 2, 63: 3}, 1, view=5)
    for reader in history.readers.values():
        reader.end = LOST if reader.end == DRAINED else reader.end
    for node in (1, 2):
        audit = history.readers[f"audit{node}"]
        audit.end, audit.first_session = DRAINED, session(node, "h", 1)
        audit.deliveries = old[:12] + new
        history.journals[node] = list(audit.deliveries)
    wandering(history, "h", 1, "r32")
    reader = history.readers["r32"]
    reader.deliveries = old[:15] + new
    assert check(history) == []
    reader.deliveries = old[:13] + old[14:15] + new
    assert check(history) == []  # what the log doesn't have proves nothing
    reader.deliveries = old[:15] + new[:1] + new[2:]
    assert promises(check(history)) >= {"P2"}
    reader.deliveries = old[:5] + old[6:12] + new
    assert promises(check(history)) >= {"P2"}


def test_suspicious_lines_of_a_log_are_reported(tmp_path: Path) -> None:
    """A traceback in a daemon's log is a violation, whatever its exit code."""
    log = tmp_path / "daemon.log"
    log.write_text("INFO fine\nTraceback (most recent call last):\n  File x\nValueError: no\n")
    history = whole()
    history.daemons[0].log = log
    found = check(history)
    assert promises(found) == {"log"} and "ValueError" in found[0].text


def test_records_are_loaded_up_to_where_they_were_cut(tmp_path: Path) -> None:
    """What an application wrote before it was killed counts; half a line doesn't."""
    path = tmp_path / "app.jsonl"
    path.write_text(
        '{"k":"reader","t":5,"life":"r1","topic":"chaos/atomic","session":[1,2,3,"g"],"view":4,"history":false,"wanders":false}\n'
        '{"k":"got","t":6,"life":"r1","m":[[4,0,1,77,0],[4,1,1,77,1]]}\n'
        '{"k":"got","t":7,"life":"r1","m":[[4,2,'
    )
    history = History()
    load([path], history)
    reader = history.readers["r1"]
    assert reader.session == Session(1, 2, 3, "g") and reader.end == ""
    assert reader.deliveries == [delivery(4, 0, 77, 0, 1), delivery(4, 1, 77, 1, 1)]


def test_whole_holders_of_a_topic_tell_the_same_lives() -> None:
    first, other, holders = (Life("g-0", 1),), (Life("g-0", 1), Life("g-7", 8, (3, 14))), Holders(8, (1, 2))
    same = {1: Standing(other, holders, True), 2: Standing(other, holders, True), 3: Standing(first, holders, False),
            4: Standing(first, Holders(1, (4,)), True), 5: Standing()}
    assert not list(differing_lives("t", same))
    found = list(differing_lives("t", {**same, 2: Standing(first, holders, True)}))
    assert [one.promise for one in found] == ["P4"] and "nodes 1 and 2" in str(found[0])
