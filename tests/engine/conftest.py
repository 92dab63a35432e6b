"""A Ray cluster on this computer, for the tests of a file."""

from collections.abc import Iterator

import pytest
from ray_nodes import RayNodes, ray_nodes


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayNodes]:
    with ray_nodes() as found:
        yield found


@pytest.fixture
def head(cluster: RayNodes) -> Iterator[RayNodes]:
    """The cluster with the nodes that the test before has left, at least its head."""
    yield cluster
    lost = cluster.lost()
    assert not lost, "\n".join(lost)


@pytest.fixture
def nodes(head: RayNodes) -> RayNodes:
    """The cluster with two nodes that are alike, whatever the test before has killed or added."""
    head.mend()
    return head
