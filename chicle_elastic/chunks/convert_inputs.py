"""The files of a conversion: what they are, whether they can be read together, and their blocks one after the other."""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from chicle_elastic.chunks.headers import CSR_VALUE_DTYPES
from chicle_elastic.chunks.readers.base import Block, Columns, NoSamplesError, ReadOptions
from chicle_elastic.chunks.readers.formats import READERS, Format, detect_format
from chicle_elastic.chunks.readers.svmlight import has_zero_index
from chicle_elastic.chunks.views import VALUE_DTYPES, CsrRows, name_of
from chicle_elastic.errors import DataError, UsageError

Dtype: TypeAlias = Literal["float32", "float64", "uint8", "int8", "float16"]  # dtypes that can be asked for


@dataclass(frozen=True, slots=True)
class Input:
    """One file to read, with all that had to be found out about it."""

    path: Path
    format: Format | None
    read: ReadOptions
    size_bytes: int

    def blocks(self, like: Columns | None) -> Generator[Block, None, None]:
        """The rows, their columns matched with those of `like`. Raises NoSamplesError when there are none."""
        block = None
        if self.format is not None:
            for block in READERS[self.format](self.path, replace(self.read, like=like)):
                yield block
        if block is None:
            raise NoSamplesError(f"{self.path}: the file {'has no samples' if self.size_bytes else 'is empty'}")


@dataclass(slots=True)
class Report:
    """Collects what a conversion has to say, beside the folder that it makes."""

    # told at once what was decided without being asked for, one sentence at a time
    on_note: Callable[[str], None] = lambda note: None
    columns: Columns | None = None  # what the columns of the first file are; None for formats without columns
    # of each file with samples its path, the number of its rows, and where its names stand
    files: list[tuple[Path, int, str]] = field(default_factory=list)

    def begin(self, block: Block) -> None:
        """Note the first block of a file."""
        found = block.columns
        for note in found.notes if found else ():
            self.on_note(note)
        if found is None and self.columns is not None and self.columns.names:
            self.on_note(
                f"{block.origin.path}: has no names of columns; its features are taken in the order of "
                f"{self.columns.path}"
            )
        # Names that come late count for the files behind them.
        if self.columns is None or (found and found.names and not self.columns.names):
            self.columns = found
        self.files.append((block.origin.path, 0, found.header if found else ""))

    def add(self, block: Block) -> None:
        """Count the rows of a block."""
        path, num_rows, header = self.files[-1]
        self.files[-1] = path, num_rows + block.num_rows, header


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """Holds what all blocks of a data set have in common, taken from the first one."""

    path: Path
    kind: Literal["dense", "csr"]
    dtype: str  # dtype of the chunks' features
    is_dtype_asked_for: bool  # whether `dtype` was an option, and values of other dtypes are cast
    num_features: int  # columns of dense rows
    sample_shape: tuple[int, ...]  # shape of one sample where it is not flat
    has_weights: bool  # whether there are sample weights

    @classmethod
    def of(cls, block: Block, dtype: Dtype | None = None) -> "Common":
        """Say what `block` says of the others, with `dtype` where one is asked for. Raises UsageError for sparse rows
        as a dtype of dense rows alone, DataError for dense rows without a column."""
        kind: Literal["dense", "csr"] = "csr" if isinstance(block.rows, CsrRows) else "dense"
        if kind == "csr" and dtype not in (None, *CSR_VALUE_DTYPES):
            raise UsageError(f"{block.origin.path}: sparse rows cannot be {dtype}; pass --dtype float32 or float64")
        if kind == "dense" and not block.rows.shape[1]:
            raise DataError(f"{block.origin.path}: no sample has a feature; check the file and its format")
        return cls(
            path=block.origin.path,
            kind=kind,
            dtype=dtype or own_dtype(block),
            is_dtype_asked_for=dtype is not None,
            num_features=block.rows.shape[1],
            sample_shape=block.sample_shape,
            has_weights=block.weights is not None,
        )

    def check(self, block: Block) -> None:
        """Raise DataError where `block` is of another kind or shape than the first one."""
        other = Common.of(block)
        for here, there in zip(other._in_words(), self._in_words(), strict=True):
            if here != there:
                raise DataError(
                    f"{other.path} has {here}, but {self.path} has {there}; files of one data set must agree"
                )
        if other.dtype != self.dtype and not self.is_dtype_asked_for:
            raise DataError(
                f"{other.path} has {other.dtype} values, but {self.path} has {self.dtype} values; pass --dtype"
            )

    def _in_words(self) -> tuple[str, ...]:
        return (
            "sparse rows" if self.kind == "csr" else "dense rows",
            "sample weights" if self.has_weights else "no sample weights",
            f"samples of shape {self.sample_shape}" if self.sample_shape else "flat samples",
            "any number of features" if self.kind == "csr" else f"{self.num_features} features",
        )


def own_dtype(block: Block) -> str:
    """dtype of chunks of a block where none is asked for: float32 for text, else the one with the least loss."""
    dtype = block.values.dtype
    if block.origin.unit == "line":
        return "float32"
    if not isinstance(block.rows, CsrRows):
        name = "int8" if dtype == np.bool_ else name_of(dtype)
        if name in VALUE_DTYPES:
            return name
    return "float32" if np.can_cast(dtype, np.float32) else "float64"


def open_inputs(
    paths: Sequence[Path], out: Path, format_: Format | None, read: ReadOptions, report: Report
) -> list[Input]:
    """Find what there is to read, and every format; only first bytes have been read (all, for zero_based None). Raises
    UsageError for paths or options that cannot work, DataError when a file is of a format that is not read, OSError
    when a file cannot be read.

    Args:
        out: The folder to be written, which must not hold one of them.
    """
    if not paths:
        raise UsageError("there is no file to convert; name at least one")
    sides = [path for path in (read.targets, read.weights) if path is not None]
    if sides and len(paths) > 1:
        raise UsageError(f"{sides[0]}: a file of targets or weights belongs to one input, but there are {len(paths)}")
    for path in [*paths, *sides]:
        # With overwrite the output would take the place of the folder that holds the input.
        if path.resolve().is_relative_to(out.resolve()):
            raise UsageError(f"{out}: the output would replace the input {path}; write to another folder")
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            report.on_note(f"{path}: is named twice; its rows go in twice")
        seen.add(path.resolve())
    formats = [_format_of(path, format_) for path in paths]
    for path, found in zip(paths, formats, strict=True):
        if found is not None:
            _refuse_options_of_other_formats(path, found, read)
    if read.zero_based is None:
        sparse = [path for path, found in zip(paths, formats, strict=True) if found == "svmlight"]
        read = replace(read, zero_based=any(has_zero_index(path, block_bytes=read.block_bytes) for path in sparse))
    return [
        Input(path, found, read, path.stat().st_size if path.is_file() else 0)
        for path, found in zip(paths, formats, strict=True)
    ]


def all_blocks(files: Sequence[Input], report: Report) -> Generator[tuple[int, Block], None, None]:
    """(bytes read of all files so far, block) of every block; a file without samples is left out, with a note. Raises
    NoSamplesError when no file has a sample."""
    before_bytes = 0
    for file in files:
        num_files = len(report.files)
        try:
            for block in file.blocks(report.columns):
                if len(report.files) == num_files:
                    report.begin(block)
                report.add(block)
                yield before_bytes + block.bytes_read, block
        except NoSamplesError as error:
            if len(files) == 1:
                raise NoSamplesError(f"{error}; nothing to convert") from error
            report.on_note(f"{error}; it is left out")
        before_bytes += file.size_bytes
    if not report.files:
        raise NoSamplesError(
            f"{files[0].path} and the {len(files) - 1} other files have no samples; nothing to convert"
        )


def _format_of(path: Path, format_: Format | None) -> Format | None:
    try:
        found = format_ or detect_format(path)
    except NoSamplesError:
        return None
    return None if path.is_file() and not path.stat().st_size else found


def _refuse_options_of_other_formats(path: Path, format_: Format, read: ReadOptions) -> None:
    """An option that would be ignored is a misunderstanding; better said than found out after an hour."""
    options = {
        "--zero-based": (read.zero_based is not False, {"svmlight"}),
        "--num-features": (read.num_features is not None, {"svmlight"}),
        "--header": (read.header is not None, {"csv"}),
        "--delimiter": (read.delimiter is not None, {"csv"}),
        "--label-column": (read.label_column is not None, {"csv", "parquet"}),
        "--weight-column": (read.weight_column is not None, {"csv", "parquet"}),
        "--drop-columns": (bool(read.drop_columns), {"csv", "parquet"}),
        "--targets": (read.targets is not None, {"npy", "npz", "idx"}),
        "--weights": (read.weights is not None, {"npy", "npz"}),
    }
    for name, (is_set, formats) in options.items():
        if is_set and format_ not in formats:
            raise UsageError(f"{path}: {name} is for {' and '.join(sorted(formats))}, but this file is {format_}")
