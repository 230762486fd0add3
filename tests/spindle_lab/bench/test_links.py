"""Goal: `bench links` measures what it says, over real daemons.

Method: a short run; ratios of times are for people, on a quiet machine.
"""

from __future__ import annotations

import pytest

from spindle_lab.bench import links

pytestmark = pytest.mark.slow


def test_a_short_run() -> None:
    result = links.run(60)
    for name in ("open_cached_own_node_us", "open_cached_beside_us", "open_cached_far_us", "open_uncached_beside_us",
                 "open_uncached_far_us", "open_new_us", "fresh_tls_us", "read_64_us", "read_64_far_us", "call_64_us",
                 "call_64_pools_us", "core_read_64_us"):
        assert 0 < result[name]["p50"] <= result[name]["p99"], name
    assert result["ratios"]["tls_to_open"] > 1


def test_reads_of_the_core_need_no_pool() -> None:
    assert links.core_reads(100)["p50"] > 0
