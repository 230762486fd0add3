import select
from collections.abc import Callable, Sized
from typing import Any

EPOCH_NS: int

class Stuck(Exception): ...

class Waiter:
    process: Any
    ident: int | None
    greenlet: Any
    finished: bool
    polled_fd: int
    edges_fd: int
    idle: int
    runnable: bool
    told: Sized
    ready: Callable[[], bool] | None
    deadline_ns: int | None
    def wake(self) -> None: ...

class Turns:
    now_ns: int
    alive: list[Any]
    due: list[tuple[int, int, Callable[[], None]]]
    waits: dict[int, Any]
    watched: select.epoll
    lines_fd: int
    steps: int
    hash: int
    scheduler: Any
    outside: Any
    current: Any
    thread: Any
    on_pass: Callable[[Any], None] | None
    ending: bool
    defective: bool
    def __init__(self, watched: select.epoll, bits: Callable[[int], int]) -> None: ...
    def mix(self, value: int) -> None: ...
    def run_until(self, condition: Callable[[], bool], end_ns: int, every: int = 1) -> bool: ...
    def run_one(self) -> None: ...
    def wait(self, ready: Callable[[], bool] | None, timeout_s: float | None, polled_fd: int = -1,
             told: Sized = ()) -> bool: ...
    def pause(self) -> None: ...
