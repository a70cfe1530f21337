"""ChicleSVM against liblinear, Snap ML and SGD, and against the machine, with gates.

Whole `fit` on both sides, alternated in one run, medians, one thread. Ours runs until its relative duality gap is
*certified* to be at most tol; a peer is charged only for the fewest iterations that bring (P - P*) / P* to tol, found
beforehand. One-thread times are processor time, which is wall time less what the neighbours of a shared machine took;
the JSON has both.

    python -m benchmarks.svm [--only PART[,PART]] [--quick] [--repeats N] [--json FILE]

The last line is the whole result as JSON. Exit code 1 when a gate is missed.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bars import HEADER, Row
from benchmarks.machine import machine
from benchmarks.peers import Peer
from benchmarks.report import finish
from benchmarks.svm_data import load
from benchmarks.svm_machine import compare_epoch, compare_threads, measure_memory
from benchmarks.svm_peers import installed_peers
from benchmarks.svm_speed import CASES, compare_small, compare_speed

PARTS = (*CASES, "small", "threads", "epoch", "memory")
QUICK_CAP_S = 0.3


def rows_of(part: str, arguments: argparse.Namespace, peers: list[Peer]) -> Iterator[Row]:
    """All rows of a part, as they are measured."""
    if part in CASES:
        yield from compare_speed(part, arguments, peers)
    elif part == "small":
        yield from compare_small(arguments, peers)
    elif part == "threads":
        for name in ("higgs", "criteo"):
            yield compare_threads(name, load(name, arguments.data_dir, quick=arguments.quick), arguments.repeats)
    elif part == "epoch":
        for name in ("higgs", "mnist", "criteo"):
            yield from compare_epoch(name, load(name, arguments.data_dir, quick=arguments.quick), arguments.repeats)
    else:
        yield measure_memory(quick=arguments.quick)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="ChicleSVM against its peers and the machine, with gates.")
    parser.add_argument(
        "--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}; speed means all {len(CASES)} cases"
    )
    parser.add_argument("--quick", action="store_true", help="small data: shows that everything runs, judges nothing")
    parser.add_argument("--repeats", type=int, help="timed fits of each side (default 3; 1 when quick)")
    parser.add_argument(
        "--cap", type=float, help=f"longest fit of a peer that is tried, s (default 10; {QUICK_CAP_S} when quick)"
    )
    parser.add_argument("--json", type=Path, help="file for the result as JSON")
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=Path(tempfile.gettempdir()) / "chicle-bench",
        help="folder for data, references and iteration counts (default: chicle-bench among the temporary files)",
    )
    arguments = parser.parse_args()
    arguments.parts = arguments.only.replace("speed", ",".join(CASES)).split(",")
    if arguments.repeats is None:
        arguments.repeats = 1 if arguments.quick else 3
    if arguments.cap is None:
        arguments.cap = QUICK_CAP_S if arguments.quick else 10.0
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"no part is called {unknown[0]}; there are {', '.join(PARTS)}")
    if arguments.repeats < 1:
        parser.error(f"--repeats is {arguments.repeats} and has to be 1 or more")
    return arguments


def main() -> int:
    """Measure, print the rows as they come, a summary and one line of JSON."""
    arguments = parse_arguments()
    peers, notes = installed_peers()
    start = time.perf_counter()
    judged = not arguments.quick
    print(machine())
    for note in notes:
        print(note)
    rows: list[Row] = []
    for part in arguments.parts:
        print(f"\n{HEADER}" if part not in CASES else "", flush=True)
        for number, row in enumerate(rows_of(part, arguments, peers)):
            if part in CASES and number == 0:
                print(HEADER)
            print(row.as_markdown(judged=judged), flush=True)
            rows.append(row)
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
