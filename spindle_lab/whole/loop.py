"""asyncio's loop of one simulated process, on one of its threads.

The loop is asyncio's own; only what it waits with, its clock and its executor are the simulation's. The selector looks
at real descriptors, and may keep back for a while that a connection has something: that is how slow lines and busy
machines look from inside.
"""

from __future__ import annotations

import asyncio
import select
import selectors
import socket
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import Any

from spindle_lab.whole.iterations import iterate, iterate_until_done, ready_keys
from spindle_lab.whole.system import REAL_EPOLL, Process, System


class SimTask(asyncio.Task):
    """A task with a hash that is the same in every run: sets of tasks are walked in its order."""

    def __init__(self, *args: Any, loop: SimLoop, **more: Any) -> None:
        self._number = loop.system.next_serial()
        super().__init__(*args, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


def _make_task(loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> SimTask:
    assert isinstance(loop, SimLoop)
    task = SimTask(coro, loop=loop, **more)
    loop.tasks.append(task)
    if len(loop.tasks) > 2 * loop.tasks_kept:
        loop.complain()
        loop.tasks = [one for one in loop.tasks if not one.done()]
        loop.tasks_kept = max(100, len(loop.tasks))
    return task


class SimSelector(selectors.BaseSelector):
    """Epoll that never blocks, in the order of registration. `keep_back(fd)` says for how many nanoseconds a descriptor
    that has become readable is not looked at."""

    def __init__(self, system: System, keep_back: Callable[[int], int]) -> None:
        self.system, self.keep_back = system, keep_back
        self.epoll = REAL_EPOLL()
        self._keys: dict[int, tuple[int, selectors.SelectorKey]] = {}
        self._hidden: set[int] = set()
        self._shown: set[int] = set()  # kept back long enough

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(f"{fd} is registered already")
        key = selectors.SelectorKey(fileobj, fd, events, data)
        self._keys[fd] = (self.system.next_serial(), key)
        self.epoll.register(fd, _mask(events))
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        fd = self._fd(fileobj)
        _, key = self._keys.pop(fd)
        self._shown.discard(fd)
        if fd in self._hidden:
            self._hidden.discard(fd)
        else:
            try:
                self.epoll.unregister(fd)
            except OSError:  # closed already
                pass
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = self._fd(fileobj)
        serial, _ = self._keys[fd]
        key = selectors.SelectorKey(fileobj, fd, events, data)
        self._keys[fd] = (serial, key)
        if fd not in self._hidden:
            try:
                self.epoll.modify(fd, _mask(events))
            except OSError:
                pass
        return key

    def _fd(self, fileobj: Any) -> int:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd not in self._keys:
            fd = next((one for one, (_, key) in self._keys.items() if key.fileobj is fileobj), fd)
        if fd not in self._keys:
            raise KeyError(f"{fileobj!r} is not registered")
        return fd

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return ready_keys(self, self.epoll.fileno())

    def _hide(self, fd: int, serial: int, delay_ns: int) -> None:
        self.epoll.unregister(fd)
        self._hidden.add(fd)

        def show() -> None:
            if fd in self._hidden and self._keys[fd][0] == serial:
                self._hidden.discard(fd)
                self._shown.add(fd)
                try:
                    self.epoll.register(fd, _mask(self._keys[fd][1].events))
                except OSError:  # closed meanwhile; the kernel would have forgotten it
                    pass

        self.system.after(delay_ns, show)

    def close(self) -> None:
        self.epoll.close()
        self._keys.clear()

    def get_map(self) -> Any:
        return {key.fileobj: key for _, key in self._keys.values()} | {fd: key for fd, (_, key) in self._keys.items()}

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[self._fd(fileobj)][1]


def _mask(events: int) -> int:
    return (select.EPOLLIN if events & selectors.EVENT_READ else 0) | (
        select.EPOLLOUT if events & selectors.EVENT_WRITE else 0)


class SimLoop(asyncio.SelectorEventLoop):
    """The loop of a process. `run()` is its thread."""

    def __init__(self, system: System, process: Process, keep_back: Callable[[int], int]) -> None:
        self.system, self.process = system, process
        self.complaints: list[dict[str, Any]] = []
        self.tasks: list[SimTask] = []
        self.tasks_kept = 100
        self._sim_selector = SimSelector(system, keep_back)
        super().__init__(self._sim_selector)
        process.loops.append(self)  # only now: there is no loop if the process had no descriptor left for it
        self.set_task_factory(_make_task)
        self.set_exception_handler(self._complain)

    def _complain(self, _: Any, context: dict[str, Any]) -> None:
        self.complaints.append(context)
        self.system.defective = True

    def _make_self_pipe(self) -> None:
        self._ssock = self._csock = None

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _check_closed(self) -> None:
        """What is torn down at the end of a run may still call; nobody hears it."""

    def time(self) -> float:
        return (self.system.now_ns + self.process.skew_ns) / 1e9

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()

        def work() -> None:
            result, problem = None, None
            try:
                result = func(*args)
            except Exception as error:
                problem = error
            self.call_soon_threadsafe(done, result, problem)

        def done(result: Any, problem: Exception | None) -> None:
            if future.cancelled():
                return
            if problem is not None:
                future.set_exception(problem)
            else:
                future.set_result(result)

        self.process.spawn(work, name="executor")
        return future

    async def getaddrinfo(self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0,
                          flags: int = 0) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]

    async def sock_connect(self, sock: Any, address: Any) -> None:
        if isinstance(address, tuple):
            await sock.reach(address)
        else:
            sock.connect(address)

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """On a thread of the process: runs until `main` is done, and what that leaves behind has ended."""
        thread = self.system.thread
        assert thread is not None
        fd = self._sim_selector.epoll.fileno()
        self.system.watch(fd, thread)
        events._set_running_loop(self)
        try:
            task = self.create_task(main)
            iterate_until_done(self, self._sim_selector, fd, task)
            for _ in range(20):  # callbacks of what has just ended
                iterate(self, self._sim_selector, fd)
            task.exception()
            self.complain()
            return task.result()
        finally:
            events._set_running_loop(None)
            self.system.unwatch(fd)

    def run_until_complete(self, main: Any) -> Any:
        """As asyncio's."""
        return self.run(main)

    def complain(self) -> None:
        """Of tasks that have failed while nobody asks what became of them, as the garbage collector would."""
        for task in self.tasks:
            if task.done() and task._log_traceback:
                self.complaints.append({"message": f"nobody hears how {task.get_name()} failed",
                                        "exception": task.exception()})

    def end(self) -> None:
        """The run is over: what still waits is torn down here and now, and not by the garbage collector some day."""
        events._set_running_loop(self)
        try:
            for task in self.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                for _ in range(50):  # a `finally` may wait again, and again
                    try:
                        task.get_coro().close()
                        break
                    except BaseException:
                        continue
        finally:
            events._set_running_loop(None)
            self.tasks.clear()
            self._ready.clear()  # type: ignore[attr-defined]
            self._scheduled.clear()  # type: ignore[attr-defined]
