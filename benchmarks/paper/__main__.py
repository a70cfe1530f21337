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

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.bars import Row
from benchmarks.paper import balance, fig1, fig4, fig5, fig8, fig9, ordered
from benchmarks.paper.pictures import draw
from benchmarks.paper.runs import Settings
from benchmarks.real import FOLDER
from benchmarks.report import Report, names_of, parser

Rows = Callable[[Settings, list[str]], list[Row]]
FIGURES: dict[str, Rows] = {
    "fig1": fig1.rows,
    "fig1_images": fig1.image_rows,
    "fig4": fig4.rows,
    "fig5": fig5.rows,
    "fig8": fig8.rows,
    "fig9": fig9.rows,
    "ordered": ordered.rows,
    "balance": balance.rows,
}


def main() -> int:
    """Run the command line; returns the exit code."""
    options = parser(__doc__)
    options.add_argument("--only", default=",".join(FIGURES), help=f"of {', '.join(FIGURES)}")
    options.add_argument("--seeds", type=int, default=5, help="runs of each setting (default %(default)s)")
    options.add_argument("--real", type=Path, default=FOLDER, help="folder with real data (a9a/a9a.gz)")
    options.add_argument("--out", type=Path, default=Path("evaluation"), help="folder for pictures and cached runs")
    arguments = options.parse_args()
    names = names_of(arguments.only, FIGURES, "--only")
    if arguments.seeds < 1:
        options.error(f"--seeds: {arguments.seeds} must be >= 1")
    settings = Settings(
        seeds=tuple(range(1 if arguments.quick else arguments.seeds)),
        is_quick=arguments.quick,
        real=arguments.real,
        cache=arguments.out / "cache",
    )
    report = Report(arguments, repeats=len(settings.seeds))
    for name in names:
        found = FIGURES[name](settings, report.notes)
        report.add(found)
        if picture := draw(name, found, arguments.out):
            report.notes.append(f"picture: {picture}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
