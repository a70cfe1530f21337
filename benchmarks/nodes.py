"""What several nodes on one machine cost, and what they bring: one process, agents, Spark MLlib and Dask-ML.

Every side is a process of its own (`nodes_side`) with the settings that a user would type and no thread variable; they
follow each other, so the machine should be quiet. Cold is from an idle interpreter with the rows in its memory to the
model, start of workers included; warm is the next fit in the same process. Spark's workers cannot see arrays of a
driver: its cold time has its session and the reading of Parquet files, its warm time the fit on cached rows. Processor
time (of the cold and the warm fit together) and memory (proportional shares) are those of all processes of a side.

All minimise the same function of w, evaluated by one formula: a side whose objective is more than 1e-3 above the least
of its cell is named there.

    python -m benchmarks.nodes [--only DATA,...] [--sides SIDE,...] [--quick] [--page FILE] [--json FILE]

Each data set has a block of the page, and a run rewrites the blocks of those that it has measured. Exit code 1 when a
gate is missed.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.bars import HEADER, Bar, Row
from benchmarks.machine import Watch, machine
from benchmarks.page import replaced
from benchmarks.report import Report, names_of, parser

MARK = "CHICLE_BENCH_SIDE"
"""In the environment of all processes of a side, wherever they were forked."""
SAMPLE_S = 0.1
MOST_S = 600.0
SAME = 1e-3
GIB = 1 << 30
AHEAD = Bar(1.0, at_most=True)


@dataclass(frozen=True, slots=True)
class Data:
    """How rows are made, and what is fitted to them."""

    title: str
    make: Callable[[int], tuple[Any, np.ndarray]]
    rows: int
    losses: tuple[str, ...]
    gate: Bar | None = None
    """Judges the warm time of four agents over that of one process."""


@dataclass(slots=True)
class Side:
    """Hold what one side took.

    Attributes:
        name: Of the side.
        found: What it printed: cold_s, warm_s, staging_s, objective, iterations; or "missing", why it cannot.
        cpu_s: Processor time of all its processes.
        peak_mib: Most memory of all its processes together.
    """

    name: str
    found: dict[str, Any]
    cpu_s: float = math.nan
    peak_mib: float = math.nan


def narrow(rows: int) -> tuple[Any, np.ndarray]:
    """Standard normal rows of 28 columns, two overlapping classes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((rows, 28), dtype=np.float32)
    return X, (X @ rng.standard_normal(28, dtype=np.float32) + 2 * rng.standard_normal(rows, np.float32) > 0).astype(
        int
    )


def sparse(rows: int) -> tuple[Any, np.ndarray]:
    """Twenty skewed categories a row among 2^20 columns, all ones."""
    rng = np.random.default_rng(0)
    columns = np.minimum(rng.pareto(0.4, size=(rows, 20)) * 50, (1 << 20) - 1).astype(np.int32)
    X = sp.csr_matrix(
        (np.ones(columns.size, np.float32), columns.ravel(), np.arange(0, columns.size + 1, 20)), (rows, 1 << 20)
    )
    X.sum_duplicates()
    scores = X @ rng.standard_normal(1 << 20, dtype=np.float32)
    return X, (scores + 3 * rng.standard_normal(rows) > 0).astype(int)


DATA = {
    "100k": Data("100k x 28", narrow, 100_000, ("hinge", "squared_hinge", "logistic", "ridge", "l1")),
    "1M": Data("1M x 28", narrow, 1_000_000, ("hinge", "squared_hinge", "logistic", "ridge", "l1")),
    "11M": Data("11M x 28", narrow, 11_000_000, ("hinge", "logistic"), Bar(3.0, 1.7, at_most=True)),
    "sparse": Data("2M x 2^20 CSR", sparse, 2_000_000, ("hinge", "logistic"), Bar(2.5, 1.5, at_most=True)),
}
PROJECTED = {"11M": (28, True), "sparse": (1 << 20, False)}
"""Columns of the data sets whose times are projected, and whether an update of theirs has a matrix of curvature."""
SIDES = ("one process", "2 agents", "4 agents", "8 agents", "Spark MLlib", "Dask-ML")


def run_side(name: str, loss: str, folder: Path) -> Side:
    """Run a side in a process of its own, and watch all processes that it begins."""
    mark = uuid.uuid4().hex
    environment = {key: value for key, value in os.environ.items() if not key.endswith("_NUM_THREADS")} | {MARK: mark}
    command = [sys.executable, "-m", "benchmarks.nodes_side", name, loss, str(folder)]
    side = Side(name, {"missing": "it took too long"})
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        with Watch(partial(bearers, f"{MARK}={mark}".encode(), {}), SAMPLE_S) as watch:
            try:
                output, _ = process.communicate(timeout=MOST_S)
                errors.seek(0)
                last = (errors.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
                side.found = json.loads(output.splitlines()[-1]) if process.returncode == 0 else {"missing": last[:120]}
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
    side.cpu_s, side.peak_mib = watch.cpu_s, watch.most_mib
    return side


def bearers(mark: bytes, known: dict[int, bool]) -> Iterator[int]:
    """The processes that bear a mark in their environment; those that are known to are not asked again."""
    for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        try:
            if not known.get(pid):  # a fork has the mark before its own environment can be read
                known[pid] = mark in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # it has just ended
            continue
        if known[pid]:
            yield pid


def cell(name: str, data: Data, loss: str, folder: Path, sides: list[str]) -> list[Row]:
    """Run all sides of a cell, and judge those that are there."""
    found = {side: run_side(side, loss, folder) for side in sides}
    there = {side: result for side, result in found.items() if "missing" not in result.found}
    least = min((result.found["objective"] for result in there.values()), default=math.nan)
    one = there.get("one process")
    rows = []
    for side, result in found.items():
        what = f"{data.title}, {loss}: {side}"
        if side not in there:
            rows.append(Row(name, what, None, "-", result.found["missing"], None, None, {}))
            continue
        excess = result.found["objective"] / least - 1.0
        above = f", objective {excess:.1%} above the least" if excess > SAME else ""
        figures = (
            f"cold {result.found['cold_s']:.2f} s, warm {result.found['warm_s']:.2f} s, "
            f"{result.found['iterations']} iterations{above}"
        )
        besides = f"{result.cpu_s:.1f} CPU s, {result.peak_mib / 1024:.2f} GiB"
        details = {"cpu_s": result.cpu_s, "peak_mib": result.peak_mib, **result.found}
        value, bar = None, None
        if side == "4 agents" and one is not None:
            value, bar = result.found["warm_s"] / one.found["warm_s"], data.gate
        elif side in ("Spark MLlib", "Dask-ML") and "4 agents" in there:
            four = there["4 agents"].found
            value, bar = max(four["cold_s"] / result.found["cold_s"], four["warm_s"] / result.found["warm_s"]), AHEAD
        rows.append(Row(name, what, None, figures, besides, value, bar, details))
    return rows


def write(folder: Path, X: Any, y: np.ndarray) -> None:
    """Write rows for all sides: arrays, which ours and Dask read, and how many there are."""
    np.save(folder / "y.npy", y)
    if sp.issparse(X):
        sp.save_npz(folder / "X.npz", X, compressed=False)
    else:
        np.save(folder / "X.npy", X)


def staging(folder: Path) -> list[Row]:
    """A first fit of four agents, and how fast a GiB gets to them."""
    rng = np.random.default_rng(0)
    write(folder, rng.standard_normal((1000, 28), dtype=np.float32), rng.integers(0, 2, 1000))
    first = run_side("4 agents", "hinge", folder).found["cold_s"]
    X = rng.standard_normal((GIB // 1024, 256), dtype=np.float32)
    write(folder, X, rng.integers(0, 2, len(X)))
    side = run_side("stage", "hinge", folder)
    rate = GIB / 1e9 / side.found["staging_s"]
    extra = (side.peak_mib * (1 << 20) - GIB) / GIB
    found = (
        ("first fit of 4 agents, 1,000 rows", f"{first:.2f} s", first, Bar(3.0, 1.5, at_most=True)),
        ("1 GiB of float32 to 4 agents, GB/s", f"{side.found['staging_s']:.2f} s", rate, Bar(1.5, 3.0)),
        ("memory beside the array, of its size", f"{side.peak_mib:.0f} MiB", extra, Bar(1.4, 1.2, at_most=True)),
    )
    return [Row("start", what, None, measured, "", value, bar, {}) for what, measured, value, bar in found]


def projection(rows: list[Row], columns: int, is_dense: bool) -> str:
    """Return a table of what one process takes, divided among hosts, and how long a ring takes for the sums.

    An iteration on n hosts takes the processor time of one process over n times the cores, and the sum of an update,
    which a ring sends twice.

    Args:
        rows: Of one data set.
        columns: Of its rows.
        is_dense: Whether an update has a matrix of curvature.
    """
    lines = ["| warm fit, hosts of 4 cores | 1 | 4 | 16 | 64 |", "| --- | --- | --- | --- | --- |"]
    cores, D = os.cpu_count() or 1, columns + 1
    values = D * (D + 1) / 2 if is_dense else D
    for row in rows:
        if not row.what.endswith("one process") or not row.details:
            continue
        compute_s = row.details["warm_s"] * cores
        for gigabits in (1, 10, 100):
            cells = []
            for hosts in (1, 4, 16, 64):
                sum_s = 0.0 if hosts == 1 else 2 * values * 8 * 8 / (gigabits * 1e9) + 2e-3
                cells.append(f"{compute_s / (4 * hosts) + row.details['iterations'] * sum_s:.2f} s")
            lines.append(f"| {row.what.removesuffix(': one process')}, {gigabits} Gbit/s | " + " | ".join(cells) + " |")
    return "\n".join(lines) if len(lines) > 2 else ""


def write_block(page: Path, name: str, report: Report, rows: list[Row], below: str) -> None:
    """Put what was measured of one data set into its block of the page; blocks of others stay as they are."""
    table = "\n".join([HEADER, *(row.as_markdown(judged=report.judged) for row in rows)])
    versions = ", ".join(f"{package} {version}" for package, version in report.packages.items())
    head = f"{time.strftime('%Y-%m-%d')}, `--only {name}`: {machine()}, load {os.getloadavg()[2]:.0f}; {versions}."
    text = "\n\n".join(part for part in (head, table, below) if part)
    page.write_text(replaced(page.read_text(encoding="utf-8"), f"nodes-{name}", text), encoding="utf-8")


def main() -> int:
    """Run the benchmark; returns its exit code."""
    options = parser(__doc__, page=True)
    options.add_argument("--only", default=",".join(["start", *DATA]), help="of: start, " + ", ".join(DATA))
    options.add_argument("--sides", default=",".join(SIDES))
    arguments = options.parse_args()
    report = Report(arguments, packages=("chicle-elastic", "pyspark", "dask-ml"))
    names = names_of(arguments.only, ("start", *DATA), "--only")
    sides = names_of(arguments.sides, SIDES, "--sides")
    with tempfile.TemporaryDirectory(prefix="chicle-bench-") as place:
        for name in names:
            folder = Path(place) / name
            folder.mkdir()
            before, below = len(report.rows), ""
            if name == "start":
                report.add(staging(folder))
            else:
                data = DATA[name]
                write(folder, *data.make(data.rows // (50 if arguments.quick else 1)))
                for loss in data.losses:
                    report.add(cell(name, data, loss, folder, sides))
            if name in PROJECTED:
                below = projection(report.rows[before:], *PROJECTED[name])
            if arguments.page and report.judged:
                write_block(arguments.page, name, report, report.rows[before:], below)
            shutil.rmtree(folder)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
