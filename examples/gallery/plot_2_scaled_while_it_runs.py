"""
A fit that is scaled while it runs
==================================

Four real nodes on this machine, an agent and a task each. While they train, another thread asks for two nodes, and
then for four again. No task restarts: nodes that join get some chunks of the others, and nodes that leave hand theirs
over, at a boundary between two iterations.
"""

import threading

import numpy as np
from sklearn.datasets import make_classification

from chicle_elastic import ArraySource, Job, LinearTrainer, LocalCluster

X, y = make_classification(n_samples=20_000, n_features=40, n_informative=20, random_state=0)
source = ArraySource(X, y.astype(np.int32), max_tasks=4)

# %%
# A :class:`~chicle_elastic.Job` is what an estimator builds inside. Here ``on_iteration`` looks at the records as they
# come: after 40 iterations it asks for two nodes, after 40 iterations of two nodes for four again. The job ends 40
# iterations after the fourth node is back.

cluster = LocalCluster((2, 4))
at_two, at_four_again = [], []  # iterations with two nodes, and those with four after them


def scale(nodes):
    """Ask for so many nodes in another thread, as a notebook cell or an operator would."""
    threading.Thread(target=cluster.scale, args=(nodes,)).start()


def watch(record):
    """Look at the record of each iteration; True ends the job."""
    if record.iteration == 40:
        scale(2)
    if record.num_tasks == 2:
        at_two.append(record.iteration)
        if len(at_two) == 40:
            scale(4)
    elif record.num_tasks == 4 and at_two:
        at_four_again.append(record.iteration)
    return len(at_four_again) == 40


job = Job(trainer=LinearTrainer(C=1e-3, tol=0.0), source=source, max_iterations=5000, on_iteration=watch)
with cluster:
    outcome = cluster.run(job)

# %%
# Each change and what it cost: ``stall_ms`` is how much longer the other nodes waited than in an iteration without it.

for transition in outcome.history.transitions:
    if transition.stall_ms is not None:
        print(
            f"iteration {transition.iteration}: {', '.join(transition.reasons)}: stall of {transition.stall_ms:.0f} ms"
        )
outcome.history.plot(title="4 > 2 > 4 nodes while the fit runs")
