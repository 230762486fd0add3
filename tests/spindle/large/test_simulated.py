"""Goal: large samples get from node to node in the simulator as elsewhere: on one host, in its time, whoever is killed.

Method: whole simulated nodes; the first gives a sample, and the others bring it, while faults happen to all of them.
"""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest

from spindle.applications.attachment import Attachments
from spindle.errors import SpindleError
from spindle.node.node import Node
from spindle_lab.whole.run import run_seed
from spindle_lab.whole.slots import NodeSlot
from spindle_lab.whole.world import Setup
from tests.spindle.large.group import TOPIC, pattern, sealed

SIZE = 100_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 7])
def test_nodes_of_one_host_bring_samples_in_the_simulator(seed: int) -> None:
    brought: list[int] = []
    serves = NodeSlot.serves

    async def give_and_bring(node: Node, life: int) -> None:
        own = node.node_id * 1000 + life
        node.large.store.put(own, sealed(pattern(SIZE, own)), SIZE, TOPIC)
        for other in range(1, 4):
            wanted = other * 1000 + 1
            if other == node.node_id or node.large.store.find(wanted) is not None:
                continue
            try:
                fd, _ = await node.large.bring(wanted, SIZE, TOPIC, [other, *range(1, 4)])
            except SpindleError:  # its node was killed, and is in another life now
                continue
            assert os.pread(fd, SIZE, 0) == pattern(SIZE, wanted)
            node.large.store.put(wanted, fd, SIZE, TOPIC)
            brought.append(wanted)

    def also_bring(slot: NodeSlot, attachments: Attachments) -> None:
        serves(slot, attachments)
        lives = slot.world.__dict__.setdefault("lives_of_large", {})
        life = lives[slot.node_id] = lives.get(slot.node_id, 0) + 1
        attachments.node._spawn(give_and_bring(attachments.node, life))

    setup = Setup(hosts=1, nodes=3, programs=2, topics=2, pace=400, faults=4 * (seed % 2), slow_lines=False,
                  small_buffers=bool(seed & 2), short_writes=bool(seed & 4))
    with patch.object(NodeSlot, "serves", also_bring):
        outcome = run_seed(seed, setup=setup)
        assert not outcome.broken, outcome.text
        count = len(brought)
        again = run_seed(seed, setup=setup)
        assert again.hash == outcome.hash and len(brought) == 2 * count > 0

