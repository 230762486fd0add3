"""Goal: what must not be interrupted is done by another thread than the one on which handlers of signals run, once
and to its end.

Method: handlers that raise in who waits for that.
"""

import signal
import threading

import pytest

from dds.waiting import reaper
from tests.interrupts import Alarm
from tests.support import wait_until


def test_what_is_left_to_others_is_done_once_and_raises_what_it_raises():
    done = []
    reaper.unbroken(lambda: done.append(threading.current_thread()))
    assert len(done) == 1 and done[0] is not threading.main_thread()
    with pytest.raises(KeyError):
        reaper.unbroken(lambda: {}["no"])


def test_who_is_interrupted_while_something_is_closed_waits_for_it_no_longer():
    begun, going_on, done, heard = (threading.Event() for _ in range(4))

    def work():
        begun.set()
        going_on.wait()
        done.set()

    def interrupt(*_):
        if not heard.is_set():
            heard.set()
            raise Alarm

    def when_it_has_begun():
        begun.wait()
        while not heard.wait(0.05):  # a signal right before a wait doesn't interrupt it
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, interrupt)
    try:
        threading.Thread(target=when_it_has_begun, daemon=True).start()
        with pytest.raises(Alarm):
            reaper.unbroken(work)
        reaper.unbroken(lambda: None)  # which doesn't wait for the other
        assert not done.is_set()
    finally:
        signal.signal(signal.SIGUSR2, before)
        going_on.set()
    wait_until(done.is_set)
