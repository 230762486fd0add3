"""Goal: what is read is published exactly, as often and as fast as asked, and every refusal names the message.

Method: the sources and their limits as plain functions; refusals against a stand-in node, whose writers nobody empties.
Publishing to real nodes is in test_daemons.py.
"""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle.cli import pub as module
from spindle.cli.pub import limited, paced, source, stdin_lines, unhexed
from spindle.group.topics import TopicSpec
from tests.spindle.cli.support import Cli
from tests.spindle.stand_in import StandInNode


class Pipe(io.RawIOBase):
    """A stdin that gives what was written in the given pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = list(pieces)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def, override]
        piece = self._pieces.pop(0) if self._pieces else b""
        buffer[: len(piece)] = piece
        return len(piece)


def give(monkeypatch: pytest.MonkeyPatch, *pieces: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Pipe(list(pieces)))))


def flat(batches: Iterator[list[bytes]]) -> list[bytes]:
    return list(itertools.chain.from_iterable(batches))


@given(st.lists(st.binary(max_size=40).filter(lambda b: b"\n" not in b and b"\r" not in b)), st.data())
def test_lines_whatever_the_pieces(lines: list[bytes], data: st.DataObject) -> None:
    text = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(1, max(1, len(text) - 1)), max_size=5, unique=True)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)]) if text[a:b]]
    with pytest.MonkeyPatch.context() as patch:
        give(patch, *pieces)
        assert flat(stdin_lines()) == lines


def test_lines_come_when_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, b"one\ntwo\nth", b"ree\r\nfo", b"ur")
    assert list(stdin_lines()) == [[b"one", b"two"], [b"three"], [b"four"]]


def test_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"\x00file\n")
    assert flat(source(("a", "b"), (tmp_path / "f",), False, False)) == [b"a", b"b", b"\x00file\n"]
    assert flat(source(("dead be", ""), (), False, True)) == [b"\xde\xad\xbe", b""]
    assert flat(source((os.fsdecode(b"gr\xfc\xdfe"), "grüße"), (), False, False)) == [b"gr\xfc\xdfe", "grüße".encode()]
    with pytest.raises(click.ClickException, match="message 1: not hexadecimal"):
        flat(source((os.fsdecode(b"\xfc"),), (), False, True))
    give(monkeypatch, b"x\ny", b"\n")
    assert flat(source((), (), True, False)) == [b"x\ny\n"]
    give(monkeypatch, b"00 01\nff\n")
    assert flat(source((), (), False, True)) == [b"\x00\x01", b"\xff"]
    give(monkeypatch, b"00\nxx\n")
    with pytest.raises(click.ClickException, match="message 2: not hexadecimal"):
        flat(source((), (), False, True))
    with pytest.raises(click.UsageError, match="--bytes reads stdin"):
        source(("a",), (), True, False)
    with pytest.raises(click.ClickException, match="message 7"):
        unhexed(b"\xff", 7)


def test_count_repeats_and_cuts() -> None:
    batches = [[b"a", b"b"], [b"c"]]
    assert flat(limited(iter(batches), None)) == [b"a", b"b", b"c"]
    assert flat(limited(iter(batches), 1)) == [b"a"]
    assert flat(limited(iter(batches), 3)) == [b"a", b"b", b"c"]
    assert flat(limited(iter(batches), 7)) == [b"a", b"b", b"c"] * 2 + [b"a"]
    assert list(itertools.islice(limited(iter(batches), 0), 5)) == [[b"a", b"b"], [b"c"]] * 2 + [[b"a", b"b"]]
    assert flat(limited(iter([]), 4)) == [], "nothing can't be repeated"


def test_rate_is_kept_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    def sleep(seconds: float) -> None:
        assert seconds > 0
        now[0] += seconds + 0.003  # every sleep is too long

    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", sleep)
    assert flat(paced(iter([[b"x"] * 60, [b"y"] * 41]), 50.0)) == [b"x"] * 60 + [b"y"] * 41
    assert now[0] == pytest.approx(102.0, abs=0.005), "late sleeps don't add up"


def test_no_rate_changes_nothing() -> None:
    batches = [[b"a", b"b"], [b"c"]]
    assert list(paced(iter(batches), None)) == batches


@pytest.fixture
def node(stand_in: StandInNode) -> StandInNode:
    for spec in (TopicSpec("t", size_max=31), TopicSpec("typed", "Air", b"\x01")):
        stand_in.call(lambda spec=spec: stand_in.declare_topic(spec))
    return stand_in


def test_too_large_is_refused_by_number(cli: Cli, node: StandInNode) -> None:
    result = cli("pub", "t", "small", "x" * 32, "--readers", 0, "--timeout", 0)
    assert result.code == 1
    assert "message 2 has 32 bytes" in result.err and "is 31" in result.err and "--size-max" in result.err


def test_held_back_is_refused_by_number(cli: Cli, node: StandInNode) -> None:
    result = cli("pub", "t", "x", "--count", 20, "--readers", 0, "--timeout", "0.05")
    assert result.code == 1 and "message 17 was held back for 0.05 s" in result.err, "the stand-in has 16 slots"


@pytest.mark.slow
def test_not_delivered_is_told(cli: Cli, node: StandInNode) -> None:
    begin = time.monotonic()
    result = cli("pub", "t", "a", "b", "--timeout", "0.05", "--json")
    assert result.code == 1 and "not delivered everywhere within 0.05 s" in result.err
    assert "nobody subscribes to 't'" in result.err and time.monotonic() - begin < 5
    assert {key: result.json[key] for key in ("topic", "published", "bytes", "delivered")} == {
        "topic": "t",
        "published": 2,
        "bytes": 2,
        "delivered": False,
    }


@pytest.mark.slow
def test_typed_topics_take_no_raw_bytes(cli: Cli, node: StandInNode) -> None:
    result = cli("pub", "typed", "a", "--timeout", 0, "--readers", 0)
    assert result.code == 1 and "carries Air" in result.err and "--force" in result.err
    forced = cli("pub", "typed", "a", "--timeout", 0, "--readers", 0, "--force")
    assert "carries Air" not in forced.err


@pytest.mark.parametrize(
    ("level", "policy"),
    [("unordered", {"Reliability": {"kind": "BestEffort"}}), ("atomic", {}),
     ("volatile", {"Durability": {"kind": "TransientLocal"}}), ("logged", {"Durability": {"kind": "Persistent"}})],
)  # fmt: skip
def test_writers_offer_what_the_level_means(cli: Cli, node: StandInNode, level: str, policy: dict[str, object]) -> None:
    seen = []
    node.announce_endpoint = lambda endpoint: seen.append(endpoint)  # type: ignore[method-assign]
    node.withdraw_endpoint = lambda guid: None  # type: ignore[method-assign]
    cli("pub", f"new-{level}", "a", "--level", level, "--timeout", 0, "--readers", 0)
    assert seen[0].is_writer and json.loads(seen[0].endpoint) == {"qos": policy}
    info = next(one for one in node.topics() if one.spec.name == f"new-{level}")
    assert info.spec.level.name.lower() == level


def test_input_of_a_terminal_that_has_gone_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has an error for who reads at that moment, and an end for everybody later."""
    def fails(number: int) -> Callable[[object], bytes]:
        def read(_: object) -> bytes:
            raise OSError(number, os.strerror(number))

        return read

    main, theirs = os.openpty()
    try:
        with os.fdopen(theirs) as terminal, monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", terminal)
            with pytest.raises(click.ClickException, match=r"another program.* file or a pipe"):
                module._from_stdin(fails(errno.EIO))
            os.close(main)
            main = -1
            assert module._from_stdin(fails(errno.EIO)) == b""
            with pytest.raises(click.ClickException, match="Bad file descriptor"):
                module._from_stdin(fails(errno.EBADF))
    finally:
        if main >= 0:
            os.close(main)
