"""Goal: programs reach memory of other nodes and call them, over real daemons: on one host, and between hosts."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest

from spindle.client.attaching import attach
from spindle.client.embedding import embed
from spindle.client.session import Session
from spindle.config.settings import NodeConfig
from spindle.errors import ConfigError, ConnectionEnded, LinkError, NodeStopped
from spindle.links import Links, Port
from spindle.links.link import HEAD
from tests.spindle.daemons import daemons
from tests.spindle.hosts import hosts
from tests.support import wait_until


class Sessions(dict[int, Session]):
    """Sessions with nodes by their ids; `beside(node_id)` makes another one."""

    def __init__(self, made: dict[int, Session], directories: dict[int, Path]) -> None:
        super().__init__(made)
        self._directories = directories

    def beside(self, node_id: int) -> Session:
        return attach(node_id=node_id, runtime_dir=self._directories[node_id])


@pytest.fixture(scope="module", params=["one host", "two hosts"])
def sessions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """A session with each of two nodes."""
    directory = tmp_path_factory.mktemp("links")
    if request.param == "one host":
        with daemons(directory, 2), attach(node_id=1, runtime_dir=directory) as one, \
                attach(node_id=2, runtime_dir=directory) as two:
            yield Sessions({1: one, 2: two}, {1: directory, 2: directory})
    else:
        with hosts(directory, 2) as made, attach(runtime_dir=made[0].directory) as one, \
                attach(runtime_dir=made[1].directory) as two:
            yield Sessions({1: one, 2: two}, {1: made[0].directory, 2: made[1].directory})


@pytest.mark.parametrize("owner", [1, 2])
def test_a_region_is_read_and_written_where_it_lies(sessions: Sessions, owner: int) -> None:
    """From the own node and from the other one; the writer is the one that the owner names."""
    mine, theirs = Links(sessions[1]), Links(sessions[owner])
    with theirs.offer(f"table of {owner}", 4096, writer=1) as table, mine.open(owner) as link:
        table.view[8:16] = b"abcdefgh"
        seen = link.region(f"table of {owner}", change=True)
        assert (seen.size, seen.rights) == (4096, 3)
        assert seen.read(8, 8) == b"abcdefgh" and seen.read(4088, 8) == bytes(8)
        seen.write(16, b"from afar")
        assert bytes(table.view[16:25]) == b"from afar" and seen.read(8, 17) == b"abcdefghfrom afar"


@pytest.mark.parametrize("owner", [1, 2])
def test_words_are_changed_by_atomics(sessions: Sessions, owner: int) -> None:
    with Links(sessions[owner]).offer(f"words of {owner}", 64, atomics=True) as words, \
            Links(sessions[1]).open(owner) as one, Links(sessions[2]).open(owner) as two:
        first, second = (link.region(f"words of {owner}", change=True) for link in (one, two))
        assert first.fetch_add(8, 5) == 0 and second.fetch_add(8, -1) == 5
        assert first.compare_swap(8, 4, 1 << 63) == 4 and second.compare_swap(8, 4, 9) == 1 << 63
        assert int.from_bytes(words.view[8:16], "little") == 1 << 63


@pytest.mark.parametrize("owner", [1, 2])
@pytest.mark.parametrize("size", [1, 60, 5000])
def test_a_region_is_as_large_as_was_wanted(sessions: Sessions, owner: int, size: int) -> None:
    """No page more: who goes past its end is told so."""
    name = f"{size} bytes of {owner}"
    with Links(sessions[owner]).offer(name, size, atomics=True) as made, Links(sessions[1]).open(owner) as link:
        sized = link.region(name, change=True)
        assert len(made.view) == sized.size == size and sized.read(size - 1, 1) == bytes(1)
        for past in (lambda: sized.read(size, 1), lambda: sized.read(size - 1, 2),
                     lambda: sized.fetch_add(size // 8 * 8, 1)):
            with pytest.raises(LinkError, match="goes beyond the region") as error:
                past()
            assert error.value.status == "wrong"


def test_what_is_written_may_have_items_of_any_size(sessions: Sessions) -> None:
    words = array("Q", [1, 2, 3])
    with Links(sessions[2]).offer("items", 64, writer=1) as made, Links(sessions[1]).open(2) as link:
        items = link.region("items", change=True)
        items.write(8, memoryview(words))
        assert bytes(made.view[8:32]) == words.tobytes() and bytes(made.view[32:]) == bytes(32)


def test_a_name_that_is_no_text_is_refused(sessions: Sessions) -> None:
    with Links(sessions[1]).open(2) as link:
        for act in (lambda: Links(sessions[2]).offer("\udc80", 8), lambda: link.region("\udc80")):
            with pytest.raises(ConfigError, match="is no text"):
                act()


def test_who_is_not_named_only_reads(sessions: Sessions) -> None:
    with Links(sessions[2]).offer("of one", 64, writer=2), Links(sessions[1]).open(2) as link:
        with pytest.raises(ConfigError, match="region 'of one' of node 2 is open to reads only"):
            link.region("of one", change=True)
        reads = link.region("of one")
        with pytest.raises(LinkError, match=r"grant doesn't allow it|may not do that") as error:
            reads.write(0, b"12345678")
        assert error.value.status in ("refused", "wrong")
        assert reads.read(0, 8) == bytes(8)


def test_what_is_wrong_is_said_and_hurts_nobody(sessions: Sessions) -> None:
    with Links(sessions[2]).offer("small", 8192, atomics=True), Links(sessions[1]).open(2, memory=4096) as link, \
            Links(sessions[1]).open(2) as other:
        region = link.region("small", change=True)
        for wrong in (lambda: region.read(8190, 8), lambda: region.fetch_add(4, 1), lambda: region.read(0, 4097)):
            with pytest.raises(LinkError, match="region 'small' of node 2"):
                wrong()
        assert region.fetch_add(0, 1) == 0 and other.region("small").read(0, 1) == b"\1"
    with pytest.raises(ConnectionEnded, match="node 2 offers no region 'none'"), Links(sessions[1]).open(2) as link:
        link.region("none")
    with pytest.raises(ConnectionEnded, match="there is no node 77 in the group of node 1"):
        Links(sessions[1]).open(77)
    with pytest.raises(ConfigError, match="must have between 1 and 64"):
        Links(sessions[1]).offer("x" * 65, 64)
    with pytest.raises(ConfigError, match="1024 MiB for all links and regions of one program"):
        Links(sessions[1]).offer("huge", (1 << 30) + 1)
    with Links(sessions[1]).offer("twice", 64), pytest.raises(ConfigError, match="there is a region 'twice' already"):
        Links(sessions[1]).offer("twice", 64)


def test_a_region_that_has_ended_is_found_no_more_and_ends_within_its_lease(sessions: Sessions) -> None:
    table = Links(sessions[2]).offer("ends", 64)
    with Links(sessions[1]).open(2) as link:
        region = link.region("ends")
        table.end()

        def is_over() -> bool:
            try:
                region.read(0, 8)
            except LinkError as error:
                assert error.status == "ended"
                return True
            return False

        wait_until(is_over, 10, what="the end of the lease")
        with pytest.raises(ConnectionEnded):
            link.region("ends").read(0, 8)
        with Links(sessions[2]).offer("ends", 8192) as again:
            again.view[0] = 7
            with pytest.raises(LinkError):
                region.read(0, 8)
            anew = link.region("ends")
            assert anew.read(0, 1) == b"\7" and anew.size == 8192


@pytest.mark.slow
def test_a_link_is_used_again_with_what_it_has_open(sessions: Sessions) -> None:
    """Unless the region has ended since, and another one has its name."""
    with Links(sessions[1]).open(2) as held:  # what other tests have left is used before
        first = Links(sessions[1]).open(2)
        assert held.id != first.id
        with Links(sessions[2]).offer("again", 4096) as table:
            assert first.region("again").read(0, 1) == b"\0"
            first.close()
            with pytest.raises(LinkError, match="this link is closed"):
                first.region("again")
            table.view[0] = 1
            with Links(sessions[1]).open(2) as second:
                assert second.id == first.id and second.region("again").read(0, 1) == b"\1"
        wait_until(lambda: ends(sessions, first.id), 10, what="the end of the lease")
        with Links(sessions[2]).offer("again", 8192) as table, Links(sessions[1]).open(2) as third:
            table.view[0] = 2
            assert third.id == first.id and third.region("again").read(0, 1) == b"\2"


def test_a_session_that_is_forgotten_ends_with_its_links(sessions: Sessions) -> None:
    going = sessions.beside(1)
    Links(going).open(2).close()
    Links(going).open(1)
    channel, gone = going._channel, weakref.ref(going)
    del going
    wait_until(lambda: gc.collect() >= 0 and gone() is None and channel.ended)


def ends(sessions: Sessions, link_id: int) -> bool:
    """The region of that link has ended."""
    with Links(sessions[1]).open(2) as link:
        assert link.id == link_id
        try:
            link.region("again").read(0, 8)
        except (LinkError, ConnectionEnded):
            return True
    return False


@contextlib.contextmanager
def echoing(port: Port) -> Iterator[None]:
    """Answers all calls at a port, with what came and from where."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            if (message := port.receive(0.1)) is not None and message.call:
                port.answer(message, b"%d:" % message.node_id + message.data)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("server", [1, 2])
def test_calls_come_back_to_whoever_made_them(sessions: Sessions, server: int) -> None:
    with Links(sessions[server]).listen(7) as port, echoing(port):
        links = [Links(sessions[node]).open(server) for node in (1, 2, 1)]
        for turn in range(30):
            for number, link in enumerate(links):
                text = b"%d of %d" % (turn, number) + bytes(turn * 50)
                assert link.call(7, text) == b"%d:" % (1, 2, 1)[number] + text
        for link in links:
            link.close()


def test_messages_come_in_the_order_sent(sessions: Sessions) -> None:
    with Links(sessions[2]).listen(9) as port, Links(sessions[1]).open(2) as link:
        for number in range(200):
            link.send(b"%d" % number, 9)
        came = [port.receive() for _ in range(200)]
        assert [one.data for one in came if one] == [b"%d" % number for number in range(200)]
        assert {(one.node_id, one.sender, one.call) for one in came if one} == {(1, link.id, 0)}
        assert port.receive(0) is None
        with pytest.raises(LinkError, match="nobody is there") as error:
            link.send(b"x", 10)
        assert error.value.status == "nobody"
        with pytest.raises(ConfigError, match="port 9 is bound"):
            Links(sessions[2]).listen(9)
        with pytest.raises(ConfigError, match="16376 are the limit"):
            link.send(bytes(16377), 9)


def test_a_receiver_without_room_lets_its_senders_wait(sessions: Sessions) -> None:
    with Links(sessions[2]).listen(9) as port, Links(sessions[1]).open(2, timeout_s=0.3) as link:
        sent = 0
        with pytest.raises(TimeoutError, match=r"node 2 has not answered within 0\.3 s"):
            while sent < 1000:
                link.send(bytes(10_000), 9)
                sent += 1
        assert 8 <= sent < 30  # a box of 256 KiB, or on one host a ring of 64 KiB
        for _ in range(sent):
            assert port.receive() is not None
        while (late := port.receive(0.0)) is not None:  # between hosts the last one was on its way
            assert late.data == bytes(10_000)


@pytest.mark.slow
def test_who_takes_no_answers_keeps_others_from_theirs_once(sessions: Sessions) -> None:
    """Method: many calls of a program that doesn't look for their answers, in front of one of another program there."""
    last = threading.Event()
    with sessions.beside(1) as deaf, Links(sessions[2]).listen(9) as port, Links(deaf).open(2) as silent, \
            Links(sessions[1]).open(2, timeout_s=12.0) as link:

        def ask(number: int) -> None:
            silent.view[: HEAD.size] = HEAD.pack(number)
            silent.user.send(HEAD.size, silent.buffer, port=9, cookie=number)
            silent.user.submit()
            wait_until(lambda: any(cookie == number for cookie, _, _ in silent.user.take()))

        def serve() -> list[bool]:
            answered = []
            while not last.is_set() or port._waiting:
                if (message := port.receive(0.05)) is not None:
                    try:
                        port.answer(message, bytes(16_000), timeout_s=1.0)
                        answered.append(True)
                    except TimeoutError as error:
                        assert "takes nothing" in str(error)
                        answered.append(False)
            return answered

        for number in range(1, 65):
            ask(number)
        with ThreadPoolExecutor(1) as pool:
            answers = pool.submit(serve)
            try:
                assert link.call(9, b"how are you?") == bytes(16_000)  # each in front of it waited for 1 s otherwise
                silent.user.messages()
                ask(65)
                wait_until(lambda: any(HEAD.unpack_from(data) == (65,) for _, _, data in silent.user.messages()))
            finally:
                last.set()
        answered = answers.result()
        assert answered.count(False) > 40 and answered[-2:] == [True, True]


@pytest.mark.slow
def test_what_a_program_had_open_ends_with_it(sessions: Sessions) -> None:
    with sessions.beside(2) as going, Links(sessions[1]).open(2) as link:
        Links(going).offer("goes", 64)
        port = Links(going).listen(11)
        region = link.region("goes")
        assert region.read(0, 8) == bytes(8)
        going.close()
        with pytest.raises(NodeStopped):
            port.receive()

        def is_gone() -> bool:
            try:
                link.region("goes").read(0, 8)
            except ConnectionEnded:
                return True
            return False

        wait_until(is_gone, what="the region's end")
        Links(sessions[2]).listen(11).close()



def test_what_was_given_up_waiting_for_is_carried_out_as_it_was_asked(sessions: Sessions,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that nobody waits for any more lies in the link's memory until the receiver has room for it: the next
    one waits for that, and does not take its place. (Through the pools; through a duplex nothing is on its way.)"""
    monkeypatch.setattr("spindle.links.duplexes.FIRST", 1 << 30)
    with Links(sessions[2]).listen(9) as port, Links(sessions[1]).open(2, timeout_s=0.2) as link:
        sent = 0
        with pytest.raises(TimeoutError):
            while True:
                link.send(b"%d" % sent + bytes(10_000), 9)
                sent += 1
        for _ in range(2):
            with pytest.raises(TimeoutError, match="node 2 has not answered within"):
                link.send(b"later", 9)
        came = []
        while message := port.receive(0.5):
            came.append(message.data.rstrip(b"\0"))
        assert came == [b"%d" % number for number in range(sent + 1)]
        link.send(b"at last", 9)
        last = port.receive()
        assert last is not None and last.data == b"at last"


def test_a_request_larger_than_the_memory_of_its_link_says_so(sessions: Sessions) -> None:
    with Links(sessions[2]).offer("large", 8192, writer=1), Links(sessions[1]).open(2, memory=4096) as link:
        region = link.region("large", change=True)
        for wrong in (lambda: region.read(0, 4097), lambda: region.write(0, bytes(4097)),
                      lambda: region.read(0, -1)):
            with pytest.raises(LinkError, match=r"there may be from 0 to 4096, the link's memory") as error:
                wrong()
            assert error.value.status == "wrong"
        region.write(0, bytes(4095) + b"!")
        assert region.read(4095, 1) == b"!"


def test_a_request_outside_its_region_says_so(sessions: Sessions) -> None:
    """Also where its offset is no number that a request could have."""
    mine = Links(sessions[2])
    with mine.offer("data", 8192, writer=1), mine.offer("words", 8192, atomics=True), \
            Links(sessions[1]).open(2) as link:
        data, words = (link.region(name, change=True) for name in ("data", "words"))
        for offset in (-8, -1, 8192, (1 << 64) - 8, (1 << 64) - 4, 1 << 64, 1 << 90):
            for outside in (lambda at: data.read(at, 8), lambda at: data.write(at, bytes(8)),
                            lambda at: words.compare_swap(at, 0, 1), lambda at: words.fetch_add(at, 1)):
                with pytest.raises(LinkError, match="of node 2: it goes beyond the region") as error:
                    outside(offset)
                assert error.value.status == "wrong"
        assert data.read(8184, 8) == bytes(8) and words.fetch_add(8184, 1) == 0


def test_only_who_was_called_can_answer(sessions: Sessions) -> None:
    """Others who send to the caller's link are passed over, whatever call they name; and what comes while nobody calls
    is not kept."""
    with Links(sessions[2]).listen(7) as port, Links(sessions[1]).open(2) as link, Links(sessions[2]).open(1) as other:
        for number in (1, 2, 3, 1 << 63):
            other.send(b"forged", to=link.id, call=number)
        answers: list[bytes] = []
        thread = threading.Thread(target=lambda: answers.append(link.call(7, b"?")))
        thread.start()
        message = port.receive()
        assert message is not None and message.call
        for number in (0, 1, 2, 3, message.call ^ 1, message.call + 1):
            other.send(b"forged", to=link.id, call=number)
        port.answer(message, b"!")
        thread.join()
        assert answers == [b"!"]
        with pytest.raises(LinkError, match="nobody is there"):  # a port has no other name than its number
            link.send(b"by its link", to=port._end.id)
        assert port.receive(0.05) is None


def test_memory_that_may_not_be_looked_for_is_asked_for(runtime_dir: Path) -> None:
    """Goal: a region of another node of the host, where the kernel lets no node look at another's descriptors (other
    users, other pid namespaces). Method: embedded nodes, which are all told so."""
    with contextlib.ExitStack() as stack:
        tried = stack.enter_context(patch("spindle.pool.pooling.open_file_of", side_effect=PermissionError))
        one, two = (stack.enter_context(embed(config=NodeConfig(runtime_dir=runtime_dir))) for _ in range(2))
        with Links(two).offer("table", 4096, atomics=True) as table, Links(one).open(two.node_id) as link:
            table.view[8:16] = b"abcdefgh"
            seen = link.region("table", change=True)
            assert seen.read(8, 8) == b"abcdefgh" and seen.fetch_add(0, 3) == 0 and table.view[0] == 3
        assert tried.called
