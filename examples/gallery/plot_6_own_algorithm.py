"""
An algorithm of your own
========================

A :class:`~chicle_elastic.Trainer` owns the model, merges updates and decides when to stop; a
:class:`~chicle_elastic.Solver` improves the model on the chunks of its node. The pair knows nothing of nodes,
processes or chunks that move, so it runs unchanged wherever a job runs.

Here: the mean squared error plus ``alpha |w|^2`` by gradient steps, averaged over tasks by samples.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import scale

from chicle_elastic import ArraySource, InProcess, Job, LocalCluster, Solver, Trainer, Update


@dataclass(frozen=True, kw_only=True)
class RidgeTrainer(Trainer):
    """Gradient descent for so many iterations as the job has."""

    alpha: float = 1e-3
    step: float = 0.24

    def init(self, schema, rng):
        """The first model, float64 of shape (num_features,)."""
        return np.zeros(schema.num_features)

    def solver(self, ctx):
        """The solver of a task."""
        return RidgeSolver(ctx)

    def metric_names(self, schema):
        """What solvers report; the sums over all tasks ride in the iteration's one all-reduce."""
        return ("squares",)

    def figures(self, model, report):
        """What ``history_``, TensorBoard and policies see of it."""
        return {"mean_squared_error": report.metrics["squares"] / report.samples}

    def merge(self, model, weighted_sum, total_weight):
        """The next model from the sum of ``weight * delta`` of all tasks."""
        gradient = weighted_sum / total_weight + self.alpha * model
        return model - 2 * self.step * gradient


class RidgeSolver(Solver):
    """The local part of the gradient."""

    def solve(self, model, budget):
        """Read every row of every chunk of this node once."""
        gradient, squares, samples = np.zeros_like(model), 0.0, 0
        for chunk in self.chunks.values():
            if budget.is_spent():
                break
            block = chunk.read()
            residuals = block.rows @ model - block.targets
            gradient += residuals @ block.rows
            squares += residuals @ residuals
            samples += len(block.targets)
        is_partial = samples < sum(chunk.num_rows for chunk in self.chunks.values())
        return Update(
            delta=gradient / max(samples, 1),
            samples=samples,
            weight=samples,
            metrics={"squares": squares},
            is_partial=is_partial,
        )


X, y = load_diabetes(return_X_y=True)
X, y = scale(X), scale(y)
exact = np.linalg.solve(X.T @ X / len(y) + 1e-3 * np.eye(X.shape[1]), X.T @ y / len(y))

# %%
# In this process, on two tasks, then four, then three:

job = Job(trainer=RidgeTrainer(), source=ArraySource(X, y, max_tasks=4), max_iterations=4000)
outcome = InProcess(num_tasks=2, changes=((1000, 4), (2500, 3))).run(job)
print("largest difference from the exact solution:", abs(outcome.model - exact).max())
outcome.history.plot(title="2 > 4 > 3 tasks")

# %%
# And on two real nodes, without a change:

with LocalCluster(2) as cluster:
    outcome = cluster.run(job)
print("largest difference from the exact solution:", abs(outcome.model - exact).max())
