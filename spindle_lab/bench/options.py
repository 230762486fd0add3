"""What a multicast run is asked to do: checked once, then handed to every worker as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

SWITCHES = ("batch_send", "batch_receive", "batch_delivery", "null_sends", "post_after_unlock")
SWITCH_SETS = {
    "baseline": (),
    "batching": ("batch_send", "batch_receive", "batch_delivery"),
    "nulls": ("batch_send", "batch_receive", "batch_delivery", "null_sends"),
    "spindle": SWITCHES,
}
NODES_MAX = 64
IDLE_TOPICS_MAX = 250  # of the 255 that a group may have
SENDERS = ("all", "half", "one")
DELAYED = ("none", "one", "half", "silent")
# Other systems behind the same loops (peer_ports.py), by the package that each needs.
PEERS = {"cyclonedds": "cyclonedds", "iceoryx2": "iceoryx2", "iceoryx2-polling": "iceoryx2"}
APIS = ("core", "session", "dds", *PEERS)  # session: spindle.client, which the DDS API stands on
IN_PLACE_APIS = ("dds", "iceoryx2", "iceoryx2-polling")
FABRICS = ("shm", "tcp", "verbs")
BOTH, READER, WRITER = "both", "reader", "writer"  # what a process is of its node
LEVELS = ("unordered", "atomic", "volatile", "logged")
DEFAULT_BYTES = 1_500_000_000  # of payload delivered at each node in a core run: under a second
SAMPLE_EVERY_FLOOD = 64  # one message in so many carries its time of filling


class OptionError(ValueError):
    """An option that can't be had; the message says which values can."""


def senders_count(senders: str, nodes: int) -> int:
    """How many of `nodes` send: all, half (rounded up) or one."""
    return {"all": nodes, "half": (nodes + 1) // 2, "one": 1}[senders]


def parse_switches(text: str) -> tuple[str, ...]:
    """`baseline`, `batching`, `nulls`, `spindle`, or single switches with commas between. Raises OptionError."""
    if text in SWITCH_SETS:
        return SWITCH_SETS[text]
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in SWITCHES:
            raise OptionError(
                f"unknown switch {name!r}: one of {', '.join(SWITCH_SETS)}, or some of {', '.join(SWITCHES)}"
            )
    return names


@dataclass(frozen=True)
class MulticastOptions:
    """One multicast or latency run. Raises OptionError when the parts don't fit together."""

    nodes: int = 3
    size: int = 1024  # bytes
    senders: str = "all"
    count: int = 0  # messages per sender; 0: chosen for about a second
    switches: str = "spindle"
    api: str = "core"
    daemon: bool = False
    fabric: str = "shm"
    level: str = "atomic"
    delay_us: float = 100.0
    delayed: str = "none"
    single: bool = False  # dds: one write and one sample object per message
    in_place: bool = False  # dds: NumPy records, written as arrays and read in place
    window: int = 0  # slots; 0: chosen
    claim: int = 0  # core: slots that a sender claims at once at most; 0: an eighth of the window
    pace_per_s: float = 0.0  # messages per second of each sender; 0: as fast as it goes
    sample_every: int = 0  # 0: chosen
    busy_poll_us: int = 10
    timeout_s: float = 60.0
    idle_topics: int = 0  # beside the one that is measured, with the same members and senders
    skip_idle: bool = True  # off: each pass looks at all topics
    node_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("senders", self.senders, SENDERS),
            ("delayed", self.delayed, DELAYED),
            ("api", self.api, APIS),
            ("fabric", self.fabric, FABRICS),
            ("level", self.level, LEVELS),
        ):
            if value not in allowed:
                raise OptionError(f"{name} {value!r} is unknown: one of {', '.join(allowed)}")
        parse_switches(self.switches)
        if not 1 <= self.nodes <= NODES_MAX:
            raise OptionError(f"{self.nodes} nodes: 1 to {NODES_MAX}")
        if not 0 <= self.idle_topics <= IDLE_TOPICS_MAX:
            raise OptionError(f"{self.idle_topics} idle topics: 0 to {IDLE_TOPICS_MAX}")
        if self.size < 16:
            raise OptionError(f"messages of {self.size} bytes: at least 16, for sender, index and time")
        if self.daemon and self.api == "core":
            raise OptionError("applications of a daemon use --api dds (or session)")
        if self.single and self.api == "core":
            raise OptionError("--single is about samples of an API: add --api dds (or session)")
        if self.in_place and (self.api not in IN_PLACE_APIS or self.single or self.pace_per_s):
            raise OptionError("--in-place is about batches: add --api dds (or iceoryx2), no --single, no rate")
        if self.api in PEERS and (self.daemon or self.delayed != "none" or self.fabric != "shm" or self.idle_topics):
            raise OptionError(f"{self.api} runs in processes of one host, without a daemon, delays or idle topics")
        if self.delayed != "none" and self.n_senders < 2:
            raise OptionError(f"one sender can't be delayed beside others: --senders all, not {self.senders}")

    @property
    def n_senders(self) -> int:
        return senders_count(self.senders, self.nodes)

    @property
    def ordered(self) -> bool:
        """All nodes are to see the same order."""
        return self.api not in PEERS and self.level != "unordered"

    @property
    def apart(self) -> bool:
        """Publisher and subscriber of a node are processes of their own (IceoryxPort says why)."""
        return self.api.startswith("iceoryx2")

    @property
    def n_delayed(self) -> int:
        return {"none": 0, "one": 1, "silent": 1, "half": self.n_senders // 2}[self.delayed]

    @property
    def messages_each(self) -> int:
        """Messages of each sender that isn't delayed."""
        if self.count:
            return self.count
        if self.pace_per_s:
            return max(1, int(self.pace_per_s * 3))
        total = DEFAULT_BYTES // max(self.size, 512)
        if self.api != "core":
            total //= 4
        if not parse_switches(self.switches):
            total //= 8  # the baseline is slower by so much
        return max(200, total // self.n_senders)

    def counts(self) -> list[int]:
        """By rank: messages to send; 0: it sends none; -1: a delayed sender, which goes on until it is stopped."""
        counts = [self.messages_each if rank < self.n_senders else 0 for rank in range(self.nodes)]
        for rank in range(self.n_senders - self.n_delayed, self.n_senders):
            counts[rank] = 0 if self.delayed == "silent" else -1
        return counts

    @property
    def patience(self) -> dict[str, float]:
        """Timeouts of the nodes, by key of the configuration: the defaults for a run of 60 s, more for a longer one."""
        return {"join_timeout_s": max(10.0, self.timeout_s / 6), "suspect_timeout_s": max(2.0, self.timeout_s / 30)}

    def worker_config(self) -> dict[str, Any]:
        """The plain data that each worker gets, the same for all but for its rank."""
        flood = SAMPLE_EVERY_FLOOD if self.messages_each >= 5000 else 4
        return {
            **asdict(self),
            "switches": list(parse_switches(self.switches)),
            "counts": self.counts(),
            "n_senders": self.n_senders,
            "part": READER if self.apart else BOTH,
            "patience": self.patience,
            "sample_every": self.sample_every or (1 if self.pace_per_s else flood),
        }
