"""What a linear fit on a local cluster loads, seen from the memory of its processes."""

from pathlib import Path

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.trainer import LinearTrainer


def test_no_process_of_a_linear_fit_has_torch() -> None:
    """Neither tasks nor agents nor the server that forks them, also where the driver has imported torch."""
    import torch  # noqa: F401

    mapped: list[str] = []

    def look(_: object) -> bool:
        for member in () if mapped else cluster.members().values():
            parent = Path(f"/proc/{member.pid}/status").read_text().partition("PPid:")[2].split()[0]
            mapped.extend(Path(f"/proc/{pid}/maps").read_text() for pid in (member.pid, member.agent_pid, parent))
        return False

    source = ArraySource(np.eye(4), np.array([0, 1, 0, 1], dtype=np.int32), max_tasks=2)
    with LocalCluster(2) as cluster:
        cluster.run(Job(trainer=LinearTrainer(), source=source, max_iterations=3, on_iteration=look))
    assert len(mapped) == 6
    assert not any("libtorch" in maps for maps in mapped)
