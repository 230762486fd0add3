"""Waiting in an event loop that ends early, or for which there are no descriptors.

Goal: nothing stays open or registered, however a wait ends. Method: count the descriptors of the process that are
eventfds, as all that is waited for here is.
"""

import asyncio
import errno
import gc
import os

import pytest

from dds import DataReader, DataWriter, DDSException, Topic, WaitSet
from tests.dds.test_sub import LONG


def eventfds() -> int:
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:[eventfd]"
        except FileNotFoundError:  # that of the listing
            pass
    return found


@pytest.fixture
def ends(participant):
    topic = Topic(participant, "topic", bytes)
    return DataReader(participant, topic), DataWriter(participant, topic)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["iterator", "wait set"])
def test_a_loop_that_is_closed_first(participant, ends, kind) -> None:
    """Goal: a program that closes its loop with a task in it loses no descriptors by that."""
    reader, writer = ends
    waitset = WaitSet(participant)
    waitset.attach(reader)
    reader.set_status_mask(0)

    async def iterate() -> None:
        async for _ in reader.take_aiter():
            pass

    async def wait() -> None:
        await waitset.wait_async()

    def leave() -> None:
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda *_: None)  # of tasks that are still pending
        task = loop.create_task(iterate() if kind == "iterator" else wait())
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))
        assert not task.done()
        loop.close()

    leave()
    gc.collect()
    before = eventfds()
    for _ in range(5):
        leave()
        gc.collect()
    assert eventfds() == before
    writer.write(b"x")
    assert reader.take_one(timeout=LONG) == b"x"


def test_no_descriptor_for_the_second_part_of_a_wait(ends, monkeypatch) -> None:
    """Goal: where descriptors run out, the loop doesn't go on watching what there was one for."""
    reader, writer = ends
    true_dup, made = os.dup, []

    def dup(fd: int) -> int:
        if len(made) == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(true_dup(fd))
        return made[-1]

    async def first() -> bytes:
        async for sample in reader.take_aiter(timeout=LONG):
            return sample
        raise TimeoutError

    async def fail_once() -> bytes:
        with monkeypatch.context() as patched:
            patched.setattr(os, "dup", dup)
            with pytest.raises(DDSException, match=r"Too many open files.*ulimit -n") as caught:
                await first()
            assert caught.value.code == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
        assert len(made) == 1 and not asyncio.get_running_loop().remove_reader(made[0])
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(made[0])
        writer.write(b"x")
        return await first()

    assert asyncio.run(fail_once()) == b"x"
