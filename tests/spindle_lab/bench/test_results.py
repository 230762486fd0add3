"""Goal: percentiles, medians and options are what they say. Method: small inputs with known answers."""

from __future__ import annotations

import pytest

from spindle_lab.bench import results
from spindle_lab.bench.options import MulticastOptions, OptionError, parse_switches


def test_percentiles_are_values_that_occurred() -> None:
    """Goal: nearest-rank percentiles. Method: 1 to 100 ns, once each."""
    counts = {ns: 1 for ns in range(1, 101)}
    assert results.percentile(counts, 0.5) == 50
    assert results.percentile(counts, 0.99) == 99
    assert results.percentile(counts, 1.0) == 100
    assert results.percentile({}, 0.5) == 0.0


def test_histograms_merge_by_value() -> None:
    assert results.merge_counts([{"5": 1, "7": 2}, {"7": 3}]) == {5: 1, 7: 5}


def test_a_median_run_is_a_run() -> None:
    """Goal: no mixture of runs. Method: runs whose other numbers tell them apart."""
    runs = [{"messages_per_s": rate, "id": name} for rate, name in ((30, "c"), (10, "a"), (20, "b"))]
    chosen = results.median_run(runs)
    assert (chosen["id"], chosen["runs"]) == ("b", [30, 10, 20])


def test_rates_have_three_digits() -> None:
    assert [results.rate_text(rate) for rate in (3_012_345, 987, 0.5)] == ["3,010,000", "987", "0.5"]


def test_switch_names() -> None:
    """Goal: sets, single switches, and an error that lists them."""
    assert parse_switches("baseline") == ()
    assert len(parse_switches("spindle")) == 5
    assert parse_switches("batch_send,null_sends") == ("batch_send", "null_sends")
    with pytest.raises(OptionError, match="batch_receive"):
        parse_switches("bath_send")


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"senders": "all"}, [9, 9, 9]),
        ({"senders": "half"}, [9, 9, 0]),
        ({"senders": "one"}, [9, 0, 0]),
        ({"delayed": "one"}, [9, 9, -1]),
        ({"delayed": "silent"}, [9, 9, 0]),
        ({"delayed": "half"}, [9, 9, -1]),
    ],
)
def test_counts_by_rank(options: dict[str, str], counts: list[int]) -> None:
    assert MulticastOptions(count=9, **options).counts() == counts  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"senders": "none"}, {"api": "c"}, {"size": 15}, {"nodes": 0}, {"daemon": True}, {"single": True},
     {"senders": "one", "delayed": "one"}, {"switches": "x"}],
)
def test_impossible_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        MulticastOptions(**options)  # type: ignore[arg-type]
