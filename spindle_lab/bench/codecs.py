"""`bench types`: what it costs to turn samples of IDL types into bytes and back, beside the library and cyclonedds.

The same classes are made with `dds.idl` (the types of the library cyclonedds-idl, for which we compile code) and, where
that is installed in the same environment, with cyclonedds-python. All must write the same bytes. What takes turns is
measured in rounds, one way after the other in each, in processor time of this thread: other work on the machine hardly
matters. The median round counts.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from spindle_lab.bench.crew import BenchFailed

ROUND_S = 0.02  # of one way in one round


def samples_of(idl: Any) -> dict[str, Any]:
    """One sample of each type, of the classes of an IDL package."""
    types, make = idl.types, idl.make_idl_struct
    keyed = {"number": {"key": True}}
    float64, sequence = types.float64, types.sequence
    small_type = make("Small", "Small", {
        "number": types.int32, "x": float64, "y": float64, "valid": bool}, field_annotations=keyed)
    point_type = make("Point", "Point", {"x": float64, "y": float64, "z": float64})
    track_type = make("Track", "Track", {
        "number": types.int32, "name": str, "place": point_type, "speed": point_type, "stamps": sequence[types.uint64],
        "labels": sequence[str], "path": sequence[point_type]}, field_annotations=keyed)
    image_type = make("Image", "Image", {
        "number": types.int32, "camera": str, "data": sequence[types.uint8]}, field_annotations=keyed)

    point = point_type(x=1.5, y=2.5, z=3.5)
    return {
        "small": small_type(number=1, x=2.5, y=3.5, valid=True),
        "track": track_type(
            number=7, name="alpha-7", place=point, speed=point, stamps=list(range(10)), labels=["a", "bb", "ccc"],
            path=[point_type(x=float(k), y=2.0, z=3.0) for k in range(10)]),
        "image": image_type(number=3, camera="front", data=list(range(256)) * 40),
    }  # fmt: skip


def run(repeat: int = 9) -> dict[str, Any]:
    """Nanoseconds of one sample, for each type and way, and how many times as fast we are. Raises BenchFailed."""
    from dds.idl.codec import codec_of

    importlib.import_module("dds.idl.types")
    importlib.import_module("dds.idl.annotations")
    ours: dict[str, Any] = samples_of(importlib.import_module("dds.idl"))
    theirs = peer_samples()
    result: dict[str, Any] = {}
    for name, sample in ours.items():
        kind: Any = type(sample)
        codec = codec_of(kind)
        data = codec.encode(sample)
        view = memoryview(data)
        ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
            "compiled": (partial(codec.encode, sample), partial(codec.decode, view)),
            "library": (sample.serialize, partial(type(sample).deserialize, data)),
        }
        if theirs is not None:
            peer = theirs[name]
            if peer.serialize()[4:] != data[4:]:
                raise BenchFailed(f"cyclonedds writes other bytes for {name}: these figures can't be compared")
            ways["cyclonedds"] = (peer.serialize, partial(type(peer).deserialize, data))
        if codec.decode(view) != sample:
            raise BenchFailed(f"a sample of {name} is not what it was: these figures would mean nothing")
        found = timed([one for way in ways.values() for one in way], repeat)
        figures: dict[str, Any] = {"bytes": len(data)}
        for place, way in enumerate(ways):
            figures[way] = {"encode_ns": round(found[2 * place]), "decode_ns": round(found[2 * place + 1])}
        other = figures.get("cyclonedds", figures["library"])
        figures["times_as_fast"] = {
            what: round(other[f"{what}_ns"] / figures["compiled"][f"{what}_ns"], 1) for what in ("encode", "decode")}
        result[name] = figures
    return {"compared_with": "library" if theirs is None else "cyclonedds", **result}


def peer_samples() -> dict[str, Any] | None:
    """Those of cyclonedds-python; None where it isn't installed."""
    try:
        idl = importlib.import_module("cyclonedds.idl")
        importlib.import_module("cyclonedds.idl.types")
        importlib.import_module("cyclonedds.idl.annotations")
    except ImportError:
        return None
    return samples_of(idl)


def timed(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Median ns of one call of each, measured in turns."""
    counts = []
    for call in calls:
        start = time.thread_time()
        count = 0
        while time.thread_time() - start < ROUND_S:
            call()
            count += 1
        counts.append(max(1, count))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for place, (call, count) in enumerate(zip(calls, counts, strict=True)):
            start_ns = time.thread_time_ns()
            for _ in range(count):
                call()
            found[place].append((time.thread_time_ns() - start_ns) / count)
    return [statistics.median(one) for one in found]
