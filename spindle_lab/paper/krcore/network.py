"""Virtual time, and the network between pools: when what was posted lands, and when it is answered.

What is posted and what it does is the production code's (spindle_core.fabric.regions.sim); here stands when. A request
leaves when its poster's thread has done its work, is at the target after half of an unloaded read, waits there for the
device and for the port where bytes go through, and the answer takes the other half. One connection keeps its order.

Over DC a request costs the target's device more, and a DCQP that has last talked to another target connects anew.

Left out: congestion, loss, caches of devices, and what a driver takes for each further request of a list.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from spindle_core.fabric.regions.sim import SimWorld
from spindle_lab.paper.krcore import costs

NOT_ONE_SIDED = "message"


class Clock:
    """What happens when, in ns; at one moment in the order of its making."""

    def __init__(self) -> None:
        self.now = 0.0
        self._made = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, what: Callable[[], None]) -> None:
        """Never in the past."""
        heapq.heappush(self._events, (max(when, self.now), self._made, what))
        self._made += 1

    def run(self, over: Callable[[], bool] = lambda: False) -> None:
        """Until nothing happens any more, or it is over."""
        while self._events and not over():
            self.now, _, what = heapq.heappop(self._events)
            what()


class Station:
    """Serves one after the other."""

    def __init__(self) -> None:
        self.free = 0.0

    def take(self, at: float, ns: float) -> float:
        """When what has come then and takes so long is done."""
        self.free = max(at, self.free) + ns
        return self.free


class Dcqp(Station):
    """A queue pair that is dynamically connected. It goes on to the next target when it is connected with that."""

    def __init__(self) -> None:
        super().__init__()
        self.target: int | None = None

    def leave(self, at: float, target: int) -> float:
        """When a request that was posted then is on its way."""
        ns = 0.0 if self.target in (None, target) else costs.RECONNECT.value
        self.target = target
        return self.take(at, ns)


def wire_ns(size: float) -> float:
    """Of so many bytes on a link."""
    packets = max(1, -(-int(size) // int(costs.PACKET.value)))
    return (size + packets * costs.OVERHEAD.value) / costs.BYTES_S.value * 1e9


WORD_NS = wire_ns(8)


class Network:
    """Of hosts 0 to n - 1. `on_news[host]` is called when something has landed there or was answered."""

    def __init__(self, clock: Clock, n: int, *, dc: bool = False) -> None:
        self.clock, self.dc = clock, dc
        self.world = SimWorld()
        self.on_news: list[Callable[[], None]] = [lambda: None] * n
        self.devices = [Station() for _ in range(n)]
        self.out_ports = [Station() for _ in range(n)]
        self.in_ports = [Station() for _ in range(n)]
        self.landed = dict.fromkeys(("read", "write", "swap", "add", NOT_ONE_SIDED), 0)
        self._ways: list[list[tuple[int, int]]] = [[] for _ in range(n)]  # of a source: (target, connection)
        self._due: dict[tuple[int, int, int], int] = {}  # posts that are on their way
        self._last: dict[tuple[int, int, int], float] = {}

    def connected(self, one: int, other: int) -> None:
        """There is one connection more between these."""
        connection = sum(target == other for target, _ in self._ways[one])
        for source, target in ((one, other), (other, one)):
            self._ways[source].append((target, connection))
            self._due[source, target, connection] = 0
            self._last[source, target, connection] = 0.0

    @property
    def connections(self) -> int:
        """That were ever made."""
        return len(self._due) // 2

    def take(self, source: int) -> list[tuple[tuple[int, int, int], list[tuple[str, int, int, bool]]]]:
        """What this host has posted since the last call, by way; it leaves by send()."""
        found = []
        for target, connection in self._ways[source]:
            way = (source, target, connection)
            posts = self.world.posted(*way, first=self._due[way])
            if posts:
                self._due[way] += len(posts)
                found.append((way, posts))
        return found

    def send(self, taken: list[tuple[tuple[int, int, int], list[tuple[str, int, int, bool]]]], at: float,
             dcqps: list[Dcqp] | None = None) -> None:
        """`dcqps`: the posts of one target go over one of these, the next target's over the next."""
        for place, (way, posts) in enumerate(taken):
            for post in posts:
                when = at
                if dcqps:
                    when = dcqps[place % len(dcqps)].leave(at, way[1])
                self._leave(way, post, when)

    def _leave(self, way: tuple[int, int, int], post: tuple[str, int, int, bool], at: float) -> None:
        kind, size, lines, told = post
        source = way[0]
        payload = wire_ns(size) if kind in ("write", NOT_ONE_SIDED) else WORD_NS
        gone = self.out_ports[source].take(at, payload)
        if kind == NOT_ONE_SIDED:
            travel = (costs.ECHO.value - costs.SERVE.value) / 2 - WORD_NS
        else:
            device = costs.DEVICE_WRITE if kind == "write" else costs.DEVICE_READ
            travel = (costs.READ.value - device.value) / 2 - WORD_NS + (costs.DC.value if self.dc else 0.0)
        arrived = max(gone + travel, self._last[way])
        self._last[way] = arrived
        self.clock.at(arrived, lambda: self._arrive(way, kind, size, lines, told, payload))

    def _arrive(self, way: tuple[int, int, int], kind: str, size: int, lines: int, told: bool, payload: float) -> None:
        target = way[1]
        device = costs.DEVICE_READ if kind == "read" else costs.DEVICE_WRITE
        ns = device.value + (costs.DEVICE_DC.value if self.dc and kind != NOT_ONE_SIDED else 0.0)
        done = max(self.devices[target].take(self.clock.now, 0.0 if kind == NOT_ONE_SIDED else ns),
                   self.in_ports[target].take(self.clock.now - payload, payload))
        self.clock.at(done, lambda: self._land(way, kind, size, lines, told))

    def _land(self, way: tuple[int, int, int], kind: str, size: int, lines: int, told: bool) -> None:
        source, target, connection = way
        self.world.land(source, target, connection, lines)
        self._due[way] -= 1
        self.landed[kind] += 1
        if kind == NOT_ONE_SIDED:
            self.on_news[target]()
            return
        if kind == "write" and not told:
            return
        gone = self.out_ports[target].take(self.clock.now, wire_ns(size) if kind == "read" else WORD_NS)
        device = costs.DEVICE_WRITE if kind == "write" else costs.DEVICE_READ
        back = (costs.READ.value - device.value) / 2 - WORD_NS
        self.clock.at(gone + back, lambda: self._answer(way, told))

    def _answer(self, way: tuple[int, int, int], told: bool) -> None:
        source, target, connection = way
        self.world.answer(source, target, connection, 1)
        if told:
            self.on_news[source]()
