"""Large samples of whole nodes: from any writer to all readers, late joiners included; within their bounds; and nothing
of them stays.

Method: embedded nodes of one host, and programs that use the client's API as every program does.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spindle.client.embedding import embed
from spindle.client.session import ReaderHandle, Session
from spindle.config.settings import NodeConfig
from spindle.errors import NoResources, SampleMissing, SampleUnfit, refusal
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.large import memory
from spindle.large.service import NodeLarge
from spindle.topics.larges import SPARE, LargeSamples
from spindle_core.errors import MessageTooLarge, WriteTimeout
from tests.support import wait_until

MIB = 1 << 20


@contextlib.contextmanager
def group(runtime_dir: Path, n: int, **settings: object) -> Iterator[list[Session]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(embed(config=NodeConfig(runtime_dir=runtime_dir, **settings)))  # type: ignore[arg-type]
               for _ in range(n)]


def sample(number: int, size: int) -> bytes:
    return (b"%d " % number).ljust(size, b"%d" % (number % 10))


def take(reader: ReaderHandle, count: int) -> list[bytes]:
    found: list[bytes] = []

    def enough() -> bool:
        found.extend(bytes(one) for one in reader.log.take(count - len(found)))
        return len(found) == count

    wait_until(enough)
    return found


def held(session: Session) -> int:
    """Bytes of large samples that the session's node has."""
    return int(session.status()["large"]["bytes"])


@pytest.mark.parametrize("level", [Level.UNORDERED, Level.ATOMIC, Level.VOLATILE, Level.LOGGED])
def test_samples_of_any_size_come_everywhere_in_their_order(runtime_dir: Path, tmp_path: Path, level: Level) -> None:
    """Goal: every level; what nobody needs is given back. Method: sizes around a slot's, from two nodes; three read."""
    sizes = (10, 64, 65, 5000, 3 * MIB, 1)
    settings = {"journal_dir": tmp_path} if level is Level.LOGGED else {}
    with group(runtime_dir, 3, **settings) as sessions:
        for one in sessions:
            one.declare_topic(TopicSpec("t", level=level, size_max=64))
        readers = [one.open_reader("t", keep_all=True, from_history=False) for one in sessions]
        writers = [one.open_writer("t") for one in sessions[:2]]
        for number, size in enumerate(sizes):
            for writer in writers:
                writer.inbox.write(sample(number, size), timeout_s=20)
        taken = [take(reader, 2 * len(sizes)) for reader in readers]
        wanted = [sample(number, size) for number, size in enumerate(sizes)]
        for one in taken:
            assert sorted(one) == sorted(wanted * 2)
        if level is not Level.UNORDERED:
            assert taken[0] == taken[1] == taken[2]
        for writer in writers:
            writer.close()
        for reader in readers:
            reader.close()
        wait_until(lambda: all(held(one) == 0 for one in sessions))


@pytest.mark.slow
def test_a_sample_of_an_unordered_topic_stays_until_all_have_it(
    runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: its sender delivers before others have the bytes, and must not give them up then. Method: the other node
    brings nothing until the sender's node has long delivered, with nobody there who reads."""
    goes_on, bring = threading.Event(), LargeSamples._bring

    async def late(larges: LargeSamples, *args: object, **more: object) -> None:
        while not goes_on.is_set():
            await asyncio.sleep(0.001)
        await bring(larges, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(LargeSamples, "_bring", late)
    with group(runtime_dir, 2) as (first, second):
        for one in (first, second):
            one.declare_topic(TopicSpec("t", level=Level.UNORDERED, size_max=64))
        reader, writer = second.open_reader("t", keep_all=True, from_history=False), first.open_writer("t")
        writer.inbox.write(sample(1, 5000))
        wait_until(lambda: second.status()["large"]["bringing"] == 1
                   and first.status()["large"]["on_the_way"] == 0)  # it is delivered at its sender
        first.status()
        goes_on.set()
        assert take(reader, 1) == [sample(1, 5000)]
        wait_until(lambda: held(first) == 0)


@pytest.mark.parametrize("effects", [b"", bytes([1]) + bytes(255)])
def test_a_late_joiner_gets_the_bytes_of_what_is_kept(runtime_dir: Path, effects: bytes) -> None:
    """Goal: a history has the bytes, with keys and without. Method: a node that joins when all has been written."""
    with group(runtime_dir, 2) as (first, second):
        spec = TopicSpec("t", level=Level.VOLATILE, size_max=64, history_bytes=8 * MIB, effects=effects)
        first.declare_topic(spec)
        first_reader = first.open_reader("t", keep_all=True, from_history=False)
        writer = first.open_writer("t")
        written = [sample(number, 100_000 * (number % 2) + 20) for number in range(6)]
        for number, data in enumerate(written):
            writer.inbox.write(data, key=number + 1)
        assert take(first_reader, 6) == written
        late = second.open_reader("t", keep_all=True, from_history=True)
        assert take(late, 6) == written


def test_bytes_that_nobody_has_any_more_are_said_to_be_lost(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a history has no hole of which its readers don't hear. Method: the giver has let go of a sample's bytes
    when the newcomer asks for them."""
    with group(runtime_dir, 2) as (first, second):
        spec = TopicSpec("t", level=Level.VOLATILE, size_max=64, history_bytes=8 * MIB)
        first.declare_topic(spec)
        first_reader = first.open_reader("t", keep_all=True, from_history=False)
        writer = first.open_writer("t")
        written = [sample(number, 100_000 * (number % 2) + 20) for number in range(6)]
        for data in written:
            writer.inbox.write(data)
        assert take(first_reader, 6) == written
        bring, asked = NodeLarge.bring, []

        async def gone(self: NodeLarge, large_id: int, size: int, topic: str, *more: Any, **says: Any) -> Any:
            asked.append(large_id)
            assert says == {"delivered": True}  # else who has it not any more would be waited for
            if len(asked) == 2:
                raise refusal("on purpose")
            return await bring(self, large_id, size, topic, *more, **says)

        monkeypatch.setattr(NodeLarge, "bring", gone)
        late = second.open_reader("t", keep_all=True, from_history=True)
        assert take(late, 5) == written[:3] + written[4:]
        assert late.log.lost == 1 and len(asked) == 3


def test_who_can_not_take_bytes_of_a_history_tries_again(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the newcomer has no descriptors for them at first."""
    with group(runtime_dir, 2) as (first, second):
        spec = TopicSpec("t", level=Level.VOLATILE, size_max=64, history_bytes=8 * MIB)
        first.declare_topic(spec)
        first_reader = first.open_reader("t", keep_all=True, from_history=False)
        first.open_writer("t").inbox.write(sample(0, 100_000))
        assert take(first_reader, 1) == [sample(0, 100_000)]
        bring, asked = NodeLarge.bring, []

        async def short(self: NodeLarge, large_id: int, size: int, topic: str, *more: Any, **says: Any) -> Any:
            asked.append(large_id)
            if len(asked) < 3:
                raise OSError(errno.EMFILE, "on purpose")
            return await bring(self, large_id, size, topic, *more, **says)

        monkeypatch.setattr(NodeLarge, "bring", short)
        late = second.open_reader("t", keep_all=True, from_history=True)
        assert take(late, 1) == [sample(0, 100_000)] and late.log.lost == 0


@pytest.mark.parametrize(("breaks", "expected"), [(2, [0, 1]), (1 << 30, [1])])
def test_bytes_of_a_history_that_are_out_of_reach_are_asked_for_again(
        runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, breaks: int, expected: list[int]) -> None:
    """Method: the connection to who has them breaks twice; or whenever it is there, until the newcomer's patience is
    over."""
    with group(runtime_dir, 2) as (first, second):
        spec = TopicSpec("t", level=Level.VOLATILE, size_max=64, history_bytes=8 * MIB)
        first.declare_topic(spec)
        first_reader = first.open_reader("t", keep_all=True, from_history=False)
        writer, written = first.open_writer("t"), [sample(0, 100_000), sample(1, 20)]
        for data in written:
            writer.inbox.write(data)
        assert take(first_reader, 2) == written
        bring, asked = NodeLarge.bring, []

        async def broken(self: NodeLarge, large_id: int, size: int, topic: str, *more: Any, **says: Any) -> Any:
            asked.append(large_id)
            if len(asked) <= breaks:
                raise SampleMissing("on purpose")
            return await bring(self, large_id, size, topic, *more, **says)

        monkeypatch.setattr(NodeLarge, "bring", broken)
        monkeypatch.setattr("spindle.topics.larges.HISTORY_PATIENCE_S", 0.5 if breaks > 2 else 60.0)
        late = second.open_reader("t", keep_all=True, from_history=True)
        assert take(late, len(expected)) == [written[one] for one in expected]
        assert late.log.lost == 2 - len(expected) and len(asked) >= 3


def test_a_logged_sample_comes_from_the_journal_after_a_restart(runtime_dir: Path, tmp_path: Path) -> None:
    """Goal: a journal has the bytes. Method: write, end the node, start it again, read from the beginning."""
    spec = TopicSpec("t", level=Level.LOGGED, size_max=64)
    written = [sample(number, 50_000) for number in range(3)]
    with group(runtime_dir, 1, journal_dir=tmp_path, node_id=1) as (one,):
        one.declare_topic(spec)
        writer = one.open_writer("t")
        for data in written:
            writer.inbox.write(data)
        assert writer.inbox.wait_acknowledged(20, persisted=True)
    with group(runtime_dir, 1, journal_dir=tmp_path, node_id=1) as (one,):
        one.declare_topic(spec)
        assert take(one.open_reader("t", keep_all=True, from_history=True), 3) == written


def test_what_only_the_table_of_keys_has_lies_beside_it_after_a_restart_too(runtime_dir: Path, tmp_path: Path) -> None:
    """Goal: a large sample that is older than all in the log is one as before, and one that a newer one has replaced
    takes no memory. Method: two of one key and more than the log holds of another; then the node is started again."""
    spec = TopicSpec("t", level=Level.LOGGED, size_max=64, history_depth=1, effects=bytes([1]) + bytes(255))
    settings = {"journal_dir": tmp_path, "node_id": 1, "log_capacity": 1 << 16, "log_hot": 4096}
    old, kept = sample(1, 50_000), sample(2, 60_000)
    with group(runtime_dir, 1, **settings) as (one,):
        one.declare_topic(spec)
        writer = one.open_writer("t")
        for data in (old, kept):
            writer.inbox.write(data, key=1)
        for number in range(2000):
            writer.inbox.write(sample(number, 60), key=2)
        assert writer.inbox.wait_acknowledged(20, persisted=True)
    with group(runtime_dir, 1, **settings) as (one,):
        one.declare_topic(spec)
        reader = one.open_reader("t", keep_all=True, from_history=True)
        first = next(iter(reader.log.take_pairs(1)))
        assert (first[0], first[1].large) == (kept, True)
        wait_until(lambda: held(one) == len(kept))


def test_writers_wait_for_memory_and_say_so(runtime_dir: Path) -> None:
    """Goal: bounded memory: whoever is too fast waits, and is told why when its time is over; others get room in turn.
    Method: a reader that takes nothing, a topic with room for two samples of 1 MiB; a third waits, and goes on."""
    with group(runtime_dir, 1, large_capacity=2 * MIB) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        reader, writer = one.open_reader("t", keep_all=True, from_history=False), one.open_writer("t")
        written = [sample(number, MIB) for number in range(6)]
        count = 0
        with pytest.raises(WriteTimeout, match=r"no memory for a sample of 1048576 bytes within 0\.3 s"):
            for data in written:
                writer.inbox.write(data, timeout_s=0.3)
                count += 1
        assert count == 4          # two that the log has, and two that wait for it
        assert held(one) <= 4 * MIB
        waiting = threading.Thread(target=writer.inbox.write, args=(written[4],), kwargs={"timeout_s": 20})
        waiting.start()
        assert take(reader, 5) == written[:5]
        waiting.join()


def test_who_would_find_the_table_full_gets_no_memory(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a sample that can't go into the order is refused before it is filled: a program elsewhere could do nothing
    with a later refusal. Method: a table with places for two samples and those that are left to others."""
    nodes: list[LargeSamples] = []
    begin = LargeSamples.__init__

    def noted(larges: LargeSamples, *args: object, **more: object) -> None:
        nodes.append(larges)
        begin(larges, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(LargeSamples, "__init__", noted)
    with group(runtime_dir, 1) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        reader, writer = one.open_reader("t", keep_all=True, from_history=False), one.open_writer("t")
        table = nodes[0]._larges
        others = range(1, table.room - SPARE - 1)
        assert all(table.add(number) for number in others) and table.room == SPARE + 2
        first, second = writer.inbox.beside.make(5000, 5.0), writer.inbox.beside.make(5000, 5.0)
        with pytest.raises(NoResources, match="nearly as many large samples"):
            writer.inbox.write(sample(1, 5000))
        writer.inbox.beside.drop(first)
        writer.inbox.write(sample(2, 5000))
        with pytest.raises(NoResources, match="nearly as many large samples"):
            writer.inbox.write(sample(3, 5000))
        assert take(reader, 1) == [sample(2, 5000)]
        writer.inbox.beside.drop(second)
        assert all(table.drop(number) for number in others)
        writer.inbox.write(sample(4, 5000))
        assert take(reader, 1) == [sample(4, 5000)]
        assert nodes[0]._made == 0
        wait_until(lambda: one.status()["large"]["on_the_way"] == 0)


def test_a_loan_that_turns_out_smaller_needs_no_room_beside_itself(runtime_dir: Path) -> None:
    """Goal: a commit never waits for room that its own loan holds. Method: a loan of all the room there is, committed
    as less, as so little that it fits a slot, and whole."""
    with group(runtime_dir, 1, large_capacity=MIB) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        reader, writer = one.open_reader("t", keep_all=True, from_history=False), one.open_writer("t")
        for number, size in enumerate((MIB - 1, 40, MIB)):
            writer.inbox.claim(MIB, 5.0)[:] = sample(number, MIB)
            writer.inbox.commit(size)
            assert take(reader, 1) == [sample(number, MIB)[:size]]


def test_what_is_too_large_is_refused_with_its_limit(runtime_dir: Path, tmp_path: Path) -> None:
    """Method: over the node's limit; over what a journal takes; of no size."""
    with group(runtime_dir, 1, large_sample_max=MIB, journal_dir=tmp_path) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        reader, writer = one.open_reader("t", keep_all=True, from_history=False), one.open_writer("t")
        with pytest.raises(MessageTooLarge, match=r"1048577 bytes; 1048576 are the most.*large_sample_max"):
            writer.inbox.write(bytes(MIB + 1))
        writer.inbox.write(b"still here")
        assert take(reader, 1) == [b"still here"]


def test_nobody_can_change_what_was_handed_over(runtime_dir: Path) -> None:
    """Goal: all readers read the same, whatever its writer does. Method: a writer that keeps a mapping is refused, and
    one that has given it up can make no other."""
    with group(runtime_dir, 1) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        reader, writer = one.open_reader("t", keep_all=True, from_history=False), one.open_writer("t")
        memory = writer.inbox.beside.make(5000, 5.0)
        fd = os.dup(memory.fd)
        kept = mmap.mmap(fd, 5000)
        number, _ = writer.inbox.beside._made.pop(id(memory))
        memory.become_private()
        with pytest.raises(SampleUnfit, match="sealed"):
            writer.inbox.beside._give(number)
        kept.close()
        os.close(fd)
        memory = writer.inbox.beside.make(5000, 5.0)
        fd = os.dup(memory.fd)
        writer.inbox.beside.hand_over(memory)
        with pytest.raises(OSError):
            mmap.mmap(fd, 5000)
        with pytest.raises(OSError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(OSError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
        os.close(fd)
        writer.inbox.write(b"goes on")
        assert take(reader, 1) == [b"goes on"]


def test_what_a_program_leaves_behind_is_given_back(runtime_dir: Path) -> None:
    """Method: memory that was only made, and samples handed over and never named in a slot, of a session that ends and
    of a writer that is closed."""
    with group(runtime_dir, 1) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        one.open_reader("t", keep_all=True, from_history=False)  # the node stays a member of the topic
        writer = one.open_writer("t")
        writer.inbox.beside.make(MIB, 5.0)
        writer.inbox.beside.hand_over(writer.inbox.beside.make(MIB, 5.0))
        assert one.status()["large"]["on_the_way"] == 2 * MIB
        writer.close()
        wait_until(lambda: not any(one.status()["large"].values()))


def test_a_reader_opens_samples_of_its_own_topic_only(runtime_dir: Path) -> None:
    """Goal: access rules hold for the bytes. Method: the id of another topic's sample."""
    with group(runtime_dir, 1) as (one,):
        for name in ("secret", "public"):
            one.declare_topic(TopicSpec(name, size_max=64))
        secret = one.open_reader("secret", keep_all=True, from_history=False)
        public = one.open_reader("public", keep_all=True, from_history=False)
        one.open_writer("secret").inbox.write(sample(1, 5000))
        wait_until(lambda: secret.log.pending == 1)
        secret.log.entries = True
        [(entry, info)] = secret.log.take_pairs(1)
        assert info.large
        large_id = int.from_bytes(entry[:8], "little")
        assert public.log.opener(large_id) == -1
        fd = secret.log.opener(large_id)
        assert os.pread(fd, 5000, 0) == sample(1, 5000)
        os.close(fd)


def test_what_only_a_member_had_that_has_gone_is_brought_no_more(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
                                                                 ) -> None:
    """Goal: those that are left don't ask each other for it until their patience is over. Method: two samples are
    wanted that never come, one of them of a member that the next view doesn't have."""
    made: list[tuple[LargeSamples, asyncio.AbstractEventLoop]] = []
    init = LargeSamples.__init__

    def noted(self: LargeSamples, *args: Any) -> None:
        init(self, *args)
        made.append((self, asyncio.get_running_loop()))

    async def never(*_: Any, **__: Any) -> int:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(LargeSamples, "__init__", noted)
    monkeypatch.setattr(NodeLarge, "bring", never)
    with group(runtime_dir, 2) as (one, two):
        one.declare_topic(TopicSpec("t", size_max=64))
        for session in (one, two):
            session.open_reader("t", keep_all=True, from_history=False)
            session.open_writer("t")
        (larges, loop), _ = made
        # Each view that is installed gives up what came in vain: the test's own has to be the next one.
        wait_until(lambda: two.node_id in larges._view().topics[0].senders)  # type: ignore[union-attr]
        loop.call_soon_threadsafe(larges._want, [(1, 7, 100, 99, 5), (1, 8, 100, two.node_id, 6)])
        wait_until(lambda: sorted(larges._bringing) == [7, 8])
        one.declare_topic(TopicSpec("next"))
        one.open_reader("next", keep_all=True, from_history=False)
        wait_until(lambda: list(larges._bringing) == [8])


def test_when_its_node_dies_a_writer_still_has_what_is_in_doubt(runtime_dir: Path) -> None:
    """Goal: what may have to be sent again has its bytes. Method: the node of a writer that keeps what isn't
    acknowledged ends before another member has taken anything."""
    with group(runtime_dir, 1, large_capacity=MIB) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        one.open_reader("t", keep_all=True, from_history=False)
        writer = one.open_writer("t", keep_unacknowledged=True)
        written = [sample(number, MIB) for number in range(2)]
        for data in written:
            writer.inbox.write(data, timeout_s=20)
        wait_until(lambda: writer.inbox.acknowledged == 1)
        [left] = writer.unacknowledged()
        assert left.payload == written[1]


def test_what_samples_lay_in_is_given_back_in_the_end(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: it is kept for its writer's next samples, for a while, and as long as there is that writer."""
    monkeypatch.setattr("spindle.topics.larges.KEEP_S", 1.0)

    def spare() -> int:
        return int(one.status()["large"]["spare_bytes"])

    with group(runtime_dir, 1) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        reader = one.open_reader("t", keep_all=True, from_history=False)
        writer = one.open_writer("t")
        writer.inbox.write(sample(1, MIB), timeout_s=20)
        take(reader, 1)
        wait_until(lambda: spare() == 2 * MIB)
        wait_until(lambda: spare() == 0)
        for number in range(2):
            writer.inbox.write(sample(number, MIB), timeout_s=20)
        writer.close()
        take(reader, 2)
        wait_until(lambda: held(one) == 0)
        assert spare() == 0


@pytest.mark.parametrize("who", ["the writer", "the reader", "others may attach"])
def test_programs_of_other_users_get_sealed_memory(
        runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """Goal: they could change what they have given to the kernel, or seal nothing in time; so nobody but this user's
    programs fills or reads what isn't sealed, and where others may come, all is sealed at once.

    Method: the node takes the program for another user's when it makes memory, or when a reader opens it.
    """
    users: list[int | None] = []

    def trusted(self: LargeSamples, user: int | None) -> bool:
        users.append(user)
        return {"the writer": False, "the reader": len(users) <= 2, "others may attach": True}[who]

    monkeypatch.setattr(LargeSamples, "_is_trusted", trusted)
    more = {"allow_uids": (65534,)} if who == "others may attach" else {}
    with group(runtime_dir, 1, **more) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        reader = one.open_reader("t", keep_all=True, from_history=False)
        writer = one.open_writer("t")
        opener, opened = reader.log.opener, []

        def noted(large_id: int) -> int:
            fd = opener(large_id)
            opened.append(memory.is_sealed(fd))
            return fd

        reader.log.opener = noted
        writer.inbox.write(sample(1, MIB), timeout_s=20)
        assert take(reader, 1) == [sample(1, MIB)]
        assert opened == [True] and users and set(users) == {os.geteuid()}
        wait_until(lambda: held(one) == 0)
        assert one.status()["large"]["spare_bytes"] == 0


def test_a_program_without_address_space_takes_no_room(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: memory that its program can't map isn't on its way. Method: the mapping fails, where the node has made it.
    """
    def fails(fd: int, writable: bool = False) -> None:
        os.close(fd)
        raise OSError(errno.ENOMEM, "on purpose")

    with group(runtime_dir, 1) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        writer = one.open_writer("t")
        with monkeypatch.context() as patched:
            patched.setattr("spindle_core.memory.Mapping", SimpleNamespace(attach=fails))
            with pytest.raises(NoResources, match="memory"):
                writer.inbox.beside.make(MIB, 5.0)
        assert one.status()["large"]["on_the_way"] == 0


def test_spare_memory_gives_its_descriptors_to_readers(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: the first try to open a sample finds no descriptor, where an earlier sample's memory waits."""
    opens, tries = memory.open_anew, []

    def short_once(fd: int) -> int:
        tries.append(fd)
        if len(tries) == 1:
            raise NoResources("on purpose")
        return opens(fd)

    with group(runtime_dir, 1) as (one,):
        one.declare_topic(TopicSpec("t", size_max=64))
        reader = one.open_reader("t", keep_all=True, from_history=False)
        writer = one.open_writer("t")
        writer.inbox.write(sample(1, MIB), timeout_s=20)
        take(reader, 1)
        wait_until(lambda: one.status()["large"]["spare_bytes"] > 0)
        writer.inbox.write(sample(2, 2 * MIB + 1), timeout_s=20)
        wait_until(lambda: reader.log.pending > 0)
        monkeypatch.setattr(memory, "open_anew", short_once)
        assert take(reader, 1) == [sample(2, 2 * MIB + 1)] and len(tries) == 2
        # What the second one has lain in may wait there by now.
        assert one.status()["large"]["spare_bytes"] in (0, memory.capacity_of(2 * MIB + 1))
