"""What threads cost a user who sets no variable: processor time against time, and fits against those of one thread.

Both sides are processes that fit when they are told to, and take turns: one with no thread variable in its environment,
the other with those of BLAS and OpenMP at 1. A ratio is missed only if all of its 95 % interval lies beyond the gate.
Part "busy" is the same beside two processes that only count, part "search" counts the threads of a search that run or
wait for a processor, over all of its processes.

    python -m benchmarks.threads [--only bound,busy,search] [--pairs N] [--quick] [--page FILE] [--json FILE]

Exit code 1 when a gate is missed.
"""

import math
import os
import statistics
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import make_classification
from sklearn.preprocessing import OneHotEncoder

from benchmarks.bars import Bar, Row
from benchmarks.machine import processes
from benchmarks.real import FOLDER, load_real
from benchmarks.report import Report, parser
from benchmarks.worker import Worker, busy_processes

PARTS = ("bound", "busy", "search")
SPARE = 0.1
"""Of a processor beside the threads of a fit, for what is not a fit."""
PAIRS, BUSY_PAIRS = 21, 7
SAME, BUSY, RUNNABLE = Bar(1.05, at_most=True), Bar(1.3, at_most=True), Bar(2.2, at_most=True)
LIMIT_S, LEAST_S = 600.0, 0.2
"""A measurement may take LIMIT_S, and repeats short fits until they take LEAST_S."""
GRID = {"C": [0.01, 0.1, 1.0, 10.0, 100.0]}


def categories(*, is_sparse: bool) -> tuple[Any, Any]:
    """Skewed categories as columns of ones, and a few numbers: what tables of companies look like."""
    rng = np.random.default_rng(0)
    codes = np.minimum(rng.zipf(1.5, size=(3000, 3)), 60)
    ones = OneHotEncoder().fit_transform(codes)
    numbers = rng.normal(size=(3000, 4))
    y = np.digitize(numbers[:, 0] + codes[:, 0] / 30 + 0.3 * rng.normal(size=3000), [-0.5, 1.0])
    matrix = sp.hstack([sp.csr_matrix(numbers), ones]).tocsr()
    return (matrix if is_sparse else matrix.toarray()), y


@cache
def data_of(name: str) -> tuple[Any, Any]:
    """Rows and labels by name, made once per process."""
    if name in ("cancer", "digits"):
        data = load_real(name, FOLDER, quick=False)
        return data.X, data.y
    if name == "large":
        return make_classification(200_000, 28, n_informative=10, flip_y=0.1, random_state=0)
    return categories(is_sparse=name.endswith("csr"))


def estimator_of(name: str, n_threads: int | None) -> Any:
    """An estimator with its defaults."""
    import estimators as chicle

    threads: dict[str, Any] = {"n_threads": n_threads} if n_threads else {}
    makes: dict[str, Callable[[], Any]] = {
        "hinge": lambda: chicle.ChicleSVM(random_state=0, **threads),
        "squared hinge": lambda: chicle.ChicleSVM(loss="squared_hinge", random_state=0, **threads),
        "logistic": lambda: chicle.ChicleLogisticRegression(random_state=0, **threads),
        "ridge": lambda: chicle.ChicleRidge(),
        "lasso": lambda: chicle.ChicleLasso(alpha=0.01),
        "svr": lambda: chicle.ChicleSVR(random_state=0),
    }
    return makes[name]()


CELLS = [
    ("cancer", "hinge"),
    ("digits", "hinge"),
    ("digits", "logistic"),
    ("categories", "hinge"),
    ("categories", "squared hinge"),
    ("categories csr", "hinge"),
    ("large", "hinge"),
    ("large", "logistic"),
    ("digits", "ridge"),
    ("digits", "lasso"),
    ("categories", "svr"),
]
WITH_N_THREADS = ("hinge", "squared hinge", "logistic")


def fit(data: str, name: str, n_threads: int | None) -> tuple[float, float]:
    """Seconds on the wall and of the processor, of one fit; short ones are repeated."""
    warnings.simplefilter("ignore")
    X, y = data_of(data)
    wall_s, cpu_s, count = time.perf_counter(), time.process_time(), 0
    while count == 0 or time.perf_counter() - wall_s < LEAST_S:
        estimator_of(name, n_threads).fit(X, y)
        count += 1
    return (time.perf_counter() - wall_s) / count, (time.process_time() - cpu_s) / count


def pairs_of(spec: tuple[str, str, int | None], number: int) -> tuple[list[tuple[float, float]], list[float]]:
    """Seconds of the fits as typed (wall, processor), and the ratios of their time to that of one thread."""
    with Worker("as typed", LIMIT_S) as typed, Worker("one thread", LIMIT_S) as single:
        for worker in (typed, single):
            worker.call(fit, *spec)  # the first one compiles
        found, ratios = [], []
        for _ in range(number):
            found.append(typed.call(fit, *spec))
            ratios.append(found[-1][0] / single.call(fit, *spec)[0])
    return found, ratios


def ratio_row(part: str, what: str, found: list[tuple[float, float]], ratios: list[float], bar: Bar) -> Row:
    """The ratio, judged by the end of its 95 % interval that is nearer to 1."""
    logs = [math.log(ratio) for ratio in ratios]
    half = 2.0 * statistics.stdev(logs) / math.sqrt(len(logs))
    low, high = (math.exp(statistics.mean(logs) + sign * half) for sign in (-1, 1))
    wall_ms = 1e3 * statistics.median(wall for wall, _ in found)
    middle = math.exp(statistics.mean(logs))
    shown = f"{middle:.2f} ({low:.2f} to {high:.2f}) of one thread"
    return Row(part, what, None, f"{wall_ms:.1f} ms", shown, low, bar, {"ratios": ratios, "interval": [low, high]})


def bound_rows(number: int) -> Iterator[Row]:
    """Fits on a quiet machine."""
    for data, name in CELLS:
        for n_threads in (1, 2, None) if name in WITH_N_THREADS else (None,):
            what = f"{data}, {name}, n_threads={n_threads}"
            found, ratios = pairs_of((data, name, n_threads), number)
            yield ratio_row("bound", what, found, ratios, SAME)
            if n_threads is not None:
                load = statistics.median(cpu / wall for wall, cpu in found)
                bar = Bar(n_threads + SPARE, at_most=True)
                yield Row("bound", f"{what}: processors", None, f"{load:.2f}", f"{n_threads}", load, bar, {})


def busy_rows(number: int) -> Iterator[Row]:
    """Fits beside two busy processes."""
    with busy_processes(2):
        for data, name in CELLS:
            found, ratios = pairs_of((data, name, None), number)
            yield ratio_row("busy", f"{data}, {name}, beside two busy processes", found, ratios, BUSY)


def runnable_threads(stop: threading.Event, counts: list[int]) -> None:
    """Count the threads that run or wait for a processor, of this process and all below it, but for this one."""
    me = str(threading.get_native_id())
    while not stop.wait(0.005):
        running = 0
        for pid in processes(os.getpid()):
            try:
                tasks = [task for task in Path(f"/proc/{pid}/task").iterdir() if task.name != me]
                running += sum((task / "stat").read_text().rpartition(")")[2].split()[0] == "R" for task in tasks)
            except OSError:
                continue  # ended meanwhile
        counts.append(running)


def search_rows() -> Iterator[Row]:
    """Searches with two jobs, by processes and by threads."""
    from joblib import parallel_config
    from sklearn.model_selection import GridSearchCV

    for data, backend in (("categories", "loky"), ("large", "loky"), ("categories", "threading")):
        X, y = data_of(data)
        search = GridSearchCV(estimator_of("hinge", None), GRID, n_jobs=2)
        with parallel_config(backend):
            search.fit(X, y)  # starts the processes, and compiles
            stop, counts = threading.Event(), list[int]()
            watch = threading.Thread(target=runnable_threads, args=(stop, counts))
            watch.start()
            search.fit(X, y)
            stop.set()
            watch.join()
        mean = statistics.mean(counts)
        what = f"{data}, GridSearchCV(n_jobs=2), {backend}"
        yield Row("search", what, None, f"{mean:.2f} threads", "2 jobs", mean, RUNNABLE, {"counts": len(counts)})


PAGE = """# What threads cost

`make bench-threads` rewrote this page on {date}: {machine}, Python {python}.

Fits with the parameters of the row and the defaults else, in a process whose environment has no thread variable, in
turns with the same fits where `OMP_NUM_THREADS` and its kin are 1. The interval is that of 95 %; a ratio is missed only
if all of it lies beyond the gate. *Processors* is processor time over time.

{table}

What did not help (2026-11-26, by hand): to let BLAS have its threads for large data. Rows of 30,000 x 600, the
largest tried, gained nothing with any loss, because products of blocks that stay in the cache are short; ridge took
1,045 ms in place of 166.
"""


def main() -> int:
    """Measure, print the rows as they come, a summary and one line of JSON."""
    options = parser("What threads cost a user who sets no variable.", page=True)
    options.add_argument("--only", type=lambda text: text.split(","), default=PARTS, help=f"of {', '.join(PARTS)}")
    options.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of each cell (default {PAIRS}; 3 when quick)")
    arguments = options.parse_args()
    pairs = 3 if arguments.quick else arguments.pairs
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "bound": lambda: bound_rows(pairs),
        "busy": lambda: busy_rows(min(pairs, BUSY_PAIRS)),
        "search": search_rows,
    }
    report = Report(arguments, repeats=pairs)
    for part in arguments.only:
        report.add(parts[part]())
    report.write_page(PAGE)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
