"""What a reader of one version of a type makes of samples of another.

Goal: every sample of a writer's type becomes the reader's as XTypes says, in both versions of CDR, whatever changed:
members appended, put in another order, made optional; literals and cases added. Where the library can read the payload
by the reader's type alone, the result is the library's. Keys stay the same.
Method: hypothesis evolves types at random and writes samples of both versions; the library's decoding of XCDR2 is the
reference. Single changes by hand.
"""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dds.idl import IdlStruct, IdlUnion
from dds.idl.annotations import appendable, key
from dds.idl.assignability import Rules, difference
from dds.idl.codec import LEARNED_MAX, codec_of
from dds.idl.types import array, bounded_str, case, default, float32, int32, sequence
from dds.messages.operations import handle_of
from tests.dds.idl.evolving import announced, enumeration, evolved, reader_of, struct


@pytest.mark.slow
@given(evolved(), st.data())
@settings(deadline=None, max_examples=150)
def test_both_ways_as_the_library_reads_it(versions, data):
    older, older_samples, newer, newer_samples = versions
    assert difference(older, announced(newer)) == "" == difference(newer, announced(older))
    for reader, writer, samples in ((older, newer, newer_samples), (newer, older, older_samples)):
        sample = data.draw(samples)
        payload = codec_of(writer).encode(sample)
        got = reader_of(reader, writer).decode(payload)
        encode = codec_of(reader).encode  # literals are numbers where the library fills them in
        assert encode(got) == encode(reader.__idl__.deserialize(payload))
        assert type(got) is reader
        assert reader_of(reader, writer).decode(codec_of(writer, 1).encode(sample)) == got


DEFAULT = Rules()


def one_way(reader, writer, sample, rules=DEFAULT):
    assert difference(reader, announced(writer), rules) == ""
    return reader_of(reader, writer).decode(codec_of(writer).encode(sample))


def test_members_that_the_writer_lacks_have_their_types_defaults():
    inner = struct("appendable", "Inner", a=int32, b=bounded_str[3])
    kind = enumeration(x=4, y=5)
    old = struct(a=int32)
    new = struct(a=int32, text=str, inner=inner, kind=kind, many=sequence[int32], two=array[float32, 2],
                 maybe=int32 | None, raw=array[inner, 1])
    got = one_way(new, old, old(7))
    assert got == new(7, "", inner(0, ""), kind.x, [], [0.0, 0.0], None, [inner(0, "")])


def test_nested_appendables_in_xcdr1_need_the_writers_type():
    """XCDR1 doesn't say where an appendable struct ends: only the writer's type tells."""
    old_inner, new_inner = struct("appendable", "Inner", a=int32), struct("appendable", "Inner", a=int32, b=str)
    old = struct(inners=sequence[old_inner], end=int32)
    new = struct(inners=sequence[new_inner], end=int32)
    sample = new([new_inner(1, "one"), new_inner(2, "two")], 99)
    payload = codec_of(new, 1).encode(sample)
    assert reader_of(old, new).decode(payload) == old([old_inner(1), old_inner(2)], 99)
    with pytest.raises(ValueError, match="another type"):
        codec_of(old).for_reader().decode(payload)
    back = reader_of(new, old).decode(codec_of(old, 1).encode(old([old_inner(5)], 6)))
    assert back == new([new_inner(5, "")], 6)


def test_what_nobody_has_announced_is_read_if_it_tells_its_parts_and_refused_if_not():
    old, new = struct(a=int32), struct(a=int32, b=str)
    assert codec_of(old).for_reader().decode(codec_of(new).encode(new(1, "x"))) == old(1)
    final, other = struct("final", a=int32), struct("final", a=float32)
    with pytest.raises(ValueError, match="another type"):
        codec_of(final).for_reader().decode(codec_of(other).encode(other(1.0)))


def test_of_a_type_that_it_has_not_heard_of_it_asks_once():
    old, new, other = struct(a=int32), struct(a=int32, b=str), struct(a=int32, c=str)
    asked = []

    def seek():
        asked.append(len(asked))
        codec.learn(codec_of(new).info.identifier, new)

    codec = codec_of(old).for_reader(seek)
    assert codec.knows(codec_of(old).info.identifier) and not codec.knows(codec_of(new).info.identifier)
    for _ in range(3):
        assert codec.decode(codec_of(old).encode(old(1))) == old(1) and not asked
    for _ in range(3):
        assert codec.decode(codec_of(new, 1).encode(new(2, "x"))) == old(2)
    assert asked == [0] and codec.knows(codec_of(new).info.identifier)
    for _ in range(3):
        with pytest.raises(ValueError, match="another type"):
            codec.decode(codec_of(other, 1).encode(other(3, "y")))
    assert asked == [0, 1]
    payload = codec_of(other, 1).encode(other(3, "y"))
    for number in range(2 * LEARNED_MAX):
        with pytest.raises(ValueError, match="another type"):
            codec.decode(payload[:2] + (number * 4 + 4).to_bytes(2, "big") + payload[4:])
    assert len(asked) == LEARNED_MAX  # whatever marks come


def test_a_type_that_was_refused_is_never_read():
    old, new = struct(a=int32), struct(a=int32, b=str)
    codec = codec_of(old).for_reader()
    assert codec.learn(codec_of(new).info.identifier, None, "it is not liked") == ""
    with pytest.raises(ValueError, match="not liked"):
        codec.decode(codec_of(new).encode(new(1, "x")))
    assert codec_of(old).decode(codec_of(new).encode(new(1, "x"))) == old(1)  # each reader decides for itself


def test_literals_that_the_reader_lacks_stay_numbers():
    old, new = enumeration(a=0, b=1), enumeration(a=0, b=1, c=7)
    reader, writer = struct(k=old), struct(k=new)
    assert one_way(reader, writer, writer(new.c)).k == 7
    assert one_way(reader, writer, writer(new.b)).k is old.b


def test_unions_with_cases_that_the_reader_lacks():
    @appendable
    class Old(IdlUnion, discriminator=int32, typename="U"):
        a: case[1, int32]

    @appendable
    class New(IdlUnion, discriminator=int32, typename="U"):
        a: case[1, int32]
        b: case[[2, 3], str]

    @appendable
    class Else(IdlUnion, discriminator=int32, typename="U"):
        a: case[1, int32]
        rest: default[str]

    old, new, rest = struct(u=Old), struct(u=New), struct(u=Else)
    assert one_way(old, new, new(New(a=5))).u == Old(a=5)
    assert one_way(old, new, new(New(discriminator=3, value="x"))).u == Old(discriminator=3, value=None)
    assert "called b at the writer, rest at the reader" in difference(rest, new)
    ignoring = Rules(ignore_member_names=True)
    assert one_way(rest, new, new(New(discriminator=3, value="x")), ignoring).u == Else(
        discriminator=3, value="x")
    assert one_way(new, rest, rest(Else(discriminator=2, value="x")), ignoring).u.b == "x"
    assert one_way(new, rest, rest(Else(discriminator=9, value="x")), ignoring).u.value is None


def test_bounds_that_a_sample_exceeds_refuse_it():
    small, large = struct(t=bounded_str[2], s=sequence[int32, 2]), struct(t=str, s=sequence[int32])
    assert one_way(small, large, large("ab", [1, 2])) == small("ab", [1, 2])
    codec = reader_of(small, large)
    for sample, what in ((large("abc", []), "Fix.t has 3 characters, the reader's type takes 2"),
                         (large("", [1, 2, 3]), "Fix.s has 3 elements")):
        with pytest.raises(ValueError, match=what):
            codec.decode(codec_of(large).encode(sample))


def test_optional_in_one_version_of_a_mutable_type():
    must, may = struct("mutable", a=int32, b=int32), struct("mutable", a=int32, b=int32 | None)
    assert one_way(must, may, may(1, None)) == must(1, 0)
    assert one_way(may, must, must(1, 2)) == may(1, 2)


def test_keys_are_the_same_instance_in_every_version():
    inner = {name: struct("mutable", "Inner", ("b", "a"), **members) for name, members in {
        "old": {"a": (int32, 0), "b": (str, 1)}, "new": {"b": (str, 1), "c": (str, 2), "a": (int32, 0)}}.items()}
    kinds = {"old": enumeration(_name="K", x=0, y=1), "new": enumeration(_name="Kind", x=0, y=1)}
    old = struct("mutable", "Old", ("i", "k", "n"), i=(inner["old"], 0), k=(kinds["old"], 1), n=(int32, 2))
    new = struct("mutable", "New", ("n", "i", "k"), n=(int32, 2), i=(inner["new"], 0), more=(str, 3),
                 k=(kinds["new"], 1))
    sample = old(inner["old"](1, "x"), kinds["old"].y, 5)
    got = one_way(new, old, sample)
    keys = codec_of(old).key_of(sample), codec_of(new).key_of(got)
    assert keys[0] == keys[1] and handle_of(keys[0]) == handle_of(keys[1])
    assert codec_of(new).key_sample(keys[1]).k is kinds["new"].y and codec_of(new).key_sample(keys[1]).i.b == "x"


def test_unions_in_keys():
    class Either(IdlUnion, discriminator=int32):
        number: case[1, int32]
        text: default[str]

    @dataclass
    class Keyed(IdlStruct):
        which: Either
        key("which")

    codec = codec_of(Keyed)
    one = codec.key_of(Keyed(Either(number=4)))
    assert one == codec.key_of(Keyed(Either(number=4))) != codec.key_of(Keyed(Either(text="4")))
    assert codec.key_sample(one).which == Either(number=4)


def test_a_key_alone_makes_a_sample_with_the_defaults_of_the_rest():
    """Goal: who has only a key can say that its instance ends. Method: a key within a struct, beside members of each
    kind; in both versions of CDR."""
    class Either(IdlUnion, discriminator=int32):
        number: case[1, int32]
        text: case[2, str]

    inner = struct("mutable", "Inner", ("b",), a=(int32, 0), b=(str, 1), c=(sequence[int32], 2))
    kind = enumeration(x=4, y=5)
    cls = struct("appendable", "Fix", ("i",), i=(inner, 0), kind=(kind, 1), which=(Either, 2), raw=(array[inner, 2], 3),
                 text=(bounded_str[3], 4), maybe=(int32 | None, 5), two=(array[float32, 2], 6))
    for version in (1, 2):
        codec = codec_of(cls, version)
        payload = codec.encode_key(codec.key_of(cls(inner(None, "x", None), *[None] * 6)))
        got = codec.decode(payload)
        assert (got.i, got.kind, got.raw) == (inner(0, "x", []), kind.x, [inner(0, "", [])] * 2)
        assert (got.text, got.maybe) == ("", None)
    assert codec_of(inner).encode_key("x") and codec_of(struct(a=int32)).encode_key is None
