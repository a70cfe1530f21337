"""
A policy of your own
====================

A policy looks at what every node owns and how long its iterations took, and decides: move chunks, redraw owners, set a
parameter, ask for nodes or let one go. It is a pure function, so the same observations give the same decision, and a
test of it needs no cluster.

This one keeps the number of chunks of all nodes in proportion to shares that it is given, say because two nodes of a
job also do other work.
"""

from dataclasses import dataclass, field

from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale

from chicle_elastic import Decision, InProcess, MoveChunks, Policy
from estimators import ChicleSVM


@dataclass(frozen=True, slots=True, kw_only=True)
class Proportion(Policy):
    """Keep chunks in proportion to shares; a node without one has 1."""

    shares: dict[str, float] = field(default_factory=dict)

    def decide(self, observations):
        """Move chunks from the node that has most above its share to the one that has most below."""
        counts = observations.num_chunks
        total = sum(self.shares.get(node, 1.0) for node in counts)
        surplus = {
            node: count - self.shares.get(node, 1.0) / total * sum(counts.values()) for node, count in counts.items()
        }
        most, least = max(surplus, key=surplus.get), min(surplus, key=surplus.get)
        number = int(min(surplus[most], -surplus[least]))
        if number == 0:
            return None
        reason = f"{most} has {surplus[most]:.1f} chunks above its share, {least} {-surplus[least]:.1f} below"
        return Decision(actions=(MoveChunks(most, least, number),), reason=reason)


X, y = load_breast_cancer(return_X_y=True)
policy = Proportion(shares={"task-0": 3.0})
svm = ChicleSVM(C=0.1, tol=1e-8, policy=policy, runtime=InProcess(num_tasks=3), chunk_size=2048)
svm.fit(scale(X), y)

# %%
# What it did, with its reasons, and the chunks of each task:

for record in svm.history_:
    for event in record.events:
        if "Proportion" in event:
            print(f"iteration {record.iteration}: {event}")
svm.history_.plot(title="task-0 gets three shares of five")
