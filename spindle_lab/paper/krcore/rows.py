"""The rows of docs/paper-krcore.md: what the paper says, what the model comes to, and what kind of figure that is."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from spindle_lab.paper.krcore import costs, memory, plays
from spindle_lab.paper.krcore.hosts import DAEMON, KERNEL

# Kinds of figures of the model.
PLAYED = "played"  # the production pool ran in virtual time
COMPUTED = "computed"  # from the costs alone; nothing ran
CALIBRATED = "calibrated"  # a cost was taken from it: no prediction
GIVEN = "given"  # it is a cost itself
COUNTED, MEASURED = "counted", "measured"
PREDICTIONS = (PLAYED, COMPUTED)

Figures = dict[str, float]
LINKS = 5000
MESH = plays.CLIENTS * (plays.CLIENTS - 1)


# ---- what is played ------------------------------------------------------------------------------------------------

def _named(prefix: str, play: Callable[[], Mapping[str, float]]) -> Callable[[], Figures]:
    return lambda: {f"{prefix} {name}": value for name, value in play().items()}


def _one(name: str, play: Callable[[], float]) -> Callable[[], Figures]:
    return lambda: {name: play()}


QUARTER_MB = 1 << 18
SWIFT: tuple[Callable[[], Figures], ...] = (
    _named("connect", partial(plays.connecting, KERNEL, 1)),
    _named("find", partial(plays.connecting, DAEMON, 1)),
    _named("connect 240", partial(plays.connecting, KERNEL)),
    _named("find 240", partial(plays.connecting, DAEMON)),
    _one("cached", plays.cached_connect),
    _one("asking", plays.asking),
    _named("mesh", plays.mesh),
    _one("read verbs", plays.verbs_read),
    _one("read", partial(plays.link_read, KERNEL)),
    _one("read dc", partial(plays.link_read, KERNEL, dc=True)),
    _one("read daemon", partial(plays.link_read, DAEMON)),
    _one("read verbs long", partial(plays.verbs_read, QUARTER_MB)),
    _one("read long", partial(plays.link_read, KERNEL, QUARTER_MB)),
    _one("read daemon long", partial(plays.link_read, DAEMON, QUARTER_MB)),
    _one("missed", partial(plays.missed, KERNEL)),
    _one("missed daemon", partial(plays.missed, DAEMON)),
    _one("echo", partial(plays.echo, KERNEL)),
    _one("echo daemon", partial(plays.echo, DAEMON)),
    *(_one(f"fan {n}", partial(plays.fan_out, n)) for n in (0, 1, 2, plays.DCQPS)),
    _named("start", partial(plays.starting, KERNEL)),
    _named("start daemon", partial(plays.starting, DAEMON)),
)
SLOW: tuple[Callable[[], Figures], ...] = (
    _named("reads", partial(plays.throughput, KERNEL)),
    _named("reads dc", partial(plays.throughput, KERNEL, dc=True)),
    _named("reads daemon", partial(plays.throughput, DAEMON)),
    _named("writes", partial(plays.throughput, KERNEL, write=True)),
    _named("writes dc", partial(plays.throughput, KERNEL, write=True, dc=True)),
    _named("writes daemon", partial(plays.throughput, DAEMON, write=True)),
    _one("links bytes", lambda: memory.links_bytes(LINKS)),
    _one("connection bytes", memory.connection_bytes),
)


def play(which: Iterable[Callable[[], Figures]] = (*SWIFT, *SLOW), on_play: Callable[[], None] = lambda: None
         ) -> Figures:
    """The figures of these. The same, however often and wherever; what is measured of memory, with the same Python and
    C library. OSError where memory can't be measured."""
    figures: Figures = {}
    for one in which:
        figures |= one()
        gc.collect()  # links of that run keep descriptors open
        on_play()
    return figures


# ---- what is computed ----------------------------------------------------------------------------------------------

def mesh_us() -> float:
    """Of the paper's structure: each worker connects to all others, one after the other, in its own time; what its host
    doesn't know of theirs it reads once, which 24 workers share."""
    lookups = 2 * costs.READ.value * (plays.HOSTS - 1) / plays.WORKERS_HERE
    return ((plays.CLIENTS - 1) * costs.ENTRY.value + lookups) / 1e3


def mesh_made_s() -> float:
    """Of queue pairs that are made: as many as the hosts' devices can."""
    return MESH / plays.HOSTS / costs.PAIRS_S.value


def pool_mb() -> float:
    pair = (costs.SEND_ENTRIES.value * costs.SEND_ENTRY.value + costs.DONE_ENTRIES.value * costs.DONE_ENTRY.value)
    return (costs.DC_PAIRS.value * pair + LINKS * costs.DC_BYTES.value) / 1e6


def workers_ms(connect_ns: float) -> float:
    """180 workers, with one queue pair each at the node that has the table: that one makes them while processes are
    made, and the last one has its connection then."""
    workers = 180
    return (max(costs.PROCESSES.value, workers / costs.PAIRS_S.value * 1e9) + connect_ns) / 1e6


# ---- rows ----------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Row:
    """One line. paper None: it has no figure. `own`: of this project's structure, where that differs."""

    claim: str
    paper: float | None
    unit: str
    kind: str
    model: float | None
    own: float | None = None
    own_kind: str = PLAYED
    bound: bool = False  # the paper says less than that
    clear: bool = True  # the paper says which figure it is

    @property
    def deviation(self) -> float | None:
        """In %; None where there is nothing to deviate from."""
        if self.paper is None or self.model is None or self.bound:
            return None
        return (self.model / self.paper - 1) * 100

    @property
    def predicts(self) -> bool:
        return self.kind in PREDICTIONS and self.deviation is not None and self.clear


Make = Callable[[Figures], Row]
CONTROL, DATA, APPLICATION = "Control path", "Data path", "Applications"
SPECS: Mapping[str, tuple[Make, ...]] = {
    CONTROL: (
        lambda f: Row("connection, verbs", 15.7, "ms", GIVEN, costs.VERBS_CONNECT.value / 1e6),
        lambda f: Row("connection, LITE", 2.0, "ms", GIVEN, costs.LITE_CONNECT.value / 1e6),
        lambda f: Row("connection, KRCore, nothing cached; own: a region looked up", 5.4, "us", PLAYED, f["connect us"],
                      f["find us"]),
        lambda f: Row("connection, KRCore, cached; own: a region that the node knows", 0.9, "us", GIVEN,
                      costs.ENTRY.value / 1e3, f["cached"]),
        lambda f: Row("connections a second to one server, 240 clients, KRCore; own: lookups", 22.0, "million", PLAYED,
                      f["connect 240 rate"], f["find 240 rate"]),
        lambda f: Row("connections a second to one server, verbs and LITE", 712.0, "", GIVEN, costs.PAIRS_S.value),
        lambda f: Row(f"network connections made for {f['connect 240 links']:,.0f} links", None, "", COUNTED,
                      f["connect 240 connections"], f["find 240 connections"], COUNTED),
        lambda f: Row(f"reads of the directory for {f['find 240 links']:,.0f} links to regions of which their node "
                      "knows nothing", None, "", COUNTED, None, f["find 240 lookups"], COUNTED),
        lambda f: Row("mesh of 240 workers, KRCore; own: a link to each host", 81.0, "us", COMPUTED, mesh_us(),
                      f["mesh us"]),
        lambda f: Row("mesh of 240 workers, LITE", 2.3, "s", COMPUTED, mesh_made_s()),
        lambda f: Row("mesh of 240 workers, verbs", 2.7, "s", COMPUTED, mesh_made_s()),
        lambda f: Row("links of that mesh", None, "", COMPUTED, float(MESH), f["mesh links"], COUNTED),
        lambda f: Row("network connections made for it", None, "", COUNTED, None, f["mesh connections"], COUNTED),
        lambda f: Row("reads of directories for it", None, "", COUNTED, None, f["mesh lookups"], COUNTED),
        lambda f: Row("connections a second, directory over RPC (paper: 22 / 11.8)", 22.0 / 11.8, "million", PLAYED,
                      f["asking"]),
        lambda f: Row("directory read one-sidedly over RPC", 11.8, "x", PLAYED, f["connect 240 rate"] / f["asking"]),
    ),
    DATA: (
        lambda f: Row("read of 8 bytes, verbs", 2.15, "us", CALIBRATED, f["read verbs"]),
        lambda f: Row("read of 8 bytes, KRCore (RC)", 3.15, "us", PLAYED, f["read"], f["read daemon"]),
        lambda f: Row("read of 8 bytes, KRCore (DC)", 3.24, "us", CALIBRATED, f["read dc"]),
        lambda f: Row("a region that is not known, more", 4.5, "us", PLAYED, f["missed"], f["missed daemon"]),
        lambda f: Row("read of 256 KB, over verbs", 7.0, "%", PLAYED,
                      100 * (f["read long"] / f["read verbs long"] - 1),
                      100 * (f["read daemon long"] / f["read verbs long"] - 1), bound=True),
        lambda f: Row("reads a second, 240 clients, lists, RC", 138.0, "million", CALIBRATED, f["reads rate"],
                      f["reads daemon rate"]),
        lambda f: Row("reads a second, the same, DC", 118.0, "million", CALIBRATED, f["reads dc rate"]),
        lambda f: Row("writes a second, the same, RC", 145.0, "million", CALIBRATED, f["writes rate"],
                      f["writes daemon rate"]),
        lambda f: Row("writes a second, the same, DC", 132.0, "million", PLAYED, f["writes dc rate"]),
        lambda f: Row("echo of 8 bytes, verbs", 7.9, "us", CALIBRATED, costs.ECHO.value / 1e3),
        lambda f: Row("echo of 8 bytes, KRCore (RC)", 9.6, "us", PLAYED, f["echo"], f["echo daemon"]),
        lambda f: Row("64 reads of hosts at random, RC", 75.0, "us", PLAYED, f["fan 0"]),
        lambda f: Row("64 reads of hosts at random, one DCQP", 99.0, "us", CALIBRATED, f["fan 1"]),
        # The text has two ends, for pools "larger than 2".
        lambda f: Row("the same, less than RC, two DCQPs (paper: 28 to 78%)", 28.0, "%", PLAYED,
                      100 * (1 - f["fan 2"] / f["fan 0"]), clear=False),
        lambda f: Row("the same, less than RC, eight DCQPs (paper: 28 to 78%)", 78.0, "%", PLAYED,
                      100 * (1 - f[f"fan {plays.DCQPS}"] / f["fan 0"]), clear=False),
        lambda f: Row("memory of 5,000 connections, LITE", 780.0, "MB", COMPUTED, LINKS * costs.PAIR_BYTES.value / 1e6),
        lambda f: Row("memory of 5,000 connections, KRCore; own: of 5,000 links", 6.3, "MB", COMPUTED, pool_mb(),
                      f["links bytes"] / 1e6, MEASURED),
        lambda f: Row("memory of one connection, LITE; own: one end, of a pool", 159.0, "KB", GIVEN,
                      costs.PAIR_BYTES.value / 1024, f["connection bytes"] / 1024, MEASURED),
    ),
    APPLICATION: (
        lambda f: Row("180 workers of a hash, KRCore", 244.0, "ms", CALIBRATED,
                      costs.PROCESSES.value / 1e6 + f["start us"] / 1e3,
                      costs.PROCESSES.value / 1e6 + f["start daemon us"] / 1e3),
        lambda f: Row("of that, from when all processes are there to the last one's first value", None, "us", PLAYED,
                      f["start us"], f["start daemon us"]),
        lambda f: Row("network connections made for it", None, "", COUNTED, f["start connections"],
                      f["start daemon connections"], COUNTED),
        lambda f: Row("180 workers of a hash, LITE", 1000.0, "ms", COMPUTED, workers_ms(costs.LITE_CONNECT.value)),
        lambda f: Row("180 workers of a hash, verbs", 1400.0, "ms", COMPUTED, workers_ms(costs.VERBS_CONNECT.value)),
    ),
}


def rows(figures: Figures, *, whole: bool = True) -> dict[str, list[Row]]:
    """By section. KeyError for figures that aren't there; without `whole` their rows are left out."""
    found: dict[str, list[Row]] = {}
    for section, specs in SPECS.items():
        found[section] = []
        for make in specs:
            try:
                found[section].append(make(figures))
            except KeyError:
                if whole:
                    raise
    return found
