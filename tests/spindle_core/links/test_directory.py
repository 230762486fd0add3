"""A directory gives each name in one read, whole or not at all, whoever writes it at that moment."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.links.directory import (
    ENTRY_SIZE,
    NAME_MAX,
    PLACES,
    WINDOW,
    WINDOW_SIZE,
    Directory,
    Torn,
    find,
    place_of,
)


def window(directory: Directory, name: str) -> bytes:
    at = place_of(name)
    return bytes(directory.memory.view()[at : at + WINDOW_SIZE])


def grant(k: int) -> bytes:
    return k.to_bytes(32, "little")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=80))
def test_it_finds_what_a_model_has(steps):
    """Names come and go; each lookup finds just what a dictionary has, and a name that comes again has a new
    version."""
    directory, model, versions = Directory(), {}, set()
    for put, number in steps:
        name = f"region {number}"
        if put and name not in model:
            entry = directory.put(name, grant(number), writer=number)
            assert entry.version not in versions
            versions.add(entry.version)
            model[name] = entry
        elif put:
            with pytest.raises(ValueError, match=name):
                directory.put(name, grant(0))
        elif name in model:
            directory.remove(name)
            del model[name]
        else:
            with pytest.raises(KeyError):
                directory.remove(name)
    for number in range(31):
        name = f"region {number}"
        assert find(window(directory, name), name) == model.get(name) and (name in directory) == (name in model)


def test_an_entry_that_is_half_written_is_never_believed():
    """Each way in which a reader can see a mixture of two entries, word by word and line by line: it is Torn, or one of
    the two as it was."""
    old, new = Directory(), Directory()
    name = "the name"
    first = old.put(name, grant(7), writer=3)
    new.put("another", grant(0))
    second = new.put(name, grant(2**200), writer=9)
    at = next(k for k in range(0, WINDOW_SIZE, ENTRY_SIZE) if any(window(new, name)[k : k + ENTRY_SIZE])
              and any(window(old, name)[k : k + ENTRY_SIZE]))
    rng = random.Random(5)
    seen = set()
    for _ in range(3000):
        mixture = bytearray(window(old, name))
        step = rng.choice([8, 64])
        for k in range(at, at + ENTRY_SIZE, step):
            if rng.random() < 0.5:
                mixture[k : k + step] = window(new, name)[k : k + step]
        try:
            found = find(bytes(mixture), name)
        except Torn:
            seen.add("torn")
        else:
            assert found in (first, second)
            seen.add(found.version)
    assert len(seen) == 3
    removed = bytearray(window(old, name))
    removed[at : at + 8] = bytes(8)
    with pytest.raises(Torn):
        find(bytes(removed), name)


def test_names_whose_places_meet():
    """WINDOW names with one hash are all found; the next is refused with the reason; one that goes makes room. The last
    places of all do not wrap around."""
    directory = Directory()
    place = PLACES - 1
    names = []
    k = 0
    while len(names) < WINDOW + 1:
        if zlib.crc32(b"%d" % k) % PLACES == place:
            names.append(str(k))
        k += 1
    for name in names[:-1]:
        directory.put(name, grant(int(name)))
    with pytest.raises(ValueError, match=f"{WINDOW} names"):
        directory.put(names[-1], grant(1))
    for name in names[:-1]:
        found = find(window(directory, name), name)
        assert found is not None and found.grant == grant(int(name))
    directory.remove(names[3])
    directory.put(names[-1], grant(1))
    assert find(window(directory, names[-1]), names[-1]) is not None


@pytest.mark.parametrize("name", ["", "x" * (NAME_MAX + 1), "ü" * (NAME_MAX // 2 + 1)])
def test_what_can_be_no_name(name):
    """Too short or too long, in bytes: ValueError with the limit."""
    with pytest.raises(ValueError, match=str(NAME_MAX)):
        Directory().put(name, grant(0))
