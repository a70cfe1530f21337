"""The evaluation of the paper with this product, in projected time.

    python -m benchmarks.paper [--quick] [--only FIGURES] [--seeds N] [--real DIR] [--out DIR] [--json FILE]

    fig1          epochs to a gap against the number of tasks, CoCoA
    fig1_images   epochs to an accuracy against the number of tasks, local SGD; not with --quick
    fig4          nodes come or go: uni-tasks against 16, 24, 32 and 64 micro-tasks, at five speeds, CoCoA
    fig5          8 nodes 1.5x slower than 8 others, uni-tasks with `Rebalance` from an even split, CoCoA
    fig8          epochs of local SGD against those of plain torch; not with --quick
    fig9          nodes come or go, local SGD; not with --quick
    ordered       rows in the order of their labels: micro-tasks, uni-tasks, and uni-tasks with `Shuffle`, CoCoA
    balance       four real agents, one of them slow for a while, with and without `Rebalance`

CoCoA makes one pass over the data per iteration, and is certified after each. A run that ended is kept in OUT/cache and
not made again, so an evaluation that was interrupted goes on where it was. Exit code 1 when a bar is missed.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.bars import HEADER, Row
from benchmarks.paper import balance, fig1, fig1_images, fig4, fig5, fig8, fig9, ordered
from benchmarks.paper.pictures import draw
from benchmarks.paper.runs import Settings
from benchmarks.report import finish

REAL = Path(__file__).parents[3] / "shared" / "data"
Rows = Callable[[Settings, list[str]], list[Row]]
FIGURES: dict[str, Rows] = {
    "fig1": fig1.rows,
    "fig1_images": fig1_images.rows,
    "fig4": fig4.rows,
    "fig5": fig5.rows,
    "fig8": fig8.rows,
    "fig9": fig9.rows,
    "ordered": ordered.rows,
    "balance": balance.rows,
}


def main() -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small data and one seed: judges nothing")
    parser.add_argument("--only", default=",".join(FIGURES), help=f"of {', '.join(FIGURES)}")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each setting (default %(default)s)")
    parser.add_argument("--real", type=Path, default=REAL, help="folder with real data (a9a/a9a.gz)")
    parser.add_argument("--out", type=Path, default=Path("evaluation"), help="folder for pictures and cached runs")
    parser.add_argument("--json", type=Path, help="file for the result as JSON")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := [name for name in names if name not in FIGURES]:
        parser.error(f"--only: {unknown[0]!r} is none of {', '.join(FIGURES)}")
    if arguments.seeds < 1:
        parser.error(f"--seeds: {arguments.seeds} must be >= 1")
    settings = Settings(
        seeds=tuple(range(1 if arguments.quick else arguments.seeds)),
        is_quick=arguments.quick,
        real=arguments.real,
        cache=arguments.out / "cache",
    )
    started_s, notes, rows = time.perf_counter(), list[str](), list[Row]()
    print(HEADER)
    for name in names:
        found = FIGURES[name](settings, notes)
        rows += found
        for row in found:
            print(row.as_markdown(judged=not arguments.quick), flush=True)
        if picture := draw(name, found, arguments.out):
            notes.append(f"picture: {picture}")
    for note in dict.fromkeys(notes):
        print(note)
    return finish(
        rows,
        peers=[],
        notes=notes,
        quick=arguments.quick,
        repeats=len(settings.seeds),
        started_s=started_s,
        path=arguments.json,
    )


if __name__ == "__main__":
    sys.exit(main())
