from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spindle_core.engine import SubgroupSpec
from spindle_core.switches import Switches
from spindle_lab.paper.parameters import Parameters

MEMBERS_LIMIT: int
BATCHES_COUNTED: int

@dataclass
class Sender:
    rank: int
    topic: int
    messages: int
    size: int
    delay_us: float = ...
    copies_in: bool = ...
    work_us: float = ...
    start_us: float = ...
    second_size: int | None = ...

@dataclass
class Upcall:
    us: float = ...
    copies_out: bool = ...
    disk_bytes_s: float = ...
    disk_ahead_bytes: int = ...

@dataclass
class Outcome:
    finished: bool
    seconds: float
    bytes_s: list[float]
    messages_s: list[float]
    latency_s: dict[float, float]
    latency_mean_s: float
    counters: list[dict[str, int]]
    posting_s: list[float]
    looking_s: list[float]
    firing_s: list[float]
    delivering_s: list[float]
    busy_s: list[float]
    laps: list[int]
    null_laps: list[int]
    topic_shares: list[dict[int, float]]
    waiting_s: list[float]
    locked_s: list[float]
    sent: list[int]
    batches: dict[str, dict[int, int]]
    writes: int
    bytes: int
    out_bytes: list[int] = field(default_factory=list)
    port_s: list[float] = field(default_factory=list)
    port_counts_s: list[float] = field(default_factory=list)
    acknowledgement_s: float = ...
    cores_s: float = ...
    switches: int = ...

class Cluster:
    def __init__(
        self,
        parameters: Parameters,
        n: int,
        topics: Sequence[SubgroupSpec],
        senders: Sequence[Sender],
        *,
        switches: Switches | None = ...,
        upcalls: Mapping[int, Upcall] | None = ...,
        range_cost: int | None = ...,
        push_bytes: int | None = ...,
        lock_free: bool = ...,
        ahead: bool = ...,
        once: bool = ...,
        upcall_batches: bool = ...,
        seed: int = ...,
    ) -> None: ...
    def run(self, *, until: int | None = ..., warm_up: float = ..., limit_s: float = ...) -> Outcome: ...
    def close(self) -> None: ...
