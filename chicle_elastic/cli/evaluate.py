"""Run the evaluation of the paper: its figures and claims, in projected time, on your own files.

    fig1          epochs to a gap against the number of tasks, CoCoA
    fig1_images   epochs to an accuracy against the number of tasks, local SGD
    fig4          nodes come or go: uni-tasks against 16, 24, 32 and 64 micro-tasks, at five speeds, CoCoA
    fig5          8 nodes 1.5x slower than 8 others, uni-tasks with Rebalance from an even split, CoCoA (5 and 10)
    fig8          epochs of local SGD against those of plain torch
    fig9          nodes come or go, local SGD
    ordered       rows in the order of their labels: micro-tasks, uni-tasks, and uni-tasks with Shuffle (7)
    balance       four real agents, one of them slow for a while, with and without Rebalance (6 and 11)

--data names a folder with HIGGS.csv.gz, Criteo's train.txt, CIFAR-10, IDX images or svmlight; each file is named with
what it is taken for, or why it is left out. Without it the data is generated, and every picture says so. A run that
ended is kept in OUT/cache and not made again, so an evaluation that was interrupted goes on where it was. The exit code
is 0 when all figures were made, and 1 with --judge where a bar was missed.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chicle_elastic.errors import UsageError

if TYPE_CHECKING:
    from chicle_elastic.evaluate.bars import Row
    from chicle_elastic.evaluate.runs import Settings

FIGURES = ("fig1", "fig1_images", "fig4", "fig5", "fig8", "fig9", "ordered", "balance")
QUICK_FIGURES = ("fig1", "fig1_images", "fig5", "ordered")
QUICK_ROWS = 10_000
GENERATED = "generated data"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle evaluate` takes."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder with your files; by default data is generated")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("evaluation"), help="default: %(default)s")
    parser.add_argument("--only", metavar="FIGURES", help=f"of {','.join(FIGURES)}; by default all")
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
    for name in names:
        if name not in FIGURES:
            raise UsageError(f"--only {name}: there is no such figure; there are {', '.join(FIGURES)}")
    if arguments.seeds < 1 or (arguments.rows is not None and arguments.rows < 1000):
        raise UsageError(
            f"--seeds {arguments.seeds}, --rows {arguments.rows}: at least 1 seed and 1000 rows are needed"
        )
    settings, source = _settings(arguments)
    notes: list[str] = []
    rows: list[Row] = []
    is_judged = not arguments.quick
    for name in names:
        found = _figure(name)(settings, notes)
        for row in found:
            if not rows:
                print(f"\n{HEADER}")
            print(row.as_markdown(judged=is_judged), flush=True)
            rows.append(row)
        if found and (picture := draw(name, found, arguments.out, source)):
            notes.append(f"picture: {picture}")
    print(f"\nclaims of the paper, {source}\n{CLAIMS_HEADER}")
    for claim in claims_of(settings, rows):
        print(claim.as_markdown())
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


def _figure(name: str) -> "Callable[[Settings, list[str]], Sequence[Row]]":
    from chicle_elastic.evaluate import balance, fig1, fig4, fig5, fig8, fig9, ordered

    return {
        "fig1": fig1.rows,
        "fig1_images": fig1.image_rows,
        "fig4": fig4.rows,
        "fig5": fig5.rows,
        "fig8": fig8.rows,
        "fig9": fig9.rows,
        "ordered": ordered.rows,
        "balance": balance.rows,
    }[name]
