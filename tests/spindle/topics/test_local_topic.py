"""What becomes of a topic when its history can't go into its log.

Method: the end of the task that appends it, as the topic is told of it.
"""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from spindle.errors import NodeStopped, SpindleError
from spindle.topics.local_topic import LocalTopic


@pytest.mark.parametrize(("error", "fails"), [(NodeStopped("the node stops"), False), (ValueError("damaged"), True)])
def test_only_what_nobody_knows_yet_stops_the_node(
        error: Exception, fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: a node that stops in the middle of a history logs no traceback, and keeps the reason for which it stops."""
    failures: list[SpindleError] = []
    topic: Any = SimpleNamespace(spec=SimpleNamespace(name="t"), _on_failure=failures.append)

    async def body() -> None:
        async def pump() -> None:
            raise error

        task = asyncio.ensure_future(pump())
        await asyncio.wait([task])
        LocalTopic._pump_ended(topic, task)

    with caplog.at_level(logging.ERROR):
        asyncio.run(body())
    assert bool(failures) == bool(caplog.records) == fails
