"""A job that cannot go on ends with an error on a local cluster, where no other node is to come."""

from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.errors import JobFailedError
from chicle_elastic.ids import ChunkId
from estimators import ChicleSVM
from tests.estimators.test_folder import digits_folder


def test_a_file_that_is_damaged_while_the_folder_is_open_is_named(tmp_path: Path) -> None:
    """The nodes try it in turn; then the job ends, and the cluster is good for the next one."""
    folder, X, y = digits_folder(tmp_path / "digits")
    with LocalCluster(2) as cluster:
        model = ChicleSVM(runtime=cluster)
        damaged = Path(str(folder.file(ChunkId(0))))
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 255
        damaged.write_bytes(content)
        with pytest.raises(JobFailedError, match=rf"(?s)could not be loaded .*{damaged.name}.* is damaged"):
            model.fit(ChunkFolder(tmp_path / "digits"))
        model.fit(X, y)


@pytest.mark.parametrize("nodes", [2, (1, 2)])
def test_data_that_all_nodes_together_have_no_room_for_are_refused(nodes: int | tuple[int, int]) -> None:
    """With the figures; also where the job may begin before all nodes are there."""
    X = np.random.default_rng(0).normal(size=(20_000, 5))
    said = r"no room for \d+ chunks to be loaded: .* on the 2 nodes"
    with LocalCluster(nodes, memory_bytes=20_000) as cluster, pytest.raises(JobFailedError, match=said):
        ChicleSVM(runtime=cluster).fit(X, X[:, 0] > 0)
