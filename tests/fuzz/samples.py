"""Fuzz targets: what applications send each other. Any application may publish any bytes on a topic, and announce
anything as its Qos."""

from collections.abc import Iterator
from dataclasses import dataclass

from dds.idl import IdlEnum, IdlStruct, IdlUnion
from dds.idl.annotations import appendable, key, mutable
from dds.idl.codec import IdlCodec, codec_of
from dds.idl.types import array, bounded_str, case, char, default, float32, float64, int16, int32, sequence, uint8
from dds.matching.announcing import Remote, encode_qos
from dds.messages.announced import decode
from dds.policy.policies import DEFAULT, incompatible_policy
from dds.qos import Policy, Qos
from spindle.group.endpoints import ENDPOINT_BYTES_MAX, Endpoint
from tests.fuzz.target import Cutter, target


class Mode(IdlEnum):
    off = 0
    on = 4


@dataclass
@appendable
class Inner(IdlStruct, typename="fuzz.Inner"):
    number: uint8
    text: bounded_str[6]
    key("number")


@dataclass
class Plain(IdlStruct, typename="fuzz.Plain"):
    flag: bool
    mode: Mode
    text: str
    raw: bytes
    inner: Inner
    inners: sequence[Inner]
    numbers: sequence[int32, 3]
    matrix: array[array[float32, 2], 2]
    letters: sequence[char]
    last: float64


@dataclass
@mutable
class Mutable(IdlStruct, typename="fuzz.Mutable"):
    number: int16
    inner: Inner | None
    text: str


class Either(IdlUnion, discriminator=int32, typename="fuzz.Either"):
    number: case[1, int32]
    text: case[[2, 3], str]
    inner: default[Inner]


@dataclass
class Holder(IdlStruct, typename="fuzz.Holder"):
    either: Either
    many: sequence[Either]


INNER = Inner(3, "abc")
PLAIN = Plain(True, Mode.on, "text", b"\1\2", INNER, [INNER, INNER], [1, 2], [[0.5, 1.0], [2.0, 3.0]], ["a", "b"], 1.5)
SAMPLES = (PLAIN, INNER, Mutable(5, INNER, "x"), Mutable(5, None, ""),
           Holder(Either(number=7), [Either(text="t"), Either(inner=INNER)]))
CODECS: list[IdlCodec] = [codec_of(kind, version) for kind in (Plain, Inner, Mutable, Holder) for version in (1, 2)
                          if not (kind is Mutable and version == 1)]


def _samples() -> Iterator[bytes]:
    for number, codec in enumerate(CODECS):
        for sample in SAMPLES:
            if isinstance(sample, codec.data_type):
                yield bytes([number]) + codec.encode(sample)


@target(_samples, size_max=1024)
def sample(data: bytes) -> None:
    """Payloads of IDL types: a sample that can be encoded again, or ValueError."""
    cutter = Cutter(data)
    codec = CODECS[cutter.number() % len(CODECS)]
    try:
        found = codec.decode(cutter.rest)
    except ValueError:
        return
    assert isinstance(found, codec.data_type)
    if codec.key_of is not None:
        hash(codec.key_of(found))


def _announced() -> Iterator[bytes]:
    for policies in (
        (), (Policy.Reliability.BestEffort,), (Policy.Durability.TransientLocal, Policy.History.KeepAll),
        (Policy.Deadline(5), Policy.LatencyBudget(3), Policy.Ownership.Shared, Policy.Liveliness.Automatic(9)),
        (Policy.Partition(["a", "b"]), Policy.Userdata(b"x"), Policy.DestinationOrder.BySourceTimestamp),
    ):
        qos = DEFAULT + Qos(*policies)
        yield encode_qos(qos)
    yield b'{"qos": {}}'
    yield b"[" * 3000


@target(_announced)
def announcement(data: bytes) -> None:
    """What a reader or writer announces of itself: a Qos that can be compared, DEFAULT if it is none."""
    announced = data[:ENDPOINT_BYTES_MAX]
    found = DEFAULT + decode(announced)[0]
    incompatible_policy(DEFAULT, found)
    incompatible_policy(found, DEFAULT)
    assert DEFAULT + decode(encode_qos(found))[0] == found
    for is_writer in (True, False):
        Remote(Endpoint(b"guid", 65535, is_writer, "t", announced, "app", 1, 65535))


__all__ = ["announcement", "sample"]
