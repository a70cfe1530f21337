"""ChicleSVM and ChicleLogisticRegression against every peer, on ten data sets, with one task and with several.

Three losses, two strengths of regularisation, two tolerances. One task is timed: the processor time of whole fits,
alternated with the peers in one run, medians, one thread, and held against the best peer. Ours stops when its relative
duality gap is *certified* to be at most tol; a peer is charged only for the fewest iterations that bring (P - P*) / P*
to tol, found beforehand. Several tasks in one process are counted in iterations. A last table is about all defaults.

    python -m benchmarks.glm [--only DATA[,DATA]] [--loss LOSS] [--C strong,one]
        [--tasks 1,4,16] [--tol 1e-3,1e-5] [--quick] [--repeats N] [--cap S] [--our-cap S] [--json FILE] [--real DIR]

The last line is the whole result as JSON. Exit code 1 when a gate is missed.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bars import HEADER, Row
from benchmarks.glm_bars import AHEAD, MOST_ITERATIONS
from benchmarks.glm_data import NAMES, load
from benchmarks.glm_first import compare_first
from benchmarks.glm_peers import installed_peers
from benchmarks.glm_speed import compare_one_task
from benchmarks.glm_tasks import compare_tasks
from benchmarks.machine import machine
from benchmarks.ours import MAX_ITER, fit_ours
from benchmarks.peers import Peer, Search
from benchmarks.problems import LOSSES, Problem, strong
from benchmarks.references import reference
from benchmarks.report import finish

FIRST = "first"
"""Name of the table about all defaults, beside the names of data sets."""
REFERENCE_TOL = 1e-8


def problems(name: str, arguments: argparse.Namespace) -> Iterator[Problem]:
    """What is asked of one data set; a line in its place where it is not there."""
    data = load(name, arguments.data_dir, arguments.real, quick=arguments.quick)
    if isinstance(data, str):
        print(f"\n{data}", flush=True)
        return
    for loss in arguments.loss:
        for strength in arguments.C:
            yield Problem(data, loss, strong(data) if strength == "strong" else 1.0)


def rows_of(problem: Problem, arguments: argparse.Namespace, peers: list[Peer]) -> Iterator[Row]:
    """All rows of a problem, as they are measured."""
    best = reference(problem, REFERENCE_TOL, arguments.data_dir, arguments.reference_cap)
    timed = 1 in arguments.tasks
    suited = [peer for peer in peers if timed and peer.suits(problem)]
    searches = {peer: Search(peer, problem, best, arguments.data_dir) for peer in suited}
    print(f"\n{problem.title}: C = {problem.C:.6g}, {best.text()}\n\n{HEADER}", flush=True)
    for tol in arguments.tol:
        if timed:
            row, one_task = compare_one_task(problem, tol, arguments, searches, best)
            yield row
        else:
            one_task = fit_ours(problem, tol, max_iter=arguments.max_iter_one, limit_s=arguments.our_cap)
        for num_tasks in arguments.tasks:
            if num_tasks > 1:
                yield compare_tasks(problem, tol, num_tasks, arguments, one_task, best)


def ahead(rows: list[Row]) -> Row | None:
    """In how many cells ours is ahead of all peers."""
    timed = [row.details["is_ahead"] for row in rows if row.part == "one task"]
    if not timed:
        return None
    return Row(
        part="ahead",
        what="share of cells in which ours is ahead of all peers",
        tol=None,
        measured=f"{sum(timed)} cells",
        against=f"of {len(timed)}",
        value=sum(timed) / len(timed),
        bar=AHEAD,
        details={},
    )


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="The linear models against their peers, with gates.")
    parser.add_argument("--only", default=",".join((*NAMES, FIRST)), help=f"of {', '.join(NAMES)} and {FIRST}")
    parser.add_argument("--loss", default=",".join(LOSSES), help=f"of {', '.join(LOSSES)}")
    parser.add_argument("--C", default="strong,one", help="of strong (100/n) and one")
    parser.add_argument("--tasks", help="numbers of tasks (default 1,4,16; 1,4 when quick); 1 is the one that is timed")
    parser.add_argument("--tol", default="1e-3,1e-5", help="tolerances")
    parser.add_argument("--quick", action="store_true", help="small data: shows that everything runs, judges nothing")
    parser.add_argument("--repeats", type=int, help="timed fits of each side at least (default 3; 1 when quick)")
    parser.add_argument("--cap", type=float, help="longest fit of a peer that is tried, s (default 10; 0.3 when quick)")
    parser.add_argument("--our-cap", type=float, help="longest fit of ours, s (default 60; 0.5 when quick)")
    parser.add_argument(
        "--reference-cap",
        type=float,
        help="for P*, s, by ours and by Newton's method (default 300; 3 when quick)",
    )
    parser.add_argument("--max-iter", type=int, help=f"of ours (default {MAX_ITER}; several tasks {MOST_ITERATIONS})")
    parser.add_argument("--json", type=Path, help="file for the result as JSON")
    parser.add_argument(
        "--real",
        type=Path,
        default=Path(__file__).resolve().parents[2] / "shared" / "data",
        help="folder with real data (default: ../shared/data beside the repository)",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(tempfile.gettempdir()) / "chicle-bench",
        help="folder for data, references and iteration counts (default: chicle-bench among the temporary files)",
    )
    arguments = parser.parse_args()
    for name, known in (("only", (*NAMES, FIRST)), ("loss", LOSSES), ("C", ("strong", "one"))):
        words = getattr(arguments, name).split(",")
        if unknown := [word for word in words if word not in known]:
            parser.error(f"--{name} knows no {unknown[0]}; it knows {', '.join(known)}")
        setattr(arguments, name, words)
    arguments.tasks = [int(word) for word in (arguments.tasks or ("1,4" if arguments.quick else "1,4,16")).split(",")]
    arguments.tol = [float(word) for word in arguments.tol.split(",")]
    defaults = {"repeats": (3, 1), "cap": (10.0, 0.3), "our_cap": (60.0, 0.5), "reference_cap": (300.0, 3.0)}
    for name, (full, quick) in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, quick if arguments.quick else full)
    arguments.max_iter_one = arguments.max_iter or MAX_ITER
    arguments.max_iter_several = arguments.max_iter or MOST_ITERATIONS
    if arguments.repeats < 1 or min(arguments.tasks) < 1:
        parser.error("--repeats and --tasks have to be 1 or more")
    return arguments


def main() -> int:
    """Measure, print the rows as they come, a summary and one line of JSON."""
    arguments = parse_arguments()
    start = time.perf_counter()
    peers, notes = installed_peers()
    print(machine())
    for note in notes:
        print(note)
    if 1 in arguments.tasks:
        for peer in peers:
            peer.warm_up(LOSSES)
    rows: list[Row] = []
    judged = not arguments.quick

    def show(measured: Iterator[Row]) -> None:
        for row in measured:
            print(row.as_markdown(judged=judged), flush=True)
            rows.append(row)

    for name in arguments.only:
        if name != FIRST:
            for problem in problems(name, arguments):
                show(rows_of(problem, arguments, peers))
    if FIRST in arguments.only:
        print(f"\nall defaults\n\n{HEADER}", flush=True)
        show(compare_first(arguments))
    if row := ahead(rows):
        print(f"\n{HEADER}")
        show(iter([row]))
    return finish(
        rows,
        peers=peers,
        notes=notes,
        quick=arguments.quick,
        repeats=arguments.repeats,
        started_s=start,
        path=arguments.json,
    )


if __name__ == "__main__":
    sys.exit(main())
