"""Which types a reader may have for a writer's.

Goal: the rules of XTypes for every kind of type, and each flag of TypeConsistencyEnforcement; the first difference
named with the path of its member and both sides.
Method: pairs of types that differ in one thing, both ways round.
"""

import functools
from dataclasses import dataclass
from typing import Optional

import pytest

from dds.idl import IdlBitmask, IdlStruct, IdlUnion, make_idl_union
from dds.idl.annotations import bit_bound, must_understand, mutable, position
from dds.idl.assignability import Rules, difference
from dds.idl.types import array, bounded_str, case, default, float32, int16, int32, sequence
from tests.dds.idl.evolving import announced, enumeration, struct

inner = functools.partial(struct, _name="test.Inner")
DEFAULT = Rules()
MAYBE = Optional[int32]  # noqa: UP045  what the library reads


def check(reader, writer, expected, rules=DEFAULT):
    """`expected` is part of the difference, "" for none."""
    said = difference(reader, announced(writer), rules)
    assert said == difference(announced(reader), writer, rules)
    assert (expected in said) if expected else said == ""


@pytest.mark.parametrize("how", ["final", "appendable", "mutable"])
def test_equal_types(how):
    check(struct(how, a=int32, b=str), struct(how, a=int32, b=str), "")
    check(struct(how, a=int32, b=str), struct(how, a=int32, b=str), "", Rules(coercion=False))


@pytest.mark.parametrize(("reader", "writer", "expected"), [
    (struct(a=int32), struct(a=int32, b=str), ""),
    (struct(a=int32, b=str), struct(a=int32), ""),
    (struct("final", a=int32), struct("final", a=int32, b=str), "only the writer has a member b, and struct test::Fix"),
    (struct("final", a=int32, b=str), struct("final", a=int32), "only the reader has a member b"),
    (struct("final", a=int32), struct(a=int32), "struct test::Fix is appendable at the writer, struct"),
    (struct(a=int32), struct(a=float32), "member a: float at the writer, int32 at the reader"),
    (struct(a=int32), struct(a=int16), "member a: int16 at the writer, int32 at the reader"),
    (struct(a=int32, b=int32), struct(b=int32, a=int32), "member a: id 1 at the writer, id 0 at the reader"),
    (struct(a=int32), struct(z=int32), "the member with id 0 is called z at the writer, a at the reader"),
    (struct(a=(int32, 1)), struct(b=(int32, 2)), "have no member in common"),
    (struct(a=(int32, 1), b=(int32, 2)), struct(b=(int32, 2), a=(int32, 1)), "member 1 of the struct is b (id 2)"),
    (struct("mutable", a=(int32, 1), b=(int32, 2)), struct("mutable", b=(int32, 2), a=(int32, 1)), ""),
    (struct("mutable", a=(int32, 1), b=(int32, 2)), struct("mutable", c=(str, 3), b=(int32, 2)), ""),
    (struct(a=int32), struct(a=MAYBE), "member a: optional at the writer, not optional at the reader"),
    (struct("mutable", a=int32), struct("mutable", a=MAYBE), ""),
    (struct(i=inner(x=int32)), struct(i=inner(x=float32)), "member i.x: float at the writer, int32 at the reader"),
    (struct(i=sequence[inner(x=int32)]), struct(i=sequence[inner(x=str)]), "member i[].x: string at the writer"),
    (struct(i=inner(x=int32)), struct(i=inner(x=int32, y=int32)), ""),
    (struct(i=int32), struct(i=inner(x=int32)), "member i: struct test::Inner at the writer, int32 at the reader"),
    (struct(a=array[int32, 2]), struct(a=array[int32, 3]), "member a: int32[3] at the writer, int32[2] at the reader"),
    (struct(a=array[int32, 2]), struct(a=sequence[int32, 2]), "member a: sequence<int32, 2> at the writer"),
], ids=lambda one: one if isinstance(one, str) else None)
def test_structs(reader, writer, expected):
    check(reader, writer, expected)


def test_bounds():
    small, large = struct(s=bounded_str[3], q=sequence[int32, 3]), struct(s=bounded_str[9], q=sequence[int32])
    for one, other in ((small, large), (large, small)):
        check(one, other, "")
    check(small, large, "member s: string<9> at the writer, string<3> at the reader", Rules(ignore_string_bounds=False))
    check(small, large, "member q: sequence<int32> at the writer, seq", Rules(ignore_sequence_bounds=False))
    check(large, small, "", Rules(ignore_string_bounds=False, ignore_sequence_bounds=False))
    check(large, small, "member s: string<3> at the writer", Rules(coercion=False))
    keyed = struct(_keys=("s",), s=bounded_str[3]), struct(_keys=("s",), s=bounded_str[9])
    check(*keyed, "member s: string<9> at the writer")  # two keys may not become one
    check(*reversed(keyed), "")


def test_names():
    check(struct(a=int32), struct(z=int32), "", Rules(ignore_member_names=True))
    check(struct(a=int32), struct(z=int32), "is called z", Rules(coercion=False, ignore_member_names=True))


def test_widening():
    narrow, wide = struct(a=int32), struct(a=int32, b=str)
    check(narrow, wide, "the reader prevents type widening", Rules(prevent_type_widening=True))
    check(wide, narrow, "", Rules(prevent_type_widening=True))


def test_no_coercion():
    check(struct(a=int32), struct(a=int32, b=str), "only the writer has a member b, and the types must be equal",
          Rules(coercion=False))


def test_what_must_be_understood():
    @dataclass
    @mutable
    class With(IdlStruct, typename="test.Fix"):
        a: int32
        b: int32
        must_understand("b")

    without = struct("mutable", a=int32)
    check(without, With, "only the writer has the member b, which must be understood")
    check(With, without, "only the reader has the member b, which must be understood")


def test_keys():
    plain, keyed = struct(a=int32), struct(_keys=("a",), a=int32)
    check(plain, keyed, "member a: a key at the writer, no key at the reader")
    more = struct(_keys=("a", "b"), a=int32, b=int32)
    check(keyed, more, "only the writer has the key member b")
    check(more, keyed, "only the reader has the key member b")
    outer = [struct(_keys=("k",), k=one) for one in (inner(x=int32), inner(x=int32, y=int32))]
    check(*outer, "member k: its key is made of x, y at the writer, of x at the reader")


def test_enumerations():
    ab, abc = enumeration(a=0, b=1), enumeration(a=0, b=1, c=2)
    check(struct(k=ab), struct(k=abc), "")
    check(struct(k=abc), struct(k=ab), "")
    check(struct(k=ab), struct(k=enumeration(a=0, b=2)), "member k: literal b is 2 at the writer, it is 1 at the")
    check(struct(k=ab), struct(k=enumeration(a=0, z=1)), "member k: literal 1 is called z at the writer, b at")
    check(struct(k=ab), struct(k=enumeration(a=0, z=1)), "", Rules(ignore_member_names=True))
    final = enumeration("final", a=0, b=1), enumeration("final", a=0, b=1, c=2)
    check(struct(k=final[0]), struct(k=final[1]), "only the writer has a literal c, and enum test::Kind is final")
    check(struct(k=ab), struct(k=enumeration(y=8, z=9)), "have no literal in common")
    check(struct(k=ab), struct(k=bit_bound(8)(enumeration(a=0, b=1))), "member k: 8 bits at the writer, 32 bits")
    check(struct(_keys=("k",), k=ab), struct(_keys=("k",), k=abc), "only the writer has a literal c, and it is part")


def test_bit_masks():
    def mask(bits, **flags):
        @dataclass
        @bit_bound(bits)
        class Mask(IdlBitmask, typename="M"):
            a: bool = False
            position("a", flags["a"])

        return Mask

    check(struct(m=mask(8, a=1)), struct(m=mask(8, a=1)), "")
    check(struct(m=mask(8, a=1)), struct(m=mask(16, a=1)), "member m: 16 bits at the writer, 8 bits at the reader")
    check(struct(m=mask(8, a=1)), struct(m=mask(8, a=2)), "member m: flag a is bit 2 at the writer, it is bit 1")


def union(how, switch=int32, **cases):
    cls = make_idl_union("U", "U", cases, discriminator=switch)
    cls.__idl_annotations__["extensibility"] = how
    return cls


def test_unions():
    one = union("appendable", a=case[1, int32])
    two = union("appendable", a=case[1, int32], b=case[2, str])
    for reader, writer in ((one, two), (two, one)):
        check(struct(u=reader), struct(u=writer), "")
    final = union("final", a=case[1, int32]), union("final", a=case[1, int32], b=case[2, str])
    check(struct(u=final[0]), struct(u=final[1]), "member u: only the writer has a case 2, and union U may not differ")
    check(struct(u=one), struct(u=union("appendable", a=case[1, str])), "member u.a: string at the writer, int32 at")
    check(struct(u=one), struct(u=union("appendable", int16, a=case[1, int32])), "member u.discriminator: int16 at the")
    check(struct(u=one), struct(u=union("appendable", b=case[7, int32])), "is called b at the writer, a at the reader")
    ignoring = Rules(ignore_member_names=True)
    check(struct(u=one), struct(u=union("appendable", b=case[7, int32])), "have no case in common", ignoring)
    some = union("appendable", a=case[1, int32], z=default[str])
    check(struct(u=some), struct(u=two), "is called b at the writer, z at the reader")
    check(struct(u=some), struct(u=two), "", ignoring)
    check(struct(u=some), struct(u=union("appendable", a=case[1, int32], b=case[2, int32])), "member u.z: int32 at",
          ignoring)
    assert isinstance(one, type) and issubclass(one, IdlUnion)


def test_of_a_union_in_a_key_nothing_is_lost():
    def keyed(**cases):
        return struct(_keys=("u",), u=union("appendable", **cases))

    one, two = keyed(a=case[1, int32]), keyed(a=case[1, int32], b=case[2, str])
    check(one, two, "member u: only the writer has a case 2, and it is part of the key")
    check(two, one, "")
    rest = keyed(a=case[1, int32], b=default[str])
    check(one, rest, "member u: only the writer has a default case, and it is part of the key")
    check(rest, one, "")
    check(rest, two, "", Rules(ignore_member_names=True))
    inner = [struct("appendable", "In", a=int32), struct("appendable", "In", a=int32, b=int32)]
    check(*(keyed(a=case[1, one]) for one in inner), "member u.a: its key is made of a, b at the writer, of a at")


def test_types_that_contain_themselves():
    import tests.dds.idl.test_typeobjects as there

    check(there.Tree, there.Tree, "")
