"""Fits as a notebook does, for tests that kill it: `python -m tests.torchx.notebook FOLDER SCHEDULER`."""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chicle_elastic import TorchXRuntime
from estimators import ChicleSVM

TOL = 1e-8
NODES = (1, 2)


def problem() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.str_]]:
    """Rows that two classes overlap in, so that a fit takes seconds."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60_000, 200))
    return X, np.where(X[:, 0] + 2.0 * rng.normal(size=len(X)) > 0, "good", "bad")


def runtime(folder: Path, scheduler: str) -> TorchXRuntime:
    """On a Slurm of the tests the partition "main" is not preempted."""
    is_slurm = scheduler == "slurm"
    return TorchXRuntime(
        scheduler,
        NODES,
        folder=folder,
        cpu=1,
        memory_mb=900,
        cfg={"partition": "main", "time": "10"} if is_slurm else {},
        member_options=("--host", "127.0.0.1", *(("--sbatch=--partition=spot",) if is_slurm else ())),
        env={"OMP_NUM_THREADS": "1"},
    )


if __name__ == "__main__":
    ChicleSVM(tol=TOL, random_state=0, runtime=runtime(Path(sys.argv[1]), sys.argv[2])).fit(*problem())
