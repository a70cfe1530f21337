"""A script as a user writes it for a cluster: every node runs it, and it trains one model on all of them.

    python -m chicle_elastic.launch --store-only --rdzv-endpoint 127.0.0.1:29400 --secret-file job.secret &
    python -m chicle_elastic.launch --nnodes 2:4 --rdzv-endpoint 127.0.0.1:29400 --secret-file job.secret \
        examples/cluster_svm.py OUTPUT          # on each node; say SIGTERM to an agent, and its node leaves

The job goes on until OUTPUT/end exists. Each task that stays so long writes OUTPUT/PID.result.json.
`python -m examples.cluster_demo` does all that on this machine.
"""

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from chicle_elastic import ArraySource, IterationRecord, Job, LinearTrainer, Outcome, cluster_runtime

C = 1e-3
COPIES = 200
NOISE = 0.3
PAUSE_S = 0.02
"""After each iteration: the nodes of the demo share one machine, and those that come need some of it to start."""


def load_data() -> tuple[np.ndarray, np.ndarray]:
    """The breast cancer data 200 times over, each copy with noise of its own: 113,800 rows, the same on every node."""
    X, y = load_breast_cancer(return_X_y=True)
    X = np.tile(StandardScaler().fit_transform(X), (COPIES, 1))
    X += NOISE * np.random.default_rng(0).standard_normal(X.shape)
    return X, np.tile(y, COPIES).astype(np.int32)


def gap_in_numpy(outcome: Outcome, X: np.ndarray, y: np.ndarray) -> float:
    """The relative duality gap from first principles: the original rows, the model, and the gathered duals."""
    Z = np.column_stack([X, np.ones(len(X))]) * np.where(y == 1, 1.0, -1.0)[:, None]
    assert outcome.state is not None
    alpha = outcome.state.ravel()
    primal = 0.5 * outcome.model @ outcome.model + C * np.maximum(0.0, 1.0 - Z @ outcome.model).sum()
    w = Z.T @ alpha
    is_feasible = alpha.min() >= 0.0 and alpha.max() <= C * (1 + 1e-12)
    return float((primal - (alpha.sum() - 0.5 * w @ w)) / primal) if is_feasible else float("inf")


def main(folder: Path) -> None:
    """Train until the demo or a user ends it, and write down what came of it."""
    X, y = load_data()
    runtime = cluster_runtime()
    trainer = LinearTrainer(C=C, tol=0.0)  # never good enough: the demo ends the job

    def is_over(record: IterationRecord) -> bool:
        time.sleep(PAUSE_S)
        return (folder / "end").exists()

    job = Job(
        trainer=trainer,
        source=ArraySource(X, y, max_tasks=runtime.most_tasks()),
        max_iterations=1_000_000,
        keep_state=True,
        on_iteration=is_over,
    )
    outcome = runtime.run(job)
    certificate = outcome.certificate
    result = {
        "iterations": len(outcome.history),
        "gap": None if certificate is None else trainer.relative_gap(outcome.model, certificate),
        "gap_in_numpy": gap_in_numpy(outcome, X, y),
        "accuracy": float(np.mean((X @ outcome.model[:-1] + outcome.model[-1] > 0) == (y == 1))),
    }
    (folder / f"{os.getpid()}.result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
