"""The moving picture of the README: a fit on four real nodes, of which one is killed and another one joins.

    python -m examples.moving_picture [PICTURE]          # writes nodes.gif by default; needs [cluster,plot]

Four nodes of this machine train a linear SVM on 200,000 rows. The operating system kills one of them in iteration 8;
the others load its chunks again from the source and go on, and the cluster starts another node, which gets a share of
them. Every frame is an iteration of that run.
"""

import os
import signal
import sys

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from sklearn.datasets import make_classification

from chicle_elastic import ArraySource, IterationRecord, Job, LinearTrainer, LocalCluster, Outcome

NUM_NODES = 4
KILLED_AT = 8
FRAMES_PER_S = 4
LAST_FRAMES = 10
"""Frames for which the end stays."""
MOST_SHOWN = 1e2
"""Of the gap: that of the first steps is astronomic."""


def train() -> tuple[Outcome, str]:
    """The outcome, and the node that was killed."""
    X, y = make_classification(n_samples=200_000, n_features=40, n_informative=20, random_state=0)
    source = ArraySource(X, y.astype(np.int32), max_tasks=NUM_NODES)
    cluster = LocalCluster((2, NUM_NODES))
    killed: list[str] = []

    def strike(record: IterationRecord) -> None:
        if record.iteration == KILLED_AT and not killed:
            node, member = sorted(cluster.members().items())[2]
            killed.append(node)
            os.kill(member.agent_pid, signal.SIGKILL)
            os.kill(member.pid, signal.SIGKILL)

    job = Job(trainer=LinearTrainer(C=1.0, tol=1e-6), source=source, max_iterations=200, on_iteration=strike)
    with cluster:
        return cluster.run(job), killed[0]


def draw(outcome: Outcome, killed: str, path: str) -> None:
    """Write the picture: chunks of the nodes on the left, the gap on the right, a line of what happened above."""
    records = list(outcome.history)
    nodes = sorted({node for record in records for node in record.num_chunks})
    colors = {node: plt.get_cmap("tab10")(number) for number, node in enumerate(nodes)}
    gaps = np.minimum(outcome.history.column("duality_gap_estimate"), MOST_SHOWN)
    lost = next(record.iteration for record in records if killed not in record.num_chunks)
    joined = next((record.iteration for record in records if nodes[-1] in record.num_chunks), None)
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.1), width_ratios=(1, 1.35), layout="constrained")

    def frame(index: int) -> list:
        record = records[min(index, len(records) - 1)]
        left.clear()
        right.clear()
        chunks = [record.num_chunks.get(node, 0) for node in nodes]
        left.bar(nodes, chunks, color=[colors[node] for node in nodes])
        left.set(ylim=(0, 1.15 * max(max(r.num_chunks.values()) for r in records)), title="chunks of each node")
        if record.iteration >= lost:
            left.text(nodes.index(killed), 0.6, "killed", ha="center", color="crimson", rotation=90, va="bottom")
        seen = slice(0, min(index, len(records) - 1) + 1)
        right.semilogy([r.iteration for r in records[seen]], gaps[seen], "o-", color="#31618c", markersize=3)
        right.set(xlim=(0, len(records) + 1), ylim=(gaps.min() / 3, 3 * MOST_SHOWN), xlabel="iteration")
        right.set_title("certified: the optimum, to 1e-6" if index >= len(records) else "relative duality gap")
        for iteration, label in ((lost, f"{killed} is killed"), (joined, f"{nodes[-1]} joins")):
            if iteration is not None and record.iteration >= iteration:
                right.axvline(iteration - 0.5, color="grey", linewidth=1, linestyle=":")
                right.text(iteration - 0.3, 1.2 * MOST_SHOWN, label, fontsize=8, va="center")
        return []

    animation = FuncAnimation(figure, frame, frames=len(records) + LAST_FRAMES, blit=False)
    animation.save(path, writer=PillowWriter(fps=FRAMES_PER_S), dpi=80)


def main() -> None:
    """Train and draw."""
    path = sys.argv[1] if len(sys.argv) > 1 else "nodes.gif"
    outcome, killed = train()
    print(f"{killed} was killed; {outcome.reason}")
    draw(outcome, killed, path)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
