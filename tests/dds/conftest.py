"""Fixtures of the DDS tests: participants with embedded nodes, and a group of daemons, in a runtime directory of the
test's own."""

import pytest

from dds import Domain, DomainParticipant
from spindle.config.settings import NodeConfig
from tests.spindle.daemons import daemons
from tests.spindle.hosts import hosts

LIMITED = 64  # a domain


@pytest.fixture
def participant():
    """A participant with a node of its own process."""
    with DomainParticipant.embedded() as one:
        yield one


@pytest.fixture
def limited():
    """A participant with a node of its own process that takes samples of at most 64 KiB."""
    with Domain(LIMITED, NodeConfig(large_sample_max=64 << 10)), DomainParticipant.embedded(LIMITED) as one:
        yield one


@pytest.fixture
def two_nodes():
    """Two participants, each with a node of its own; both nodes form one group."""
    with DomainParticipant.embedded(node_id=1) as one, DomainParticipant.embedded(node_id=2) as two:
        yield one, two


@pytest.fixture
def group(runtime_dir):
    """Three daemons, which form one group."""
    with daemons(runtime_dir, 3) as running:
        yield running


@pytest.fixture
def site(runtime_dir, tmp_path):
    """Three hosts with journals; each has a directory of its own."""
    with hosts(runtime_dir, 3, f'journal.dir="{tmp_path}"') as running:
        yield running
