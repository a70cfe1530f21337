"""How many epochs ChicleCNNClassifier needs on Fashion-MNIST: with 1, 4 and 16 tasks, and while tasks come and go.

Default settings. Tasks are emulated in this process, so the figures are those of a cluster of as many nodes, and the
time is not. Every epoch is scored on the test set by a callback; epochs to an accuracy are interpolated between two
epochs, means are over the seeds.

    python -m benchmarks.cnn_epochs [--seeds 3] [--epochs 6] [--only 1,4] [--data FOLDER]

Exit code 1 when a gate is missed: 0.86 within 6 epochs with one task; epochs to 0.84 that rise with the tasks; elastic
runs, after so many epochs, within 1 % of that fixed-size run which is nearer, because the two may be further apart than
that; each sample once per epoch. The differences to both are printed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from benchmarks.cnn_data import add_data_argument, fashion
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleCNNClassifier

EPOCHS = 6
MOST_EPOCHS = 14
GOAL, MILESTONE = 0.86, 0.84
LEAST_SHARE = 0.01
"""Accuracy that elastic runs may differ from fixed-size runs."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is run.

    Attributes:
        name: In the table.
        runtime: Tasks, and how their number changes.
        until_milestone: Go on after the last epoch until the accuracy `MILESTONE` is reached.
    """

    name: str
    runtime: InProcess
    until_milestone: bool = False


def cases(num_rows: int, epochs: int) -> list[Case]:
    """All of them; memberships change after half of the epochs."""

    def half(num_tasks: int) -> int:
        return round(epochs / 2 * num_rows / (num_tasks * 8 * 16))

    return [
        Case(name="1", runtime=InProcess(num_tasks=1)),
        Case(name="4", runtime=InProcess(num_tasks=4), until_milestone=True),
        Case(name="16", runtime=InProcess(num_tasks=16), until_milestone=True),
        Case(name="4 to 1", runtime=InProcess(num_tasks=4, changes=((half(4), 1),))),
        Case(name="1 to 4", runtime=InProcess(num_tasks=1, changes=((half(1), 4),))),
    ]


@dataclass(kw_only=True)
class Run:
    """One fit.

    Attributes:
        case: Name of the case.
        seed: random_state.
        scores: Test accuracy after each epoch.
        seconds: Whole fit with its scores.
        is_exact: Every epoch processed as many samples as there are.
    """

    case: str
    seed: int
    scores: list[float] = field(default_factory=list)
    seconds: float = 0.0
    is_exact: bool = False

    def epochs_to(self, accuracy: float) -> float:
        """Epochs until the test accuracy, interpolated; infinity where it was never reached."""
        before = 0.1
        for epoch, score in enumerate(self.scores):
            if score >= accuracy:
                return epoch + (accuracy - before) / (score - before)
            before = score
        return float("inf")


class Score:
    """Callback: scores each epoch, and ends a fit that has gone on long enough."""

    def __init__(self, run: Run, case: Case, epochs: int, X: np.ndarray, y: np.ndarray) -> None:
        self.run, self.case, self.epochs, self.X, self.y = run, case, epochs, X, y

    def setup(self, estimator: object, context: object) -> None:
        """Nothing to do."""

    def teardown(self, estimator: object, context: object) -> None:
        """Nothing to do."""

    def on_fit_task_begin(self, estimator: object, context: object) -> None:
        """Nothing to do."""

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):  # type: ignore[no-untyped-def]
        """Score an epoch."""
        if context.task_name != "epoch":
            return None
        self.run.scores.append(float(fitted_estimator.score(self.X, self.y)))
        has_reached = max(self.run.scores) >= MILESTONE or not self.case.until_milestone
        return len(self.run.scores) >= self.epochs and has_reached


def fit(case: Case, seed: int, epochs: int, train: tuple, test: tuple) -> Run:
    """One fit of a case."""
    run = Run(case=case.name, seed=seed)
    most = max(MOST_EPOCHS, epochs) if case.until_milestone else epochs
    model = ChicleCNNClassifier(random_state=seed, runtime=case.runtime, max_epochs=most)
    start = time.perf_counter()
    model.set_callbacks(Score(run, case, epochs, *test)).fit(*train)
    run.seconds = time.perf_counter() - start
    samples = np.cumsum(model.history_.column("samples"))
    ends = [index for index, record in enumerate(model.history_) if "epoch" in record.figures]
    run.is_exact = samples[ends].tolist() == [len(train[1]) * (n + 1) for n in range(len(ends))]
    return run


def mean(values: Sequence[float]) -> float:
    """Mean of what the seeds gave."""
    return statistics.fmean(values)


def gates(runs: dict[str, list[Run]], epochs: int) -> list[tuple[str, bool]]:
    """What has to hold, and whether it does; only for cases that were run."""
    found = [("each sample once per epoch", all(run.is_exact for part in runs.values() for run in part))]
    at_end = {name: mean([run.scores[epochs - 1] for run in part]) for name, part in runs.items()}
    if "1" in runs:
        best = mean([max(run.scores[:EPOCHS]) for run in runs["1"]])
        found.append((f"one task: {best:.4f} >= {GOAL} within {EPOCHS} epochs", best >= GOAL))
    fixed = [name for name in ("1", "4", "16") if name in runs]
    steps = [mean([run.epochs_to(MILESTONE) for run in runs[name]]) for name in fixed]
    if len(fixed) > 1:
        text = " < ".join(f"{step:.2f}" for step in steps)
        found.append((f"epochs to {MILESTONE} rise with {', '.join(fixed)} tasks: {text}", steps == sorted(steps)))
    if "1" in runs and "4" in runs:
        for name in ("4 to 1", "1 to 4"):
            if name in runs:
                least = min(abs(at_end[name] - at_end[other]) for other in ("1", "4"))
                text = ", ".join(f"{at_end[name] - at_end[other]:+.4f} of {other}" for other in ("1", "4"))
                found.append((f"{name} tasks: {at_end[name]:.4f} ({text} tasks all the time)", least <= LEAST_SHARE))
    return found


def main() -> int:
    """Run all, print a row per case as it is done, then the gates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="fits of each case (default: 3)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"of each fit (default: {EPOCHS})")
    parser.add_argument("--only", help="names of cases, separated by commas (default: all)")
    add_data_argument(parser)
    arguments = parser.parse_args()
    epochs = arguments.epochs
    if epochs < EPOCHS:
        parser.error(f"--epochs has to be {EPOCHS} or more: gates look at that many")
    train, test = (fashion(arguments.data, part) for part in ("train", "test"))
    runs: dict[str, list[Run]] = {}
    print(f"| tasks | epochs to {MILESTONE} | to {GOAL} | accuracy after {epochs} epochs | each seed | s per epoch |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for case in cases(len(train[1]), epochs):
        if arguments.only and case.name not in arguments.only.split(","):
            continue
        part = runs[case.name] = [fit(case, seed, epochs, train, test) for seed in range(arguments.seeds)]
        scores = [run.scores[epochs - 1] for run in part]
        seconds = sum(run.seconds for run in part) / sum(len(run.scores) for run in part)
        print(
            f"| {case.name} | {mean([run.epochs_to(MILESTONE) for run in part]):.2f} | "
            f"{mean([run.epochs_to(GOAL) for run in part]):.2f} | {mean(scores):.4f} | "
            f"{', '.join(f'{score:.4f}' for score in scores)} | {seconds:.1f} |",
            flush=True,
        )
    results = gates(runs, epochs)
    print()
    for text, holds in results:
        print(f"{'ok    ' if holds else 'MISSED'} {text}")
    print(json.dumps({name: [asdict(run) for run in part] for name, part in runs.items()}))
    return 0 if all(holds for _, holds in results) else 1


if __name__ == "__main__":
    sys.exit(main())
