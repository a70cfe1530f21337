"""What must hold for the rows of every format: finite values that fit their dtype, one target each, usable weights."""

import numpy as np

from chicle_elastic.chunks.readers.base import Block
from chicle_elastic.chunks.rows import as_floats
from chicle_elastic.chunks.views import Array, CsrRows, Rows, dtype_of
from chicle_elastic.errors import DataError

LARGEST_EXACT = 2**53  # from here on whole numbers share a float64 with others


def checked_rows(block: Block, dtype: str) -> Rows:
    """The rows of a block as `dtype`, one of `VALUE_DTYPES`, C-contiguous. Raises DataError when a value is NaN or
    infinite, or does not fit `dtype`; the message has file, line or row, and column."""
    target = dtype_of(dtype)
    values = as_floats(block.values)
    if values.dtype.kind == "f":
        _refuse(block, ~np.isfinite(values), values, "is not finite; drop the sample, or fill the value in")
    with np.errstate(over="ignore", invalid="ignore"):
        is_same = block.values.dtype == target
        cast = np.ascontiguousarray(block.values if is_same else values, dtype=target)
    if target.kind == "f" and not is_same:
        _refuse(block, ~np.isfinite(cast), values, f"does not fit {target}; pass --dtype float64")
    elif not is_same:
        least, most = np.iinfo(target).min, np.iinfo(target).max
        _refuse(block, cast != values, values, f"does not fit {target} ({least} to {most}); pass another --dtype")
    if isinstance(block.rows, CsrRows):
        indptr = block.rows.indptr - block.rows.indptr[0]
        start, stop = int(block.rows.indptr[0]), int(block.rows.indptr[-1])
        return CsrRows(indptr, block.rows.indices[start:stop], cast, block.rows.num_features)
    return cast


def checked_targets(block: Block) -> Array:
    """The targets: float64, or `str` where they are text. Raises DataError when a target is NaN or infinite, or an
    empty text."""
    targets = block.targets
    if targets.dtype.kind == "U":
        _refuse_row(block, targets == "", targets, "the label", "is empty; fill it in, or drop the sample")
        return targets
    numbers = targets.astype(np.float64)
    _refuse_row(block, ~np.isfinite(numbers), numbers, "the label", "is not finite; correct it, or drop the sample")
    if targets.dtype.kind in "iu":
        is_too_large = np.abs(numbers) >= LARGEST_EXACT
        _refuse_row(block, is_too_large, targets, "the label", "is too large to be exact; number the classes")
    return numbers


def checked_weights(block: Block) -> Array | None:
    """The sample weights as float64, or None. Raises DataError when a weight is negative, NaN or infinite."""
    if block.weights is None:
        return None
    weights = block.weights.astype(np.float64)
    is_usable = np.isfinite(weights) & (weights >= 0)
    _refuse_row(block, ~is_usable, weights, "the weight", "is not a finite number >= 0; correct it")
    return weights


def _refuse(block: Block, is_bad: Array, values: Array, complaint: str) -> None:
    if is_bad.any():
        position = int(np.argmax(is_bad))
        row, feature = block.cell(position)
        value = values.reshape(-1)[position].item()
        raise DataError(f"{block.origin.row(row)}: {block.origin.column(feature)}: value {value!r} {complaint}")


def _refuse_row(block: Block, is_bad: Array, values: Array, what: str, complaint: str) -> None:
    if is_bad.any():
        row = int(np.argmax(is_bad))
        raise DataError(f"{block.origin.row(row)}: {what} {values[row].item()!r} {complaint}")
