"""Fixtures of the tests of TLS: a site whose certificates all ends share, and the loops that a test runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from tests.spindle.site import Site

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Any:
    def on_loop(test: Callable[[], Awaitable[Any]]) -> Any:
        loop = LOOPS[request.param]()
        try:
            return loop.run_until_complete(asyncio.wait_for(test(), 20))
        finally:
            loop.close()

    return on_loop
