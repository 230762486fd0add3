"""Large samples of sessions with nodes on other hosts: their bytes travel in pieces, before what names them.

Method: daemons on hosts of their own, remote sessions here, and local ones to compare with.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from spindle.client import ReaderHandle, attach
from spindle.client.remote import attach_remote
from spindle.client.remote_larges import HELD_COUNT_MAX, HELD_MAX
from spindle.errors import SpindleError
from spindle.group.levels import Level
from spindle_core.errors import MessageTooLarge, WriteTimeout
from tests.spindle.client.remote_site import LONG_S, declare, keys_of, one_host, options, with_certificates
from tests.spindle.hosts import hosts
from tests.spindle.large.group import pattern
from tests.spindle.site import Site
from tests.support import wait_until

MB = 1 << 20


def taken(reader: ReaderHandle, count: int) -> list[bytes]:
    """The next so many messages."""
    got: list[bytes] = []
    while len(got) < count:
        assert reader.log.wait(LONG_S), f"{len(got)} of {count} messages came, {reader.log.lost} were lost"
        got += reader.log.take(count - len(got))
    return got


@pytest.mark.slow
@pytest.mark.parametrize("level", list(Level))
def test_large_and_small_ones_keep_their_order(runtime_dir: Path, tmp_path: Path, level: Level) -> None:
    """Of a remote writer, at a local and at a remote reader."""
    sent = [pattern(size, seed) for seed, size in enumerate((10, 3 * MB + 1, 1000, 1001, 20, 40_000, 1, 70_000))]
    with one_host(runtime_dir, *options(journal__dir=str(tmp_path))) as host, \
            attach(runtime_dir=host.directory) as local, attach_remote([host.address]) as one, \
            attach_remote([host.address]) as other:
        declare(local, level=level)
        readers = [session.open_reader("t", keep_all=True, from_history=False) for session in (local, one, other)]
        writer = one.open_writer("t")
        for payload in sent:
            writer.inbox.write(payload, timeout_s=LONG_S)
        for reader in readers:
            assert taken(reader, len(sent)) == sent
            assert reader.log.lost == 0
        # What everybody has, and of a logged topic on disk, needs no memory any more.
        wait_until(lambda: not writer._writer.larges._kept)
        assert writer.inbox.acknowledged == len(sent)


@pytest.mark.slow
def test_those_of_local_writers_come_to_remote_readers(runtime_dir: Path) -> None:
    """Views of them stay valid, and what is read is given back."""
    with one_host(runtime_dir) as host, attach(runtime_dir=host.directory) as local, \
            attach_remote([host.address]) as session:
        declare(local)
        reader = session.open_reader("t", keep_all=True, from_history=False)
        writer = local.open_writer("t")
        views = []
        for seed in range(40):
            writer.inbox.write(pattern(2 * MB + seed, seed), timeout_s=LONG_S)
            assert reader.log.wait(LONG_S)
            views += [payload for payload, _ in reader.log.take_pairs(1, in_place=True)]
        assert all(bytes(view) == pattern(2 * MB + seed, seed) for seed, view in enumerate(views))
        wait_until(lambda: not reader._reader.larges._fds)
        writer.inbox.write(pattern(2 * MB), timeout_s=LONG_S)
        wait_until(lambda: reader.log.pending)
        reader.close()
        assert not reader._reader.larges._fds, "a closed reader keeps memory"


@pytest.mark.slow
def test_a_slow_reader_that_keeps_all_holds_back_what_is_beyond_its_bound(runtime_dir: Path) -> None:
    """However large and many they are: a megabyte, or one sample, is on its way to it."""
    with one_host(runtime_dir, *options(topics__large_capacity=8 * MB)) as host, \
            attach(runtime_dir=host.directory) as local, attach_remote([host.address]) as session:
        declare(local, size_max=40)
        reader = session.open_reader("t", keep_all=True, from_history=False)
        writer = local.open_writer("t")
        written = 0
        with pytest.raises(WriteTimeout):
            while written < 100:
                writer.inbox.write(pattern(MB, written), timeout_s=1.0)
                written += 1
        assert sum(os.fstat(fd).st_size for fd in reader._reader.larges._fds.values()) <= 2 * MB
        assert taken(reader, written) == [pattern(MB, seed) for seed in range(written)]
        for seed in range(300):  # more than a log has places for
            writer.inbox.write(pattern(50, seed), timeout_s=LONG_S)
        assert len(reader._reader.larges._fds) <= 70
        assert taken(reader, 300) == [pattern(50, seed) for seed in range(300)]


@pytest.mark.slow
def test_a_reader_that_does_not_keep_all_loses_the_oldest(runtime_dir: Path) -> None:
    with one_host(runtime_dir) as host, attach(runtime_dir=host.directory) as local, \
            attach_remote([host.address]) as session:
        declare(local)
        reader = session.open_reader("t", keep_all=False, from_history=False)
        writer = local.open_writer("t")
        count = 300
        for seed in range(count):
            writer.inbox.write(pattern(2000, seed), timeout_s=LONG_S)
        got: list[bytes] = []

        def end() -> bool:
            got.extend(reader.log.take(1000))
            return len(got) + reader.log.lost == count

        wait_until(lambda: reader._reader.log.tail >= 300 * 128)
        wait_until(end)
        assert got == [pattern(2000, seed) for seed in range(count)][count - len(got):]
        assert 0 < reader.log.lost < count


@pytest.mark.slow
def test_a_sample_may_be_as_large_as_the_node_takes(runtime_dir: Path) -> None:
    with one_host(runtime_dir, *options(topics__large_sample_max=5 * MB)) as host, \
            attach_remote([host.address]) as session:
        declare(session)
        reader = session.open_reader("t", keep_all=True, from_history=False)
        writer = session.open_writer("t")
        with pytest.raises(MessageTooLarge, match=rf"{5 * MB + 1} bytes; {5 * MB} are the most .*large_sample_max"):
            writer.inbox.write(bytes(5 * MB + 1))
        writer.inbox.write(pattern(5 * MB), timeout_s=LONG_S)
        assert taken(reader, 1) == [pattern(5 * MB)]


@pytest.mark.slow
def test_a_loan_is_sent_in_place_and_given_back_unused(runtime_dir: Path) -> None:
    with one_host(runtime_dir) as host, attach_remote([host.address]) as session:
        declare(session)
        reader = session.open_reader("t", keep_all=True, from_history=False)
        writer = session.open_writer("t")
        view = writer.inbox.claim(MB)
        writer.inbox.abort()
        view = writer.inbox.claim(MB)
        view[:] = pattern(MB)
        writer.inbox.commit()
        assert taken(reader, 1) == [pattern(MB)]
        wait_until(lambda: writer._writer.larges._bytes == 0)


@pytest.mark.slow
def test_a_writer_waits_for_memory_until_others_have_what_it_wrote(runtime_dir: Path) -> None:
    """It has 256 MiB on their way, or one that is larger."""
    with one_host(runtime_dir, *options(topics__large_capacity=MB)) as host, \
            attach(runtime_dir=host.directory) as local, attach_remote([host.address]) as session:
        declare(local, size_max=40)
        reader = local.open_reader("t", keep_all=True, from_history=False)
        writer = session.open_writer("t")
        size = HELD_MAX // 4
        with pytest.raises(WriteTimeout, match="on their way") as late:
            for _ in range(12):
                writer.inbox.write(bytes(size), timeout_s=0.5)
        assert late.value.for_memory
        count = writer.inbox.committed
        assert count >= 4
        for payload in taken(reader, count):
            assert len(payload) == size
        writer.inbox.write(b"x" * 100, timeout_s=LONG_S)
        assert taken(reader, 1) == [b"x" * 100]


@pytest.mark.slow
def test_what_a_node_refuses_is_said_and_tried_again(
        runtime_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: a program hears why nothing goes. Method: its user may have less than one sample needs."""
    site = Site(tmp_path / "site")
    limits = options(limits__max_bytes_per_user=8 * MB)
    with one_host(runtime_dir, *with_certificates(site), *limits) as host, \
            attach_remote([host.address], **keys_of(site)) as session:
        declare(session)
        writer = session.open_writer("t")
        writer.inbox.write(pattern(9 * MB), timeout_s=LONG_S)
        wait_until(lambda: "can't be sent yet" in caplog.text)
        with pytest.raises(WriteTimeout, match=r"on their way.*max_bytes_per_user"):
            while True:
                writer.inbox.write(bytes(60 * MB), timeout_s=0.1)
        session.close()
        assert writer.unacknowledged()[0].payload == pattern(9 * MB)
        writer.close()
        assert not writer._writer.larges._kept, "a closed writer keeps memory"


@pytest.mark.slow
def test_what_waits_for_room_counts_for_nobody(
        runtime_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: a user's bound is on what a program has, not on what it waits for. Method: many writers of one program,
    a topic with room for one of their samples at a time, and a user who may have a few."""
    site = Site(tmp_path / "site")
    limits = options(limits__max_bytes_per_user=8 * MB, topics__large_capacity=MB)
    with one_host(runtime_dir, *with_certificates(site), *limits) as host, \
            attach_remote([host.address], **keys_of(site)) as session:
        declare(session, size_max=40)
        reader = session.open_reader("t", keep_all=True, from_history=False)
        writers = [session.open_writer("t") for _ in range(24)]
        sent = [pattern(MB, seed) for seed in range(len(writers))]
        for writer, payload in zip(writers, sent, strict=True):
            writer.inbox.write(payload, timeout_s=LONG_S)
        assert sorted(taken(reader, len(sent))) == sorted(sent)
        assert "can't be sent yet" not in caplog.text


@pytest.mark.slow
def test_a_program_turns_to_the_next_node_in_the_middle_of_them(runtime_dir: Path) -> None:
    """Each of its samples is in the order once, in the order of writing; its reader goes on where it stood."""
    with hosts(runtime_dir, 3) as site, attach(runtime_dir=site[2].directory) as local:
        declare(local, level=Level.VOLATILE)
        witness = local.open_reader("t", keep_all=True, from_history=False)
        with attach_remote([site[0].address, site[1].address], patience_s=LONG_S) as session:
            reader = session.open_reader("t", keep_all=True, from_history=False)
            writer = session.open_writer("t")
            sent = [pattern(200_000 + 100_000 * (seed % 5), seed) if seed % 3 else pattern(20, seed)
                    for seed in range(60)]
            got: list[bytes] = []
            for number, payload in enumerate(sent):
                writer.inbox.write(payload, timeout_s=LONG_S)
                if number == 30:
                    site[0].running.kill()
            deadline = time.monotonic() + 2 * LONG_S
            while len(got) < len(sent) and time.monotonic() < deadline:
                got += reader.log.take(1000)
                reader.log.wait(0.1)
            assert [sent.index(one) for one in got] == list(range(len(sent)))
            assert [sent.index(one) for one in taken(witness, len(sent))] == list(range(len(sent)))
            wait_until(lambda: writer._writer.larges._bytes == 0)


@pytest.mark.slow
def test_a_forked_child_can_close_what_its_parent_had(runtime_dir: Path) -> None:
    """Goal: it never waits for a lock that a thread of the parent held, and the parent goes on. Method: fork while all
    locks are held and a loan is open; the child gives it back and closes everything."""
    with one_host(runtime_dir) as host, attach_remote([host.address]) as session:
        declare(session)
        reader, writer = session.open_reader("t", keep_all=True, from_history=False), session.open_writer("t")
        writer.inbox.claim(MB)
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            channel = session._channel
            with channel._flow, channel._changed, reader._reader.larges._lock:
                held.set()
                done.wait(LONG_S)

        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(LONG_S)
        child = os.fork()
        if child == 0:
            writer.inbox.abort()
            writer.inbox.unacknowledged()
            told = 0
            try:
                session.status()
            except SpindleError as error:
                told = "after fork()" in str(error)
            writer.close()
            reader.close()
            session.close()
            os._exit(0 if told else 3)
        done.set()
        holder.join()
        ends: list[int] = []

        def ended() -> bool:
            pid, status = os.waitpid(child, os.WNOHANG)
            ends.extend([os.waitstatus_to_exitcode(status)] if pid else [])
            return bool(ends)

        try:
            wait_until(ended, LONG_S, what="the child ends")
        except AssertionError:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
        assert ends == [0]
        writer.inbox.commit()
        assert taken(reader, 1) == [bytes(MB)]


@pytest.mark.slow
def test_a_writer_has_so_many_on_their_way(runtime_dir: Path) -> None:
    """However small they are: each has a descriptor."""
    with one_host(runtime_dir, *options(topics__large_capacity=MB)) as host, \
            attach(runtime_dir=host.directory) as local, attach_remote([host.address]) as session:
        declare(local, size_max=40)
        reader = local.open_reader("t", keep_all=True, from_history=False)
        writer = session.open_writer("t", slots=1000)
        count = 0
        with pytest.raises(WriteTimeout, match=f"60 of this writer with {60 * 20_000} bytes are on their way") as late:
            while True:
                writer.inbox.write(pattern(20_000, count), timeout_s=1.0)
                count += 1
        assert late.value.for_memory and count >= HELD_COUNT_MAX
        assert len(writer._writer.larges._kept) == HELD_COUNT_MAX
        assert taken(reader, count) == [pattern(20_000, seed) for seed in range(count)]
        wait_until(lambda: not writer._writer.larges._kept)
        assert writer._writer.larges._count == writer._writer.larges._bytes == 0
