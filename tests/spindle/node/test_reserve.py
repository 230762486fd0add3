"""Goal: what a node keeps for its next view is there for all of that view change, and for nothing else: neither does an
application get of it while the view is prepared, nor does the node keep it again before the view's topics have theirs.

Method: the limit of descriptors of this process is set to so many more than it has.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any
from unittest.mock import patch

import pytest

from spindle.errors import NoResources
from spindle.group.topics import TopicSpec
from spindle.node.epochs import NextEpoch
from spindle.node.reserve import Reserve
from tests.spindle.node.test_node import Group, with_group
from tests.spindle.node.test_shortage import descriptors, lowest_free
from tests.support import descriptors_before, open_descriptors


def left_to_open(count: int) -> contextlib.AbstractContextManager[None]:
    """This process can open so many more."""
    return descriptors(os.getpid(), lowest_free(os.getpid(), count - 1))  # the listing has one itself


def test_while_a_view_is_prepared_applications_get_none_that_it_may_need() -> None:
    reserve = Reserve()
    reserve.want(1)
    before = descriptors_before()
    reserve.release()
    assert open_descriptors() == before - reserve.wanted
    with left_to_open(reserve.wanted):
        reserve.check("a reader")
        with open(os.devnull, "rb"), pytest.raises(NoResources, match="a reader needs descriptors"):
            reserve.check("a reader")
    assert open_descriptors() == before - reserve.wanted  # the view has them
    reserve.want(1)
    assert open_descriptors() == before
    reserve.close()


@with_group
async def test_topics_that_begin_with_a_view_have_theirs_before_the_next_view(group: Group) -> None:
    """When the view comes in which a node is a member of a topic, it makes the topic's log, with what is left then."""
    node = await group.start()
    await node.declare_topic(TopicSpec("t", size_max=100))
    node.reserve_descriptors()
    take, short = NextEpoch.take, contextlib.ExitStack()

    def with_no_more_than_is_wanted(self: NextEpoch, view_id: int) -> Any:
        short.enter_context(left_to_open(self.reserve.wanted))
        return take(self, view_id)

    with short, patch.object(NextEpoch, "take", with_no_more_than_is_wanted):
        await node.open_reader("t", keep_all=False, from_history=False)
    assert node.view().view_id == 1  # the first one is 0
    node.check_descriptors("a reader")
