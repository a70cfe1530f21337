"""All linear models against every peer that minimises the same function: as typed, and with one thread.

Cells are data (`TABLE`): models x strengths and tolerances x data sets. Both sides fit in one process, in turns; a time
is the median of whole fits, on the wall as typed (no thread variable), of the processor with one thread. Ours stops at
its *certified* gap; a peer is charged for the loosest `tol`, in steps of half a decade, that comes within ours of the
least objective that any side found, and is given up where a fit takes ten times as long as ours.

    python -m benchmarks.linear [--quick] [--models NAMES] [--data NAMES] [--repeats N] [--folder FOLDER]
                                [--page FILE] [--json FILE]

Exit code 1 when a gate is missed: an objective that is not within tol of the best one, a dual objective above it, a fit
that takes more than 1.5 times as long as the best peer and 10 ms, or several tasks that take too many iterations.
"""

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from benchmarks.bars import Bar, Row
from benchmarks.datasets import DataSet
from benchmarks.fits import Seconds, median, method_of, timed_fit
from benchmarks.linear_problems import MODELS, OF_NUMBERS, PACKAGES, Problem
from benchmarks.real import FOLDER, REAL, load_real, missing
from benchmarks.report import Report, names_of, parser
from benchmarks.shapes import click_log, few_binary, grades, higgs_shaped, mnist_shaped, tfidf_text, topics
from benchmarks.worker import COLUMNS, Worker
from chicle_elastic.runtime.in_process import InProcess

SHAPED: dict[str, tuple[str, Callable[[int], tuple[Any, np.ndarray]], int, int]] = {
    "click-10k": ("click log, 2^18 sparse", partial(click_log, num_features=1 << 18), 10_000, 500),
    "click-500k": ("click log, 2^20 sparse", partial(click_log, num_features=1 << 20), 500_000, 2_000),
    "text": ("TF-IDF text, 50k sparse", tfidf_text, 20_000, 500),
    "topics": ("TF-IDF text, 12 topics, 20k sparse", topics, 10_000, 500),
    "few-binary": ("few binary, 68 sparse", few_binary, 11_000, 1_000),
    "higgs": ("HIGGS-shaped, 28 dense", higgs_shaped, 1_000_000, 5_000),
    "mnist": ("MNIST-shaped, 784 dense", mnist_shaped, 50_000, 500),
}
"""Title, generator, rows and rows of a quick run."""
SMALL = ("cancer", "digits", "a9a", "higgs-real")
TABLE: tuple[tuple[tuple[str, ...], tuple[tuple[str, float], ...], tuple[str, ...]], ...] = (
    (
        ("hinge", "squared hinge", "logistic"),
        (("1", 1e-3), ("1", 1e-5), ("100/n", 1e-3)),
        (*SMALL, "cancer-raw", "fashion", "few-binary", "click-10k", "text", "higgs", "mnist"),
    ),
    (("hinge", "squared hinge", "logistic"), (("100/n", 1e-3),), ("click-500k",)),
    (
        ("softmax",),
        (("1", 1e-3), ("1", 1e-5), ("0.01", 1e-3), ("100", 1e-3)),
        ("iris", "wine", "digits", "topics", "fashion-ten"),
    ),
    (
        ("l1 squared hinge", "l1 logistic"),
        (("0.1", 1e-3), ("0.1", 1e-6), ("0.01", 1e-3)),
        (*SMALL, "fashion", "text", "higgs"),
    ),
    (("l1 logistic without intercept",), (("0.1", 1e-3),), ("cancer", "a9a", "higgs-real", "text")),
    (("ridge",), (("1", 1e-6), ("n/100", 1e-6)), ("diabetes", *SMALL[1:], "fashion", "text", "higgs")),
    (("lasso",), (("0.1", 1e-6), ("0.01", 1e-6)), ("diabetes", *SMALL[1:], "fashion", "higgs")),
    (("lasso",), (("0.3", 1e-6), ("0.1", 1e-6)), ("text",)),  # more weights than a working set takes, with 0.01
    (("elastic net",), (("0.1", 1e-6),), ("diabetes", *SMALL[1:], "fashion", "text", "higgs")),
    (("svr", "squared svr"), (("1", 1e-3), ("100/n", 1e-3)), ("diabetes", *SMALL[1:])),
    (("squared svr",), (("1", 1e-3),), ("text",)),
)
PEER_TOLS = tuple(10.0 ** (-half / 2) for half in range(2, 21))
TASKS = (4, 16)
TIMES, SLACK_S, HOPELESS = 1.5, 0.010, 10.0
"""Small data may take SLACK_S more, which is validation and the like."""
LEAST_S, MOST_ROUNDS, LIMIT_S = 0.2, 15, 600.0
"""Short fits are repeated until ours has run that long in all; a cell ends after LIMIT_S."""
MOST_PASSES, FEW_COLUMNS, SHARP = 300, 2000, ("hinge", "svr")
"""Iterations of several tasks with many columns, or with a loss without a derivative; else a few times those of one."""
BYTES, VECTORS, MEMORY_ROWS = Bar(24, at_most=True), 16, 2_000_000
"""Memory of a fit per row, beyond X, y and so many float64 vectors of the columns."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A model on a data set; the strength is what `linear_problems` makes of it."""

    model: str
    data: str
    strength: str
    tol: float
    with_tasks: bool
    """Several tasks too: with the first setting of a model."""


def cells(models: list[str], names: list[str], *, quick: bool) -> list[Cell]:
    """Those of the table, data set by data set, so that each is loaded once; of each model the first one when quick."""
    found = [
        Cell(model, name, *setting, with_tasks=setting == settings[0])
        for several, settings, sets in TABLE
        for model in several
        for name in sets
        for setting in (settings[:1] if quick else settings)
        if model in models and name in names
    ]
    return sorted(found, key=lambda cell: names.index(cell.data))


@cache
def loaded(name: str, folder: Path, quick: bool) -> DataSet:
    """A data set; the one before is forgotten."""
    loaded.cache_clear()
    if name in REAL:
        return load_real(name, folder, quick=quick)
    title, make, rows, quick_rows = SHAPED[name]
    X, y = make(quick_rows if quick else rows)
    return DataSet(name, f"{title}, {len(y)} rows", X, y)


def with_target(data: DataSet, name: str) -> DataSet:
    """For models of numbers: labels as numbers, and of shaped data a target that some columns move."""
    return DataSet(data.key, data.title, data.X, grades(data.X) if name in SHAPED else data.y.astype(np.float64))


def measure(cell: Cell, folder: Path, quick: bool, repeats: int, before: dict[str, Any] | None) -> dict[str, Any]:
    """Measure a cell in this process.

    Args:
        cell: The cell.
        folder: Of real data.
        quick: Little data.
        repeats: Timed rounds at least.
        before: What another process found, whose settings of the peers and least objective count here too.
    """
    data = loaded(cell.data, folder, quick)
    data = with_target(data, cell.data) if cell.model in OF_NUMBERS else data
    problem = MODELS[cell.model](data, cell.strength, cell.tol)
    ours = problem.ours
    timed_fit(ours, data)  # compiles
    patience_s = HOPELESS * timed_fit(ours, data).wall + SLACK_S
    found = problem.objective.of(ours, data)
    if before is None:
        tols, best = loosest(problem, data, found, patience_s)
    else:
        tols, best = before["tols"], min(found, before["best"])
    times = alternate(
        {"ours": ours, **{name: problem.peers[name](tol=tol) for name, tol in tols.items()}}, data, repeats
    )
    certified = float(np.sum(ours.dual_objective_)) / float(np.sum(ours.objective_)) * found
    result = {
        "title": f"{data.title}, {problem.words}",
        "columns": data.num_features,
        "seconds": {clock: {name: median(each, clock) for name, each in times.items()} for clock in ("wall", "cpu")},
        "patience_s": patience_s,
        "tols": tols,
        "best": best,
        "excess": found / best - 1.0,
        "dual_excess": certified / best - 1.0,
        "gap": float(np.max(ours.duality_gap_)),
        "iterations": int(np.max(ours.n_iter_)),
        "method": method_of(ours),
    }
    if cell.with_tasks and before is None:
        result["tasks"] = {str(k): iterations_of(ours, data, k) for k in TASKS}
    return result


def loosest(problem: Problem, data: DataSet, found: float, patience_s: float) -> tuple[dict[str, float], float]:
    """The loosest `tol` of each peer that comes within ours of the best objective, and that objective."""
    tried: dict[str, list[tuple[float, float]]] = {}
    for name, make in problem.peers.items():
        tried[name] = []
        for tol in PEER_TOLS:
            model = make(tol=tol)
            try:
                seconds = timed_fit(model, data).wall
                if seconds > patience_s and not tried[name]:
                    seconds = timed_fit(model, data).wall  # the first one may have compiled something
            except Exception:  # a peer that cannot do it takes no part
                break
            if seconds > patience_s:
                break
            tried[name].append((tol, problem.objective.of(model, data)))
            if tried[name][-1][1] <= found * (1 + 0.5 * problem.ours.tol):
                break
    best = min([found, *(value for each in tried.values() for _, value in each)])
    enough = best * (1 + problem.ours.tol)
    good = {name: [tol for tol, value in each if value <= enough] for name, each in tried.items()}
    return {name: tols[0] for name, tols in good.items() if tols}, best


def alternate(models: dict[str, Any], data: DataSet, repeats: int) -> dict[str, list[Seconds]]:
    """Fit in turns; short fits more often."""
    times: dict[str, list[Seconds]] = {name: [] for name in models}
    for done in range(1, max(repeats, MOST_ROUNDS) + 1):
        for name, model in models.items():
            times[name].append(timed_fit(model, data))
        if done >= repeats and (repeats == 1 or sum(each.wall for each in times["ours"]) > LEAST_S):
            break
    return times


def iterations_of(ours: Any, data: DataSet, num_tasks: int) -> int | None:
    """Those of several tasks in one process, which take turns, so that seconds say nothing; None without a model."""
    several = clone(ours).set_params(runtime=InProcess(num_tasks=num_tasks))
    timed_fit(several, data)
    return int(np.max(several.n_iter_)) if np.max(several.duality_gap_) <= ours.tol else None


def speed_row(cell: Cell, found: dict[str, dict[str, Any]]) -> Row:
    """Time over that of the best peer, of the column in which that is worse; infinite for a wrong objective."""
    ours, peers, ratios = [], [], []
    for column, result in found.items():
        seconds = dict(result["seconds"]["wall" if column == "as typed" else "cpu"])
        mine_s = seconds.pop("ours")
        best = min(seconds, key=lambda name: seconds[name], default=None)
        best_s = result["patience_s"] if best is None else seconds[best]
        is_right = result["excess"] <= cell.tol and result["dual_excess"] <= 1e-9 and result["gap"] <= cell.tol
        ours.append(f"{1e3 * mine_s:.1f}")
        peers.append(f"more than {1e3 * best_s:.0f}" if best is None else f"{1e3 * best_s:.1f} {best}")
        ratios.append((mine_s / best_s if is_right else np.inf, best_s))
    value, best_s = max(ratios, key=lambda pair: pair[0] - SLACK_S / pair[1])
    first = found["as typed"]
    shown = f"{' / '.join(ours)} ms, {first['iterations']} it. {first['method']}".strip()
    what, bar = f"{cell.model}: {first['title']}", Bar(TIMES + SLACK_S / best_s, 1.0, at_most=True)
    details = {"cell": asdict(cell), "columns": found}
    return Row(cell.model, what, cell.tol, shown, f"{' / '.join(peers)} ms", value, bar, details)


def tasks_row(cell: Cell, result: dict[str, Any]) -> Row:
    """Iterations of several tasks."""
    one, counts = result["iterations"], result["tasks"].values()
    is_hard = cell.model in SHARP or result["columns"] > FEW_COLUMNS
    what = f"{cell.model}: {result['title']}: iterations of {' and '.join(result['tasks'])} tasks"
    shown = ", ".join("not converged" if count is None else str(count) for count in counts)
    value = max(np.inf if count is None else count for count in counts)
    bar = Bar(MOST_PASSES if is_hard else max(30, 5 * one), max(1, 2 * one), at_most=True)
    return Row("tasks", what, cell.tol, shown, f"one task: {one}", value, bar, {"cell": asdict(cell)})


def rows_of(cell: Cell, workers: dict[str, Worker], options: Any, notes: list[str]) -> Iterator[Row]:
    """Measure a cell in each column."""
    found: dict[str, dict[str, Any]] = {}
    for column, worker in workers.items():
        try:
            settings = (options.folder, options.quick, options.repeats, found.get("as typed"))
            found[column] = worker.call(measure, cell, *settings)
        except TimeoutError:
            notes.append(f"{cell} took more than {LIMIT_S:.0f} s {column}")
            return
    yield speed_row(cell, found)
    if cell.with_tasks:
        yield tasks_row(cell, found["as typed"])


def summary(rows: list[Row]) -> Iterator[Row]:
    """The geometric mean of each model, and in how many cells ours is ahead."""
    for model in MODELS:
        values = [row.value for row in rows if row.part == model and row.value is not None]
        finite = [value for value in values if np.isfinite(value)]
        if finite:
            mean, ahead = float(np.exp(np.mean(np.log(finite)))), sum(value <= 1.0 for value in values)
            yield Row(
                "mean", f"{model}: geometric mean", None, f"ahead in {ahead}", f"of {len(values)} cells", mean, None, {}
            )


def memory_row(*, quick: bool) -> Row:
    """Peak of a fit in a fresh process beyond X and y."""
    num_rows = MEMORY_ROWS // 10 if quick else MEMORY_ROWS
    with Worker("as typed", LIMIT_S) as worker:
        extra = max(0, worker.call(extra_bytes, num_rows) - VECTORS * 8 * 28)
    what = f"hinge: bytes per row beyond X and y, {num_rows} x 28 float32"
    return Row("memory", what, 1e-3, f"{extra / 2**20:.1f} MiB", "", extra / num_rows, BYTES)


def extra_bytes(num_rows: int) -> int:
    """Fit once, so that libraries and kernels are loaded, then measure the peak of a second fit. Linux only."""

    def status(name: str) -> int:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))

    rng = np.random.default_rng(3)
    X = rng.standard_normal((num_rows, 28), dtype=np.float32)
    y = (X[:, 0] + rng.standard_normal(num_rows, dtype=np.float32) > 0).astype(np.int64)
    ours = MODELS["hinge"](DataSet("normal", "normal", X, y), "100/n", 1e-3).ours.fit(X[:20_000], y[:20_000])
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before = status("VmRSS")
    ours.fit(X, y)
    return status("VmHWM") - before


PAGE = """# Linear models against their peers

`make bench-linear` rewrote this page on {date}: {machine}, Python {python}, {versions}{how}.

{about}

`ours` and `against` are milliseconds as typed / with one thread; the value is the ratio of the column in which it is
worse. Strengths of l1 penalties are shares of the largest one that leaves a weight.

{table}
"""


def main() -> int:
    """Measure; print the rows as they come, the summary and one line of JSON."""
    known = (*dict.fromkeys(name for _, _, sets in TABLE for name in sets), "memory")
    line = parser(__doc__, page=True)
    line.add_argument("--models", default=",".join(MODELS), help=f"of {', '.join(MODELS)}")
    line.add_argument("--data", default=",".join(known), help=f"of {', '.join(known)}")
    line.add_argument("--repeats", type=int, help="timed fits of each side at least (default 3; 1 when quick)")
    line.add_argument("--folder", type=Path, default=FOLDER, help="folder of the real data")
    options = line.parse_args()
    models, names = names_of(options.models, MODELS, "--models"), names_of(options.data, known, "--data")
    options.repeats = options.repeats or (1 if options.quick else 3)
    report = Report(options, packages=PACKAGES, repeats=options.repeats)
    workers = {column: Worker(column, LIMIT_S) for column in COLUMNS}
    for name in names:
        if absent := missing(name, options.folder):
            report.notes.append(f"without {name}: there is no {absent[0]} (say --folder)")
    present = [name for name in names if not missing(name, options.folder)]
    for cell in cells(models, present, quick=options.quick):
        report.add(rows_of(cell, workers, options, report.notes))
    for worker in workers.values():
        worker.close()
    if "memory" in names:
        report.add([memory_row(quick=options.quick)])
    report.add(list(summary(report.rows)))
    about = (__doc__ or "").split("\n\n")[1]
    how = f", load {os.getloadavg()[2]:.0f}{', quick: nothing is judged' if options.quick else ''}"
    if left_out := [name for name in known if name not in present]:
        how += f", without the data {', '.join(left_out)}"
    report.write_page(PAGE, about=about, how=how)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
