"""What every reader yields: bounded blocks of rows that know where in their file they came from.

A reader is a generator function `(path, ReadOptions) -> Iterator[Block]`. It holds one block at a time, whatever the
size of the file, and raises `DataError` with file, line or row, and token for anything that it cannot read exactly.
What all formats have in common (finite values, weights, dtypes) is checked once, in `checks`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from chicle_elastic.chunks.views import Array, CsrRows, Rows
from chicle_elastic.errors import DataError


class NoSamplesError(DataError):
    """A file that can be read, and has no sample: an empty part of a data set."""


BLOCK_BYTES = 256 << 10
"""Bytes of input that become one block; 1 MiB was no faster (a9a, HIGGS) and holds four times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Says what each column of a file is (`columns.choose_columns`)."""

    path: Path
    names: tuple[str, ...]  # names of all columns, in the order of the file; empty where the file has none
    count: int  # number of columns, those that are left out included
    label: int  # position of the label's column, from 0
    weight: int | None  # position of the column of sample weights, or None
    features: tuple[int, ...]
    header: str = ""  # where the names stand, or that there are none, for the summary; empty where the format says so
    notes: tuple[str, ...] = ()  # what was decided without being asked for; one sentence each

    @property
    def used(self) -> tuple[int, ...]:
        """Positions of the label, of the weights if there are any, and of the features."""
        return (self.label, *(() if self.weight is None else (self.weight,)), *self.features)

    def name(self, position: int) -> str | int:
        """Name of the column at `position`; its number, from 1, where columns have no names."""
        return self.names[position] if self.names else position + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read; a reader takes what concerns its format."""

    block_bytes: int = BLOCK_BYTES  # bytes of input per block; a block has at least one row
    # svmlight: whether the first feature has index 0; None finds out by a first pass over the file
    zero_based: bool | None = False
    num_features: int | None = None  # number of columns where it is known beforehand; None takes it from the data
    header: bool | None = None  # CSV: whether the first line holds names; None finds out from that line
    delimiter: str | None = None  # CSV: one character; None means a tab for names that contain ".tsv", else a comma
    # CSV, Parquet: name or number (from 1; -1 is the last) of the label's column; None means the first
    label_column: str | None = None
    weight_column: str | None = None  # CSV, Parquet: name or number of the column of sample weights, if there is one
    drop_columns: tuple[str, ...] = ()  # CSV, Parquet: names or numbers of columns to leave out
    like: Columns | None = None  # CSV, Parquet: columns of the first file of the data set, which this file has to match
    # npy, idx: file with the targets (npz may use it in place of its own `y`, and idx finds it by name)
    targets: Path | None = None
    weights: Path | None = None  # npy, npz: file with the sample weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Says where the rows of a block stand in their file, in the words of that file."""

    path: Path
    unit: Literal["line", "row"]  # "line" (numbered from 1) for text, "row" (numbered from 0, as NumPy does) for arrays
    numbers: Sequence[int] | npt.NDArray[np.int64]
    column_word: str = "column"  # what the format calls a column: "column" or "index"
    first_column: int = 0  # number that the format gives to feature 0
    # names of the features where the file has names, or their numbers in the file
    column_names: Sequence[str | int] = ()

    def row(self, row: int) -> str:
        """Place of row `row` of the block: "train.csv:17", or "X.npy, row 17"."""
        number = int(self.numbers[row])
        return f"{self.path}:{number}" if self.unit == "line" else f"{self.path}, row {number}"

    def column(self, feature: int) -> str:
        """What the file calls feature `feature`: "column 5", "index 12" or "column 'age'"."""
        if self.column_names:
            return f"{self.column_word} {self.column_names[feature]!r}"
        return f"{self.column_word} {self.first_column + feature}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some consecutive rows of a file."""

    # ndarray of shape (num_rows, num_features), or `CsrRows`. The number of features of CSR rows is that of the whole
    # file where the file states it, else the largest index of this block + 1
    rows: Rows
    targets: Array  # ndarray of shape (num_rows,): numbers as they were read, or `str` for labels that are text
    origin: Origin  # where these rows come from
    bytes_read: int  # bytes of the (compressed) file consumed so far; only to show progress
    weights: Array | None = None  # ndarray of shape (num_rows,), or None
    sample_shape: tuple[int, ...] = ()  # shape of one sample where it is not flat (images)
    columns: Columns | None = None  # what the columns of the file are; None for a format without columns

    @property
    def num_rows(self) -> int:
        """Samples in this block, >= 1."""
        return int(self.rows.shape[0])

    @property
    def values(self) -> Array:
        """The stored features: all of a dense block, the non-zeros of a CSR block."""
        if isinstance(self.rows, CsrRows):
            return self.rows.values[int(self.rows.indptr[0]) : int(self.rows.indptr[-1])]
        return self.rows

    def cell(self, position: int) -> tuple[int, int]:
        """(row, feature) of the entry at `position` of the flattened `values`."""
        if isinstance(self.rows, CsrRows):
            entry = position + int(self.rows.indptr[0])
            row = int(np.searchsorted(self.rows.indptr, entry, side="right")) - 1
            return row, int(self.rows.indices[entry])
        row, feature = divmod(position, int(self.rows.shape[1]))
        return row, feature
