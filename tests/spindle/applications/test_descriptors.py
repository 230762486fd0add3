"""What an application holds of its node's doorbells: an end of its own, with which it can hurt itself only.

Goal: whoever makes blocking, fills, empties or closes every descriptor that it was handed stops neither its node nor
the group, also while members are killed; and an honest application beside it notices nothing.
Method: real daemons with hostile applications in processes of their own; and, in this process, which open files a node
keeps of what it has handed over.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spindle.client import Session, attach
from spindle.errors import NoResources, SpindleError
from spindle.group.topics import TopicSpec
from spindle_core.ends import ApplicationBell, Ringer, make_ends
from spindle_core.engine import Engine
from tests.spindle.daemons import Daemon, daemons
from tests.support import descriptors_before, open_descriptors, wait_until


@contextlib.contextmanager
def hostile(node_id: int, how: str) -> Iterator[None]:
    program = subprocess.Popen([sys.executable, "-m", "tests.spindle.applications.holder", str(node_id), how],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdin is not None and program.stdout is not None
    try:
        assert program.stdout.readline() == "ready\n"
        yield
    finally:
        program.kill()
        program.wait()
        program.stdin.close()
        program.stdout.close()


class Honest:
    """A writer on one node and readers on all; every message reaches every reader."""

    def __init__(self, stack: contextlib.ExitStack, runtime_dir: Path, nodes: int) -> None:
        self.sessions: list[Session] = [
            stack.enter_context(attach(runtime_dir=runtime_dir, node_id=number, name=f"honest {number}"))
            for number in range(1, nodes + 1)]
        self.sessions[0].declare_topic(TopicSpec("honest"))
        self.readers = [one.open_reader("honest", keep_all=True, from_history=False) for one in self.sessions]
        self.writer = self.sessions[0].open_writer("honest")
        self.written = 0

    def exchange(self, count: int) -> None:
        """Each message is waited for, so that the nodes sleep in between and all doorbells are rung."""
        for _ in range(count):
            self.written += 1
            mine = b"%d" % self.written
            self.writer.inbox.write(mine, timeout_s=10.0)
            for reader in self.readers:
                while True:
                    assert reader.log.wait(10.0), f"message {mine!r} has not come"
                    if mine in reader.log.take(1000):
                        break

    def lose(self, number: int) -> None:
        """Its node was killed."""
        wait_until(lambda: self.sessions[number - 1].gone)
        del self.readers[number - 1]


@pytest.mark.parametrize("how", ["fill", "steal", "close"])
def test_who_takes_hold_of_its_descriptors_hurts_itself_only(how: str, runtime_dir: Path) -> None:
    """Goal: S41. Method: three daemons, each with such an application; messages one by one before and after one of the
    daemons is killed, and with it the node whose doorbell the others ring; then a program attaches and leaves."""
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(daemons(runtime_dir, 3))
        honest = Honest(stack, runtime_dir, 3)
        for number in (1, 2, 3):
            stack.enter_context(hostile(number, how))
        honest.exchange(100)
        nodes[2].process.send_signal(signal.SIGKILL)
        honest.lose(3)
        honest.exchange(100)
        with attach(runtime_dir=runtime_dir, node_id=2, name="late") as late:
            with late.open_reader("honest", keep_all=False, from_history=False):
                honest.exchange(10)
        honest.exchange(10)


def test_a_ring_never_waits_for_who_is_rung() -> None:
    """Goal: however full an end is, and whether or not it is there, ringing it returns; one that was emptied hears the
    next ring. Nothing can be sent back, so that nothing waits at the ringing end when it is closed."""
    ours, theirs = make_ends()
    try:
        os.set_blocking(theirs, True)
        with socket.socket(fileno=os.dup(ours)) as ringing, socket.socket(fileno=os.dup(theirs)) as rung:
            with pytest.raises(BlockingIOError):
                for _ in range(64):
                    ringing.send(b"\1", socket.MSG_DONTWAIT)
            with pytest.raises(BrokenPipeError):
                rung.send(b"back")
            readable = select.poll()  # whatever number the descriptor has
            readable.register(rung, select.POLLIN)
            while readable.poll(0):
                rung.recv(1)
            ringing.send(b"\1", socket.MSG_DONTWAIT)
            assert rung.recv(2) == b"\1"
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_node_rings_through_an_epoll_which_is_readable_once_a_ring() -> None:
    """Goal: the node that is rung gets nothing that it can fill or empty for the one that rings."""
    ringer = Ringer()
    try:
        for fd, sees in ((ringer.heard, True), (ringer.heard, False)):
            if sees:
                os.eventfd_write(ringer.fd, 1)
            look = select.poll()  # takes descriptors of any number
            look.register(fd, select.POLLIN)
            assert bool(look.poll(0)) is sees
            with select.epoll.fromfd(os.dup(fd)) as heard:
                assert len(heard.poll(0)) == sees
            for touch in (lambda fd: os.read(fd, 8), lambda fd: os.write(fd, b"\1" * 8)):
                with pytest.raises(OSError):
                    touch(fd)
    finally:
        ringer.close()


def test_of_an_applications_ring_the_node_keeps_nothing() -> None:
    """Goal: after it was handed over the eventfd is the application's alone; once that is gone nobody listens to it."""
    engine = Engine(1)
    bell = ApplicationBell(engine)
    theirs = os.dup(bell.fd)
    before = descriptors_before()
    bell.hand_over()
    bell.hand_over()
    assert bell.fd == -1 and open_descriptors() == before - 1
    with select.epoll.fromfd(os.dup(bell._heard)) as heard:
        os.eventfd_write(theirs, 1)
        assert heard.poll(0)
        bell.close()
        os.eventfd_write(theirs, 1)
    bell.close()
    os.close(theirs)
    engine.stop()


def shared_with(pid: int, other: int) -> list[str]:
    """What open files for waiting two processes have in common, as the system knows them (kcmp)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    for mine in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            what = os.readlink(f"/proc/{pid}/fd/{mine}")
            if not what.startswith(("anon_inode:[event", "socket:")):
                continue
            for theirs in os.listdir(f"/proc/{other}/fd"):
                if libc.syscall(312, pid, other, 0, int(mine), int(theirs)) == 0:
                    found.append(what)
    return found


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of the system call kcmp")
def test_a_node_shares_no_open_file_with_who_is_attached(runtime_dir: Path) -> None:
    """Goal: O_NONBLOCK belongs to the open file, so a node has none that an application has, and no bell that another
    node has. Method: kcmp() of all descriptors of both processes."""
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(daemons(runtime_dir, 2))
        honest = Honest(stack, runtime_dir, 2)
        honest.exchange(3)
        for node in nodes:
            assert shared_with(node.pid, os.getpid()) == []
        # What a node hears another one by is an epoll that the other one has made, and has given away.
        wait_until(lambda: set(shared_with(nodes[0].pid, nodes[1].pid)) <= {"anon_inode:[eventpoll]"})


@pytest.mark.slow
def test_an_application_that_is_gone_leaves_nothing_at_its_node(runtime_dir: Path) -> None:
    """Goal: descriptors come back. Method: programs that come and go; the daemon's descriptors are counted."""
    with contextlib.ExitStack() as stack:
        [node] = stack.enter_context(daemons(runtime_dir, 1))
        honest = Honest(stack, runtime_dir, 1)

        def count() -> int:
            return len(os.listdir(f"/proc/{node.pid}/fd"))

        def come_and_go() -> None:
            with attach(runtime_dir=runtime_dir, name="guest") as guest:
                guest.open_reader("honest", keep_all=False, from_history=False)
                guest.open_writer("honest")

        come_and_go()
        wait_until(lambda: len(honest.sessions[0].status()["applications"]) == 1)
        before = count()
        for _ in range(5):
            come_and_go()
        wait_until(lambda: count() <= before, what="no more descriptors than before")


@pytest.mark.slow
def test_who_uses_up_the_descriptors_is_told_and_the_next_view_has_its_own(runtime_dir: Path) -> None:
    """Goal: one application that opens whatever it is given ends nobody. Method: a daemon with few descriptors; readers
    until one is refused, with a reason; then another node joins, and the honest ones go on at both."""
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(daemons(runtime_dir, 1))
        honest = Honest(stack, runtime_dir, 1)
        limit = len(os.listdir(f"/proc/{nodes[0].pid}/fd")) + 60
        resource.prlimit(nodes[0].pid, resource.RLIMIT_NOFILE, (limit, limit))
        greedy = stack.enter_context(attach(runtime_dir=runtime_dir, name="greedy"))
        with pytest.raises(NoResources, match="descriptors"):
            for _ in range(100):
                greedy.open_reader("honest", keep_all=False, from_history=False)
        with pytest.raises(NoResources):
            greedy.open_writer("honest")
        second = Daemon(2, runtime_dir=runtime_dir)
        stack.callback(second.stop)
        second.wait_ready()
        assert honest.sessions[0].view().node_ids == (1, 2)
        honest.exchange(5)
        greedy.close()
        late = wait_until(lambda: try_to_attach(runtime_dir), what="descriptors come back")
        stack.enter_context(late)
        late.open_reader("honest", keep_all=False, from_history=False).close()


def try_to_attach(runtime_dir: Path) -> Session | None:
    try:
        return attach(runtime_dir=runtime_dir, node_id=1, name="late")
    except SpindleError:
        return None


def test_hundreds_of_wrong_numbers_in_an_inbox_end_with_it(runtime_dir: Path) -> None:
    """Goal: S43: an inbox that claims more than its ring can hold is freed when it is closed, and so is one that claims
    it afterwards. Method: more of them than a topic can have on a node, one after the other; then an honest writer."""
    import struct

    with contextlib.ExitStack() as stack:
        [node] = stack.enter_context(daemons(runtime_dir, 1))
        honest = Honest(stack, runtime_dir, 1)
        liar = stack.enter_context(attach(runtime_dir=runtime_dir, name="liar"))
        for number in range(300):
            writer = liar.open_writer("honest", slots=4)
            view = writer.inbox.ring.view()
            writer.inbox.write(b"")
            if number % 2:
                struct.pack_into("<Q", view, 8, 2**63)  # inbox_header.committed
            port = writer.port
            liar._close_port(port)
            struct.pack_into("<Q", view, 8, 2**40)
            view.release()
            writer.inbox.close()
        honest.exchange(5)
        assert honest.sessions[0].open_writer("honest").writer_id
    del node


@pytest.mark.slow
def test_what_was_opened_before_fork_refuses_in_the_child(runtime_dir: Path) -> None:
    """Goal: S50: in a child every call says what to do, and the parent's reader and writer go on as if nothing had
    been. Method: a child that reads, waits, arms, writes and closes; then the parent takes all that was written."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(daemons(runtime_dir, 1))
        honest = Honest(stack, runtime_dir, 1)
        inbox, log = honest.writer.inbox, honest.readers[0].log
        for number in range(700):
            inbox.write(b"%d" % number)
        wait_until(lambda: log.pending == 700)
        heard, said = os.pipe()
        block = log.take_block(5)
        stands = bytes(log.cursor.view()[:64])
        child = os.fork()
        if child == 0:
            calls = (lambda: log.take(1000), lambda: log.take_pairs(5), lambda: log.take_with(5, bytes), log.arm,
                     lambda: log.take_block(5), lambda: log.wait(0.1), lambda: log.skip_to_last(1),
                     lambda: inbox.write(b"child"), lambda: inbox.write_many([b"child"]), lambda: inbox.claim(5),
                     lambda: inbox.write_array(b"child", 5), lambda: inbox.wait_acknowledged(0.1),
                     lambda: honest.sessions[0].topics(), lambda: honest.sessions[0].open_writer("honest"))
            wrong = b""
            for number, call in enumerate(calls):
                try:
                    wrong += b"%d returned %r; " % (number, repr(call()))
                except SpindleError as error:
                    if "fork()" not in str(error) or "attach again" not in str(error):
                        wrong += b"%d: %s; " % (number, str(error).encode())
                except BaseException as error:
                    wrong += b"%d: %s; " % (number, repr(error).encode())
            block.release()
            log.clear()
            honest.readers[0].close()
            honest.writer.close()
            honest.sessions[0].close()
            os.write(said, wrong or b"refused")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert os.read(heard, 10_000) == b"refused"
        assert bytes(log.cursor.view()[:64]) == stands
        count = len(block)
        block.release()
        assert log.take(1000) == [b"%d" % number for number in range(count, 700)]
        honest.exchange(20)
        os.close(heard)
        os.close(said)
