"""Nodes with checkpoint services, for the tests of this folder."""

import pytest

from tests.checkpoint.cluster import Cluster


@pytest.fixture
def cluster():
    """Makes clusters of services that reach each other over real sockets, and closes them."""
    made = []

    def make(nodes: int, **options) -> Cluster:
        made.append(Cluster(nodes, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
