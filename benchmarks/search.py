"""`ChicleSearchCV` against `GridSearchCV(n_jobs=2)`: 5 folds x 8 values of C, wall time and memory.

Data are a9a (32,561 x 123, sparse) and Fashion-MNIST (60,000 x 784, dense float32; tops or not). Each side runs in a
process of its own, which has imported all, compiled its kernels and started its workers on a part of the data before.
Sides take turns, and a ratio is the median over the turns of peer by ours, so what other processes of the machine do
meets both.

Memory is the proportional set size (pages that processes share are divided among them) of the process and all its
children, sampled every 50 ms: the most of it during the search, less what it was before, with one copy of the data
added, as a multiple of that copy. Interpreters, compiled kernels and idle workers are in none of the two.

    python -m benchmarks.search [--quick] [--data a9a fashion] [--losses ...] [--repeats N] [--folder FOLDER]
                                [--slow] [--json FILE]

LinearSVC with the hinge takes an hour on Fashion-MNIST, so only --slow asks for it. Exit code 1 if a gate is missed:
less than 3 times as fast as `GridSearchCV` with LinearSVC, or 1.5 times as with ChicleSVM; another best C than that of
`GridSearchCV` with ChicleSVM, or a mean score that differs by more than 5 rows; or more than 1.5 copies of the data.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sklearn.svm import LinearSVC

from benchmarks.bars import HEADER, Bar, Row
from benchmarks.glm_real import QUICK_ROWS, missing
from benchmarks.local_cluster import memory_mib
from benchmarks.peers import Peer
from benchmarks.report import finish
from benchmarks.search_side import FOLDS, TOL

FOLDER = Path(__file__).parents[1] / ".." / "shared" / "data"
ROWS = {"a9a": 32_561, "fashion": 60_000}
SAMPLE_S = 0.05
FASTER = {"GridSearchCV, ChicleSVM": 1.5, "GridSearchCV, LinearSVC": 3.0}
MOST_ROWS = 5
MOST_COPIES = 1.5


def processes(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += processes(int(child))
    return found


def pss_mib(pid: int) -> float:
    """Proportional set size of a process and all below it."""
    total = 0.0
    for each in processes(pid):
        try:
            total += memory_mib(each)[0]
        except (OSError, KeyError):  # it has just ended
            continue
    return total


def measure(spec: dict[str, Any]) -> dict[str, Any]:
    """One run of one side, with its memory."""
    command = [sys.executable, "-m", "benchmarks.search_side", json.dumps(spec)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        ready = json.loads(child.stdout.readline())
        before = most = pss_mib(child.pid)
        child.stdin.write("\n")
        child.stdin.flush()
        with ThreadPoolExecutor(1) as reader:
            line = reader.submit(child.stdout.readline)
            while not line.done():
                most = max(most, pss_mib(child.pid))
                time.sleep(SAMPLE_S)
        result = json.loads(line.result())
    data_mib = ready["data_bytes"] / 2**20
    memory = {"before_mib": before, "most_mib": most, "data_mib": data_mib}
    return {**result, **memory, "copies": (most - before + data_mib) / data_mib}


def compare(name: str, loss: str, sides: list[str], arguments: argparse.Namespace) -> list[Row]:
    """All sides on one data set with one loss, in turns."""
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(arguments.repeats):
        for side in sides:
            spec = {"data": name, "folder": str(arguments.folder), "loss": loss, "side": side, "quick": arguments.quick}
            runs[side].append(measure(spec))
            last = runs[side][-1]
            print(
                f"  {name}, {loss}, {side}: {last['wall_s']:.1f} s, C {last['best_C']:.3g}, {last['copies']:.2f} copies",
                file=sys.stderr,
                flush=True,
            )
    num_rows = QUICK_ROWS[name] if arguments.quick else ROWS[name]
    ours, rows = runs["ours"], []
    for side in sides[1:]:
        theirs = runs[side]
        ratio = statistics.median(t["wall_s"] / o["wall_s"] for t, o in zip(theirs, ours, strict=True))
        bar = Bar(gate=FASTER[side]) if side in FASTER else None
        rows.append(_row(name, loss, f"time, against {side}", ours, theirs, "wall_s", "s", ratio, bar))
    for side in sides:
        copies = statistics.median(run["copies"] for run in runs[side])
        bar = Bar(gate=MOST_COPIES, at_most=True) if side == "ours" else None
        rows.append(_row(name, loss, f"copies of the data, {side}", runs[side], None, "most_mib", "MiB", copies, bar))
    if "GridSearchCV, ChicleSVM" in runs:
        theirs = runs["GridSearchCV, ChicleSVM"]
        worst = max(
            abs(a - b) * num_rows
            for o, t in zip(ours, theirs, strict=True)
            for a, b in zip(o["scores"], t["scores"], strict=True)
        )
        is_same = all(o["best_C"] == t["best_C"] for o, t in zip(ours, theirs, strict=True))
        bar = Bar(gate=MOST_ROWS, at_most=True)
        rows.append(_row(name, loss, "rows that scores differ by", ours, theirs, "best_score", "", worst, bar))
        agree = Bar(gate=1.0)
        rows.append(_row(name, loss, "the same best C", ours, theirs, "best_C", "", float(is_same), agree))
    return rows


def _row(
    name: str,
    loss: str,
    what: str,
    ours: list[dict[str, Any]],
    theirs: list[dict[str, Any]] | None,
    key: str,
    unit: str,
    value: float,
    bar: Bar | None,
) -> Row:
    def middle(runs: list[dict[str, Any]]) -> str:
        return f"{statistics.median(run[key] for run in runs):.4g} {unit}".strip()

    return Row(
        part="search",
        what=f"{name}, {loss}: {what}",
        tol=TOL,
        measured=middle(ours),
        against="" if theirs is None else middle(theirs),
        value=value,
        bar=bar,
        details={"ours": ours, "theirs": theirs},
    )


def main() -> int:
    """Run it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small data, nothing is judged")
    parser.add_argument("--data", nargs="+", choices=tuple(ROWS), default=tuple(ROWS))
    parser.add_argument("--losses", nargs="+", choices=("hinge", "squared_hinge"), default=("squared_hinge", "hinge"))
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side")
    parser.add_argument("--slow", action="store_true", help="LinearSVC with the hinge on Fashion-MNIST, too")
    parser.add_argument("--more", action="store_true", help="halving and GridSearchCV on threads, too")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the real data sets")
    parser.add_argument("--json", type=Path, help="file for the result")
    arguments = parser.parse_args()
    started_s = time.perf_counter()
    rows: list[Row] = []
    for name in arguments.data:
        if missing(name, arguments.folder):
            parser.error(f"there is no {missing(name, arguments.folder)[0]}; pass --folder, or other --data")
    print(f"{FOLDS} folds x 8 values of C\n{HEADER}")
    for name in arguments.data:
        for loss in arguments.losses:
            sides = ["ours", "GridSearchCV, ChicleSVM"]
            if arguments.slow or arguments.quick or (name, loss) != ("fashion", "hinge"):
                sides.append("GridSearchCV, LinearSVC")
            if arguments.more:
                sides += ["halving", "GridSearchCV, ChicleSVM on threads"]
            for row in compare(name, loss, sides, arguments):
                rows.append(row)
                print(row.as_markdown(judged=not arguments.quick), flush=True)
    peers = [Peer("GridSearchCV and LinearSVC", "scikit-learn", make=lambda problem, iterations: LinearSVC())]
    return finish(
        rows,
        peers=peers,
        notes=[],
        quick=arguments.quick,
        repeats=arguments.repeats,
        started_s=started_s,
        path=arguments.json,
    )


if __name__ == "__main__":
    sys.exit(main())
