from collections.abc import Sequence
from typing import Any

from spindle_core.fabric.tcp import TcpFabric
from spindle_core.memory import Mapping

Times = Sequence[float]

def payload_turns(
    fills: list[Mapping], copies: list[tuple[Mapping, Mapping]], reads: list[Mapping], size: int, stride: int,
    window: int, batch: int, rounds: int, places: Any, n: int, me: int,
) -> tuple[Times, Times]: ...
def stream_passes(
    mine: list[TcpFabric], filled: list[Mapping], length: int, ring: int, ahead: int, rounds: int, places: Any, n: int
) -> dict[str, int]: ...
