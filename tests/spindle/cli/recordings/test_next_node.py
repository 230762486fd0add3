"""Goal: a replay whose node dies goes on at the next one: nothing is missing, nothing that was acknowledged comes
twice, the order stays, sets stay whole, instances end; and it says what is in doubt.
Method: three daemons. `spindle replay` in this process, at node 3, which is stopped until something is on its way, and
then killed; a program at node 2 reads."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import dds
from dds.codecs.schemas import schema_of
from dds.nodes.ways import HostNode
from spindle.cli.recordings.player import Player
from spindle.journal.playing import PlayedFile
from spindle.journal.recording import RecordingWriter
from tests.spindle.cli.recordings.programs import FIX, LONG, STATE, Collecting, a_state, recording
from tests.spindle.cli.support import Cli
from tests.spindle.daemons import Daemon, daemons
from tests.support import halt, wait_until

OF_GROUP = dds.Qos(dds.Policy.PresentationAccessScope.Group(coherent_access=True, ordered_access=True))
SETS = 300
LASTS_S = 6.0  # of a replay


def record_sets(node: dds.DomainParticipant, out: Path) -> float:
    """Sets of two topics in one order, whose instances end, with single samples between them; the speed at which it
    lasts LASTS_S."""
    states, fixes = (dds.Topic(node, name, of, order="group") for name, of in (("states", STATE), ("fixes", FIX)))
    publisher = dds.Publisher(node, OF_GROUP)
    first, second = dds.DataWriter(publisher, states), dds.DataWriter(publisher, fixes)
    with recording(["group"], out, node, ["group"], "--keep-all"):
        for number in range(0, 3 * SETS, 3):
            with publisher.coherent():
                first.write(a_state(number))
                second.write(FIX(f"a{number}", number + 1))
            first.write(a_state(number + 2))
            second.unregister_instance(FIX(f"a{number}", 0))
            if number % 10 == 0:
                assert first.wait_for_acks(LONG)
        assert first.wait_for_acks(LONG)
    first.close()
    second.close()
    file = PlayedFile(out)
    begin, end = file.times
    file.close()
    return (end - begin) / 1e9 / LASTS_S


@contextmanager
def killed_in_the_middle(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The node of the next replay, with some of its messages on their way."""
    players: list[Any] = []
    make = Player.__init__

    def made(self: Any, *arguments: Any) -> None:
        make(self, *arguments)
        players.append(self)

    problems: list[str] = []

    def kill() -> None:
        try:
            wait_until(lambda: players and players[0].count > SETS // 2, 30)
            halt(daemon.pid)
            wait_until(lambda: players[0]._underway.count >= 10, 30)
        except Exception as error:
            problems.append(repr(error))
        daemon.kill()

    monkeypatch.setattr(Player, "__init__", made)
    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield problems
    finally:
        thread.join()


@pytest.mark.slow
def test_it_goes_on_at_the_next_node(cli: Cli, runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                     ) -> None:
    out = tmp_path / "sets.mcap"
    with daemons(runtime_dir, 3) as group, dds.DomainParticipant(way=HostNode(2, runtime_dir)) as program:
        speed = record_sets(program, out)
        read = [dds.DataReader(program, dds.Topic(program, name, of, order="group"))
                for name, of in (("states", STATE), ("fixes", FIX))]
        with Collecting(*read) as collecting, killed_in_the_middle(group[2], monkeypatch) as problems:
            result = cli("replay", out, "--speed", f"{speed:.6f}", "--node", 3, "--timeout", 30, "--json")
            assert result.code == 0, result.err
            wait_until(lambda: len({number_of(one) for _, one, _ in collecting.got}) > 3 * SETS, 30)  # None, too
            wait_until(lambda: not living(collecting), 30)
        assert not problems
    assert result.json["messages"] == 3 * SETS and result.json["delivered"]
    assert result.json["resent"] >= 10, result.json
    assert "node 3 has gone away" in result.err and "goes on at node" in result.err
    assert f"{result.json['resent']} messages of fixes, states that may have been delivered" in result.err
    places: dict[tuple[int, int], list[int]] = {}
    for _, one, _ in collecting.got:
        if (number := number_of(one)) is not None:
            places.setdefault((one.sample_info.view_id, one.sample_info.sequence), []).append(number)
    seen = [sorted(places[place]) for place in sorted(places)]
    expected = [one for number in range(0, 3 * SETS, 3) for one in ([number, number + 1], [number + 2])]
    assert [one for at, one in enumerate(seen) if one not in seen[:at]] == expected  # sets are whole, in their order
    twice = len(seen) - len(expected)
    assert twice <= result.json["resent"]
    back = [at for at in range(1, len(seen)) if seen[at] < seen[at - 1]]
    assert len(back) <= 1, "what comes twice comes as one piece, at the beginning of the next node"


def living(collected: Collecting) -> set[str]:
    """Aircraft whose instances haven't ended."""
    last: dict[str, bool] = {}
    for topic, one, _ in collected.got:
        if topic == "fixes":
            last[getattr(one, "key_sample", one).aircraft] = hasattr(one, "altitude")
    return {aircraft for aircraft, lives in last.items() if lives}


def number_of(sample: Any) -> int | None:
    return getattr(sample, "number", getattr(sample, "altitude", None))


@pytest.mark.slow
def test_topics_in_no_group_and_without_keys(cli: Cli, runtime_dir: Path, tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """Written as they are; several of them."""
    out = tmp_path / "plain.mcap"
    writer = RecordingWriter(out, {})
    numbers = range(3 * SETS)
    channels = [writer.channel(f"t{number}", schema_of(bytes), {}) for number in range(3)]
    for number in numbers:
        writer.add(channels[number % 3], number, 10**9 + number * int(LASTS_S * 1e9 / len(numbers)), 0, b"%d" % number)
    writer.close()
    with daemons(runtime_dir, 3) as group, dds.DomainParticipant(way=HostNode(2, runtime_dir)) as program:
        read = [dds.DataReader(program, dds.Topic(program, f"t{number}", bytes)) for number in range(3)]
        with Collecting(*read) as collecting, killed_in_the_middle(group[2], monkeypatch) as problems:
            result = cli("replay", out, "--node", 3, "--timeout", 30, "--json")
            assert result.code == 0, result.err
            wait_until(lambda: len({bytes(one) for _, one, _ in collecting.got}) == len(numbers), 30)
        assert not problems
    assert result.json["resent"] >= 10 and result.json["messages"] == len(numbers)
    assert f"{result.json['resent']} messages of t0, t1, t2 that may have been" in result.err
    for place in range(3):
        got = [int(bytes(one)) for topic, one, _ in collecting.got if topic == f"t{place}"]
        assert [one for at, one in enumerate(got) if one not in got[:at]] == list(numbers[place::3])
        assert sum(later < earlier for earlier, later in itertools.pairwise(got)) <= 1
        assert len(got) <= len(numbers) // 3 + result.json["resent"]


@pytest.mark.slow
def test_without_another_node(cli: Cli, runtime_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 6, and what is in doubt: when nothing is looked for, and when nothing is found."""
    for more, text in ((("--no-reattach",), "node 1 has gone away; "),
                       (("--timeout", 1), "and no other one was there within 1 s; ")):
        out = tmp_path / "sets.mcap"
        with daemons(runtime_dir, 1) as group:
            with dds.DomainParticipant(way=HostNode(1, runtime_dir)) as program:
                if not out.exists():
                    speed = record_sets(program, out)
            with killed_in_the_middle(group[0], monkeypatch) as problems:
                result = cli("replay", out, "--speed", f"{speed:.6f}", *more)
            assert not problems
        assert result.code == 6, result.err
        assert text in result.err and "may not have been delivered" in result.err
