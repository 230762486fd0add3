"""Goal: a thread that drives a pool sleeps while nobody wants anything, and whoever wants something wakes it: no ring
is lost. The same of a user that waits at its end of a link.

Method: a real pool that is connected to itself, driven by a thread; users ring it by eventfds, as programs do.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from spindle_core.ends import end_of, heard_by, make_ends
from spindle_core.fabric.regions.regions import Regions
from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.fabric.regions.shm import ShmPart
from spindle_core.links.driver import Driver
from spindle_core.links.pool import Pool
from spindle_core.links.user import LinkUser
from spindle_core.memory import Mapping
from tests.support import wait_until

NODE = 7


class Stage:
    """A pool that is connected to itself, its driver, and users with links to it. `run()` drives on a thread."""

    def __init__(self) -> None:
        self.regions = Regions()
        self.shm = ShmPart(self.regions)
        self.pool = Pool(self.regions, lambda _, key: self.regions.memory_of(key))
        self.asker = Asker()
        self.driver = Driver(self.pool, self.shm.bell, self.asker)
        post = ShmPart.make_post()
        self.pool.add_connection(NODE, self.shm.connect(
            post, self.shm.keys, post, self.shm.bell, os.dup(self.shm.bell_fd)))
        self.work: list[Any] = []
        self.drives = self.leases = 0
        self.over = False
        self.thread: threading.Thread | None = None
        self.fds: list[int] = []
        self.heard: list[int] = []

    def user(self, to: int | None = NODE) -> Any:
        """A link and its user's end, with 64 KiB of memory."""
        link = self.pool.open_link(to)
        event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        ours, theirs = make_ends()
        self.heard.append(heard_by(event))
        self.driver.hear(self.heard[-1])
        self.fds += [ours, self.heard[-1]]
        link.rung_at(end_of(ours))
        user = LinkUser(link.user_page, link.pool_page, self.shm.bell, event, end_of(theirs))
        memory = Mapping.create("user", 1 << 16)
        return link, user, link.add_buffer(memory), memory

    def run(self, spin_s: float = 0.0) -> None:
        def drive() -> None:
            while not self.over:
                while self.work:
                    self.work.pop(0)()
                self.leases += len(self.pool.tidy())
                self.driver.drive(60.0, spin_s)
                self.drives += 1

        self.thread = threading.Thread(target=drive)
        self.thread.start()

    def sleeps(self) -> int:
        """The bell's count, odd while the thread sleeps."""
        return int.from_bytes(self.shm.bell.view()[32:40], "little")

    def asleep(self) -> int:
        return wait_until(lambda: (now := self.sleeps()) % 2 and now, what="sleep")

    def close(self) -> None:
        self.over = True
        self.driver.call()
        if self.thread is not None:
            self.thread.join(10)
            assert not self.thread.is_alive()
        self.regions.close()
        self.driver.close()
        self.driver.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage()
    yield made
    made.close()



def test_what_the_thread_rings_itself_in_its_last_look_wakes_it_once(stage: Stage) -> None:
    """A message to a port of the own node, which is submitted just when the thread falls asleep."""
    port, ending, *_ = stage.user(None)
    stage.pool.bind(port, 5)
    _, user, buffer, _ = stage.user()
    user.send(8, buffer, port=5, cookie=1)
    for _ in range(8):
        now = time.monotonic_ns()
        stage.driver.lie_down(now, now + 10**9)
        stage.driver.rise()
    assert user.take() and ending.messages()
    poll = select.poll()
    poll.register(stage.driver.fileno(), select.POLLIN)
    assert not poll.poll(0)


@pytest.mark.slow
@pytest.mark.parametrize("spin_s", [0.0, 0.001])
def test_each_submission_to_a_thread_that_sleeps_is_carried_out_soon(stage: Stage, spin_s: float) -> None:
    """Requests of many users, and messages between them, one at a time: each finds the thread asleep."""
    words = Mapping.create("words", 4096)
    grant = stage.regions.whole_grant(stage.regions.register(words, atomics=True))
    users = [stage.user() for _ in range(3)]
    handles = [link.open_region(grant, 1 << 62, words) for link, *_ in users]
    port, ending, *_ = stage.user(None)
    stage.pool.bind(port, 5)
    stage.run(spin_s)
    for n in range(90):
        _, user, buffer, _ = users[n % 3]
        stage.asleep()
        begun = time.monotonic()
        if n % 2:
            user.fetch_add(handles[n % 3], 0, 1, cookie=n)
            user.submit()
        else:
            user.send(8, buffer, port=5, cookie=n)
        assert user.wait(30.0) and [one[:2] for one in user.take()] == [(n, "done")]
        assert time.monotonic() - begun < 0.9  # otherwise the end of another sleep did it
        if not n % 2:
            assert ending.wait(30.0) and len(ending.messages()) == 1
    assert int.from_bytes(words.view()[:8], "little") == 45


def test_submissions_that_race_with_falling_asleep_are_never_left(stage: Stage) -> None:
    """Users submit as fast as they can; the thread falls asleep after every look."""
    words = Mapping.create("words", 4096)
    grant = stage.regions.whole_grant(stage.regions.register(words, atomics=True))
    users = [stage.user() for _ in range(2)]
    handles = [link.open_region(grant, 1 << 62, words) for link, *_ in users]
    stage.run()
    slow: list[float] = []

    def use(k: int) -> None:
        _, user, _, _ = users[k]
        for n in range(1500):
            begun = time.monotonic()
            user.fetch_add(handles[k], 0, 1, cookie=n)
            user.submit()
            while not user.take():
                user.wait(5.0)
            slow.append(time.monotonic() - begun)

    threads = [threading.Thread(target=use, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert int.from_bytes(words.view()[:8], "little") == 3000
    assert max(slow) < 0.9  # a sleep lasts a second at most, and none of it was waited for


def test_whoever_calls_from_another_thread_ends_the_drive(stage: Stage) -> None:
    """While it sleeps and while it looks; what was handed over before a call is done then."""
    stage.run()
    for turn in range(200):
        if turn % 20 == 0:
            stage.asleep()  # and has been for a moment only: it would sleep for a second
        done = threading.Event()
        stage.work.append(done.set)
        stage.driver.call()
        assert done.wait(0.9)
    sleep, before = stage.asleep(), stage.drives
    assert stage.sleeps() == sleep and stage.drives == before  # nobody calls: it does nothing


def test_a_drive_ends_for_errands_completions_and_its_time(stage: Stage) -> None:
    begun = time.monotonic()
    stage.driver.drive(0.05)
    assert 0.045 <= time.monotonic() - begun < 0.8
    words = Mapping.create("words", 4096)
    grant = stage.regions.whole_grant(stage.regions.register(words))
    link, user, buffer, _ = stage.user()
    handle = link.open_region(grant, 0, words)  # its lease is over
    user.read(handle, 0, 8, buffer)
    user.submit()
    for timeout_s in (30.0, 30.0):  # it ends for as long as the errand is there
        stage.driver.drive(timeout_s)
    assert stage.pool.tidy() == [(link, handle)]
    link.renew(handle, 1 << 62)
    requests = RequestList()
    requests.read(stage.regions.reach(0, grant, words), 0, 8, Mapping.create("own", 64), 0, cookie=4)
    stage.regions.post(stage.asker, requests)
    stage.driver.drive(30.0)
    assert [one[:2] for one in stage.asker.take()] == [(4, "done")]
    stage.driver.drive(0.0)
    assert len(user.take()) == 1
    stage.driver.call()
    stage.driver.drive(30.0)
    begun = time.monotonic()
    stage.driver.drive(0.02)  # the call before is forgotten
    assert time.monotonic() - begun >= 0.015


def test_a_message_without_room_is_tried_again_while_the_thread_sleeps(stage: Stage) -> None:
    """Nobody rings when the receiver has taken something: the thread wakes by itself, in milliseconds, not in a look of
    a second; and it does not look all the time meanwhile."""
    port, ending, *_ = stage.user(None)
    stage.pool.bind(port, 5)
    _, user, buffer, _ = stage.user()
    stage.run()
    for n in range(40):
        user.send(16 << 10, buffer, port=5, cookie=n)
    wait_until(lambda: user.take(), what="the first")
    before = stage.sleeps()
    wait_until(lambda: stage.sleeps() >= before + 40, 8, what="20 short sleeps")  # those of a second would be 8 in it
    came = 0
    while came < 40:
        came += len(ending.messages())
        ending.wait(0.001)


def test_a_bell_of_another_kind_is_refused(stage: Stage) -> None:
    with pytest.raises(ValueError, match="no doorbell"):
        Driver(stage.pool, Mapping.create("page", 4096))


# ---- a user that waits ---------------------------------------------------------------------------------------------

def test_a_wait_ends_with_its_time_and_spins_no_longer_than_told(stage: Stage) -> None:
    _, user, *_ = stage.user()
    for timeout_s, spin_s in ((0.0, 0.0), (0.05, 0.0), (0.05, 0.01), (0.02, 1.0)):
        begun = time.monotonic()
        assert user.wait(timeout_s, spin_s) is False
        assert timeout_s <= time.monotonic() - begun < timeout_s + 0.7
    begun = time.process_time()
    user.wait(0.3, 0.01)
    assert time.process_time() - begun < 0.2


def test_a_signal_ends_a_wait_with_what_its_handler_does(stage: Stage) -> None:
    _, user, *_ = stage.user()

    def after(handler: Any) -> float:
        old = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        begun = time.monotonic()
        try:
            assert user.wait(30.0) is False
        finally:
            signal.signal(signal.SIGALRM, old)
        return time.monotonic() - begun

    assert after(lambda *_: None) < 10

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        after(fail)


def test_a_wait_ends_when_the_node_does_and_never_waits_again(stage: Stage) -> None:
    _, user, *_ = stage.user()
    threading.Timer(0.05, user.mark_gone).start()
    begun = time.monotonic()
    assert user.wait(30.0) and user.wait(30.0) and user.wait(30.0, 1.0)
    assert time.monotonic() - begun < 10


def test_a_link_that_breaks_ends_a_wait(stage: Stage) -> None:
    _, user, *_ = stage.user()
    stage.run()
    stage.work.append(lambda: stage.pool.remove_connection(stage.pool.connections(NODE)[0]))
    threading.Timer(0.05, stage.driver.call).start()
    assert user.wait(30.0) and "connection" in user.broken
