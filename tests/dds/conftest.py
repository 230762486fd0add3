"""Fixtures of the DDS tests: participants with embedded nodes, in a runtime directory of the test's own."""

import pytest

from dds import DomainParticipant


@pytest.fixture
def participant():
    """A participant with a node of its own process."""
    with DomainParticipant(embedded=True) as one:
        yield one


@pytest.fixture
def two_nodes():
    """Two participants, each with a node of its own; both nodes form one group."""
    with DomainParticipant(embedded=True, node_id=1) as one, DomainParticipant(embedded=True, node_id=2) as two:
        yield one, two
