"""Goal: topics with a type can be looked at, read and written from the shell, as JSON; what is wrong in the JSON is
named with its member; nothing that the shell writes ends a reader.

Method: one program with an embedded node that reads and writes typed topics, the commands beside it; two daemons.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.struct_pb2 import Struct
from google.protobuf.wrappers_pb2 import StringValue

import dds
from dds.codecs.json_samples import from_plain, to_plain
from dds.idl import make_idl_struct
from dds.idl.annotations import appendable
from dds.idl.types import bounded_str, float32, float64, int32, sequence, uint8
from tests.dds.idl.evolving import Mode, struct
from tests.dds.idl.test_typeobjects import Base, Colour, Flags, Paint, Shade
from tests.spindle.cli.support import Cli, spawn
from tests.spindle.daemons import daemons
from tests.support import wait_until

FIX = struct(_keys=("aircraft",), aircraft=str, altitude=int32, mode=Mode)
LONG = dds.duration(seconds=10)
RECORD = np.dtype([("plane", "<u4"), ("at", [("x", "<f4"), ("y", "<f4")]), ("name", "S4"), ("track", "<i2", (2,))])
PAINT = Paint("a", Colour.green, Flags(True, False), Shade(discriminator=Colour.red, value=5), Base(3), None,
              [[1, 2, 3]] * 300, [Base(4)], 5, [["x"]], 6, 7)


class Program:
    """A program that has a topic open."""

    def __init__(self, data_type: object, keys: tuple[str, ...] = (), order: str = "") -> None:
        self.participant = dds.DomainParticipant.embedded()
        topic = dds.Topic(self.participant, "fixes", data_type, keys=keys, order=order)
        self.reader, self.writer = dds.DataReader(self.participant, topic), dds.DataWriter(self.participant, topic)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.participant.close()


@pytest.fixture
def fixes(runtime_dir: Path) -> Iterator[Program]:
    with Program(FIX) as program:
        yield program


def test_the_type_as_idl(cli: Cli, fixes: Program) -> None:
    shown = cli("typeof", "fixes")
    assert shown.code == 0 and "@key string aircraft;" in shown.out and "enum Mode" in shown.out
    assert max(map(len, cli("typeof", "--help").out.splitlines())) <= 80
    (found,) = cli("typeof", "fixes", "--json").json
    assert found["kind"] == "idl" and found["endpoints"] == 2 and found["definition"] in shown.out
    missing = cli("typeof", "fixe")
    assert missing.code and "there is no topic 'fixe'" in missing.err


@pytest.mark.slow
def test_samples_go_out_as_json_and_come_in(cli: Cli, fixes: Program) -> None:
    sent = cli("pub", "fixes", '{"aircraft": "A", "altitude": 900, "mode": "manual"}',
               '{"aircraft": "B", "altitude": -1, "mode": 7}', "--json")
    assert sent.code == 0, sent.err
    assert sent.json["published"] == 2 and sent.json["delivered"]
    assert fixes.reader.take(9)[:2] == [FIX("A", 900, Mode.manual), FIX("B", -1, 7)]
    command = spawn("sub", "fixes", "--count", 2, "--timeout", 20)
    wait_until(lambda: len(fixes.writer.matched_sub) == 2)
    fixes.writer.write(FIX("C", 1, Mode.auto))
    fixes.writer.dispose(FIX("C", 0, Mode.auto))
    out, err = command.communicate(timeout=30)
    assert [json.loads(line) for line in out.splitlines()] == [
        {"aircraft": "C", "altitude": 1, "mode": "auto"}, {"ended": "disposed", "key": {"aircraft": "C"}}], err


@pytest.mark.parametrize(("text", "says"), [
    ("{", "message 2 is not JSON: Expecting property name"),
    ("[]", "message 2: the sample is [], expected an object with the members of struct test::Fix: aircraft, altitude"),
    ('{"aircraft": "A", "altitude": 1}', "message 2: member mode of struct test::Fix is missing"),
    ('{"aircraft": "A", "altitud": 1, "mode": 0}', "struct test::Fix has no member altitud; it has aircraft"),
    ('{"aircraft": 5, "altitude": 1, "mode": 0}', "message 2: member aircraft is 5, expected text"),
    ('{"aircraft": "A", "altitude": 1.5, "mode": 0}', "member altitude is 1.5, expected int32, a whole number"),
    ('{"aircraft": "A", "altitude": 3000000000, "mode": 0}', "member altitude is 3000000000, expected int32"),
    ('{"aircraft": "A", "altitude": 1, "mode": "x"}', "message 2: member mode is 'x', expected one of auto, manual")])
def test_what_is_wrong_in_the_json_is_named(cli: Cli, fixes: Program, text: str, says: str) -> None:
    result = cli("pub", "fixes", '{"aircraft": "A", "altitude": 1, "mode": "auto"}', text)
    assert result.code == 1 and says in result.err
    assert fixes.reader.take_one(timeout=LONG) == FIX("A", 1, Mode.auto)  # what stood before it
    (ended,) = fixes.reader.take(9)
    assert ended.sample_info.instance_state == dds.InstanceState.NotAliveNoWriters  # not disposed


def test_raw_bytes_end_no_reader(cli: Cli, fixes: Program) -> None:
    refused = cli("pub", "fixes", "--hex", "00")
    assert refused.code == 2 and "JSON" in refused.err and "--force" in refused.err
    assert cli("pub", "fixes", "nonsense", "--force").code == 0
    fixes.writer.write(FIX("A", 1, Mode.auto))
    assert fixes.reader.take_one(timeout=LONG) == FIX("A", 1, Mode.auto)
    assert fixes.reader.get_sample_lost_status().total_count == 1


@pytest.mark.slow
def test_a_type_that_nobody_says(cli: Cli, runtime_dir: Path) -> None:
    with dds.DomainParticipant.embedded() as participant:
        topic = dds.Topic(participant, "fixes", FIX, qos=dds.Qos(dds.Policy.Durability.Volatile))
        for command in (("pub", "fixes", "{}"), ("typeof", "fixes"), ("sub", "fixes", "--timeout", 0.1)):
            result = cli(*command)
            assert result.code == 1 and "nobody who has it open says what that is" in result.err and topic


def test_records_and_messages(cli: Cli, runtime_dir: Path) -> None:
    with Program(RECORD, keys=("plane",)) as program:
        shown = cli("typeof", "fixes").out
        assert "// keys: plane" in shown and "track: ('<i2', (2,))" in shown
        plain = {"plane": 7, "at": {"x": 0.5, "y": "NaN"}, "name": "abc", "track": [1, -1]}
        assert cli("pub", "fixes", json.dumps(plain)).code == 0
        got = program.reader.take_one(timeout=LONG)
        assert got["plane"] == 7 and got["name"] == b"abc" and got["track"].tolist() == [1, -1]
        assert json.dumps(to_plain(RECORD, got)) == json.dumps(plain)
        wrong = cli("pub", "fixes", '{"plane": -1, "at": {"x": 0, "y": 0}, "name": "abc", "track": [1, 2]}')
        assert "member plane is -1, expected uint32" in wrong.err
        wrong = cli("pub", "fixes", '{"plane": 1, "at": {"x": "", "y": 0}, "name": "abc", "track": [1, 2]}')
        assert "member at.x is '', expected a number" in wrong.err
    with Program(StringValue) as program:
        assert "message google.protobuf.StringValue" in cli("typeof", "fixes").out
        assert "string value = 1;" in cli("typeof", "fixes").out
        assert cli("pub", "fixes", '"hello"').code == 0
        assert program.reader.take_one(timeout=LONG).value == "hello"


def test_a_topic_in_an_order_group(cli: Cli, runtime_dir: Path) -> None:
    with Program(FIX, order="flight") as program:
        assert "@key string aircraft;" in cli("typeof", "fixes").out
        assert cli("pub", "fixes", '{"aircraft": "A", "altitude": 1, "mode": "auto"}').code == 0
        assert program.reader.take_one(timeout=LONG) == FIX("A", 1, Mode.auto)


@pytest.mark.slow
def test_a_topic_in_an_order_group_whose_writers_have_gone(cli: Cli, runtime_dir: Path, tmp_path: Path) -> None:
    """Somebody has another topic of the group open: what is kept of this one is found by its name."""
    kept, out = dds.Qos(dds.Policy.Durability.TransientLocal, dds.Policy.History.KeepAll), tmp_path / "kept.mcap"
    with dds.DomainParticipant.embedded() as participant:
        keeper = dds.DataReader(participant, dds.Topic(participant, "other", FIX, kept, order="flight"))
        writer = dds.DataWriter(participant, dds.Topic(participant, "fixes", FIX, kept, order="flight"))
        writer.write(FIX("A", 1, Mode.manual))
        assert writer.wait_for_acks(LONG)
        writer.close()
        assert keeper and "@key string aircraft;" in cli("typeof", "fixes").out
        for topic in ("fixes", "fix*"):
            printed = cli("sub", topic, "--history", "-c", 1, "-t", 20, "--format", "lines")
            assert printed.code == 0 and json.loads(printed.out)["altitude"] == 1, printed.err
        recorded = cli("record", "fixes", "-o", out, "--history", "-c", 1)
        assert recorded.code == 0 and "waiting" not in recorded.err, recorded.err
        assert "fixes" in cli("replay", out, "--list").out
        other = cli("record", "else", "-o", out, "--force", "--history", "--duration", 1)
        assert other.code == 0 and "waiting for 'else'" in other.err and "0 messages of 0 topics" in other.err


@pytest.mark.slow
def test_a_topic_that_comes_in_an_order_group(runtime_dir: Path) -> None:
    """Who waits for it reads it there."""
    with dds.DomainParticipant.embedded() as participant, spawn("sub", "fixes", "-c", 1) as command:
        assert command.stderr is not None and b"waiting for topic 'fixes'" in command.stderr.readline()
        writer = dds.DataWriter(participant, dds.Topic(participant, "fixes", FIX, order="flight"))
        wait_until(writer.get_matched_subscriptions, 20, "the reader of spindle sub")
        writer.write(FIX("A", 1, Mode.manual))
        out, err = command.communicate(timeout=20)
        assert command.returncode == 0 and json.loads(out)["altitude"] == 1, err


@pytest.mark.slow
@pytest.mark.parametrize("style", ["text", "json", "lines"])
def test_two_daemons(runtime_dir: Path, style: str) -> None:
    """The program is at one, the shell at the other."""
    with daemons(runtime_dir, 2), dds.DomainParticipant(runtime_dir=runtime_dir, node_id=1) as participant:
        topic = dds.Topic(participant, "fixes", FIX)
        reader, writer = dds.DataReader(participant, topic), dds.DataWriter(participant, topic)
        command = spawn("sub", "fixes", "--node", 2, "--count", 2, "-t", 20, "--format", style, "--keep-all")
        wait_until(lambda: len(writer.matched_sub) == 2, timeout_s=20)
        writer.write(FIX("A", 1, Mode.auto))
        sent = spawn("pub", "fixes", "--node", 2)
        sent.communicate(b'{"aircraft": "B", "altitude": 2, "mode": "manual"}\n', timeout=30)
        assert sent.returncode == 0
        out, _ = command.communicate(timeout=30)
        first, second = out.decode().splitlines()
        end = first[first.index("{"):]
        assert json.loads(end) == {"aircraft": "A", "altitude": 1, "mode": "auto"} or (
            style == "json" and json.loads(end)["sample"]["aircraft"] == "A")
        assert '"B"' in second
        assert [reader.take_one(timeout=LONG) for _ in range(2)] == [FIX("A", 1, Mode.auto), FIX("B", 2, Mode.manual)]


# --- JSON alone

def test_every_kind_of_member_comes_back() -> None:
    plain = json.loads(json.dumps(to_plain(Paint, PAINT)))
    assert plain["flags"] == ["first"] and plain["shade"] == {"discriminator": "red", "value": 5}
    assert from_plain(Paint, plain) == PAINT
    assert from_plain(bytes, to_plain(bytes, b"\x00\xff")) == b"\x00\xff"
    message = Struct()
    message["a"] = 5
    assert from_plain(Struct, to_plain(Struct, message)) == message


def test_bounds_and_octets() -> None:
    cls = appendable(make_idl_struct("B", "B", {"t": bounded_str[2], "s": sequence[uint8, 2], "f": float32}))
    assert from_plain(cls, {"t": "ab", "s": "AQI=", "f": "Infinity"}) == cls("ab", [1, 2], float("inf"))
    for plain, says in (({"t": "abc", "s": [], "f": 0}, "member t is 'abc', expected text of at most 2 characters"),
                        ({"t": "", "s": [1, 2, 3], "f": 0}, "member s is .*, expected a list of at most 2 elements"),
                        ({"t": "", "s": [1, 300], "f": 0}, r"member s\[1\] is 300, expected uint8"),
                        ({"t": "", "s": "?", "f": 0}, "member s is '\\?', expected octets in base64"),
                        ({"t": "", "s": [], "f": True}, "member f is True, expected a number")):
        with pytest.raises(ValueError, match=says):
            from_plain(cls, plain)


@pytest.mark.parametrize(("kind", "plain", "says"), [
    ("f8", 10**400, "expected a number from -1.79769e+308 to 1.79769e+308"),
    ("f4", 1e39, "member it is 1e+39, expected a number from -3.40282e+38 to 3.40282e+38"),
    ("f2", 1e5, "member it is 100000.0, expected a number from -65504 to 65504"),
    ("c8", [0, -1e39], "member it is -1e+39, expected a number from -3.40282e+38 to 3.40282e+38"),
    ("S4", "\u2603", "member it is '\u2603', expected text in Latin-1"),
    ("V4", "AAA=", "member it is 'AAA=', expected 4 octets in base64"),
    ("V4", "AAAAAAAAAAA=", "member it is 'AAAAAAAAAAA=', expected 4 octets in base64")],
    ids=["double", "float", "half", "complex", "text", "few octets", "many octets"])
def test_what_a_member_has_no_room_for_is_refused(kind: str, plain: object, says: str) -> None:
    """It never becomes something else: an infinity, a question mark, a part of it."""
    with pytest.raises(ValueError, match=re.escape(says)):
        from_plain(np.dtype([("it", kind)]), {"it": plain})


@pytest.mark.parametrize(("of", "largest"), [(float32, 3.4028234663852886e38), (float64, 1.7976931348623157e308)])
def test_the_largest_numbers_of_a_type(of: object, largest: float) -> None:
    cls = make_idl_struct("B", "B", {"it": of})
    for fits in (largest, -largest, math.inf, -math.inf):
        assert from_plain(cls, {"it": fits}) == cls(fits)
    for beyond in (10**400, int(largest) * 2, -int(largest) * 2):
        with pytest.raises(ValueError, match=r"member it is .*, expected a number from"):
            from_plain(cls, {"it": beyond})


# --- writers that have gone

@pytest.mark.slow
def test_what_a_topic_keeps_is_read_and_its_type_shown_when_nobody_has_it_open(cli: Cli, runtime_dir: Path) -> None:
    """At a node that has it, and at one that must become a member to know."""
    with daemons(runtime_dir, 2):
        with dds.DomainParticipant(runtime_dir=runtime_dir, node_id=1) as one, \
                dds.DomainParticipant(runtime_dir=runtime_dir, node_id=1) as anchor:
            topic = dds.Topic(one, "fixes", FIX, qos=dds.Qos(dds.Policy.Durability.TransientLocal))
            kept = anchor.session.open_reader("fixes", keep_all=False, from_history=False)
            stays = dds.Qos(dds.Policy.WriterDataLifecycle(autodispose=False))
            writer = dds.DataWriter(one, topic, qos=stays)
            writer.write(FIX("A", 900, Mode.manual))
            assert writer.wait_for_acks(LONG) and kept
            one.close()
            for node in (1, 2):
                shown = cli("typeof", "fixes", "--node", node)
                assert shown.code == 0 and "@key string aircraft;" in shown.out, shown.err
                assert shown.out.startswith("// of samples that the topic keeps; nobody has it open with this type:")
                (found,) = cli("typeof", "fixes", "--node", node, "--json").json
                assert found["endpoints"] == 0 and found["definition"] in shown.out
                read = cli("sub", "fixes", "--node", node, "--history", "--count", 1, "--timeout", 20, "-f", "lines")
                assert json.loads(read.out) == {"aircraft": "A", "altitude": 900, "mode": "manual"}, read.err


def test_long_arrays_are_shortened_for_people() -> None:
    long = np.zeros((), [("n", "u4"), ("pixels", "u1", (20_000, 3)), ("few", "u1", (16384,))])[()]
    plain = to_plain(long.dtype, long, 2)
    assert plain["n"] == 0 and plain["pixels"] == [[0, 0, 0], [0, 0, 0], "... (20000 elements)"]
    assert len(plain["few"]) == 16384 and len(to_plain(long.dtype, long)["pixels"]) == 20_000
    cloud = make_idl_struct("Cloud", "Cloud", {"octets": sequence[uint8], "numbers": sequence[int32]})
    shown = to_plain(cloud, cloud(octets=bytes(20_000), numbers=list(range(20_000))), 3)
    assert shown == {"octets": "AAAA... (20000 octets)", "numbers": [0, 1, 2, "... (20000 elements)"]}
