"""Validation of features: scikit-learn's own, plus the column of a value that is not finite, and rows as kernels need.

`Columns` leaves empty columns of sparse rows out of a fit.

Nothing here writes to what the user passed, and nothing is copied that already has the right form.
"""

import functools
import inspect
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from sklearn import get_config
from sklearn.base import BaseEstimator, is_regressor
from sklearn.utils._param_validation import InvalidParameterError, validate_parameter_constraints
from sklearn.utils.validation import _check_sample_weight, validate_data

from chicle_elastic import __version__
from chicle_elastic.chunks.rows import as_floats, float_blocks
from chicle_elastic.chunks.views import VALUE_DTYPES, Array, dtype_of
from chicle_elastic.errors import DataError, UsageError
from estimators.containers import as_matrix, as_vector

DTYPES = (np.float64, np.float32)
"""dtypes of sparse features, and of those for code of a user, that are kept; everything else becomes the first."""
KEPT_DTYPES = (*DTYPES, *map(dtype_of, VALUE_DTYPES[2:]))
"""dtypes of dense features that linear models keep."""
MAX_VALUES_CHECKED_FIRST = 1 << 20
"""Values of X up to which NaN and infinity are looked for before a fit; beyond, the solver finds them in its first
pass, because one look at all of X costs a tenth of a fit."""
VALUES_PER_EMPTY = 1 << 10
"""Values of X for each empty column, up to which the columns are renumbered, at about 1 ns and one index for a value.
Hashed clicks (2,600 columns with values) with 38, 159 and 869 values for each empty column: fits take 0 to 37 %, 0 to
23 % and 0 to 25 % less time with the columns renumbered. Text with 64 takes as long either way. So four times lower
loses some of that; four times higher costs at most an index more for each value."""


WRITTEN_BY = "_written_by"
"""Key of the version of this package in the state of a pickle."""


class LeanEstimator(BaseEstimator):
    """Checks in a fit the parameters that are no defaults; whether those are within their constraints is seen once.

    A pickle says which version has written it, and one of another version warns.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]]

    def _validate_params(self) -> None:
        kind: Any = type(self)
        defaults = _checked_defaults(kind)
        given = {name: getattr(self, name) for name in defaults}
        given = {name: value for name, value in given.items() if value is not defaults[name]}
        validate_parameter_constraints(self._parameter_constraints, given, caller_name=kind.__name__)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {**state, WRITTEN_BY: __version__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        written_by = state.pop(WRITTEN_BY, "a version that did not say so")
        super().__setstate__(state)
        if written_by != __version__:
            warnings.warn(
                f"this {type(self).__name__} was pickled by chicle-elastic {written_by}, and {__version__} may lack "
                "what is in it, or miss something; save() and load() keep models across versions",
                stacklevel=2,
            )


@functools.cache
def _checked_defaults(kind: Any) -> dict[str, Any]:
    """Return the defaults that are within their constraints; `inspect.Parameter.empty` for all other parameters."""
    parameters, defaults = inspect.signature(kind).parameters, {}
    for name in kind._get_param_names():  # without **others, which are no parameters
        default = parameters[name].default
        try:
            validate_parameter_constraints(kind._parameter_constraints, {name: default}, caller_name=kind.__name__)
        except InvalidParameterError:  # a user may always give another value
            default = inspect.Parameter.empty
        defaults[name] = default
    return defaults


def validated_features(estimator: Any, X: Any) -> Any:
    """Features to predict from. Raises DataError when a value is NaN or infinite, ValueError for anything else that
    scikit-learn refuses.

    Args:
        estimator: Fitted; number and names of its features are compared.
        X: {array-like, sparse matrix} of shape (n_samples, n_features). What the user passed.

    Returns:
        ndarray (one of `KEPT_DTYPES`) or CSR matrix (one of `DTYPES`) of shape (n_samples, n_features); the same
        memory where possible.
    """
    X, dtypes = _as_numpy(estimator, X)
    X = validate_data(estimator, X, reset=False, accept_sparse="csr", dtype=dtypes, ensure_all_finite=False)
    require_finite(estimator, X)
    return X


def _as_numpy(estimator: Any, X: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return what `as_matrix` makes of X, and the dtypes that are kept."""
    X = as_matrix(f"{type(estimator).__name__}: X", X)
    if sparse.issparse(X):
        return X, DTYPES[::-1] if X.dtype.itemsize <= 2 else DTYPES
    if getattr(X, "ndim", 2) > 2:
        name = type(estimator).__name__
        raise DataError(f"{name}: X has the shape {X.shape}, and needs rows and columns; pass X.reshape(len(X), -1)")
    return X, KEPT_DTYPES


def validated_samples(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    has_real_targets: bool = False,
    multi_output: bool = False,
    reset: bool = True,
) -> tuple[Any, Array]:
    """Features and labels to fit; `n_features_in_` and `feature_names_in_` of the estimator are set. Raises DataError
    when a value of X is NaN or infinite (not of an X with more than `MAX_VALUES_CHECKED_FIRST` values), ValueError for
    anything else that scikit-learn refuses.

    Args:
        estimator: The one to fit.
        X: {array-like, sparse matrix} of shape (n_samples, n_features). What the user passed.
        y: Labels.
        has_real_targets: Whether `y` are numbers to be regressed on.
        multi_output: Whether there may be several for each sample.
        reset: Whether these are the first rows; features of further ones are compared with those.

    Returns:
        `X`: ndarray or CSR matrix of shape (n_samples, n_features), as in `validated_features`. Dense rows are
            C-contiguous; CSR rows have sorted indices without duplicates.
        `y`: ndarray of shape (n_samples,), or (n_samples, n_targets). Labels.
    """
    X, dtypes = _as_numpy(estimator, X)
    y = as_vector(f"{type(estimator).__name__}: y", y, are_numbers=has_real_targets)
    known = vars(estimator)
    are_like = reset or ("feature_names_in_" not in known and np.shape(X)[1:] == (known.get("n_features_in_"),))
    if are_like and _are_plain(X, y, dtypes):  # of these scikit-learn finds the same, in ten times the time
        set_features(estimator, X.shape[1])
        return _as_kernels_need(estimator, X), y
    X, y = validate_data(
        estimator,
        X,
        y,
        reset=reset,
        accept_sparse="csr",
        accept_large_sparse=True,
        dtype=dtypes,
        order="C",
        ensure_all_finite=False,
        y_numeric=has_real_targets,
        multi_output=multi_output,
    )
    return _as_kernels_need(estimator, X), y


def _are_plain(X: Any, y: Any, dtypes: tuple[Any, ...]) -> bool:
    """Say whether these are arrays of numbers, and labels or targets that can be used as they are."""
    return (
        type(X) is type(y) is np.ndarray
        and X.ndim == 2
        and X.size > 0
        and X.dtype in dtypes
        and y.shape == X.shape[:1]
        and (y.dtype.kind in "iubU" or (y.dtype.kind == "f" and bool(np.isfinite(y).all())))
    )


def set_features(estimator: Any, number: int) -> None:
    """Set what is known of features without names."""
    estimator.n_features_in_ = number
    estimator.__dict__.pop("feature_names_in_", None)


def validated_weights(sample_weight: Any, X: Any) -> Array:
    """Return weights of the samples of X, shape (n_samples,), float64, >= 0. Raises DataError when a weight is masked,
    ValueError for anything else that scikit-learn refuses."""
    given = as_vector("sample_weight", sample_weight, are_numbers=True)
    weights: Array = _check_sample_weight(given, X, dtype=np.float64, ensure_non_negative=True)
    return weights


def validated_rows(estimator: Any, X: Any) -> Any:
    """The same for features without targets."""
    X, dtypes = _as_numpy(estimator, X)
    X = validate_data(
        estimator, X, accept_sparse="csr", accept_large_sparse=True, dtype=dtypes, order="C", ensure_all_finite=False
    )
    return _as_kernels_need(estimator, X)


def rows_for_code(X: Any) -> Any:
    """Return validated rows as float32 or float64, which code of a user computes with."""
    return X if sparse.issparse(X) or X.dtype in DTYPES else as_floats(X, np.float64)


def _as_kernels_need(estimator: Any, X: Any) -> Any:
    values = X.data if sparse.issparse(X) else X
    if values.size <= MAX_VALUES_CHECKED_FIRST:
        require_finite(estimator, X)
    if sparse.issparse(X):
        if not X.has_canonical_format:
            X = X.copy()
            X.sum_duplicates()
    else:
        # Kernels step through the bytes themselves; np.frombuffer with an offset gives memory that is not aligned.
        X = X if X.flags.carray else np.require(X, requirements=["C_CONTIGUOUS", "ALIGNED"])
    return X


def require_finite(estimator: Any, X: Any) -> None:
    """Refuse NaN and infinity, with row and column. Raises DataError when a value is NaN or infinite (unless
    scikit-learn's `assume_finite` is set).

    Args:
        estimator: Its name and the names of its features are used in the message.
        X: ndarray or CSR matrix of shape (n_samples, n_features). Features.
    """
    for values in [X.data] if sparse.issparse(X) else float_blocks(X):
        with np.errstate(over="ignore", invalid="ignore"):  # one pass will do where the sum is finite
            is_finite = math.isfinite(values.sum()) or math.isfinite(_largest(values))
        if not is_finite and not get_config()["assume_finite"]:
            raise DataError(_first_bad_value(estimator, X))


def require_moderate(estimator: Any, data: Mapping[str, Any], *, is_first: bool = False) -> None:
    """Refuse values of which products of second derivatives overflow, because no method has digits there. Raises
    DataError with the column of the largest value, or with targets or weights where those are larger.

    Args:
        estimator: As in `require_finite`; its C, if it has one, is a factor of the weights.
        data: Finite "X", "y", and the sample weights in "metadata", as for callbacks; empty where rows are in a folder.
        is_first: Whether this is before a fit, for which an X of so many values is not looked at.
    """
    if not data or (is_first and data["X"].size > MAX_VALUES_CHECKED_FIRST):
        return
    X, weights = data["X"], (data["metadata"] or {}).get("sample_weight")
    y = data["y"] if is_regressor(estimator) else None
    feature = max(_largest(part) for part in ([X.data] if sparse.issparse(X) else float_blocks(X)))
    target = 1.0 if y is None else _largest(y)
    weight = float(getattr(estimator, "C", 1.0)) * (1.0 if weights is None else _largest(weights))
    largest = max(feature, target, 1.0)
    square = largest * largest * X.shape[0] * max(weight, 1.0)
    if math.isfinite(square * square):
        return
    found = f"C times the largest weight is {weight:.1e}", "lower C, or divide sample_weight by its mean"
    if feature >= max(target, weight):
        scales = np.asarray(
            abs(X).max(axis=0).todense() if sparse.issparse(X) else np.abs(as_floats(X)).max(axis=0)
        ).ravel()
        column = column_words(int(np.argmax(scales)), getattr(estimator, "feature_names_in_", None))
        found = f"{column} of X reaches {feature:.1e}", "scale it (StandardScaler, or MaxAbsScaler for sparse features)"
    elif target >= weight:
        found = f"y reaches {target:.1e}", "scale it (sklearn.compose.TransformedTargetRegressor)"
    what, remedy = found
    raise DataError(f"{type(estimator).__name__}: {what}, and products of squares are then beyond float64; {remedy}")


def _largest(values: Array) -> float:
    """Return the largest absolute value; NaN where there is one."""
    most, least = float(values.max(initial=0)), -float(values.min(initial=0))
    return most if most >= least or most != most else least


def require_finite_model(estimator: Any, model: Array, data: Mapping[str, Any]) -> None:
    """Refuse a model with NaN, which squares beyond all numbers make; arguments as in `require_moderate`. Raises
    DataError with what is too large, where that is in memory."""
    if np.isfinite(model).all():
        return
    require_moderate(estimator, data)
    raise DataError(
        f"{type(estimator).__name__} has no finite model: features, targets or weights are so large that sums of their "
        "squares overflow; scale the features (StandardScaler, or MaxAbsScaler where they are sparse)"
    )


def _first_bad_value(estimator: Any, X: Any) -> str:
    """Which value is bad, where, how many there are, and what to do."""
    values = X.data if sparse.issparse(X) else as_floats(X).reshape(-1)
    is_bad = ~np.isfinite(values)
    position = int(np.argmax(is_bad))
    if sparse.issparse(X):
        row = int(np.searchsorted(X.indptr, position, side="right")) - 1
        columns = X.indices[is_bad]
    else:
        row = position // X.shape[1]
        columns = np.flatnonzero(is_bad) % X.shape[1]
    word = "NaN" if np.isnan(values[position]) else "infinity"
    column = column_words(int(columns[0]), getattr(estimator, "feature_names_in_", None))
    others = int(is_bad.sum()) - 1
    more = f" and {others} more such values in {len(np.unique(columns))} column(s)" if others else ""
    return (
        f"Input X of {type(estimator).__name__} contains {word} in {column}, row {row}"
        f"{more}; drop these samples, or fill the values in (sklearn.impute.SimpleImputer in a Pipeline)"
    )


def column_words(number: int, names: Array | None) -> str:
    """A column by its number, and by its name where columns have names."""
    return f"column {number}" if names is None else f"column {number} ({str(names[number])!r})"


def require_auto(estimator: Any, what: str) -> None:
    """Refuse a parameter `algorithm` where there is only one. Raises UsageError with the parameter and its value."""
    if estimator.algorithm != "auto":
        raise UsageError(f"algorithm={estimator.algorithm!r} does not go with {what}, which has a method of its own")


@dataclass(frozen=True, slots=True)
class Columns:
    """Columns that a linear fit goes over; all others get the weight 0.

    A column without values has the weight 0 at the optimum of every penalised problem. Hashed and one-hot rows leave
    most columns empty, and every vector with a number per column then costs more than the rows do.
    """

    number: int  # columns of X
    # ndarray, int64. Where the weights of a fit, of one output and with its intercept, stand among `number` weights and
    # an intercept; None where the fit goes over all columns.
    places: Array | None = None

    @classmethod
    def of(cls, X: Any) -> "Columns":
        """Find the columns of validated rows that have values; all columns where few of them are empty."""
        number = X.shape[1]
        if not sparse.issparse(X) or X.nnz > VALUES_PER_EMPTY * number:
            return cls(number)
        indices = X.indices[: X.nnz]
        if X.nnz and not (indices.min() >= 0 and indices.max() < number):
            return cls(number)
        occurs = np.zeros(number + 1, dtype=np.bool_)
        occurs[indices] = occurs[-1] = True
        occurs[0] |= X.nnz == 0  # chunks have at least one column
        places = np.flatnonzero(occurs)
        if X.nnz > VALUES_PER_EMPTY * (len(occurs) - len(places)):
            return cls(number)
        return cls(number, places)

    def rows(self, X: Any) -> Any:
        """Return the rows with the columns of the fit alone; of a CSR matrix only the indices are copied."""
        if self.places is None:
            return X
        renumbered = np.zeros(self.number, dtype=X.indices.dtype)
        renumbered[self.places[:-1]] = np.arange(len(self.places) - 1)
        parts = X.data[: X.nnz], renumbered.take(X.indices[: X.nnz]), X.indptr
        rows = sparse.csr_matrix(parts, shape=(X.shape[0], len(self.places) - 1))
        rows.has_canonical_format = True  # as the rows that the user passed
        return rows

    def full(self, model: Array) -> Array:
        """Return the weights of all columns, and the intercept last; shape (outputs, number + 1)."""
        if self.places is None:
            return model.reshape(-1, self.number + 1)
        w = model.reshape(-1, len(self.places))
        full = np.zeros((len(w), self.number + 1))
        full[:, self.places] = w
        return full

    def of_fit(self, model: Array) -> Array:
        """Return the model of the fit, flat, out of weights of all columns; the opposite of `full`."""
        w = model.reshape(-1, self.number + 1)
        return (w if self.places is None else w[:, self.places]).ravel()
