"""
A slow node, and its relief
===========================

Three real nodes, one of which takes three times as long for a sample. The policy :class:`~chicle_elastic.Rebalance`
sees it in the times of the iterations and moves chunks away from it, until all nodes end their iterations together.
"""

import time
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from chicle_elastic import ArraySource, Job, LinearTrainer, LocalCluster, Rebalance

# %%
# The nodes of one machine are equally fast, so the slow one is made: its solver sleeps longer per sample. The class
# goes from here to the nodes with its code.


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenCocoa(LinearTrainer):
    """CoCoA with nodes that sleep so long per sample, one of them three times as long."""

    sample_s: float = 2e-4

    def solver(self, ctx):
        """The solver of CoCoA, slowed down."""
        solver = LinearTrainer.solver(self, ctx)
        solve = solver.solve
        cost_s = self.sample_s * (3 if ctx.name == "n1" else 1)

        def slow_solve(model, budget):
            update = solve(model, budget)
            time.sleep(update.samples * cost_s)
            return update

        solver.solve = slow_solve
        return solver


X, y = load_breast_cancer(return_X_y=True)
source = ArraySource(scale(X), y.astype(np.int32), max_tasks=3)
job = Job(trainer=UnevenCocoa(C=0.1, tol=0.0, algorithm="cocoa"), source=source, max_iterations=60)
with LocalCluster(3, policies=(Rebalance(),)) as cluster:
    outcome = cluster.run(job)

# %%
# Each decision has its reason:

for record in outcome.history:
    for event in record.events:
        print(f"iteration {record.iteration}: {event}")
outcome.history.plot(title="n1 takes three times as long for a sample")
