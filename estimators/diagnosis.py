"""What data looks like that a linear fit did not converge on. It is looked at after such a fit, and never before.

Each look is one pass over X at most, and says nothing unless it is sure: a column by its number (and name), a class by
its label. What helps comes with it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from chicle_elastic.chunks.rows import float_blocks
from chicle_elastic.chunks.views import Array
from estimators.checks import column_words

SCALES = 1e4
"""Ratio of the largest and the median scale of the features from which they are very different."""
NEGLIGIBLE = 1e4
"""C times the sum of squares of a typical row from which the regularisation hardly counts."""
ROWS_COMPARED_FIRST = 256
"""Values in which columns have to agree before they are compared as a whole."""
FEW_ERRORS = 0.01
"""Share of the rows on the wrong side up to which the data look separable."""


def findings(
    X: Any,
    codes: Array,
    classes: Array,
    *,
    upper: Array,
    decision: Array,
    names: Array | None = None,
    has_one_label: bool = False,
) -> tuple[str, ...]:
    """What is conspicuous about the data, in words; nothing where nothing is. Each finding says what to do about it.

    Args:
        X: ndarray or CSR matrix of shape (n_samples, n_features). Finite features.
        codes: ndarray of shape (n_samples,), int32. Class codes.
        classes: ndarray of shape (n_classes,). Labels.
        upper: ndarray of shape (n_samples,), float64. C_i, C times the weights.
        decision: ndarray of shape (n_samples,) or (n_samples, n_classes), float64. Decision values at the model that
            did not converge.
        names: ndarray of shape (n_features,), default=None. Names of the features.
        has_one_label: Whether a sample is right if the decision value of its class is the largest; else each value has
            to have the right sign.
    """
    return tuple(_findings(X, codes, classes, upper, decision, names, has_one_label))


def _findings(
    X: Any,
    codes: Array,
    classes: Array,
    upper: Array,
    decision: Array,
    names: Array | None,
    has_one_label: bool,
) -> Iterator[str]:
    largest, smallest = _ranges(X)
    scales = np.maximum(np.abs(largest), np.abs(smallest))
    used = np.flatnonzero(scales > 0)
    constant = np.flatnonzero((largest == smallest) & (scales > 0))
    has_scales = False
    if len(used):
        worst = int(used[np.argmax(scales[used])])
        typical = float(np.median(scales[used]))
        has_scales = scales[worst] > SCALES * float(scales[used].min())
        if scales[worst] > SCALES * typical:
            yield (
                f"{column_words(worst, names)} reaches {scales[worst]:.1e}, and half of the features at most "
                f"{typical:.1e}: scale the features (StandardScaler, or MaxAbsScaler where they are sparse)"
            )
        elif has_scales:
            least = int(used[np.argmin(scales[used])])
            yield (
                f"{column_words(worst, names)} reaches {scales[worst]:.1e}, and {column_words(least, names)} only "
                f"{scales[least]:.1e}: scale the features (StandardScaler, or MaxAbsScaler where they are sparse)"
            )
    if len(constant):
        yield f"{_columns(constant, names)} constant: drop {_them(constant)} (VarianceThreshold)"
    twins = _twins(X, np.setdiff1d(used, constant))
    if len(twins):
        yield f"{_columns(twins, names)} equal to an earlier one: drop {_them(twins)}"
    num_rows, num_features = X.shape
    if num_features > num_rows:
        yield f"there are more features ({num_features}) than samples ({num_rows}): lower C, or select features"
    counts = np.bincount(codes, minlength=len(classes))
    for code in np.flatnonzero(counts == 1)[:1]:
        yield f"the class {classes[code].item()!r} has a single sample: add some, or leave it out"
    # With very different scales one feature would be all that there is of a row.
    errors = _share_of_errors(codes, decision, upper, has_one_label)
    if not has_scales and _hardly_regularises(X, upper) and errors <= FEW_ERRORS:
        yield "the classes look separable, and C is so large that the regularisation is negligible: lower C"


def _ranges(X: Any) -> tuple[Array, Array]:
    """Largest and smallest value of each column, shape (n_features,), float64."""
    if sparse.issparse(X):
        largest, smallest = (part.toarray().ravel().astype(np.float64) for part in (X.max(axis=0), X.min(axis=0)))
        return largest, smallest
    ranges = [(block.max(axis=0), block.min(axis=0)) for block in float_blocks(X, np.float64)]
    largest, smallest = zip(*ranges, strict=True)
    return np.max(largest, axis=0), np.min(smallest, axis=0)


def _twins(X: Any, columns: Array) -> Array:
    """Those of `columns` that hold the very values of an earlier one, int64."""
    by_column = X.tocsc() if sparse.issparse(X) else X
    first: dict[bytes, int] = {}
    found = []
    for column in columns.tolist():
        earlier = first.setdefault(_beginning(by_column, column), column)
        if earlier != column and _are_equal(by_column, column, earlier):
            found.append(column)
    return np.array(found, dtype=np.int64)


def _beginning(X: Any, column: int) -> bytes:
    """The first values of a column, of a CSC matrix those that it has, with their rows."""
    if sparse.issparse(X):
        part = slice(X.indptr[column], min(X.indptr[column + 1], X.indptr[column] + ROWS_COMPARED_FIRST))
        return bytes(X.indices[part].tobytes() + X.data[part].tobytes())
    return bytes(X[:ROWS_COMPARED_FIRST, column].tobytes())


def _are_equal(X: Any, a: int, b: int) -> bool:
    if not sparse.issparse(X):
        return bool((X[:, a] == X[:, b]).all())
    parts = [slice(X.indptr[column], X.indptr[column + 1]) for column in (a, b)]
    return all(np.array_equal(*(values[part] for part in parts)) for values in (X.indices, X.data))


def _hardly_regularises(X: Any, upper: Array) -> bool:
    """Whether one row may move w by far more than it takes to have a margin of 1."""
    blocks = [X.data] if sparse.issparse(X) else float_blocks(X, np.float64)
    with np.errstate(over="ignore"):
        per_row = sum(float(np.vdot(values, values)) for values in blocks) / X.shape[0]
    return bool(float(np.median(upper[upper > 0])) * per_row > NEGLIGIBLE)


def _share_of_errors(codes: Array, decision: Array, upper: Array, has_one_label: bool) -> float:
    """Of the samples that count, over all outputs."""
    count = upper > 0
    if has_one_label:
        return float((decision.argmax(axis=1) != codes)[count].mean())
    decision = decision.reshape(len(codes), -1)
    if decision.shape[1] == 1:
        is_positive = (codes == 1)[:, np.newaxis]
    else:
        is_positive = codes[:, np.newaxis] == np.arange(decision.shape[1])
    return float(((decision > 0) != is_positive)[count].mean())


def _columns(numbers: Array, names: Array | None) -> str:
    """The first of some columns, how many others there are, and the verb."""
    others = len(numbers) - 1
    first = column_words(int(numbers[0]), names)
    return f"{first} is" if not others else f"{first} and {others} other{'s' if others > 1 else ''} are"


def _them(numbers: Array) -> str:
    return "it" if len(numbers) == 1 else "them"
