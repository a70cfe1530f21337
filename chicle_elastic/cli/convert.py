"""Turn data files into a folder of chunks that ChicleSVM().fit(ChunkFolder(path)) reads.

Formats: svmlight and CSV (plain, .gz, .bz2, .xz, .zip), npy (with --targets), npz (X, y and perhaps sample_weight; or
a CSR matrix as scipy.sparse.save_npz writes it, and y), Parquet (needs pyarrow), and images: IDX, as MNIST comes
(plain or .gz, labels from the file beside it), and CIFAR-10's binary version. The command detects the format from the
bytes and shuffles the rows. Labels that are all whole numbers or text become class codes.

Several files are one data set. Columns with names (CSV, Parquet) are matched by name. The label is the first column,
unless --label-column names another one. The command says what it decides: notes on stderr, a summary at the end.

Memory stays bounded for files of any size. A conversion that fails leaves no files behind.
"""

import argparse
import csv
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import get_args

from chicle_elastic.chunks.convert import ConvertOptions, Step, convert
from chicle_elastic.chunks.convert_inputs import Dtype, Report
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.folder_writer import DEFAULT_MEMORY_BYTES
from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.chunks.readers.columns import abbreviated
from chicle_elastic.chunks.readers.formats import FORMATS
from chicle_elastic.cli.inspect import class_lines, contents_of, summary
from chicle_elastic.cli.progress import Progress
from chicle_elastic.cli.signals import orderly_end
from chicle_elastic.clock import Clock, MonotonicClock

ZERO_BASED = {"no": False, "yes": True, "auto": None}
_SIZE = re.compile(r"(\d+)\s*(B|K|KiB|M|MiB)?", re.IGNORECASE)
MAX_FILES_SHOWN = 10
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle convert` takes."""
    parser.add_argument("inputs", nargs="+", type=Path, metavar="IN", help="files of one data set, read in this order")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument("--format", choices=FORMATS, help="format of all inputs (default: detected for each)")
    parser.add_argument("--overwrite", action="store_true", help="replace the chunk folder OUT if there is one")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    chunks = parser.add_argument_group("chunks")
    chunks.add_argument(
        "--chunk-bytes",
        type=_size,
        metavar="SIZE",
        help="size of a chunk, such as 512K or 1MiB (default: 1MiB; 200KiB for uint8)",
    )
    chunks.add_argument(
        "--max-tasks",
        type=_positive,
        default=8,
        metavar="N",
        help="largest number of tasks that will train on it; small data is cut into at least 16 chunks for each "
        "(default: 8)",
    )
    chunks.add_argument(
        "--dtype",
        choices=get_args(Dtype),
        help="dtype of the features (default: float32 for text, else that of the file)",
    )
    chunks.add_argument("--seed", type=_natural, default=0, metavar="N", help="seed of the shuffle (default: 0)")
    chunks.add_argument(
        "--memory",
        type=_size,
        default=DEFAULT_MEMORY_BYTES,
        metavar="SIZE",
        help="memory for the shuffle; reading takes some MiB besides (default: 64MiB)",
    )
    labels = parser.add_argument_group("labels")
    labels.add_argument("--regression", action="store_true", help="keep labels as real values")
    labels.add_argument("--targets", type=Path, metavar="FILE", help="npy, npz, IDX: file with the labels")
    labels.add_argument("--weights", type=Path, metavar="FILE", help="npy, npz: file with the sample weights")
    columns = parser.add_argument_group(
        "columns (CSV, Parquet)", "a column is its name, or its number: 1, 2, ... or -1"
    )
    columns.add_argument("--label-column", metavar="COLUMN", help="the label's column (default: the first)")
    columns.add_argument("--weight-column", metavar="COLUMN", help="the column of sample weights")
    columns.add_argument(
        "--drop-columns",
        action="extend",
        type=lambda text: next(csv.reader([text]), []),
        default=[],
        metavar="COLUMN,...",
        help="columns to leave out",
    )
    text = parser.add_argument_group("text")
    text.add_argument(
        "--zero-based",
        choices=tuple(ZERO_BASED),
        default="no",
        help="svmlight: whether the first feature has index 0; auto looks through the file first (default: no)",
    )
    text.add_argument(
        "--num-features", type=_positive, metavar="N", help="svmlight: number of features (default: the largest index)"
    )
    text.add_argument(
        "--header",
        action=argparse.BooleanOptionalAction,
        help="CSV: whether the first line of each file holds names (default: detected, and said)",
    )
    text.add_argument("--delimiter", metavar="C", help="CSV: character between fields (default: a comma; .tsv: a tab)")


def run(arguments: argparse.Namespace) -> int:
    """Convert, and say what was written."""
    options = ConvertOptions(
        format=arguments.format,
        dtype=arguments.dtype,
        chunk_bytes=arguments.chunk_bytes,
        max_tasks=arguments.max_tasks,
        seed=arguments.seed,
        are_targets_real=arguments.regression,
        overwrite=arguments.overwrite,
        memory_bytes=arguments.memory,
        read=ReadOptions(
            zero_based=ZERO_BASED[arguments.zero_based],
            num_features=arguments.num_features,
            header=arguments.header,
            delimiter=arguments.delimiter,
            label_column=arguments.label_column,
            weight_column=arguments.weight_column,
            drop_columns=tuple(arguments.drop_columns),
            targets=arguments.targets,
            weights=arguments.weights,
        ),
    )
    clock = MonotonicClock()
    start_s = clock.now()
    with orderly_end(), closing(StepProgress(clock)) as progress:
        on_progress = (lambda step: None) if arguments.quiet else progress.show
        report = Report(on_note=progress.note)
        folder = convert(arguments.inputs, arguments.out, options, on_progress=on_progress, report=report)
    print(f"{summary(folder)}, in {clock.now() - start_s:.1f} s")
    print("\n".join(details(folder, report)))
    return 0


def details(folder: ChunkFolder, report: Report) -> list[str]:
    """Return the lines that a person can check: label, columns, rows of each file and of each class."""
    lines = []
    if (columns := report.columns) is not None:
        names = [columns.name(position) for position in columns.features]
        left_out = [columns.name(place) or place + 1 for place in sorted({*range(columns.count)} - {*columns.used})]
        lines.append(f"  label     column {columns.name(columns.label)!r}")
        lines += [] if columns.weight is None else [f"  weights   column {columns.name(columns.weight)!r}"]
        lines.append(f"  features  columns {abbreviated(names)}")
        lines += [f"  left out  columns {abbreviated(left_out)}"] if left_out else []
    for path, num_rows, header in report.files[:MAX_FILES_SHOWN]:
        lines.append(f"  file      {path}: {num_rows:,} rows{f', {header}' if header else ''}")
    if rest := report.files[MAX_FILES_SHOWN:]:
        lines.append(f"  files     {len(rest):,} more: {sum(num_rows for _, num_rows, _ in rest):,} rows")
    contents = contents_of(folder)
    if folder.classes:
        return lines + class_lines(folder, contents)
    return [*lines, "  targets   from {:g} to {:g}".format(*contents.target_range)]


class StepProgress:
    """A `Progress` for each phase of a conversion, on stderr."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._phase = ""
        self._progress: Progress | None = None

    def show(self, step: Step) -> None:
        """Show a step; a new phase begins a new bar."""
        if self._progress is None or step.phase != self._phase:
            self.close()
            self._phase = step.phase
            is_bytes = step.phase == "reading"
            self._progress = Progress(sys.stderr, self._clock, label=step.phase, total=step.total, is_bytes=is_bytes)
        self._progress.update(step.num_rows, step.done)

    def note(self, text: str) -> None:
        """Print a note in place of the bar, which comes back behind it."""
        self.close()
        self._progress = None
        print(f"chicle: {text}", file=sys.stderr)

    def close(self) -> None:
        """Clear the bar that is shown, if any."""
        if self._progress is not None:
            self._progress.close()


def _size(text: str) -> int:
    match = _SIZE.fullmatch(text)
    size_bytes = int(match[1]) * _UNITS[(match[2] or "").lower()] if match else 0
    if size_bytes < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write bytes, or 512K, or 1MiB")
    return size_bytes


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= 0")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number >= 1")
    return int(text)
