"""An algorithm of one's own: ridge regression by averaged gradients, as a Trainer and a Solver.

The pair knows nothing of nodes, processes or chunks that move, so it runs unchanged wherever a job runs.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import scale

from chicle_elastic import ArraySource, InProcess, Job, Solver, Trainer, Update


@dataclass(frozen=True, kw_only=True)
class RidgeTrainer(Trainer):
    """Minimises mean squared error + alpha |w|^2 by gradient steps, averaged over tasks by samples."""

    alpha: float = 1e-3
    step: float = 0.24

    def init(self, schema, rng):
        return np.zeros(schema.num_features)

    def solver(self, ctx):
        return RidgeSolver(ctx)

    def merge(self, model, weighted_sum, total_weight):
        gradient = weighted_sum / total_weight + self.alpha * model
        return model - 2 * self.step * gradient


class RidgeSolver(Solver):
    """The local part of the gradient."""

    def solve(self, model, budget):
        gradient, samples = np.zeros_like(model), 0
        for chunk in self.chunks.values():
            if budget.is_spent():
                break
            block = chunk.read()
            residuals = block.rows @ model - block.targets
            gradient += residuals @ block.rows
            samples += len(residuals)
        is_partial = samples < sum(chunk.num_rows for chunk in self.chunks.values())
        return Update(delta=gradient / max(samples, 1), samples=samples, weight=samples, is_partial=is_partial)


if __name__ == "__main__":
    X, y = load_diabetes(return_X_y=True)
    X, y = scale(X), scale(y)
    source = ArraySource(X, y, max_tasks=4)
    runtime = InProcess(num_tasks=2, changes=((20, 4), (40, 3)))
    w = runtime.run(Job(trainer=RidgeTrainer(), source=source, max_iterations=4000)).model
    exact = np.linalg.solve(X.T @ X / len(y) + 1e-3 * np.eye(X.shape[1]), X.T @ y / len(y))
    print("largest difference from the exact solution:", abs(w - exact).max())
