"""ChicleLogisticRegression with one softmax of all classes against the multinomial solvers of scikit-learn, in one run.

One task is timed: the processor time of whole fits, in turns with the peers, medians, one thread, and held against the
best peer. Ours stops when its relative duality gap is *certified* to be at most tol; a peer is charged only for the
fewest iterations that bring (P - P*) / P* to tol, found beforehand. P* is the least objective that any side found, and
is known up to the gap of a fit of ours to 1e-8. Several tasks are counted in iterations. Held-out log loss is compared
with that of a peer that has converged.

    python -m benchmarks.multinomial [--only DATA[,DATA]] [--C 0.01,1,100] [--tol 1e-3,1e-5]
        [--parts time tasks loss] [--quick] [--repeats N] [--cap S] [--data FOLDER] [--json FILE]

Exit code 1 if a gate is missed: a fit that takes more than 1.5 times as long as the best peer and 10 ms, several tasks
that take other iterations than one, a log loss that differs by more than 1e-4 at tol = 1e-6, or an objective or a dual
objective that contradicts those of the peers.
"""

import argparse
import gzip
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import scale

from benchmarks.bars import HEADER, Bar, Row
from benchmarks.datasets import DataSet
from benchmarks.fits import Seconds, median, timed_fit
from benchmarks.glm_bars import speed_bar
from benchmarks.glm_real import FILES
from benchmarks.machine import machine
from benchmarks.peers import Peer
from benchmarks.problems import softmax_loss
from benchmarks.report import finish
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleLogisticRegression

FOLDER = Path(__file__).parents[1] / ".." / "shared" / "data"
SOLVERS = ("lbfgs", "newton-cg", "newton-cholesky", "saga", "sag")
MOST_CHOLESKY = 3000
"""Weights of all classes up to which newton-cholesky is asked: its matrix has their square."""
TASKS = (4, 16)
LOSS_TOL, LOSS_BAR = 1e-6, 1e-4
REFERENCE_TOL = 1e-8
HOPELESS = 3.0
"""Times the best peer so far, beyond which no longer fit of another one is tried."""
BLOCK_ROWS = 1 << 13
NUM_WORDS, NUM_TOPICS = 20_000, 12
PARTS = ("time", "tasks", "loss")


def fashion(folder: Path, rows: int | None, part: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """Ten kinds of clothes, pixels between 0 and 1, dense float32."""
    names = FILES["fashion"] if part == "train" else tuple(name.replace("train-", "t10k-") for name in FILES["fashion"])
    images, labels = (gzip.decompress((folder / name).read_bytes()) for name in names)
    label = np.frombuffer(labels, dtype=np.uint8, offset=8).astype(np.int64)
    pixels = np.frombuffer(images, dtype=np.uint8, offset=16).reshape(len(label), -1)
    return pixels[:rows].astype(np.float32) / np.float32(255), label[:rows]


def topics(rows: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """TF-IDF of documents of made-up words by Zipf, one of a few topics each, CSR float64."""
    rng = np.random.default_rng(6)
    common = 1 / (np.arange(NUM_WORDS) + 2.7) ** 1.05
    tells = (rng.random(NUM_WORDS) < 0.2) & (np.arange(NUM_WORDS) >= 50)
    tilts = np.where(tells, rng.standard_normal((NUM_TOPICS, NUM_WORDS)), 0.0)
    y = np.minimum(rng.geometric(0.15, rows) - 1, NUM_TOPICS - 1)
    lengths = np.clip(np.exp(rng.normal(np.log(80), 0.6, rows)), 8, 1000).astype(np.int64)
    document = np.repeat(np.arange(rows), lengths)
    word = np.empty(len(document), dtype=np.int64)
    for topic, tilt in enumerate(tilts):
        drawn = y[document] == topic
        sums = np.cumsum(common * np.exp(0.5 * tilt))
        word[drawn] = np.searchsorted(sums, rng.random(int(drawn.sum())) * sums[-1])
    X = sp.csr_matrix((np.ones(len(document)), (document, word)), shape=(rows, NUM_WORDS))
    X.sum_duplicates()
    idf = np.log((1 + rows) / (1 + np.bincount(X.indices, minlength=NUM_WORDS))) + 1
    X.data = (1 + np.log(X.data)) * idf[X.indices]
    X.data /= np.repeat(np.sqrt(np.add.reduceat(X.data**2, X.indptr[:-1])), np.diff(X.indptr))
    return X, y


def data_sets(folder: Path, *, quick: bool) -> dict[str, Callable[[], DataSet]]:
    """What makes each data set."""
    few, many, documents = (500, 1000, 500) if quick else (10_000, 60_000, 10_000)

    def digits() -> DataSet:
        X, y = load_digits(return_X_y=True)
        return DataSet("digits", "digits, 1797 x 64, 10 classes", X / 16, y)

    def wine() -> DataSet:
        X, y = load_wine(return_X_y=True)
        return DataSet("wine", "wine, 178 x 13, 3 classes", scale(X), y)

    return {
        "iris": lambda: DataSet("iris", "iris, 150 x 4, 3 classes", *load_iris(return_X_y=True)),
        "wine": wine,
        "digits": digits,
        "topics": lambda: DataSet(
            "topics", f"TF-IDF, {documents} x {NUM_WORDS} sparse, 12 classes", *topics(documents)
        ),
        "fashion-few": lambda: DataSet(
            f"fashion-{few}", f"Fashion-MNIST, {few} x 784 float32, 10 classes", *fashion(folder, few)
        ),
        "fashion": lambda: DataSet(
            f"fashion-{many}", f"Fashion-MNIST, {many} x 784 float32, 10 classes", *fashion(folder, many)
        ),
    }


def objective_of(model: Any, data: DataSet, C: float) -> float:
    """The function that all sides minimise, in float64, evaluated by none of them."""
    coef, intercept = np.asarray(model.coef_, dtype=np.float64), np.asarray(model.intercept_, dtype=np.float64)
    total = 0.0
    for start in range(0, data.num_samples, BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        rows = data.X[part] if data.is_sparse else data.X[part].astype(np.float64)
        scores = np.asarray(rows @ coef.T) + intercept
        total += softmax_loss(scores, data.y[part])
    return 0.5 * float(np.vdot(coef, coef)) + C * total


@dataclass(slots=True)
class Tried:
    """One solver on one problem: objective and seconds by iterations."""

    solver: str
    data: DataSet
    C: float
    found: dict[int, tuple[float, float]] = field(default_factory=dict)

    def make(self, iterations: int) -> LogisticRegression:
        """Unfitted; it does not stop by itself."""
        return LogisticRegression(C=self.C, solver=self.solver, tol=1e-14, max_iter=iterations, random_state=0)

    def objective(self, iterations: int) -> float:
        """After so many iterations."""
        if iterations not in self.found:
            model = self.make(iterations)
            seconds = timed_fit(model, self.data).cpu
            self.found[iterations] = (objective_of(model, self.data, self.C), seconds)
        return self.found[iterations][0]

    def fewest(self, goal: float, cap_s: float) -> int | None:
        """Fewest iterations to an objective, to 3 %; None when fits of `cap_s` are not enough."""
        failed, reached = 0, 1
        while self.objective(reached) > goal:
            objective, seconds = self.found[reached]
            if failed > 1 and objective >= self.found[failed][0]:
                return None  # it has stopped by itself
            failed, reached = reached, min(2 * reached, int(reached * cap_s / max(seconds, 1e-6)))
            if reached <= failed:
                return None
        while reached - failed > max(1, reached // 32):
            middle = (failed + reached) // 2
            failed, reached = (middle, reached) if self.objective(middle) > goal else (failed, middle)
        return reached


@dataclass(slots=True)
class Problem:
    """One data set and C, with what is known of the least objective.

    Attributes:
        data, C: The problem.
        least: The least objective that any side found.
        bound: A dual objective.
        peers: What was tried, by solver.
    """

    data: DataSet
    C: float
    least: float = np.inf
    bound: float = -np.inf
    peers: dict[str, Tried] = field(default_factory=dict)

    @classmethod
    def of(cls, data: DataSet, C: float) -> "Problem":
        """Fit ours to more digits than anything that is timed."""
        model = ours(C, REFERENCE_TOL)
        timed_fit(model, data)
        problem = cls(data, C, objective_of(model, data, C), float(model.dual_objective_[0]))
        for solver in SOLVERS:
            weights = data.num_classes * (data.num_features + 1)
            if solver != "newton-cholesky" or weights <= MOST_CHOLESKY:
                problem.peers[solver] = Tried(solver, data, C)
        return problem

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.data.title}, C = {self.C:g}"

    def charged(self, tol: float, cap_s: float) -> dict[str, int]:
        """Fewest iterations of each peer that gets there while it could still be the best."""
        found: dict[str, int] = {}
        for solver, tried in self.peers.items():
            iterations = tried.fewest(self.least * (1 + tol), cap_s)
            self.least = min([self.least, *(objective for objective, _ in tried.found.values())])
            if iterations is not None:
                found[solver] = iterations
                cap_s = min(cap_s, HOPELESS * tried.found[iterations][1] + 0.05)
        return found

    def has_contradiction(self, objective: float, dual: float) -> bool:
        """Whether a certificate says what cannot be."""
        slack = 1e-9 * abs(self.least)
        return dual > self.least + slack or self.bound > objective + slack


def ours(C: float, tol: float, **params: Any) -> ChicleLogisticRegression:
    """An unfitted estimator."""
    return ChicleLogisticRegression(
        **{"C": C, "tol": tol, "max_iter": 5000, "random_state": 0, "n_threads": 1, **params}
    )


def compare_time(problem: Problem, tol: float, repeats: int, cap_s: float) -> Row:
    """Whole fits in turns."""
    charged = problem.charged(tol, cap_s)
    seconds = {solver: problem.peers[solver].found[iterations][1] for solver, iterations in charged.items()}
    contenders = [solver for solver in charged if seconds[solver] <= 2.0 * min(seconds.values()) + 1e-3]
    times: dict[str, list[Seconds]] = {name: [] for name in ("ours", *contenders)}
    model = ours(problem.C, tol)
    for _ in range(repeats + 1):  # the first round warms everything up
        times["ours"].append(timed_fit(model, problem.data))
        for solver in contenders:
            times[solver].append(timed_fit(problem.peers[solver].make(charged[solver]), problem.data))
    cpu = {name: median(each[1:], "cpu") for name, each in times.items()}
    objective = objective_of(model, problem.data, problem.C)
    problem.least = min(problem.least, objective)
    excess = objective / problem.least - 1.0
    is_right = excess <= tol and model.duality_gap_ <= tol
    is_right = is_right and not problem.has_contradiction(objective, float(model.dual_objective_[0]))
    winner = min(contenders, key=lambda solver: cpu[solver], default=None)
    best_s = cap_s if winner is None else cpu[winner]
    return Row(
        part="time",
        what=problem.title,
        tol=tol,
        measured=f"{1e3 * cpu['ours']:.1f} ms, {model.n_iter_} it.",
        against="no peer" if winner is None else f"{winner}: {1e3 * best_s:.1f} ms, {charged[winner]} it.",
        value=cpu["ours"] / best_s if is_right else np.inf,
        bar=speed_bar(best_s),
        details={
            "cpu_s": cpu,
            "wall_s": {name: median(each[1:], "wall") for name, each in times.items()},
            "charged": charged,
            "search_cpu_s": seconds,
            "excess": excess,
            "gap": float(model.duality_gap_),
            "iterations": model.n_iter_,
            "method": model.history_.method,
        },
    )


def compare_tasks(problem: Problem, tol: float) -> Iterator[Row]:
    """Iterations of several tasks over those of one."""
    one = ours(problem.C, tol)
    timed_fit(one, problem.data)
    for num_tasks in TASKS:
        several = ours(problem.C, tol, runtime=InProcess(num_tasks=num_tasks))
        timed_fit(several, problem.data)
        objectives = [objective_of(model, problem.data, problem.C) for model in (one, several)]
        has_converged = several.duality_gap_ <= tol
        yield Row(
            part="tasks",
            what=f"{problem.title}: {num_tasks} tasks",
            tol=tol,
            measured=f"{several.n_iter_} it.",
            against=f"one task: {one.n_iter_} it.",
            value=several.n_iter_ / one.n_iter_ if has_converged else np.inf,
            bar=Bar(gate=1.1, target=1.0, at_most=True),
            details={"objectives": objectives, "gap": float(several.duality_gap_)},
        )


def halves(data: DataSet) -> tuple[DataSet, DataSet]:
    """Seven tenths of the rows, at random, and the others."""
    order = np.random.default_rng(0).permutation(data.num_samples)
    cut = 7 * data.num_samples // 10
    first, second = (DataSet(data.key, data.title, data.X[part], data.y[part]) for part in (order[:cut], order[cut:]))
    return first, second


def compare_loss(data: DataSet, C: float) -> Row:
    """Held-out log loss, against a peer that has converged."""
    first, second = halves(data)
    weights = data.num_classes * (data.num_features + 1)
    solver = "newton-cholesky" if weights <= MOST_CHOLESKY else "newton-cg"
    X = first.X if first.is_sparse else first.X.astype(np.float64)
    peer = LogisticRegression(C=C, solver=solver, tol=1e-9, max_iter=1000)
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = log_loss(second.y, peer.fit(X, first.y).predict_proba(second.X), labels=peer.classes_)
        default = LogisticRegression(C=C).fit(first.X, first.y)
        found["their defaults"] = log_loss(second.y, default.predict_proba(second.X), labels=peer.classes_) - expected
    for name, tol in (("ours", LOSS_TOL), ("our defaults", 1e-3)):
        model = ours(C, tol)
        timed_fit(model, first)
        found[name] = log_loss(second.y, model.predict_proba(second.X), labels=model.classes_) - expected
    return Row(
        part="loss",
        what=f"{data.title}, C = {C:g}: held-out log loss",
        tol=LOSS_TOL,
        measured=f"{found['ours']:+.1e}, with defaults {found['our defaults']:+.1e}",
        against=f"{solver}: {expected:.5f}, lbfgs with defaults {found['their defaults']:+.1e}",
        value=abs(found["ours"]),
        bar=Bar(gate=LOSS_BAR, at_most=True),
        details={"expected": expected, **found},
    )


def rows_of(data: DataSet, arguments: argparse.Namespace) -> Iterator[Row]:
    """All rows of a data set, as they are measured."""
    for C in arguments.C:
        if "time" in arguments.parts:
            problem = Problem.of(data, C)
            for tol in arguments.tol:
                yield compare_time(problem, tol, arguments.repeats, arguments.cap)
        if "tasks" in arguments.parts:
            yield from compare_tasks(Problem(data, C), arguments.tol[-1])
        if "loss" in arguments.parts:
            yield compare_loss(data, C)


def parse_arguments(makers: Mapping[str, Any]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(makers), help=f"of {', '.join(makers)}")
    parser.add_argument("--C", default="0.01,1,100", help="factors of the losses")
    parser.add_argument("--tol", default="1e-3,1e-5", help="tolerances; several tasks have the last one")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--quick", action="store_true", help="small data, nothing is judged")
    parser.add_argument("--repeats", type=int, help="timed fits of each side (default 5; 1 when quick)")
    parser.add_argument("--cap", type=float, help="longest fit of a peer that is tried, s (default 30; 0.5 when quick)")
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="file for the result")
    arguments = parser.parse_args()
    arguments.only = arguments.only.split(",")
    if unknown := [name for name in arguments.only if name not in makers]:
        parser.error(f"--only knows no {unknown[0]}; it knows {', '.join(makers)}")
    arguments.C = [float(word) for word in arguments.C.split(",")]
    arguments.tol = [float(word) for word in arguments.tol.split(",")]
    arguments.repeats = arguments.repeats or (1 if arguments.quick else 5)
    arguments.cap = arguments.cap or (0.5 if arguments.quick else 30.0)
    return arguments


def main() -> int:
    """Run it; the exit code."""
    names = data_sets(FOLDER, quick=False)
    arguments = parse_arguments(names)
    started_s = time.perf_counter()
    print(machine(), flush=True)
    rows: list[Row] = []
    notes: list[str] = []
    print(f"\n{HEADER}")
    for name, make in data_sets(arguments.data, quick=arguments.quick).items():
        if name not in arguments.only:
            continue
        try:
            data = make()
        except FileNotFoundError as error:
            notes.append(f"without {name}: {error}")
            continue
        for row in rows_of(data, arguments):
            print(row.as_markdown(judged=not arguments.quick), flush=True)
            rows.append(row)
    return finish(
        rows,
        peers=[Peer("LogisticRegression", "scikit-learn", make=lambda problem, iterations: LogisticRegression())],
        notes=notes,
        quick=arguments.quick,
        repeats=arguments.repeats,
        started_s=started_s,
        path=arguments.json,
    )


if __name__ == "__main__":
    sys.exit(main())
