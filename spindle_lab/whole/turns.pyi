import select
from collections.abc import Callable, Sized
from typing import Any

class Stuck(Exception): ...

class Waiter:
    runnable: bool
    told: Sized
    ready: Callable[[], bool] | None
    deadline_ns: int | None

class Turns:
    now_ns: int
    alive: list[Any]
    due: list[tuple[int, int, Callable[[], None]]]
    waits: dict[int, Any]
    watched: select.epoll
    lines_fd: int
    steps: int
    hash: int
    def __init__(self, watched: select.epoll, bits: Callable[[int], int]) -> None: ...
    def mix(self, value: int) -> None: ...
    def run_one(self) -> None: ...
