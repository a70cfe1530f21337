"""The data of a search, validated once for all of its fits, and its splits as codes.

A code is one number per row: its class, and how often it counts in each split. Rows that have both in common have the
same code, so a fit of any split is one over all rows with a factor per code: 0 for rows that are not to be fitted. Five
folds of two classes have ten codes.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils.multiclass import check_classification_targets

from chicle_elastic.chunks.views import Array
from estimators.checks import validated_samples, validated_weights
from estimators.inputs import encode_labels
from estimators.search.calls import SearchCall


class Rows:
    """Of calls that have the same X, y and weights.

    Args:
        call: One of them.
        has_labels: Whether `y` are labels, and no real targets.

    Attributes, after `check`:
        features: ndarray or CSR matrix of shape (num_rows, num_features); the memory of X where possible.
        targets: ndarray of shape (num_rows,): class codes, int32, or real targets.
        classes: ndarray of shape (num_classes,). Labels, sorted.
        weights: ndarray of shape (num_rows,), float64, or None.
        names: `n_features_in_` and, where columns have names, `feature_names_in_`.
    """

    def __init__(self, call: SearchCall, *, has_labels: bool) -> None:
        self._call = call
        self._has_labels = has_labels
        self._lock = threading.Lock()
        self._is_checked = False
        self.features: Any = None
        self.targets: Array = np.zeros(0, dtype=np.int32)
        self.classes: Array = np.zeros(0)
        self.weights: Array | None = None
        self.names: dict[str, Any] = {}

    def are_those_of(self, call: SearchCall, *, has_labels: bool) -> bool:
        """Whether a call has the same data."""
        mine = self._call
        is_same = call.X is mine.X and call.y is mine.y and call.sample_weight is mine.sample_weight
        return is_same and has_labels == self._has_labels

    def check(self) -> None:
        """Validate the data; once, whichever of several threads comes first. Raises DataError when a value of X is NaN
        or infinite, ValueError for anything else that scikit-learn refuses."""
        with self._lock:
            if self._is_checked:
                return
            call = self._call
            prototype = clone(call.estimator)
            X, y = validated_samples(prototype, call.X, call.y, has_real_targets=not self._has_labels)
            if self._has_labels and y.dtype.kind not in "iub":
                check_classification_targets(y)
            if call.sample_weight is not None:
                self.weights = validated_weights(call.sample_weight, X)
            names = ("n_features_in_", "feature_names_in_")
            self.names = {name: getattr(prototype, name) for name in names if hasattr(prototype, name)}
            if self._has_labels:
                self.classes, self.targets, _ = encode_labels(y)
            else:
                self.targets = y
            self.features = X
            self._is_checked = True


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
