"""The state of the exhaustive mode has all that a step reads: two nodes that go on differently have different ones.

Method: the fields of the structs are read from the sources, and each must be in the digest or named there with a
reason; and logs that stand at the same position, but elsewhere in their rings, are told apart.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spindle_core.digest import LEFT_OUT, epoch_state
from tests.spindle_core.cluster import Cluster

CORE = Path(__file__).resolve().parents[2] / "spindle_core"
STRUCTS = {"subgroup_t": ("state", "s"), "sender_t": ("state", r"s\.senders\[i\]"), "node_t": ("state", "node"),
           "log_t": ("log", "log"), "cursor_t": ("log", "c"), "inbox_t": ("inbox", "box")}


def fields_of(struct: str, module: str) -> list[str]:
    text = (CORE / f"{module}.pxd").read_text()
    body = text.split(f"cdef struct {struct}:\n")[1]
    names = []
    for line in body.splitlines():
        if line.strip() and not line.startswith("    "):
            break
        declared = re.match(r"    (?:const )?\w+ (.*)", line.split("#")[0].rstrip())
        if declared:
            names += [re.sub(r"[*\s]|\[.*?\]", "", name) for name in declared[1].split(",")]
    return names


@pytest.mark.parametrize("struct", STRUCTS)
def test_every_field_is_in_the_state_or_left_out_for_a_reason(struct: str) -> None:
    module, name = STRUCTS[struct]
    fields = fields_of(struct, module)
    assert len(fields) > 3
    left_out = [field for group in LEFT_OUT[struct] for field in group.split()]
    code = (CORE / "digest.pyx").read_text().split("\n}\n")[1]
    there = [field for field in fields if re.search(rf"\b{name}\.{field}\b", code)]
    missing = [field for field in fields if field not in left_out and field not in there]
    assert not missing, f"{struct}: {missing} of {module}.pxd are neither in the state nor in LEFT_OUT of digest.pyx"
    assert not set(left_out) - set(fields), "what is left out is there"


def test_logs_that_stand_at_one_position_but_elsewhere_are_told_apart() -> None:
    """One of two logs has gone back to its start when its readers had everything: it has more room from there on."""
    states = []
    for takes in (True, False):
        cluster = Cluster(1, size_max=1000, window=8)
        reader = cluster.reader(0, capacity=8192, hot=2048)
        for _ in range(4):
            cluster.engines[0].write(1, bytes(900), 1)
            cluster.settle()
            if takes:
                reader.take(9)
        reader.take(9)
        states.append(epoch_state(cluster.epochs[0]))
        cluster.stop()
    assert states[0] != states[1]
