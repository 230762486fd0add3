"""Goal: an edge says in time that its certificate is about to end. Method: one in this process, with short days."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from spindle.config.settings import NodeConfig
from spindle.service.edge import serve_edge
from tests.spindle.site import Site, days_from_now


def test_it_warns_every_day_while_its_certificate_is_about_to_end(
    runtime_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path)
    with days_from_now(-364):
        certificate, key = site.files("cabin", site.application("cabin"))
    config = NodeConfig(runtime_dir=runtime_dir, edge_nodes=("127.0.0.1:1",), certificate=certificate,
                        certificate_key=key, authority=site.authority_file)
    face = mock.Mock(manager=SimpleNamespace(status=lambda text: None, tell=lambda *words: None))

    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if "spindle keys application" in one.getMessage()]

    async def run() -> None:
        stopping = asyncio.Event()
        edge = asyncio.ensure_future(serve_edge(config, stopping, face))
        while len(warnings()) < 3 and not edge.done():
            await asyncio.sleep(0.01)
        stopping.set()
        await edge

    with mock.patch("spindle.service.edge.REMIND_S", 0.01), caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(run(), 20))
    assert "ends on" in warnings()[2]
