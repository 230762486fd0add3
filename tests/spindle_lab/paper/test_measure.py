"""Goal: every cost of a table is measured on this machine, and is of the order that any machine has.

Method: the probes with few rounds. Bounds are wide: others may be busy here. What passes between two threads has no
upper bound at all, since on a machine without a free core each waits for the other's slice of the scheduler, which is
milliseconds.
"""

from __future__ import annotations

import dataclasses

import pytest

from spindle_lab.paper import measure, probes, stands


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ROUNDS", 30)
    monkeypatch.setattr(measure, "STREAM_TURNS", 1)


@pytest.mark.parametrize("fabric", measure.FABRICS)
def test_a_pass_costs_more_with_more_to_look_at(fabric: str) -> None:
    costs = measure.pass_costs(fabric)
    assert set(costs) == {"lap_ns", "subgroup_ns", "line_ns"}
    assert all(0 <= cost < 10_000 for cost in costs.values())
    with stands.view(2, fabric=fabric) as (_, few), stands.view(8, 16, fabric=fabric) as (_, many):
        one, other = (stands.median(probes.passes(epochs[0], 50)) for epochs in (few, many))
    assert one < other


def test_least_squares_find_what_made_the_points() -> None:
    points = [(b, c, 5.0 + 3.0 * b + 0.5 * c) for b in (1, 4, 16) for c in (6, 24, 100)]
    assert measure.least_squares(points) == pytest.approx((5.0, 3.0, 0.5))


def test_a_message_costs_more_where_more_is_done_with_it() -> None:
    """Goal: filling is in the times; every message arrives, or the probe raises."""
    empty, full = measure.message_costs(0, 64), measure.message_costs(4096, 64)
    assert full["fill"] > empty["fill"] + 64 * 20


def test_costs_of_a_message_are_all_there() -> None:
    found = measure.message_ns(1024, rings=2)
    assert {"claim_ns", "commit_ns", "send_ns", "deliver_ns", "trigger_ns", "claim_shared_ns", "commit_shared_ns",
            "look_shared_ns", "retry_ns"} == set(found)  # fmt: skip
    assert all(cost >= 0 for cost in found.values())
    assert all(found[name] < 100_000 for name in ("claim_ns", "commit_ns", "send_ns", "deliver_ns"))


@pytest.mark.slow
@pytest.mark.parametrize("fabric", measure.FABRICS)
def test_payload_costs_by_its_bytes(fabric: str) -> None:
    small, large = (measure.payload_ns(size, 3, fabric) for size in (256, 10240))
    assert small["fill_ns"] > 0
    assert small["take_ns"] > 0
    assert large["fill_ns"] > small["fill_ns"] + 100
    assert large["take_ns"] > small["take_ns"] + 100


@pytest.mark.slow
def test_what_changes_least_is_taken_from_an_earlier_table() -> None:
    known, _ = measure.parameters_for("shm")
    found, _ = measure.parameters_for("shm", 1024, 2, known)
    assert found.node.copy_ns is known.node.copy_ns
    assert all(getattr(found.node, name) == getattr(known.node, name) for name in measure.OWN_COSTS)


@pytest.mark.slow
def test_lines_locks_and_cores() -> None:
    lines = measure.line_costs()
    assert lines["changed_ns"] >= 0
    assert lines["store_ns"] > 0
    assert measure.answer_ns() > 0
    assert measure.handover_ns() > 0
    costs = measure.core_costs()
    assert costs["yield_ns"] > 0
    assert costs["slice_ns"] > 10_000
    assert costs["woken_ns"] >= costs["ring_ns"] * 0.1


def test_longer_copies_take_longer() -> None:
    curve = measure.copy_curve()
    assert sorted(curve) == list(measure.COPY_SIZES)
    assert curve[64] < curve[4096] < curve[1 << 20]


def test_bytes_cost_where_they_are_copied() -> None:
    found = measure.tcp_costs(3)
    assert found["post_ns_per_byte"] >= 0  # beside other work, what a long write costs more may be lost in it
    leaving_ns = found["leave_ns"] + measure.SHORT * found["post_ns_per_byte"]
    assert leaving_ns > found["post_next_ns"]
    shared = measure.shm_costs()
    assert "post_ns_per_byte" not in shared
    assert shared["post_first_ns"] < leaving_ns


@pytest.mark.slow
@pytest.mark.parametrize("fabric", measure.FABRICS)
def test_a_table_is_whole(fabric: str) -> None:
    """Goal: a table can be played. It says how many cores there are."""
    from spindle_lab.paper.experiments import real

    table, payload = measure.parameters_for(fabric)
    assert table.cores >= 1
    assert all(value >= 0 for value in dataclasses.asdict(table.network).values())
    found = real.play(real.Case(2, 1024, fabric), table, payload, messages=1000)
    assert found.finished


@pytest.mark.slow
def test_a_call_whose_cost_vanishes_is_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: over connections posts wait for the end of a pass, whatever a busy machine has made of the measurement."""
    measured = measure.stream_costs(2)
    monkeypatch.setattr(measure, "stream_costs", lambda nodes: {**measured, "leave_ns": 0.0})
    assert measure.tcp_costs()["leave_ns"] > 0


def test_an_unknown_fabric_is_named() -> None:
    with pytest.raises(ValueError, match="carrier"):
        measure.network_of("carrier")


def test_what_fails_in_a_thread_is_raised() -> None:
    def fails() -> None:
        raise RuntimeError("of the other")

    with pytest.raises(RuntimeError, match="of the other"):
        stands.together(lambda: None, fails)
