"""Keys found in payloads, and what is known of them.

Goal: equal bytes at the right places are the same key, and nothing else is; the layer above is asked exactly about the
messages that may concern it; what a message says of its collection is true of that collection.
Method: payloads made by hand; a delivery log without an engine, with a layer above that notes what it is asked.
"""

from __future__ import annotations

import struct

import pytest

from spindle_core.delivery import DeliveryLog
from spindle_core.keyed import Keyed, KeyedInfo, KeyPlaces, KeyTable
from spindle_core.reader import LogReader
from tests.spindle_core.logs import add_reader

HEAD = b"\1\2"
TWO_PARTS = KeyPlaces(HEAD, 0, [(4, 2), (8, 0)])  # 2 bytes at 4; a length at 8, and so many bytes


def text(number: int, name: bytes, rest: bytes = b"") -> bytes:
    return HEAD + b"??" + struct.pack("<HHI", number, 0, len(name)) + name + rest


def test_a_key_is_what_stands_in_its_places() -> None:
    key = TWO_PARTS.of(text(7, b"abc"))
    assert key is not None and TWO_PARTS.of(text(7, b"abc", b"else")) == key
    assert len({key, TWO_PARTS.of(text(8, b"abc")), TWO_PARTS.of(text(7, b"abd")), TWO_PARTS.of(text(7, b"ab"))}) == 4
    assert KeyPlaces(b"", 12, [(8, 4)]).of(b"12345678keys") == b"keys"


def test_parts_do_not_run_into_each_other() -> None:
    """("a", "0b") is not ("a0", "b"), where 0 are four zeros."""
    places = KeyPlaces(b"", 0, [(0, 0), (0, 0)])
    both = KeyPlaces(b"", 0, [(0, 0), (9, 0)])
    one, other = struct.pack("<I5sI5s", 1, b"a", 5, bytes(4) + b"b"), struct.pack("<I5sI1s", 5, b"a", 1, b"b")
    assert both.of(one) != both.of(other)
    assert places.of(struct.pack("<I1s", 1, b"a")) != places.of(struct.pack("<I2s", 2, b"aa"))


@pytest.mark.parametrize("payload", [
    b"", HEAD, b"\1\3" + text(7, b"abc")[2:], text(7, b"abc")[:-1], text(7, b"")[:-1], text(7, b"")[:5],
    HEAD + b"??" + struct.pack("<HHI", 7, 0, 0xFFFFFFFF) + b"abc"])
def test_what_is_of_another_layout_has_no_key(payload: bytes) -> None:
    assert TWO_PARTS.of(payload) is None


def test_a_layout_with_one_size_takes_no_other() -> None:
    places = KeyPlaces(b"", 8, [(0, 4)])
    assert places.of(bytes(8)) == bytes(4) and places.of(bytes(7)) is None and places.of(bytes(9)) is None


@pytest.mark.parametrize(("size", "pieces"), [
    (0, []), (0, [(0, 1)] * 9), (8, [(6, 4)]), (8, [(6, 0)]), (0, [(-1, 4)]), (0, [(0, 1 << 31)])])
def test_places_that_cannot_be(size: int, pieces: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="part"):
        KeyPlaces(b"", size, pieces)


class Layer:
    """Knows keys by the first byte of the payload, and notes what it is asked about."""

    def __init__(self, log: DeliveryLog, keep_all: bool = True) -> None:
        self.log = log
        self.table = KeyTable(KeyPlaces(b"", 0, [(0, 1)]))
        self.asked: list[tuple[bytes, int]] = []
        self.reader, self.cursor = add_reader(log, keep_all)
        self.reader.only_plain = True
        self.known: dict[bytes, Keyed] = {}

    def learn(self, payload: bytes, info: KeyedInfo, sample: object) -> Keyed:
        assert sample is None
        if payload == b"?":
            raise ValueError("no key")
        self.asked.append((payload, info.sender))
        found = self.known.get(payload[:1])
        if found is None:
            found = self.known[payload[:1]] = Keyed(payload[0], ())
            self.table.remember(payload, found)
        return found

    def write(self, *messages: tuple[bytes, int], tag: int = 0) -> None:
        for payload, sender in messages:
            assert self.log.append(payload, sender, self.log.delivered, 1, 1, writer_id=7, tag=tag)

    def take(self, n: int = 100) -> list[list[object]]:
        got = self.reader.take_with(n, lambda view: [bytes(view)], KeyedInfo, None, keys=self.table, learn=self.learn)
        return list(got)


class Noted:
    def __init__(self, view: memoryview) -> None:
        self.payload = bytes(view)
        self.info: KeyedInfo | None = None


def infos(layer: Layer, n: int = 100) -> list[tuple[bytes, bool, int]]:
    got = layer.reader.take_with(n, Noted, KeyedInfo, "info", keys=layer.table, learn=layer.learn)
    return [(one.payload, one.info.given.new, one.info.following) for one in got]


@pytest.fixture
def layer() -> Layer:
    return Layer(DeliveryLog(1 << 16, 0))


def test_only_what_is_new_is_asked_about(layer: Layer) -> None:
    layer.write((b"a1", 1), (b"a2", 1), (b"b1", 1), (b"a3", 2), (b"a4", 1), (b"a5", 2))
    assert [payload for payload, in layer.take()] == [b"a1", b"a2", b"b1", b"a3", b"a4", b"a5"]
    assert layer.asked == [(b"a1", 1), (b"b1", 1), (b"a3", 2)]


def test_what_was_unsettled_is_asked_about_again(layer: Layer) -> None:
    layer.write((b"a1", 1), (b"b1", 1))
    layer.take()
    layer.known[b"a"].unsettle()
    layer.asked.clear()
    layer.write((b"a2", 1), (b"b2", 1), (b"a3", 1))
    layer.take()
    assert layer.asked == [(b"a2", 1)]


def test_more_writers_than_are_remembered(layer: Layer) -> None:
    for _ in range(2):
        layer.write(*((b"a", sender) for sender in range(1, 10)))
    layer.take()
    assert layer.asked == [(b"a", sender) for sender in range(1, 10)] * 2


def test_what_is_forgotten_is_learnt_anew(layer: Layer) -> None:
    layer.write((b"a1", 1))
    layer.take()
    layer.table.forget(layer.known.pop(b"a"))
    assert len(layer.table) == 0
    layer.write((b"a2", 1))
    layer.take()
    assert layer.asked == [(b"a1", 1), (b"a2", 1)]


def test_a_key_in_many_forms_does_not_fill_the_table() -> None:
    table, keyed = KeyTable(KeyPlaces(b"", 0, [(0, 2)])), Keyed(1, ())
    for number in range(100):
        table.remember(b"%02d" % number, keyed)
    assert len(table) == 4
    table.forget(keyed)
    assert len(table) == 0


def test_infos_say_what_is_true_of_their_collection(layer: Layer) -> None:
    layer.write((b"a1", 1), (b"b1", 1), (b"a2", 1), (b"a3", 1))
    assert infos(layer, 3) == [(b"a1", True, 1), (b"b1", True, 0), (b"a2", True, 0)]
    assert infos(layer) == [(b"a3", False, 0)]
    layer.known[b"a"].new = True
    layer.write((b"a4", 1), (b"a5", 1))
    assert infos(layer) == [(b"a4", True, 1), (b"a5", True, 0)]


def test_a_block_says_the_same(layer: Layer) -> None:
    layer.write((b"a1", 1), (b"b1", 1), (b"a2", 1), (b"a3", 2))
    with layer.reader.take_block(3, layer.table, layer.learn, KeyedInfo) as block:
        found = [block.info(k) for k in range(len(block))]
        assert [(one.given.handle, one.given.new, one.following) for one in found] == [
            (ord("a"), True, 1), (ord("b"), True, 0), (ord("a"), True, 0)]
    assert infos(layer) == [(b"a3", False, 0)] and layer.asked == [(b"a1", 1), (b"b1", 1), (b"a3", 2)]


def test_a_block_ends_before_what_has_no_key(layer: Layer) -> None:
    layer.write((b"a", 1), (b"?", 1), (b"b", 1))
    with layer.reader.take_block(9, layer.table, layer.learn, KeyedInfo) as block:
        assert len(block) == 1
    with pytest.raises(ValueError, match="no key"):
        layer.reader.take_block(9, layer.table, layer.learn, KeyedInfo)
    with pytest.raises(ValueError, match="no key") as raised:
        layer.take()
    assert raised.value.taken == [] and layer.take() == [[b"b"]]  # type: ignore[attr-defined]


def test_an_error_costs_one_message(layer: Layer) -> None:
    layer.write((b"a1", 1), (b"?", 1), (b"a2", 1))
    with pytest.raises(ValueError, match="no key") as raised:
        layer.take()
    assert raised.value.taken == [[b"a1"]]  # type: ignore[attr-defined]
    assert infos(layer) == [(b"a2", False, 0)]


def test_without_places_the_layer_is_asked_about_each(layer: Layer) -> None:
    seen = []

    def learn(payload: bytes | None, info: KeyedInfo, sample: bytes) -> Keyed:
        assert payload is None
        seen.append(sample)
        return layer.known.setdefault(sample[:1], Keyed(sample[0], ()))

    layer.write((b"a1", 1), (b"a2", 1))
    got = layer.reader.take_with(9, bytes, KeyedInfo, None, keys=KeyTable(), learn=learn)
    assert got == seen == [b"a1", b"a2"]


def test_a_reader_that_may_be_overtaken() -> None:
    """It works on copies, and takes nothing in place."""
    layer = Layer(DeliveryLog(4096, 0), keep_all=False)
    layer.write(*((b"%c" % (97 + k % 3), 1) for k in range(200)))
    got = infos(layer)
    assert 0 < len(got) < 200 and layer.reader.lost == 200 - len(got)
    layer.write((b"a", 1))
    with pytest.raises(ValueError, match="overwritten"):
        layer.reader.take_block(9, layer.table, layer.learn, KeyedInfo)
    assert infos(layer) == [(b"a", False, 0)]


def test_infos_have_a_type_with_keys(layer: Layer) -> None:
    with pytest.raises(TypeError, match="subclass of KeyedInfo"):
        layer.reader.take_with(1, bytes, keys=layer.table, learn=layer.learn)


def test_tags_within_reach(layer: Layer) -> None:
    reader: LogReader = layer.reader
    layer.write((b"a", 1), (b"b", 1))
    layer.write((b"c", 1), tag=1)
    assert [reader.tagged_within(n) for n in (1, 2, 3, 9)] == [False, False, True, True]
    layer.take(1)
    assert [reader.tagged_within(n) for n in (1, 2)] == [False, True]

