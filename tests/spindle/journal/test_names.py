"""Goal: two topics never share a file, any topic gives a name that a file system takes, and names are read back.
Method: property tests over arbitrary topic names."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from spindle.journal.names import file_name, file_safe, lock_name, lock_path, parse

topics = st.text(min_size=1, max_size=255).filter(lambda text: "\x00" not in text).filter(
    lambda text: not any(0xD800 <= ord(c) < 0xE000 for c in text)
)


@given(topics, topics)
def test_different_topics_have_different_names(one: str, other: str) -> None:
    assert (file_safe(one) == file_safe(other)) == (one == other)


@given(topics, st.integers(0, 2**32 - 1), st.integers(1, 10**7))
def test_names_fit_file_systems_and_are_read_back(topic: str, node_id: int, number: int) -> None:
    name = file_name(topic, node_id, number)
    assert len(name.encode()) <= 250 and "/" not in name and not name.startswith(".")
    assert parse(name) == (file_safe(topic), node_id, number)
    assert lock_path(Path("/d") / name) == Path("/d") / lock_name(topic, node_id)


def test_plain_topics_stay_readable() -> None:
    assert file_name("AirData", 2, 7) == "AirData-2-000007.mcap"
    assert file_name("flight/air-data", 0, 1) == "flight%2Fair%2Ddata-0-000001.mcap"


def test_other_names_are_not_taken_for_journals() -> None:
    for name in ("notes.txt", "a.mcap", "a-1.mcap", "a-1-x.mcap", "a-1-000001.mcap.new", "a-1-000001.mcap.torn"):
        assert parse(name) is None
