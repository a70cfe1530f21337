"""The files of a conversion: what they are, whether they can be read together, and their blocks one after the other."""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from chicle_elastic.chunks.readers.base import Block, ReadOptions
from chicle_elastic.chunks.readers.formats import READERS, Format, detect_format
from chicle_elastic.chunks.readers.svmlight import has_zero_index
from chicle_elastic.chunks.views import CsrRows
from chicle_elastic.errors import DataError, UsageError

Dtype: TypeAlias = Literal["float32", "float64", "uint8"]


@dataclass(frozen=True, slots=True)
class Input:
    """One file to read, with all that had to be found out about it."""

    path: Path
    format: Format
    read: ReadOptions
    size_bytes: int

    def blocks(self) -> Iterator[Block]:
        """The rows; refuses a file without any."""
        block = None
        for block in READERS[self.format](self.path, self.read):
            yield block
        if block is None:
            raise DataError(f"{self.path}: the file has no samples ({self.format}); nothing to convert")


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What all blocks of a data set have in common, taken from the first one.

    Attributes:
        path: File of the first block.
        kind: Kind of the rows.
        dtype: dtype of the chunks' features.
        is_dtype_asked_for: Whether `dtype` was an option, and values of other dtypes are cast.
        num_features: Columns of dense rows.
        sample_shape: Shape of one sample where it is not flat.
        has_weights: Whether there are sample weights.
    """

    path: Path
    kind: Literal["dense", "csr"]
    dtype: str
    is_dtype_asked_for: bool
    num_features: int
    sample_shape: tuple[int, ...]
    has_weights: bool

    @classmethod
    def of(cls, block: Block, dtype: Dtype | None = None) -> "Common":
        """What `block` says of the others, with `dtype` where one is asked for.

        Raises:
            UsageError: Sparse rows as uint8.
            DataError: Dense rows without a column.
        """
        kind: Literal["dense", "csr"] = "csr" if isinstance(block.rows, CsrRows) else "dense"
        if kind == "csr" and dtype == "uint8":
            raise UsageError(f"{block.origin.path}: sparse rows cannot be uint8; pass --dtype float32 or float64")
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


def own_dtype(block: Block) -> Dtype:
    """dtype of chunks of a block where none is asked for: float32 for text, else the one with the least loss."""
    dtype = block.values.dtype
    if block.origin.unit == "line":
        return "float32"
    if dtype == np.uint8 and not isinstance(block.rows, CsrRows):
        return "uint8"
    return "float32" if np.can_cast(dtype, np.float32) else "float64"


def open_inputs(paths: Sequence[Path], out: Path, format_: Format | None, read: ReadOptions) -> list[Input]:
    """What there is to read, every format found out; only first bytes have been read (all, for zero_based None).

    Args:
        paths: The files.
        out: The folder to be written, which must not hold one of them.
        format_: Format of all files, or None.
        read: How to read; options that a format would ignore are refused.

    Raises:
        UsageError: Paths or options that cannot work.
        DataError: A file is empty.
        OSError: A file cannot be read.
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
    formats = [format_ or detect_format(path) for path in paths]
    for path, found in zip(paths, formats, strict=True):
        _refuse_options_of_other_formats(path, found, read)
    if read.zero_based is None:
        sparse = [path for path, found in zip(paths, formats, strict=True) if found == "svmlight"]
        read = replace(read, zero_based=any(has_zero_index(path, block_bytes=read.block_bytes) for path in sparse))
    return [
        Input(path, found, read, path.stat().st_size if path.is_file() else 0)
        for path, found in zip(paths, formats, strict=True)
    ]


def all_blocks(files: Sequence[Input]) -> Generator[tuple[int, Block], None, None]:
    """(bytes read of all files so far, block) of every block."""
    before_bytes = 0
    for file in files:
        for block in file.blocks():
            yield before_bytes + block.bytes_read, block
        before_bytes += file.size_bytes


def _refuse_options_of_other_formats(path: Path, format_: Format, read: ReadOptions) -> None:
    """An option that would be ignored is a misunderstanding; better said than found out after an hour."""
    options = {
        "--zero-based": (read.zero_based is not False, {"svmlight"}),
        "--num-features": (read.num_features is not None, {"svmlight"}),
        "--header": (read.header is not None, {"csv"}),
        "--delimiter": (read.delimiter is not None, {"csv"}),
        "--label-column": (read.label_column is not None, {"parquet"}),
        "--weight-column": (read.weight_column is not None, {"parquet"}),
        "--targets": (read.targets is not None, {"npy", "npz", "idx"}),
        "--weights": (read.weights is not None, {"npy", "npz"}),
    }
    for name, (is_set, formats) in options.items():
        if is_set and format_ not in formats:
            raise UsageError(f"{path}: {name} is for {' and '.join(sorted(formats))}, but this file is {format_}")
