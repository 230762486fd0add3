"""What tests of remote sessions share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spindle.client.remote_site import one_host
from tests.spindle.hosts import Host


@pytest.fixture(scope="module")
def remote_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with one_host(tmp_path_factory.mktemp("remote")) as host:
        yield host
