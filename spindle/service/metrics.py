"""Prometheus: a node's counters and state over HTTP.

Why a collector over the mapped page: the counters are there anyway and cost the node nothing to be read; a scrape never
enters the predicate thread, and the event loop only for the few figures of the group's state.

Rules:
- Every counter of the core appears, with its own help text: one that is added there is exported without a change here.
- Values are in base units (seconds, bytes). Names and labels are in docs/operations.md, "Metrics"; a test compares.
- It listens on loopback unless told otherwise: whoever can connect can read topic names.
- A scrape that stalls costs its own thread only. CONNECTIONS_MAX are open at a time: for one more the oldest gives way,
  so whoever can connect can neither use up the node's descriptors and threads nor keep scrapes out.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from spindle.config.settings import split_address
from spindle.errors import SpindleError
from spindle.group.figures import Latencies, behind
from spindle.relay.figures import RELAY_HELP

if TYPE_CHECKING:
    from spindle_core.counters import Counters

SCRAPE_TIMEOUT_S = 5.0
CONNECTIONS_MAX = 8
LABELS = ("domain", "node")
LATENCY_BOUNDS_NS = [1 << octave for octave in range(14, 35, 2)]  # 16 us to 17 s; bounds of the core's buckets, too

# counters whose name or unit differs in Prometheus: name there, kind, factor to the base unit
RENAMED: dict[str, tuple[str, type[CounterMetricFamily] | type[GaugeMetricFamily], float]] = {
    "busy_ns": ("spindle_busy_seconds", CounterMetricFamily, 1e-9),
    "lap_ns_max": ("spindle_lap_seconds_max", GaugeMetricFamily, 1e-9),
    "view_id": ("spindle_view_id", GaugeMetricFamily, 1.0),
}


class NodeCollector(Collector):
    """What one node exports.

    counters  the node's page
    status    called once a scrape on the scrape's thread; gives what Session.status() gives. If it raises, as the node
              is stopping, only the counters and `spindle_up` are exported
    """

    def __init__(
        self, domain_id: int, node_id: int, counters: Counters, status: Callable[[], dict[str, Any]] | None = None
    ) -> None:
        self._labels = (str(domain_id), str(node_id))
        self._counters = counters
        self._status = status

    def collect(self) -> Iterator[Metric]:
        yield from self._counter_metrics()
        status = None
        if self._status is not None:
            try:
                status = self._status()
            except Exception:  # the node is stopping: what can be read without it is still worth having
                status = None
            up = GaugeMetricFamily("spindle_up", "1 if the node answers", labels=LABELS)
            up.add_metric(self._labels, 0 if status is None else 1)
            yield up
        if status is not None:
            yield from self._status_metrics(status)

    def describe(self) -> list[Metric]:
        return []  # registering must not take a first scrape

    def _counter_metrics(self) -> Iterator[Metric]:
        from spindle_core.counters import COUNTER_HELP

        for name, value in self._counters.snapshot().items():
            exported, kind, factor = RENAMED.get(name, (f"spindle_{name}", CounterMetricFamily, 1.0))
            family = kind(exported, _help(COUNTER_HELP[name], factor), labels=LABELS)
            family.add_metric(self._labels, value * factor)
            yield family

    def _status_metrics(self, status: dict[str, Any]) -> Iterator[Metric]:
        members = GaugeMetricFamily("spindle_members", "nodes in the installed view", labels=LABELS)
        members.add_metric(self._labels, len(status.get("members", ())))
        yield members
        apps = GaugeMetricFamily("spindle_applications", "applications attached to the node", labels=LABELS)
        apps.add_metric(self._labels, len(status.get("applications", ())))
        yield apps
        yield from self._relay_metrics(status.get("relayed", {}))
        topics = status.get("topics", ())
        count = GaugeMetricFamily("spindle_topics", "topics of the group", labels=LABELS)
        count.add_metric(self._labels, len(topics))
        yield count
        for key, text in TOPIC_GAUGES.items():
            family = GaugeMetricFamily(f"spindle_topic_{key}", text, labels=(*LABELS, "topic"))
            for topic in topics:
                if isinstance(topic.get(key), (int, float)):
                    family.add_metric((*self._labels, topic["name"]), topic[key])
            yield family
        yield from self._delivery_metrics([topic for topic in topics if topic.get("figures")])

    def _delivery_metrics(self, topics: list[dict[str, Any]]) -> Iterator[Metric]:
        """What was delivered live of each topic, and how late."""
        labels = (*LABELS, "topic")
        size = CounterMetricFamily("spindle_topic_delivered_bytes",
                                   "payload bytes delivered live into the topic's log on this node", labels=labels)
        latency = HistogramMetricFamily("spindle_topic_latency_seconds",
                                        "time from source timestamp to delivery on this node", labels=labels)
        lag = GaugeMetricFamily("spindle_topic_behind",
                                "messages that the slowest member of the topic has yet to deliver", labels=labels)
        for topic in topics:
            named = (*self._labels, topic["name"])
            size.add_metric(named, topic["figures"]["bytes"])
            found = Latencies.of(topic["figures"])
            within = [(str(bound * 1e-9), sum(n for below, n in found.counts if below <= bound))
                      for bound in LATENCY_BOUNDS_NS]
            latency.add_metric(named, [*within, ("+Inf", found.count)], None)
            if (count := behind(topic)) is not None:
                lag.add_metric(named, count)
        yield from (size, latency, lag)

    def _relay_metrics(self, relayed: dict[str, Any]) -> Iterator[Metric]:
        external = GaugeMetricFamily("spindle_external_applications", "attached applications on hosts without a node",
                                     labels=LABELS)
        external.add_metric(self._labels, relayed.get("applications", 0))
        yield external
        for key, text in RELAY_HELP.items():
            family = CounterMetricFamily(f"spindle_relay_{key}", text, labels=LABELS)
            family.add_metric(self._labels, relayed.get(key, 0))
            yield family


# figures of a topic in Session.status(), exported by topic
TOPIC_GAUGES: dict[str, str] = {
    "delivered": "messages delivered into the topic's log on this node since it subscribed",
    "given_up": "samples for late joiners that were given up because a topic's keys need more than history_bytes",
    "given_up_keys": "how often all that was kept of a key was given up for that reason",
    "kept_bytes": "bytes that the last samples of each key take, for late joiners",
    "keys": "keys of which samples are kept for late joiners",
    "keys_over": "of these, those that have ended and are kept for a while",
    "limited": "samples for late joiners that went because a topic may keep no more samples or keys",
    "readers": "readers of applications on this node",
    "writers": "writers of applications on this node",
}


def _help(text: str, factor: float) -> str:
    return text if factor == 1.0 else text.replace("in nanoseconds", "in seconds").replace("nanoseconds", "seconds")


class _Handler(WSGIRequestHandler):
    timeout = SCRAPE_TIMEOUT_S  # of each read of the connection

    def log_message(self, *_: object) -> None:
        """A scrape every few seconds is not worth a line."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[socket.socket, None] = {}  # the oldest first
        self._changed = threading.Condition()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for this connection, when there is a place."""
        with self._changed:
            while len(self._open) >= CONNECTIONS_MAX:
                with contextlib.suppress(OSError):
                    next(iter(self._open)).shutdown(socket.SHUT_RDWR)
                self._changed.wait(SCRAPE_TIMEOUT_S)
            self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """The connection is over."""
        super().shutdown_request(request)
        with self._changed:
            self._open.pop(request, None)
            self._changed.notify()

    def server_bind(self) -> None:
        # HTTPServer would look up the host's name, which can take seconds where DNS doesn't answer
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.1)  # no descriptor left: the connection stays in the queue, and would be tried at once again
            raise

    def handle_error(self, *_: object) -> None:
        """A scraper that went away is no concern of the node."""


class MetricsServer:
    """The endpoint while it runs. `address` is (host, port) as bound, so a port of 0 shows the one that was given."""

    def __init__(self, listen: str, collector: Collector, process_metrics: bool = True) -> None:
        """Binds and starts the thread. Raises SpindleError if the address is taken or can't be used."""
        registry = CollectorRegistry()
        registry.register(collector)
        if process_metrics:
            for standard in (ProcessCollector, PlatformCollector, GCCollector):
                standard(registry=registry)
        host, port = split_address(listen)
        self._server = _bound(host, port, listen)
        self._server.set_app(make_wsgi_app(registry))
        self.address: tuple[str, int] = (host, self._server.server_port)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="spindle-metrics", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # not serve_forever(): that wakes up twice a second to look whether it should end
        while not self._closing:
            self._server.handle_request()

    def close(self) -> None:
        """Stop listening. Idempotent; a scrape under way is not waited for."""
        if self._closing:
            return
        self._closing = True
        try:
            socket.create_connection(self.address, SCRAPE_TIMEOUT_S).close()  # wakes the thread
            self._thread.join(SCRAPE_TIMEOUT_S)
        except OSError:
            pass  # it listens no more, or its queue is full: then it wakes by itself
        self._server.server_close()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve_metrics(
    listen: str,
    domain_id: int,
    node_id: int,
    counters: Counters,
    status: Callable[[], dict[str, Any]] | None = None,
) -> MetricsServer:
    """Start the endpoint at "host:port". `status` is called on the scrape's thread, see `NodeCollector`."""
    return MetricsServer(listen, NodeCollector(domain_id, node_id, counters, status))


def _bound(host: str, port: int, listen: str) -> _Server:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        kind = type("_FamilyServer", (_Server,), {"address_family": family})
        server: _Server = kind((host, port), _Handler)
        return server
    except OSError as error:
        raise SpindleError(
            f"metrics can't listen on {listen}: {error.strerror or error}; choose another [metrics] listen"
        ) from error
