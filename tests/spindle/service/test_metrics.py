"""Goal: Prometheus gets every counter of the core under its documented name, the group's state beside them, and a
scrape can neither hurt the node nor be hurt by its end.

Method: an endpoint over a counter page that the test fills, asked by HTTP; the documented names against what is served.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spindle.errors import SpindleError
from spindle.service.metrics import CONNECTIONS_MAX, MetricsServer, serve_metrics
from spindle_core.counters import COUNTER_NAMES, Counters
from tests.support import wait_until

ROOT = Path(__file__).resolve().parents[3]
STATUS = {
    "members": [{"node_id": 2}, {"node_id": 5}],
    "applications": [{}],
    "relayed": {"applications": 1, "turned": 3, "taken": 5, "taken_bytes": 70},
    "topics": [{"name": 'a"b\\', "delivered": 7, "readers": 1, "writers": 0, "keys": 3, "kept_bytes": 600,
                "given_up": 2, "given_up_keys": 1, "limited": 4, "keys_over": 5, "level": "atomic",
                "stability": {"received": [9, 12], "delivered": [7, 9]},
                "figures": {"messages": 7, "bytes": 70, "latencies": {"10240": 4, "65536": 2, "inf": 1}}},
               {"name": "elsewhere"}],
}


@pytest.fixture
def counters() -> Counters:
    return Counters.create()


@pytest.fixture
def server(counters: Counters) -> Iterator[MetricsServer]:
    with serve_metrics("127.0.0.1:0", 4, 5, counters, lambda: STATUS) as made:
        yield made


def scrape(server: MetricsServer, path: str = "/metrics") -> str:
    with urllib.request.urlopen("http://{}:{}{}".format(*server.address, path), timeout=10) as answer:
        return str(answer.read().decode())


def values(text: str) -> dict[tuple[str, str], float]:
    """(sample name, topic or "") to value; checks the labels on the way."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("spindle_"):
                assert sample.labels["domain"] == "4" and sample.labels["node"] == "5"
                found[sample.name, sample.labels.get("topic", "")] = sample.value
    return found


def test_counters_in_base_units(server: MetricsServer, counters: Counters) -> None:
    counters.set("pushes", 3)
    counters.set("busy_ns", 2_500_000_000)
    counters.set("lap_ns_max", 1500)
    counters.set("view_id", 9)
    counters.set("posted_bytes", 11)
    found = values(scrape(server))
    assert found["spindle_pushes_total", ""] == 3
    assert found["spindle_busy_seconds_total", ""] == 2.5
    assert found["spindle_lap_seconds_max", ""] == pytest.approx(1.5e-6)
    assert found["spindle_view_id", ""] == 9
    assert found["spindle_posted_bytes_total", ""] == 11
    assert sum(not topic for _, topic in found) >= len(COUNTER_NAMES)


def test_state_of_the_group(server: MetricsServer) -> None:
    found = values(scrape(server))
    assert found["spindle_up", ""] == 1
    assert found["spindle_members", ""] == 2
    assert found["spindle_applications", ""] == 1
    assert found["spindle_topics", ""] == 2
    assert found["spindle_external_applications", ""] == 1
    assert found["spindle_relay_turned_total", ""] == 3 and found["spindle_relay_refused_total", ""] == 0
    assert found["spindle_relay_taken_total", ""] == 5 and found["spindle_relay_taken_bytes_total", ""] == 70
    assert found["spindle_topic_delivered", 'a"b\\'] == 7
    assert ("spindle_topic_delivered", "elsewhere") not in found, "this node does not subscribe it"


def test_latencies_of_a_topic(server: MetricsServer) -> None:
    """Each message is below its bound, and the last bucket has all."""
    found = {}
    for family in text_string_to_metric_families(scrape(server)):
        found |= {float(one.labels["le"]): one.value for one in family.samples
                  if one.name == "spindle_topic_latency_seconds_bucket"}
    assert found[16384e-9] == 4 and found[65536e-9] == 6 and found[max(found)] == 7 and max(found) == float("inf")
    assert sorted(found.values()) == [found[bound] for bound in sorted(found)]
    served = values(scrape(server))
    assert served["spindle_topic_behind", 'a"b\\'] == 5
    assert served["spindle_topic_delivered_bytes_total", 'a"b\\'] == 70


def test_process_metrics(server: MetricsServer) -> None:
    assert "process_resident_memory_bytes" in scrape(server)


def test_documented_is_what_is_served(server: MetricsServer) -> None:
    document = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(spindle_\w+)` \|", document, re.MULTILINE))
    assert documented == {name for name, _ in values(scrape(server))}


def test_a_node_that_does_not_answer_still_shows_its_counters(counters: Counters) -> None:
    def stopping() -> dict[str, Any]:
        raise TimeoutError

    counters.set("pushes", 8)
    with serve_metrics("127.0.0.1:0", 4, 5, counters, stopping) as server:
        found = values(scrape(server))
    assert found["spindle_up", ""] == 0 and found["spindle_pushes_total", ""] == 8
    assert ("spindle_members", "") not in found


def test_without_status_only_counters(counters: Counters) -> None:
    with serve_metrics("127.0.0.1:0", 4, 5, counters) as server:
        assert {name for name, _ in values(scrape(server))} >= {"spindle_pushes_total"}
        assert "spindle_up" not in scrape(server)


def test_a_taken_port_is_a_clear_error(server: MetricsServer, counters: Counters) -> None:
    with pytest.raises(SpindleError, match=r"metrics can't listen on 127\.0\.0\.1:\d+: .*choose another"):
        serve_metrics(f"127.0.0.1:{server.address[1]}", 4, 5, counters)


def test_an_unknown_host_is_a_clear_error(counters: Counters) -> None:
    with pytest.raises(SpindleError, match="metrics can't listen on"):
        serve_metrics("host.invalid:1", 4, 5, counters)


def test_a_stalled_scrape_delays_nobody(server: MetricsServer) -> None:
    with socket.create_connection(server.address, timeout=10) as stalled:
        stalled.sendall(b"GET /metr")
        assert values(scrape(server))["spindle_up", ""] == 1


def test_whoever_can_connect_uses_up_nothing_and_keeps_no_scrape_out(server: MetricsServer) -> None:
    """Goal: connections that say little and stay cost the node neither descriptors nor threads without bound. Method:
    more of them than there are places; the oldest give way to each other, and to a scrape."""
    def threads() -> int:
        return sum("process_request_thread" in one.name for one in threading.enumerate())

    before, idle = threads(), []
    with contextlib.ExitStack() as stack:
        for _ in range(3 * CONNECTIONS_MAX):
            idle.append(stack.enter_context(socket.create_connection(server.address, timeout=10)))
            idle[-1].sendall(b"G")
        assert idle[0].recv(1) == b"", "the first has given way"
        assert values(scrape(server))["spindle_up", ""] == 1
        assert threads() - before <= CONNECTIONS_MAX
    wait_until(lambda: threads() == before)


def test_nonsense_is_refused_and_survived(server: MetricsServer) -> None:
    with socket.create_connection(server.address, timeout=10) as rude:
        rude.sendall(b"\x00\xff" * 100 + b"\r\n\r\n")
        while rude.recv(4096):
            pass
    assert values(scrape(server))


def test_closing_frees_the_port_and_is_idempotent(counters: Counters) -> None:
    first = serve_metrics("127.0.0.1:0", 4, 5, counters)
    first.close()
    first.close()
    with serve_metrics(f"127.0.0.1:{first.address[1]}", 4, 5, counters) as second:
        assert second.address == first.address


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6(counters: Counters) -> None:
    try:
        server = serve_metrics("[::1]:0", 4, 5, counters)
    except SpindleError:
        pytest.skip("no IPv6 loopback here")
    with server, urllib.request.urlopen(f"http://[::1]:{server.address[1]}/metrics", timeout=10) as answer:
        assert answer.status == 200
