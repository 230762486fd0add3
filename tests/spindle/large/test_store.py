"""Goal: what is in the store can't be changed by anybody, and is there as long as somebody reads it.

Method: memory in every state between made and sealed, and none at all, is put into a store.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator

import pytest

from spindle.errors import ConfigError, NodeStopped, SampleMissing, SampleUnfit
from spindle.large import memory
from spindle.large.store import Store
from tests.spindle.large.group import content_of, pattern, sealed
from tests.spindle.links.group import descriptors_of


@pytest.fixture
def store() -> Iterator[Store]:
    before = descriptors_of(os.getpid())
    made = Store()
    yield made
    made.close()
    assert descriptors_of(os.getpid()) == before


def test_what_was_put_is_found_and_read(store: Store) -> None:
    content = pattern(10_001)
    store.put(7, sealed(content), len(content), "images")
    held = store.find(7)
    assert held is not None and (held.size, held.topic, held.whole) == (len(content), "images", True)
    assert content_of(store.open(7)) == content
    assert (store.bytes_held, store.ids()) == (len(content), [7])
    assert store.find(8) is None
    with pytest.raises(SampleMissing, match="no large sample 0x8"):
        store.open(8)


def test_nobody_can_change_it_not_even_its_writer(store: Store) -> None:
    content = pattern(4096)
    own = sealed(content)
    store.put(7, os.dup(own), len(content), "images")
    given = store.open(7)
    for fd in (own, given):
        for change in (lambda fd=fd: os.pwrite(fd, b"x", 0), lambda fd=fd: os.ftruncate(fd, 0),
                       lambda fd=fd: mmap.mmap(fd, 4096)):
            with pytest.raises(OSError):
                change()
        os.close(fd)
    assert content_of(store.open(7)) == content


def test_who_reads_has_a_description_of_its_own(store: Store) -> None:
    store.put(7, sealed(pattern(100)), 100, "images")
    one, two = store.open(7), store.open(7)
    os.lseek(one, 50, os.SEEK_SET)
    assert os.lseek(two, 0, os.SEEK_CUR) == 0
    for fd in (one, two):
        assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        os.close(fd)


@pytest.mark.parametrize("left_out", [fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SEAL])
def test_memory_that_lacks_one_seal_is_refused(store: Store, left_out: int) -> None:
    fd = os.memfd_create("sample", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 100)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, memory.SEALS & ~left_out)
    with pytest.raises(SampleUnfit, match="must be sealed"):
        store.put(7, fd, 100, "images")
    assert store.find(7) is None and store.bytes_held == 0


@pytest.mark.parametrize("size", [99, 101])
def test_memory_of_another_size_is_refused(store: Store, size: int) -> None:
    with pytest.raises(SampleUnfit, match=f"was to have {size} bytes; its memory has 100"):
        store.put(7, sealed(bytes(100)), size, "images")


def test_what_is_no_memory_is_refused(store: Store) -> None:
    with pytest.raises(SampleUnfit, match="must lie in a memfd"):
        store.put(7, os.open("/dev/null", os.O_RDONLY), 100, "images")


@pytest.mark.parametrize("large_id", [0, -1, 1 << 64])
def test_an_id_is_a_number_that_isnt_0(store: Store, large_id: int) -> None:
    with pytest.raises(ConfigError, match="id of 64 bits"):
        store.put(large_id, sealed(bytes(10)), 10, "images")


def test_four_gib_are_one_sample(store: Store) -> None:
    """Of which nearly all is a hole: it takes no memory."""
    fd = memory.make(memory.SIZE_MAX)
    os.pwrite(fd, b"the end", memory.SIZE_MAX - 7)
    memory.seal(fd)
    store.put(7, fd, memory.SIZE_MAX, "images")
    given = store.open(7)
    assert os.pread(given, 100, memory.SIZE_MAX - 7) == b"the end"
    os.close(given)


def test_the_second_of_an_id_is_closed(store: Store) -> None:
    store.put(7, sealed(bytes(10)), 10, "images")
    store.put(7, sealed(bytes(10)), 10, "images")
    assert store.bytes_held == 10
    with pytest.raises(SampleUnfit, match="two large samples have the id 0x7"):
        store.put(7, sealed(bytes(11)), 11, "images")
    assert store.bytes_held == 10


def test_what_is_dropped_stays_with_who_reads_it(store: Store) -> None:
    content = pattern(8192)
    store.put(7, sealed(content), len(content), "images")
    held, given = store.find(7), store.open(7)
    store.drop(7)
    store.drop(7)
    assert store.find(7) is None and store.bytes_held == 0
    assert content_of(given) == content
    assert held is not None and held.ended
    with pytest.raises(SampleMissing, match="it has dropped the large sample 0x7"):
        held.open()


def test_memory_that_may_be_used_again_goes_to_who_does_that(store: Store) -> None:
    spares: list[int] = []
    for large_id in (7, 8):
        closed, again = memory.close(memory.make_closable(memory.REUSED_MIN))
        assert again
        store.put(large_id, closed, memory.REUSED_MIN, "images", spares.append)
    held = store.find(8)
    store.drop(7)
    assert len(spares) == 1 and memory.is_free(spares[0])
    given = held.open_sealed()  # to a node of another user
    assert fcntl.fcntl(given, fcntl.F_GET_SEALS) & memory.SEALS == memory.SEALS
    os.close(given)
    store.drop(8)
    assert len(spares) == 1, "what is sealed can't be used again"
    os.close(spares[0])


def test_watchers_are_told_what_comes_and_goes(store: Store) -> None:
    told: list[int] = []
    store.watchers.append(told.append)
    store.put(7, sealed(bytes(10)), 10, "images")
    store.put(8, sealed(bytes(10)), 10, "images")
    store.drop(7)
    assert told == [7, 8, 7]


def test_a_closed_store_takes_nothing(store: Store) -> None:
    store.put(7, sealed(bytes(10)), 10, "images")
    store.close()
    assert store.bytes_held == 0
    with pytest.raises(NodeStopped):
        store.put(8, sealed(bytes(10)), 10, "images")
