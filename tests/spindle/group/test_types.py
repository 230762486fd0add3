"""Goal: of each topic a bounded number of types is kept, each for as long as its samples may be there, and no longer.
Method: the table alone, with the indexes of a log that the test makes up."""

from __future__ import annotations

import pytest

from spindle.errors import ConfigError, TopicLimit
from spindle.group.types import TYPE_BYTES_MAX, TYPES_BYTES_MAX, TYPES_MAX, KeptTypes, key_of


def kept(table: KeptTypes) -> list[bytes]:
    return list(table.said.values())


def keep(table: KeptTypes, said: bytes, written: set[bytes] | None = None) -> bytes:
    assert table.keep(said, written or set()) == 0
    return key_of(said)


def test_a_type_that_somebody_writes_stays() -> None:
    table = KeptTypes("t")
    key = keep(table, b"one")
    assert keep(table, b"one") == key and kept(table) == [b"one"]
    table.look({key}, 100, 100)
    table.look({key}, 200, 200)
    assert kept(table) == [b"one"]


def test_it_goes_with_the_last_of_its_samples_and_not_before() -> None:
    table = KeptTypes("t")
    key, other = keep(table, b"one"), keep(table, b"other")
    table.look({other}, 50, 10)  # nobody writes it from here on: its samples lie before 50
    table.look({other}, 80, 49)
    assert kept(table) == [b"one", b"other"]
    table.look({key, other}, 90, 60)  # somebody writes it again
    table.look({other}, 90, 89)
    assert kept(table) == [b"one", b"other"]
    keep(table, b"one")
    table.look({other}, 95, 90)  # and so again
    table.look({other}, 96, 94)
    assert kept(table) == [b"one", b"other"]
    table.look({other}, 97, 95)
    assert kept(table) == [b"other"]
    table.look(set(), 99, 99)  # of a log that keeps nothing
    assert kept(table) == []


def test_nothing_goes_while_something_is_not_in_the_log_yet() -> None:
    table = KeptTypes("t")
    keep(table, b"one")
    table.look(set(), None, 1000)
    assert kept(table) == [b"one"]
    table.look(set(), 1000, 999)
    table.look(set(), None, 999)
    assert kept(table) == [b"one"]
    table.look(set(), None, 1000)
    assert kept(table) == []


def test_for_one_more_the_oldest_goes_that_nobody_writes() -> None:
    table = KeptTypes("t")
    keys = [keep(table, b"%d" % number) for number in range(TYPES_MAX)]
    assert table.keep(b"more", set(keys[:2])) == 1
    assert kept(table)[:2] == [b"0", b"1"] and kept(table)[-1] == b"more" and keys[2] not in table.said
    assert table.keep(b"more", set()) == 0 and len(table.said) == TYPES_MAX
    table.drop(keys[3])
    table.drop(keys[3])
    assert table.keep(b"another", set()) == 0 and len(table.said) == TYPES_MAX


def test_if_all_are_written_it_is_refused_with_the_limits() -> None:
    table = KeptTypes("fixes")
    written = {keep(table, b"%d" % number) for number in range(TYPES_MAX)}
    before = kept(table)
    with pytest.raises(TopicLimit, match=f"'fixes' .* {TYPES_MAX} types.* limits are {TYPES_MAX} types and "
                                         f"{TYPES_BYTES_MAX} bytes"):
        table.keep(b"one more", written)
    assert kept(table) == before and keep(table, b"7", written) == key_of(b"7")


def test_all_together_have_a_bound_in_bytes() -> None:
    table = KeptTypes("t")
    large = [bytes([number]) * TYPE_BYTES_MAX for number in range(TYPES_BYTES_MAX // TYPE_BYTES_MAX)]
    written = {keep(table, said) for said in large}
    with pytest.raises(TopicLimit):
        table.keep(b"x", written)
    assert table.keep(bytes(TYPE_BYTES_MAX - 1) + b"x", set()) == 1
    assert table.keep(b"x", set()) == 1
    table.look(set(), 5, 5)
    assert kept(table) == [] and keep(table, b"x")


@pytest.mark.parametrize("said", [b"", bytes(TYPE_BYTES_MAX + 1)])
def test_no_type_has_this_size(said: bytes) -> None:
    with pytest.raises(ConfigError, match=f"1 to {TYPE_BYTES_MAX} bytes, not by {len(said)}"):
        KeptTypes("t").keep(said, set())
