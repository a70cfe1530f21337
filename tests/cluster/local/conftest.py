"""What the tests of the local cluster share."""

from collections.abc import Iterator

import pytest

from chicle_elastic.cluster.local.local_cluster import LocalCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One for all tests of a file; each begins with a job."""
    with LocalCluster(2, grace_s=5) as cluster:
        yield cluster
