"""Goal: the first messages of a view find its memory there."""

from __future__ import annotations

import os

import pytest

from spindle_core.epoch import Epoch, SubgroupSpec
from tests.spindle_core.cluster import Cluster

SIZE_MAX = 4096 - 32  # a slot is a page
SPECS = [SubgroupSpec(topic_id, (0, 1), (0,), 64, SIZE_MAX, 1) for topic_id in (1, 2)]


def resident_pages(epoch: Epoch) -> int:
    """Pages of this node's row that are there, of whoever has touched them."""
    return os.fstat(epoch.row.fd).st_blocks * 512 // 4096


@pytest.mark.parametrize(("messages", "pages"), [(10, 10), (200, 64)], ids=["part of a window", "more than a window"])
def test_who_sent_in_a_view_has_its_slots_in_the_next_one(messages: int, pages: int) -> None:
    """Method: the only sender sends, in one of two topics. The memory of the next view is made, and populated by the
    node that has sent, and by the other one, which only reads it."""
    for who in (0, 1):
        cluster = Cluster(2, SPECS)
        logs = [cluster.reader(node) for node in (0, 1)]
        for _ in range(messages):
            cluster.engines[0].write(1, b"x", 0, 0)
            cluster.settle()
            assert [len(log.take(1)) for log in logs] == [1, 1]
        made = cluster.prepare(2, SPECS)
        before = [resident_pages(epoch) for epoch in made]
        done = made[who].populate(cluster.engines[who].epoch)
        now = [resident_pages(epoch) for epoch in made]
        assert now[0] - before[0] in (pages, pages + 1)  # and its columns
        assert now[1] - before[1] in (0, 1)
        assert done >= pages * 4096
        for epoch in made:
            epoch.close()
        cluster.stop()


def test_a_group_that_begins_has_its_columns() -> None:
    cluster = Cluster(1)
    [made] = cluster.prepare(2, SPECS[:0])
    assert 4096 <= made.populate(None) <= 2 * 4096
    made.close()
    cluster.stop()


def test_where_nobody_sent_nothing_is_taken() -> None:
    """Goal: idle topics cost no memory."""
    cluster = Cluster(2, SPECS)
    cluster.settle()
    made = cluster.prepare(2, SPECS)
    for engine, epoch in zip(cluster.engines, made, strict=True):
        assert epoch.populate(engine.epoch) <= 3 * 4096
        epoch.close()
    cluster.stop()
