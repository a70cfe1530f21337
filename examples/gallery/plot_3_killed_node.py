"""
A node that is killed
=====================

Three real nodes train, and the operating system kills one of them without a warning. The other two form a new round,
load its chunks again from the source, and go on with the model of the last iteration; a new node takes the place of
the killed one. The fit ends with a certificate over all rows, as if
nothing had happened.
"""

import os
import signal

import numpy as np
from sklearn.datasets import make_classification

from chicle_elastic import ArraySource, Job, LinearTrainer, LocalCluster

X, y = make_classification(n_samples=100_000, n_features=40, n_informative=20, random_state=0)
source = ArraySource(X, y.astype(np.int32), max_tasks=3)
cluster = LocalCluster((2, 3))
killed = []


def strike(record):
    """SIGKILL one node, its agent and its task, in iteration 8."""
    if record.iteration == 8 and not killed:
        node, member = sorted(cluster.members().items())[1]
        killed.append(node)
        os.kill(member.agent_pid, signal.SIGKILL)
        os.kill(member.pid, signal.SIGKILL)


with cluster:
    job = Job(trainer=LinearTrainer(C=1.0, tol=1e-8), source=source, max_iterations=500, on_iteration=strike)
    outcome = cluster.run(job)
print(f"{killed[0]} was killed; the fit ended after {len(outcome.history)} iterations: {outcome.reason}")

# %%
# What happened, as the agents wrote it down:

for record in outcome.history:
    for event in record.events:
        print(f"iteration {record.iteration}: {event}")
outcome.history.plot(title=f"{killed[0]} is killed, and another node takes its place")

# %%
# The ledger knows what became of each chunk: those of the killed node were loaded again, and the rows that it had read
# in the iteration that the crash cut short count as replayed.

print(outcome.ledger)
