"""Goal: what one application has of its node's links is limited, what is wrong is said, and nothing of it is left when
it ends: no descriptor, no mapping.

Method: a real daemon; its descriptors and mappings are counted before and after.
"""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from spindle.client import embed
from spindle.client.session import Session
from spindle.config.settings import NodeConfig
from spindle.errors import ConfigError, ConnectionEnded, LinkError, NoResources, SpindleError
from spindle.links import Links
from spindle.pool import pooling
from spindle.proto import attach_pb2 as pb
from spindle_core.ends import Loose
from tests.spindle.links.group import Group, descriptors_of, group_of, mappings_of
from tests.spindle.pool.pair import Scarce
from tests.support import wait_until


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two nodes of one host, with links between them."""
    with group_of("one host", tmp_path_factory.mktemp("links"), 2) as made:
        Links(made.session(1)).open(2).close()
        Links(made.session(2)).open(1).close()
        yield made


def ask(session: Session, **request: object) -> pb.Reply:
    """As a program that keeps to no rules of the client."""
    reply, frame = session._channel.request(**request)
    frame.close_fds()
    return reply


def test_limits_are_named(group: Group) -> None:
    with group.program(1) as session:
        links = Links(session)
        opened = [links.open(2, memory=1) for _ in range(256)]
        with pytest.raises(ConfigError, match="256 links of one program are the limit"):
            links.open(2)
        with pytest.raises(ConfigError, match="256 links"):
            links.listen(9)
        opened.pop().close()
        links.listen(9).close()
        offered = [links.offer(f"region {number}", 8) for number in range(64)]
        with pytest.raises(ConfigError, match="64 regions of one program are the limit"):
            links.offer("one more", 8)
        offered.pop().end()
        links.offer("one more", 8).end()


@pytest.mark.slow
def test_regions_that_are_reached_are_limited_for_each_link_and_each_program(group: Group) -> None:
    with group.program(1) as session, group.program(2) as owner, group.program(2) as another, \
            Links(another).offer("one more", 8):
        for number in range(64):
            Links(owner).offer(f"table {number}", 8)
        links = Links(session)
        opened = [links.open(2, memory=1) for _ in range(5)]
        for link in opened[:4]:
            regions = [link.region(f"table {number}") for number in range(64)]
            if link is opened[0]:
                with pytest.raises(LinkError, match="a link reaches at most 64 regions"):
                    link.region("one more")
        with pytest.raises(LinkError, match="all links of a program together at most"):
            opened[4].region("one more")
        regions[7].close()
        regions[7].close()  # nothing happens any more
        assert opened[4].region("one more").read(0, 8) == bytes(8)
        opened[0].close()
        assert opened[4].region("one more").read(0, 8) == bytes(8)


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0, 1, 4096, 1 << 20])
def test_any_memory_will_do(group: Group, memory: int) -> None:
    with Links(group.session(1)).open(2, memory=memory) as link:
        assert len(link.view) >= memory
        link.view[0] = 1


def test_what_is_out_of_range_says_so(group: Group) -> None:
    """By the client, and by the node where a program has no client that does."""
    session = group.session(1)
    links = Links(session)
    for call, text in (
        (lambda: links.listen(0), "port 0: must be between 1 and 65535"),
        (lambda: links.listen(65536), "port 65536: must be between 1 and 65535"),
        (lambda: links.open(2, port=-1), "port -1: must be between"),
        (lambda: links.open(-1), "node -1: must be between"),
        (lambda: links.open(2, memory=1 << 63), "a link with 9223372036854775808 bytes of memory: 1024 MiB"),
        (lambda: links.offer("x", 0), "size 0: must be between 1 and"),
        (lambda: links.offer("x", 1 << 50), "1024 MiB for all links"),
        (lambda: links.offer("x", 1 << 64), "must be between 1 and"),
        (lambda: links.offer("x", 8, writer=2, atomics=True), "one node, or to atomics of all: not to both"),
        (lambda: links.offer("x", 8, writer=99), "there is no node 99"),
        (lambda: links.offer("", 8), "name"),
        (lambda: links.offer("ä" * 33, 8), "a name of 66 bytes: must have between 1 and 64"),
        (lambda: ask(session, open_link=pb.OpenLink()), "port 0: must be between 1 and 65535"),
        (lambda: ask(session, open_link=pb.OpenLink(port=65536)), "port 65536: must be between"),
        (lambda: ask(session, open_link=pb.OpenLink(node_id=2, port=0xFFFFFFFF)), "must be between"),
        (lambda: ask(session, open_link=pb.OpenLink(node_id=2, memory=(1 << 64) - 1)), "1024 MiB for all links"),
        (lambda: ask(session, offer_region=pb.OfferRegion(name="x", size=(1 << 64) - 1)), "1024 MiB for all links"),
        (lambda: ask(session, offer_region=pb.OfferRegion(name="x")), "must have at least a byte"),
    ):
        with pytest.raises((ConfigError, ConnectionEnded), match=text):
            call()


@pytest.mark.parametrize("name", ["a/b", "port/7", "Übung", "name with spaces", "%s{}\\", "*", "x" * 64])
def test_regions_may_have_any_name(group: Group, name: str) -> None:
    with Links(group.session(2)).offer(name, 8) as region, Links(group.session(1)).open(2) as link:
        region.view[:] = b"12345678" + bytes(len(region.view) - 8)
        assert link.region(name).read(0, 8) == b"12345678"


def test_what_others_have_is_nobody_elses(group: Group) -> None:
    """A program can neither close nor use links and regions of another one, whatever number it names."""
    with group.program(1) as session, Links(group.session(1)).open(2) as link, \
            Links(group.session(2)).offer("table", 8), Links(group.session(1)).offer("mine", 8):
        region = link.region("table")
        for request in ({"close_link": pb.CloseLink(link=link.id)},
                        {"close_link": pb.CloseLink(link=(1 << 64) - 1)},
                        {"end_region": pb.EndRegion(name="mine")},
                        {"end_region": pb.EndRegion(name="")}):
            with pytest.raises(ConfigError):
                ask(session, **request)
        link.user.forget(1 << 31, cookie=link.begin())
        assert link.user.wait(5) and link.user.take()[0][1] == "wrong"
        assert region.read(0, 8) == bytes(8)


LIAR = textwrap.dedent("""
    import os, random, sys
    import spindle_core.counters, spindle_core.memory  # what is compiled against Mapping
    from spindle.client import attach
    from spindle.errors import SpindleError
    from spindle.links import Links
    from spindle.proto import attach_pb2 as pb

    rng = random.Random(int(sys.argv[2]))
    writable, Mapping = [], spindle_core.memory.Mapping

    class Keeping:
        @staticmethod
        def attach(fd, writable=False):
            made = Mapping.attach(fd, writable=writable)
            if writable:
                globals()["writable"].append(made)
            return made

    import spindle_core.links.user
    spindle_core.memory.Mapping = Keeping
    session = attach(node_id=1, runtime_dir=sys.argv[1])
    links = Links(session)

    def lie():
        for mapping in writable:
            memory = memoryview(mapping).cast("B")
            for _ in range(rng.randrange(1, 8)):
                at = rng.choice((rng.randrange(40) * 8, rng.randrange(len(memory) - 8)))
                old = int.from_bytes(memory[at:at + 8], "little")
                memory[at:at + 8] = rng.choice((rng.randbytes(8), b"\\xff" * 8, bytes(8), (
                    (old + rng.choice((-1, 1, 3, 512, 1 << 40))) % (1 << 64)).to_bytes(8, "little")))

    def use():
        link = links.open(rng.choice((1, 2)), timeout_s=0.01)
        for _ in range(rng.randrange(6)):
            rng.choice((lambda: link.region("honest").read(0, 100), lambda: link.send(bytes(500), 7),
                        lambda: link.call(7, b"x"), lambda: link.region("words", change=True).fetch_add(0, 1), lie,
                        lambda: link.user.receive(1 << 16, link.buffer),
                        lambda: link.user.send(1 << 16, link.buffer, port=7)))()
        if rng.random() < 0.3:
            link.close()

    def half():   # the answer is never taken
        session._conn = session._channel._conn
        session._conn.send(pb.Request(number=77, open_link=pb.OpenLink(node_id=2)).SerializeToString(), timeout_s=1)

    def bell():
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                if "eventfd" in os.readlink(f"/proc/self/fd/{fd}"):
                    os.eventfd_write(fd, (1 << 64) - 3)
            except OSError:
                pass

    def closes():
        for fd in rng.sample(range(3, 60), 10):
            try:
                if "socket" not in os.readlink(f"/proc/self/fd/{fd}"):
                    os.close(fd)
            except OSError:
                pass

    for _ in range(rng.randrange(2, 10)):
        try:
            rng.choice((use, use, use, lie, half, bell, lambda: links.listen(rng.randrange(8, 12)),
                        lambda: links.offer(f"mine {rng.randrange(9)}", rng.choice((1, 1 << 20)), atomics=True)))()
        except (SpindleError, OSError, ValueError, TimeoutError):
            pass
    if rng.random() < 0.3:
        closes()
    os._exit(0)
""")


def test_programs_that_lie_and_die_leave_nothing_and_harm_nobody(group: Group, tmp_path: Path) -> None:
    """Garbage in all memory that they may write, answers that are never taken, bells that are full, descriptors closed,
    long messages that nobody fits: an honest program's links go on, and when they have gone the daemon has what it had
    before."""
    program = tmp_path / "liar.py"
    program.write_text(LIAR)
    near, far = Links(group.session(1)), Links(group.session(2))
    with far.offer("honest", 4096) as table, far.offer("words", 4096, atomics=True), near.open(2) as link, \
            far.listen(7) as port:
        table.view[:5] = b"honest"[:5]
        region, pids = link.region("honest"), [group.daemon(number).pid for number in (1, 2)]

        def held() -> list[Counter[str]]:
            return [Counter(what(pid)) for pid in pids for what in (descriptors_of, mappings_of)]

        def life(seed: int) -> None:
            run = subprocess.Popen([sys.executable, str(program), str(group.directory(1)), str(seed)],
                                   stderr=subprocess.PIPE)
            rng = random.Random(seed)
            while run.poll() is None:
                assert region.read(0, 5) == b"hones"
                port.receive(0.002)
                if rng.random() < 0.002:
                    run.send_signal(signal.SIGKILL)
            assert run.stderr is not None
            said = run.stderr.read().decode()
            run.stderr.close()
            assert run.returncode in (0, -signal.SIGKILL), said

        life(1)  # what is made once
        with Links(group.session(1)).open(2) as other:
            other.region("words", change=True).fetch_add(0, 1)
        wait_until(lambda: len(mappings_of(pids[0])) < 40, 20, what="an end of what the first one had")
        before = held()
        for seed in range(2, int(os.environ.get("LIARS", "25"))):
            life(seed)
        with near.open(2) as new:
            assert new.region("honest").read(0, 5) == b"hones"
            new.send(b"honest", 7)
            wait_until(lambda: (one := port.receive(0.1)) is not None and one.data == b"honest")
        gone: list[Counter[str]] = []

        def is_gone() -> bool:
            gone[:] = [now - was for now, was in zip(held(), before, strict=True)]
            return all(sum(one.values()) <= 1 for one in gone)

        try:
            wait_until(is_gone, 20, what="an end of what they had")
        except AssertionError:
            raise AssertionError(f"still there: {gone}") from None
        for number in (1, 2):
            assert "Traceback" not in group.daemon(number).log, group.daemon(number).log


def test_a_program_that_dies_between_answer_and_mapping_leaves_nothing(group: Group) -> None:
    pid = group.daemon(1).pid
    with group.program(1) as session:
        Links(session).open(2).close()
    number = mappings_of(pid).count("spindle-link-user")
    before = descriptors_of(pid)
    for _ in range(10):
        session = group.program(1)
        session._channel._conn.send(
            pb.Request(number=77, open_link=pb.OpenLink(node_id=2)).SerializeToString(), timeout_s=5)
        session.close()
    wait_until(lambda: not Counter(descriptors_of(pid)) - Counter(before)
               and mappings_of(pid).count("spindle-link-user") <= number)
    with pytest.raises(SpindleError):
        Links(session).open(2)


def test_an_answer_that_comes_too_late_leaves_nothing_open(group: Group) -> None:
    with group.program(1) as session:
        links = Links(session)
        links.open(2)
        links.offer("late", 8).end()
        pid = group.daemon(1).pid
        number = mappings_of(pid).count("spindle-link-user")
        with pytest.raises(TimeoutError):
            while True:  # until an answer is too late
                ask_within(session, 1e-5, open_link=pb.OpenLink(node_id=2))
        with pytest.raises(TimeoutError):
            while True:
                ask_within(session, 1e-5, offer_region=pb.OfferRegion(name="late", size=8))
                ask(session, end_region=pb.EndRegion(name="late"))
        wait_until(lambda: offers_again(links, "late"))
        wait_until(lambda: mappings_of(pid).count("spindle-link-user") <= number)


def ask_within(session: Session, timeout_s: float, **request: object) -> pb.Reply:
    reply, frame = session._channel.request(timeout_s, **request)
    frame.close_fds()
    if reply.HasField("link"):
        ask(session, close_link=pb.CloseLink(link=reply.link.link))
    return reply


def offers_again(links: Links, name: str) -> bool:
    try:
        links.offer(name, 8).end()
    except ConfigError:
        return False
    return True


def test_a_port_that_no_descriptors_were_left_for_is_free_again(runtime_dir: Path) -> None:
    """The node has made the link, and can't hand it over: whoever wants the port next gets it."""
    with embed(config=NodeConfig(runtime_dir=runtime_dir)) as session:
        links = Links(session)
        links.listen(8).close()  # the pool is there
        gc.collect()
        before = descriptors_of(os.getpid())

        def fail(*_: int) -> Loose:
            raise OSError(errno.EMFILE, "too many open files")

        with patch.object(Loose, "copies", fail), pytest.raises(NoResources):
            links.listen(9)
        wait_until(lambda: not Counter(descriptors_of(os.getpid())) - Counter(before))
        links.listen(9).close()


def test_a_link_that_a_device_takes_no_memory_of_is_refused(runtime_dir: Path) -> None:
    """As any other that nothing is left for: a program knows of no device."""
    make = pooling.Pooling

    def with_device(*given: Any) -> pooling.Pooling:
        return make(*given[:-1], lambda regions: Scarce(regions, room=3))

    with patch.object(pooling, "Pooling", with_device), embed(config=NodeConfig(runtime_dir=runtime_dir)) as session:
        links = Links(session)
        with links.open(0) as link:
            with pytest.raises(NoResources, match="pinned"):
                links.open(0)
            with pytest.raises(ConnectionEnded, match="no region"):
                link.region("none")
