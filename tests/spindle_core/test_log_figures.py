"""Goal: what is said of sizes and latencies of a log's messages is what its records say, and a log that is overwritten
or closed meanwhile does no harm.

Method: records are appended with chosen times; a thread that appends as fast as it can overtakes scans.
"""

from __future__ import annotations

import itertools
import threading

import pytest

from spindle_core.delivery import DeliveryLog
from spindle_core.log_figures import BUCKETS, LogFigures, latency_floor_ns
from spindle_core.memory import Mapping

SOURCE_NS = 1_700_000_000_000_000_000


def bucket_of(ns: int) -> int:
    return max(k for k in range(BUCKETS) if latency_floor_ns(k) <= ns)


def test_each_bucket_begins_above_the_one_before() -> None:
    floors = [latency_floor_ns(k) for k in range(BUCKETS)]
    assert floors[:5] == [0, 1024, 1536, 2048, 3072]
    assert all(low < high for low, high in itertools.pairwise(floors))
    assert floors[-1] > 60e9
    with pytest.raises(ValueError):
        latency_floor_ns(BUCKETS)


def test_sizes_and_latencies_are_those_of_the_records() -> None:
    log = DeliveryLog(capacity=1 << 20)
    figures = LogFigures(log.mapping)
    late = [0, 1, 1023, 1024, 1535, 1536, 5_000, 1_000_000, 3 << 35, 10**12]
    for number, ns in enumerate(late):
        assert log.append(bytes(10 * number), 1, number, 1, SOURCE_NS, reception_ns=SOURCE_NS + ns)
    figures.scan()
    assert (figures.count, figures.size_sum) == (len(late), sum(10 * one for one in range(len(late))))
    wanted = [0] * BUCKETS
    for ns in late:
        wanted[bucket_of(ns)] += 1
    assert figures.latencies() == wanted
    log.close()


def test_a_writer_whose_clock_is_ahead_counts_as_not_late_and_one_without_a_clock_not_at_all() -> None:
    log = DeliveryLog(capacity=1 << 20)
    figures = LogFigures(log.mapping)
    log.append(b"x", 1, 0, 1, SOURCE_NS, reception_ns=SOURCE_NS - 5)
    log.append(b"x", 1, 1, 1, 0, reception_ns=SOURCE_NS)
    figures.scan()
    assert figures.count == 2 and figures.latencies() == [1] + [0] * (BUCKETS - 1)
    log.close()


def test_a_scan_goes_on_where_the_last_one_ended() -> None:
    log = DeliveryLog(capacity=1 << 20)
    figures = LogFigures(log.mapping)
    for number in range(100):
        log.append(b"abc", 1, number, 1, SOURCE_NS, reception_ns=SOURCE_NS)
    figures.scan(30)
    assert figures.count == 30
    figures.scan(1000)
    assert figures.count == 100
    figures.scan()
    assert figures.count == 100
    log.close()


def test_what_is_overwritten_is_skipped() -> None:
    log = DeliveryLog(capacity=1 << 16, hot=1 << 16)
    figures = LogFigures(log.mapping)
    for number in range(5000):
        log.append(bytes(100), 1, number, 1, SOURCE_NS, reception_ns=SOURCE_NS + 2000)
    figures.scan(1 << 20)
    assert 0 < figures.count < 5000
    assert figures.count + figures.lost == 5000
    assert sum(figures.latencies()) == figures.count and figures.size_sum == 100 * figures.count
    log.close()


def test_scans_beside_one_who_appends() -> None:
    log = DeliveryLog(capacity=1 << 16, hot=1 << 14)
    figures = LogFigures(log.mapping)
    ended = threading.Event()

    def append() -> None:
        for number in range(60_000):
            log.append(bytes(number % 200), 1, number, 1, SOURCE_NS, reception_ns=SOURCE_NS + 2000)
        ended.set()

    thread = threading.Thread(target=append)
    thread.start()
    while not ended.is_set():
        figures.scan(500)
    thread.join()
    figures.scan(1 << 20)
    assert figures.count + figures.lost == 60_000
    assert figures.latencies()[bucket_of(2000)] == figures.count
    log.close()


def test_a_closed_log_and_no_log() -> None:
    log = DeliveryLog(capacity=1 << 16)
    figures = LogFigures(log.mapping)
    log.append(b"x", 1, 0, 1, SOURCE_NS)
    log.close()
    figures.scan()
    assert figures.count == 0
    with pytest.raises(ValueError):
        LogFigures(log.mapping)
    with pytest.raises(ValueError):
        LogFigures(Mapping.create("no log", 4096))
