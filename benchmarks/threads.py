"""What threads cost a user who sets no variable: processor time against time, and fits against those of one thread.

Both sides are processes that fit when they are told to, and take turns: one with no thread variable in its environment,
the other with those of BLAS and OpenMP at 1. A ratio is missed only if all of its 95 % interval lies beyond the gate.
Part "busy" is the same beside two processes that only count, part "search" counts the threads of a search that run or
wait for a processor, over all of its processes.

    python -m benchmarks.threads [--only bound,busy,search] [--pairs N] [--quick] [--page FILE] [--json FILE]

Exit code 1 when a gate is missed.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_digits, make_classification
from sklearn.preprocessing import OneHotEncoder, scale

from benchmarks.bars import HEADER, Bar, Row
from benchmarks.machine import machine
from benchmarks.report import finish
from chicle_elastic.settings import THREAD_LIMITS

PARTS = ("bound", "busy", "search")
SPARE = 0.1
"""Of a processor beside the threads of a fit, for what is not a fit."""
PAIRS, BUSY_PAIRS = 21, 7
SAME, BUSY, RUNNABLE = Bar(1.05, at_most=True), Bar(1.3, at_most=True), Bar(2.2, at_most=True)
LEAST_S = 0.2
"""A measurement repeats short fits until they take this long."""
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


def data_of(name: str) -> tuple[Any, Any]:
    """Rows and labels by name."""
    if name == "breast_cancer":
        X, y = load_breast_cancer(return_X_y=True)
        return scale(X), y
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return X / 16, y
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
    ("breast_cancer", "hinge"),
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


class Side:
    """A process that fits when it is told to.

    Args:
        spec: What it fits: data, estimator, n_threads.
        variables: Added to an environment without thread variables.
    """

    def __init__(self, spec: tuple[str, str, int | None], variables: dict[str, str]) -> None:
        bare = {name: value for name, value in os.environ.items() if name not in THREAD_LIMITS}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.threads", "--side", json.dumps(spec)],
            env={**bare, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.fit()  # the first one compiles

    def fit(self) -> tuple[float, float]:
        """Seconds on the wall and of the processor, of one fit."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        wall_s, cpu_s = json.loads(self._process.stdout.readline())
        return wall_s, cpu_s

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def serve(spec: str) -> None:
    """Be a side: fit once per line, until standard input ends."""
    warnings.simplefilter("ignore")
    data, name, n_threads = json.loads(spec)
    X, y = data_of(data)
    for _ in sys.stdin:
        wall_s, cpu_s, count = time.perf_counter(), time.process_time(), 0
        while count == 0 or time.perf_counter() - wall_s < LEAST_S:
            estimator_of(name, n_threads).fit(X, y)
            count += 1
        print(json.dumps([(time.perf_counter() - wall_s) / count, (time.process_time() - cpu_s) / count]), flush=True)


@contextmanager
def busy_processes(number: int) -> Iterator[None]:
    """Processes that only count, meanwhile."""
    found = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in found:
            process.kill()
            process.wait()


def pairs_of(spec: tuple[str, str, int | None], number: int) -> tuple[list[tuple[float, float]], list[float]]:
    """Seconds of the fits as typed (wall, processor), and the ratios of their time to that of one thread."""
    with ExitStack() as stack:
        typed, single = Side(spec, {}), Side(spec, dict.fromkeys(THREAD_LIMITS, "1"))
        stack.callback(typed.close)
        stack.callback(single.close)
        found, ratios = [], []
        for _ in range(number):
            found.append(typed.fit())
            ratios.append(found[-1][0] / single.fit()[0])
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
    own, me = os.getpid(), threading.get_native_id()
    while not stop.wait(0.005):
        parents: dict[int, int] = {}
        states: dict[int, int] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                tasks = [task for task in (entry / "task").iterdir() if int(task.name) != me]
                runs = [(task / "stat").read_text().rpartition(")")[2].split()[0] == "R" for task in tasks]
                states[int(entry.name)] = sum(runs)
            except OSError:
                continue  # ended meanwhile
        family = {own}
        while grown := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= grown
        counts.append(sum(states.get(pid, 0) for pid in family))


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
    parser = argparse.ArgumentParser(description="What threads cost a user who sets no variable.")
    parser.add_argument("--only", type=lambda text: text.split(","), default=PARTS, help=f"of {', '.join(PARTS)}")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"pairs of each cell (default {PAIRS})")
    parser.add_argument("--quick", action="store_true", help="three pairs, nothing is judged")
    parser.add_argument("--page", type=Path, help="Markdown page to be rewritten")
    parser.add_argument("--json", type=Path, help="file for the result as JSON")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        serve(arguments.side)
        return 0
    started_s = time.perf_counter()
    pairs = 3 if arguments.quick else arguments.pairs
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "bound": lambda: bound_rows(pairs),
        "busy": lambda: busy_rows(min(pairs, BUSY_PAIRS)),
        "search": search_rows,
    }
    print(f"{machine()}\n\n{HEADER}", flush=True)
    rows = []
    for part in arguments.only:
        for row in parts[part]():
            print(row.as_markdown(judged=not arguments.quick), flush=True)
            rows.append(row)
    if arguments.page:
        table = "\n".join([HEADER, *(row.as_markdown(judged=not arguments.quick) for row in rows)])
        today, python = time.strftime("%Y-%m-%d"), platform.python_version()
        page = PAGE.format(date=today, machine=machine(), python=python, table=table)
        arguments.page.write_text(page, encoding="utf-8")
    return finish(
        rows,
        peers=[],
        notes=[],
        quick=arguments.quick,
        repeats=pairs,
        started_s=started_s,
        path=arguments.json,
    )


if __name__ == "__main__":
    sys.exit(main())
