"""A slow node and its relief: three nodes of this machine, one of which takes three times as long for a sample.

    python -m examples.slow_node [PICTURE]          # writes slow-node.png by default; needs [cluster,plot]

`Rebalance` sees it in the times of the iterations and moves chunks away from it, until all nodes end together.
"""

import sys
import time
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from chicle_elastic import (
    ArraySource,
    Budget,
    Context,
    Job,
    LinearTrainer,
    LocalCluster,
    Rebalance,
    Solver,
    Update,
)

SLOW_NODE = "n1"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenCocoa(LinearTrainer):
    """CoCoA with nodes that sleep so long per sample, one of them three times as long."""

    sample_s: float = 5e-5

    def solver(self, ctx: Context) -> Solver:
        """The solver of CoCoA, slowed down."""
        solver = LinearTrainer.solver(self, ctx)
        solve = solver.solve
        cost_s = self.sample_s * (3 if ctx.name == SLOW_NODE else 1)

        def slow_solve(model: np.ndarray, budget: Budget) -> Update:
            update = solve(model, budget)
            time.sleep(update.samples * cost_s)
            return update

        solver.solve = slow_solve  # type: ignore[method-assign]
        return solver


def main() -> None:
    """Train for 80 iterations, print what moved, write the picture."""
    # The tasks import this module by its name, so what is run as a script goes by that name, too.
    from examples.slow_node import UnevenCocoa

    X, y = load_breast_cancer(return_X_y=True)
    source = ArraySource(scale(X), y.astype(np.int32), max_tasks=3)
    job = Job(trainer=UnevenCocoa(C=0.1, tol=0.0, algorithm="cocoa"), source=source, max_iterations=80)
    with LocalCluster(3, policies=(Rebalance(),)) as cluster:
        outcome = cluster.run(job)
    for record in outcome.history:
        for event in record.events:
            print(f"iteration {record.iteration}: {event}")
    print(outcome.ledger)
    path = sys.argv[1] if len(sys.argv) > 1 else "slow-node.png"
    outcome.history.plot(title=f"{SLOW_NODE} takes three times as long for a sample").savefig(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
