"""Writers whose memory is still with readers: they wait for it where that is worth it, and as long as they may.

Method: embedded nodes; the memories that are made are counted.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle.client.session import ReaderHandle, Session, WriterHandle
from spindle.group.topics import TopicSpec
from spindle.large import memory
from spindle.large.spare import Patience
from tests.spindle.topics.test_larges import MIB, group, sample, take
from tests.support import wait_until


@contextlib.contextmanager
def one_topic(runtime_dir: Path) -> Iterator[tuple[Session, ReaderHandle, WriterHandle]]:
    """A node with a topic, one reader that keeps all, and one writer."""
    with group(runtime_dir, 1) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        yield one, one.open_reader("t", keep_all=True, from_history=False), one.open_writer("t")


@contextlib.contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sizes of the memories that are made."""
    make, made = memory.make_closable, []

    def count(size: int) -> int:
        made.append(size)
        return make(size)

    with monkeypatch.context() as patched:
        patched.setattr(memory, "make_closable", count)
        yield made


def read_in_place(reader: ReaderHandle) -> Any:
    """The next sample; as long as one has it, its memory is not used again."""
    wait_until(lambda: reader.log.pending > 0)
    [(found, _)] = reader.log.take_pairs(1, in_place=True)
    return found


def test_memory_that_a_reader_lets_go_of_meanwhile_is_waited_for(
        runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no new memory where a moment later there is some. Method: a reader has the only one, and lets go of it when
    the writer has asked for the next; the patience is without an end."""
    monkeypatch.setattr("spindle.topics.larges.CLEARED_BYTES_PER_S", 1)
    with one_topic(runtime_dir) as (one, reader, writer), counted(monkeypatch) as made:
        writer.inbox.write(sample(1, MIB), timeout_s=20)
        first = read_in_place(reader)
        wait_until(lambda: one.status()["large"]["spare_bytes"] > 0)
        looks, is_free = threading.Event(), memory.is_free

        def look(fd: int) -> bool:
            looks.set()
            return is_free(fd)

        monkeypatch.setattr(memory, "is_free", look)
        second = threading.Thread(target=lambda: writer.inbox.write(sample(2, MIB), timeout_s=20))
        second.start()
        assert looks.wait(20)
        assert reader.log.pending == 0
        del first
        second.join(20)
        assert take(reader, 1) == [sample(2, MIB)] and made == [MIB]


def test_a_reader_that_keeps_all_is_not_waited_for_each_time(
        runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: each wait in vain costs a writer some time; of twenty samples few wait."""
    waits = []
    told = Patience.told
    monkeypatch.setattr("spindle.topics.larges.CLEARED_BYTES_PER_S", 50 * MIB)  # 20 ms
    monkeypatch.setattr(Patience, "told", lambda self, in_vain: [waits.append(in_vain), told(self, in_vain)])
    with one_topic(runtime_dir) as (one, reader, writer), counted(monkeypatch) as made:
        kept = []
        for number in range(20):
            writer.inbox.write(sample(number, MIB), timeout_s=20)
            kept.append(read_in_place(reader))
            wait_until(lambda: one.status()["large"]["spare_bytes"] > 0)
        assert len(made) == 20 and 2 <= len(waits) <= 5 and all(waits)
        kept.clear()
        for number in range(40):
            writer.inbox.write(sample(number, MIB), timeout_s=20)
            read_in_place(reader)
        assert len(made) <= 24


def test_who_has_no_time_does_not_wait_for_memory(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spindle.topics.larges.KEEP_S", 600.0)
    monkeypatch.setattr("spindle.topics.larges.CLEARED_BYTES_PER_S", 1)
    with one_topic(runtime_dir) as (one, reader, writer), counted(monkeypatch) as made:
        writer.inbox.write(sample(1, MIB), timeout_s=20)
        first = read_in_place(reader)
        wait_until(lambda: one.status()["large"]["spare_bytes"] > 0)
        second = threading.Thread(target=lambda: writer.inbox.write(sample(2, MIB), timeout_s=0), daemon=True)
        second.start()
        second.join(20)
        assert not second.is_alive() and len(made) == 2 and len(first) == MIB
