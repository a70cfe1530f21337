"""Run the evaluation of the paper: its figures and claims, in projected time, on your own files.

    table1        the data sets
    fig1          epochs against the number of tasks, or the size of batches: CoCoA, local SGD, mini-batch SGD
    fig4, fig9    nodes come or go, over time and over epochs: uni-tasks against 16, 24, 32 and 64 micro-tasks
    fig5, fig10   8 nodes 1.5x slower than 8 others, over time and over epochs: uni-tasks with Rebalance, micro-tasks
    fig6, fig11   four real agents, one of them slow for a while, with and without Rebalance: CoCoA, local SGD
    fig7          CoCoA, rows in the order of their labels: micro-tasks, uni-tasks, and uni-tasks with Shuffle
    fig8          epochs of local SGD against those of mini-batch SGD by plain torch

Figures have the paper's numbers; figures 4, 5, 9 and 10 are of CoCoA and local SGD, at five speeds of change.
--data names a folder with HIGGS.csv.gz, Criteo's train.txt, CIFAR-10, IDX images or svmlight; each file is named with
what it is taken for, or why it is left out. Without it the data is generated, and every picture says so. A run that
ended is kept in OUT/cache and not made again, so an evaluation that was interrupted goes on where it was. The exit code
is 0 when all figures were made, and 1 with --judge where a bar was missed.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chicle_elastic.errors import UsageError

if TYPE_CHECKING:
    from chicle_elastic.evaluate.bars import Row
    from chicle_elastic.evaluate.runs import Settings

FIGURES = ("table1", "fig1", "fig4", "fig5", "fig6", "fig7", "fig8", "fig11")
MADE_WITH = {"fig9": "fig4", "fig10": "fig5"}
QUICK_FIGURES = ("table1", "fig1", "fig5", "fig7")
QUICK_ROWS = 10_000
GENERATED = "generated data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle evaluate` takes."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with your files; by default data is generated")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("evaluation"), help="default: %(default)s")
    parser.add_argument("--only", metavar="FIGURES", help=f"of {','.join((*FIGURES, *MADE_WITH))}; by default all")
    parser.add_argument("--rows", type=int, metavar="N", help="rows of each file, from its first on; default 100000")
    parser.add_argument("--seeds", type=int, metavar="N", default=5, help="runs of each setting (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one seed, few rows: shows that it runs, judges nothing")
    parser.add_argument("--judge", action="store_true", help="exit code 1 when a bar is missed")


def run(arguments: argparse.Namespace) -> int:
    """Make the figures. Raises UsageError for a number that cannot be, an unknown figure, or a folder without data."""
    from chicle_elastic.evaluate.bars import HEADER, MISSED
    from chicle_elastic.evaluate.claims import HEADER as CLAIMS_HEADER
    from chicle_elastic.evaluate.claims import claims_of
    from chicle_elastic.evaluate.pictures import draw

    names = (arguments.only or ",".join(QUICK_FIGURES if arguments.quick else FIGURES)).split(",")
    names = list(dict.fromkeys(MADE_WITH.get(name, name) for name in names))
    for name in names:
        if name not in FIGURES:
            raise UsageError(f"--only {name}: there is no such figure; there are {', '.join((*FIGURES, *MADE_WITH))}")
    if arguments.seeds < 1 or (arguments.rows is not None and arguments.rows < 1000):
        raise UsageError(
            f"--seeds {arguments.seeds}, --rows {arguments.rows}: at least 1 seed and 1000 rows are needed"
        )
    settings, source = _settings(arguments)
    notes: list[str] = []
    rows: list[Row] = []
    is_judged = not arguments.quick
    for name in names:
        found: list[Row] = []
        for make in _makers(name):
            for row in make(settings, notes):
                if not rows and not found:
                    print(f"\n{HEADER}")
                print(row.as_markdown(judged=is_judged), flush=True)
                found.append(row)
        rows += found
        notes += [f"picture: {path}" for path in (draw(name, found, arguments.out, source) if found else ())]
    print(f"\nclaims of the paper, {source}\n{CLAIMS_HEADER}")
    for claim in claims_of(settings, rows):
        print(claim.as_markdown(judged=is_judged))
    missed = [row for row in rows if row.verdict(judged=is_judged) == MISSED]
    print(
        f"\n{len(missed)} of {sum(row.bar is not None for row in rows)} bars missed"
        + (" (not judged)" * (not is_judged))
    )
    for note in dict.fromkeys(notes):
        print(note)
    return 1 if missed and arguments.judge else 0


def _settings(arguments: argparse.Namespace) -> "tuple[Settings, str]":
    """The data and what it is, in words."""
    from chicle_elastic.evaluate.files import read_folder
    from chicle_elastic.evaluate.image_data import letters
    from chicle_elastic.evaluate.runs import Settings
    from chicle_elastic.evaluate.shapes import click_data, higgs
    from chicle_elastic.monitoring.pictures import can_draw

    most = arguments.rows or (QUICK_ROWS if arguments.quick else 100_000)
    seeds = tuple(range(1 if arguments.quick else arguments.seeds))
    cache = arguments.out / "cache"
    if arguments.data is None:
        images = (("letters", letters()),) if can_draw() and not arguments.quick else ()
        rows = (higgs(most), click_data(most))
        return Settings(seeds=seeds, is_quick=arguments.quick, cache=cache, rows=rows, images=images), GENERATED
    taken = read_folder(arguments.data, most)
    for line in taken.lines:
        print(line)
    if not taken.rows and not taken.images:
        raise UsageError(f"--data {arguments.data}: none of its files can be used; the lines above say why")
    settings = Settings(seeds=seeds, is_quick=arguments.quick, cache=cache, rows=taken.rows, images=taken.images)
    return settings, f"files of {arguments.data}"


def _makers(name: str) -> "Sequence[Callable[[Settings, list[str]], Sequence[Row]]]":
    """Functions that make the rows of a figure."""
    from chicle_elastic.evaluate import balance, fig1, fig4, fig4_images, fig5, fig7, fig8, runs

    makers: dict[str, Sequence[Callable[[Settings, list[str]], Sequence[Row]]]] = {
        "table1": (runs.data_rows,),
        "fig1": (fig1.rows, fig1.image_rows),
        "fig4": (fig4.rows, fig4_images.rows),
        "fig5": (fig5.rows, fig5.image_rows),
        "fig6": (partial(balance.rows, "fig6"),),
        "fig7": (fig7.rows,),
        "fig8": (fig8.rows,),
        "fig11": (partial(balance.rows, "fig11"),),
    }
    return makers[name]
