from collections.abc import Sequence
from typing import Any

def row_size(window: int, size: int) -> int: ...
def slot_stride(size: int) -> int: ...
def run_limit(
    rows: list[memoryview],
    rank: int,
    sending: Sequence[bool],
    count: int,
    size: int,
    window: int,
    batch_max: int,
    timeout_ns: int,
) -> dict[str, Any]: ...
def copy_rate(source_size: int, target_size: int, block: int, duration_ns: int) -> float: ...
def die_with_parent() -> None: ...
