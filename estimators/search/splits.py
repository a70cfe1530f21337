"""Splits as codes: one number per row says its class and how often it counts in each split.

Rows that have both in common have the same code, so a fit of any split is one over all rows with a factor per code: 0
for rows that are not to be fitted. Five folds of two classes have ten codes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCodes:
    """See the module."""

    codes: Array  # of each row, shape (num_rows,), int32, from 0
    classes: Array  # class code of each code, shape (num_codes,), int32
    counts: Array  # how often rows of a code count in each split, shape (num_codes, num_splits), float64


def split_codes(classes: Array, splits: Sequence[Array]) -> SplitCodes:
    """The codes of rows.

    Args:
        classes: Class code of each row, shape (num_rows,), int32.
        splits: Numbers of the rows of each split; one that is there twice counts twice.
    """
    values = np.arange(int(classes.max()) + 1)
    codes, counts = classes.astype(np.int64), np.zeros((len(values), 0))
    for split in splits:
        times = np.bincount(split, minlength=len(classes))
        most = int(times.max(initial=0)) + 1
        keys = codes * most + times
        is_there = np.zeros(len(values) * most, dtype=bool)
        is_there[keys] = True
        found = np.flatnonzero(is_there)
        codes = (np.cumsum(is_there) - 1)[keys]
        values, counts = values[found // most], np.column_stack([counts[found // most], found % most])
    return SplitCodes(codes=codes.astype(np.int32), classes=values.astype(np.int32), counts=counts)
