"""Goal: what fuzzing ever reached or broke stays handled; every decoder refuses in words whatever it can't use.

Method: every target runs over its own good inputs, over the corpus that fuzzing left, and over arbitrary changes of
both, as bytes and as messages. Longer and guided by coverage: `make fuzz`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import connections, control, disk, external, live, memory, mutate, samples
from tests.fuzz.mutate import changed
from tests.fuzz.target import TARGETS, Target

MODULES = (connections, control, disk, external, live, memory, samples)
SLOW = {"visitor", "answer", "journal", "external_client"}


@pytest.fixture(scope="module", autouse=True)
def _host() -> Iterator[None]:
    """The node that serves the inputs of all tests here, and ends with them."""
    live.host()
    yield
    live.close_host()


@pytest.fixture(params=sorted(TARGETS))
def one(request: pytest.FixtureRequest) -> Target:
    return TARGETS[request.param]


def test_good_inputs_and_the_corpus_pass(one: Target) -> None:
    assert one.what and one.name in {name for module in MODULES for name in module.__all__}
    for data in [*one.seeds(), *one.corpus()]:
        assert len(data) <= one.size_max or data not in one.corpus()
        one.run(data)
    assert all(not thread.name.startswith("Thread-") for thread in threading.enumerate()), "left a thread behind"


@pytest.mark.slow
def test_changed_inputs_pass(one: Target) -> None:
    known = [*one.seeds(), *one.corpus()]

    @settings(max_examples=20 if one.name in SLOW else 200, deadline=None, database=None)
    @given(st.sampled_from(known), st.sampled_from(known), st.lists(st.tuples(
        st.integers(0, one.size_max), st.integers(0, 3), st.binary(max_size=8)), max_size=4))
    def edited(data: bytes, other: bytes, edits: list[tuple[int, int, bytes]]) -> None:
        made = bytearray(data)
        for at, kind, some in edits:
            at %= len(made) + 1
            if kind == 0:
                made[at : at + len(some)] = some
            elif kind == 1:
                made[at:at] = some
            elif kind == 2:
                del made[at : at + len(some)]
            else:
                made[at:] = other[at:]
        one.run(bytes(made[: one.size_max]))

    edited()


@pytest.mark.slow
def test_messages_changed_as_messages_pass(one: Target) -> None:
    """Method: what `make fuzz` does between libFuzzer's own changes, a few hundred times, from fixed seeds."""
    known = [*one.seeds(), *one.corpus()]
    if one.message is None:
        assert changed(one, known[0], 0) is None
        return
    made = set()
    for seed in range(300):
        data = changed(one, known[seed % len(known)], seed)
        if data is not None and len(data) <= one.size_max:
            assert data == changed(one, known[seed % len(known)], seed), "libFuzzer must be able to repeat it"
            one.run(data)
            made.add(data)
    assert len(made) > 100


def test_every_kind_of_field_is_changed() -> None:
    """Goal: no message has a field that the fuzzer can't change, maps among them."""
    rng = random.Random(1)
    seen = set()
    for one in TARGETS.values():
        kinds = {one.message(bytes([head])) for head in range(3)} if one.message is not None else set()
        for kind in kinds - {None}:
            message = kind()
            for _ in range(3000):
                mutate._change(message, rng, 0)
                seen.update(_fields_of(message))
                if message.ByteSize() > 20_000:
                    message.Clear()
            missing = {field.full_name for field in kind.DESCRIPTOR.fields} - seen
            assert not missing, f"{one.name}: never set {missing}"
    assert "spindle.Opening.settings" in seen


def _fields_of(message: Message) -> set[str]:
    return {field.full_name for field, _ in message.ListFields()}


def test_the_corpus_is_in_the_order_that_keeping_it_gives(one: Target) -> None:
    corpus = one.corpus()
    assert corpus == sorted(set(corpus), key=lambda data: (len(data), data))
