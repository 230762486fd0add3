"""Goal: waiting for so long at most loses neither a result nor a cancellation, and leaves nothing running."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from spindle.waiting import aside, within


def test_a_result_an_error_and_the_end_of_the_time() -> None:
    async def fails() -> None:
        raise ValueError("on purpose")

    async def scenario() -> None:
        assert await within(5, asyncio.sleep(0, "result")) == "result"
        assert await within(None, asyncio.sleep(0, "result")) == "result"
        with pytest.raises(ValueError, match="on purpose"):
            await within(5, fails())
        never = asyncio.get_running_loop().create_future()
        with pytest.raises(asyncio.TimeoutError):
            await within(0.001, never)
        assert never.cancelled()
        with pytest.raises(asyncio.TimeoutError):  # of several at once, whose end by cancellation is an error of theirs
            await within(0.001, asyncio.gather(asyncio.sleep(60), asyncio.sleep(60)))

    asyncio.run(scenario())


@pytest.mark.parametrize("turns", range(4))
def test_a_cancellation_that_comes_with_the_result_is_not_lost(turns: int) -> None:
    """Method: both at once, some turns of the loop after the wait has begun."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        awaited = loop.create_future()
        waiting = loop.create_task(within(60, awaited))
        await asyncio.sleep(0)
        awaited.set_result("result")
        for _ in range(turns):
            await asyncio.sleep(0)
        if not waiting.done():
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            assert turns

    asyncio.run(scenario())


def test_what_was_waited_for_has_ended_when_the_wait_is_cancelled() -> None:
    ended = []

    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    async def scenario() -> None:
        waiting = asyncio.get_running_loop().create_task(within(60, slow()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert ended

    asyncio.run(scenario())


def test_what_a_thread_of_its_own_finds() -> None:
    def fails() -> None:
        raise ValueError("on purpose")

    async def scenario() -> None:
        assert await aside(lambda: "result") == "result"
        with pytest.raises(ValueError, match="on purpose"):
            await aside(fails)

    asyncio.run(scenario())


def test_who_is_cancelled_does_not_wait_for_a_thread_that_hangs() -> None:
    """Nor do others who need threads, however many hang."""
    answers = threading.Event()

    async def scenario() -> None:
        hanging = [asyncio.ensure_future(aside(answers.wait)) for _ in range(100)]
        assert await aside(lambda: "result") == "result"
        for one in hanging:
            one.cancel()
        await asyncio.wait(hanging)
        assert all(one.cancelled() for one in hanging)
        answers.set()
        assert await aside(lambda: "another") == "another"

    try:
        asyncio.run(scenario())
    finally:
        answers.set()
    for thread in threading.enumerate():
        if thread.name == "spindle aside":
            thread.join(10)


SCRIPT = """
import asyncio, threading, uvloop
from spindle.waiting import aside, within

async def scenario():
    try:
        await within(0.01, aside(threading.Event().wait))
    except asyncio.TimeoutError:
        print("over")

loop = uvloop.new_event_loop()
loop.run_until_complete(scenario())
loop.close()
"""


def test_a_thread_that_hangs_keeps_no_process_from_its_end() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "over\n", "")
