"""Data files to a folder of chunks, in memory that does not grow with the files.

    reader -> Block -> checks -> ChunkFolderWriter
              (bounded, knows its place)  (shuffles rows, writes under a temporary name, renames at the end)

Several inputs are read one after the other, as one data set. What they have in common (dense or CSR, columns, weights,
kind of labels) is taken from the first, and the others have to agree. Columns with names are matched by name
(`readers.columns`).
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from chicle_elastic.chunks.convert_inputs import Common, Dtype, Report, all_blocks, open_inputs
from chicle_elastic.chunks.convert_labels import Labels
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.folder_writer import DEFAULT_MEMORY_BYTES, ChunkFolderWriter
from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.chunks.readers.checks import checked_rows, checked_targets, checked_weights
from chicle_elastic.chunks.readers.formats import Format
from chicle_elastic.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How far a conversion is."""

    phase: Literal["reading", "writing"]  # "reading" the inputs, or "writing" the shuffled chunks
    num_rows: int  # rows read or written so far
    done: int  # bytes of input read so far; when writing, rows
    total: int  # all bytes of input (0 where that is not known); when writing, all rows


OnProgress = Callable[[Step], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """How to convert."""

    format: Format | None = None  # format of all inputs; None finds it out for each
    # dtype of the features; None means float32 for text, and that of the file (as near as chunks can hold it) for the
    # other formats
    dtype: Dtype | None = None
    chunk_bytes: int | None = None  # size of a chunk; None chooses it for `max_tasks` (`split.choose_chunk_bytes`)
    max_tasks: int = 8  # largest number of tasks that will train on the folder
    seed: int = 0  # seed of the shuffle of the rows
    are_targets_real: bool = False  # keep targets as real values even where all are whole numbers
    overwrite: bool = False  # replace an existing chunk folder
    memory_bytes: int = DEFAULT_MEMORY_BYTES  # memory for the shuffle; reading takes some MiB besides
    read: ReadOptions = field(default_factory=ReadOptions)  # how to read


def convert(
    inputs: Sequence[str | Path],
    out: str | Path,
    options: ConvertOptions | None = None,
    *,
    on_progress: OnProgress = lambda step: None,
    report: Report | None = None,
) -> ChunkFolder:
    """Read data files and write them as one folder of chunks, rows shuffled. All or nothing: see `ChunkFolderWriter`.
    Returns the folder that was written. Raises DataError with file and line or row when a file cannot be used,
    UsageError for options or paths that cannot work, MissingExtraError when the format needs a package that is not
    installed, OSError when a file cannot be read or written.

    Args:
        options: How; by default everything is found out.
        on_progress: Told how far it is, several times a second.
        report: Takes what there is to say: notes, columns, rows of each file.
    """
    options = options or ConvertOptions()
    report = report or Report()
    files = open_inputs([Path(path) for path in inputs], Path(out), options.format, options.read, report)
    total_bytes = sum(file.size_bytes for file in files)
    with closing(all_blocks(files, report)) as blocks:
        first_done_bytes, first = next(blocks)
        common = Common.of(first, options.dtype)
        labels = Labels(are_real=options.are_targets_real)
        num_rows = num_features = 0
        with ChunkFolderWriter(
            out,
            kind=common.kind,
            dtype=common.dtype,
            num_features=options.read.num_features if common.kind == "csr" else common.num_features,
            has_weights=common.has_weights,
            sample_shape=common.sample_shape,
            chunk_bytes=options.chunk_bytes,
            max_tasks=options.max_tasks,
            shuffle_seed=options.seed,
            overwrite=options.overwrite,
            memory_bytes=options.memory_bytes,
        ) as writer:
            for done_bytes, block in chain([(first_done_bytes, first)], blocks):
                common.check(block)
                kept = labels.keep(checked_targets(block), where=block.origin.row(0))
                writer.add(checked_rows(block, common.dtype), kept, checked_weights(block))
                num_rows += block.num_rows
                num_features = max(num_features, block.rows.shape[1])
                on_progress(Step(phase="reading", num_rows=num_rows, done=done_bytes, total=total_bytes))
            if not num_features:
                raise DataError(f"{common.path}: no sample has a feature; check the file and its format")
            codes = labels.finish()
            return writer.finish(
                classes=() if codes is None else codes.classes,
                recode=None if codes is None else codes.recode,
                on_progress=lambda done, total: on_progress(
                    Step(phase="writing", num_rows=done, done=done, total=total)
                ),
            )
