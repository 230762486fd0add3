from typing import Any

from spindle_lab.bench.tally import Tally

class CoreReceiver:
    tally: Tally
    def __init__(self, tally: Tally, size: int) -> None: ...
    def bind(self, engine: Any, topic_id: int, batches: bool) -> None: ...

def send(
    engine: Any,
    epoch: Any,
    topic_id: int,
    rank: int,
    count: int,
    size: int,
    batch_max: int,
    sample_every: int,
    delay_ns: int,
    period_ns: int,
    tally: Tally,
) -> int: ...
