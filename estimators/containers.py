"""What people hold features in: arrays, tensors, frames, columns of lists, data sets.

`as_matrix` is the one door for all of them. It copies nothing that NumPy can look at, imports no package that made X,
and refuses what would become other numbers without a word: text, categories, dates, masked values. `like` is the way
out, for who has turned on scikit-learn's array API dispatch.
"""

import sys
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from os import PathLike
from typing import Any

import numpy as np
from scipy import sparse
from sklearn import get_config
from sklearn.utils._array_api import _convert_to_numpy, _max_precision_float_dtype, get_namespace

from chicle_elastic.chunks.readers.arrow import column_values, require_numbers
from chicle_elastic.chunks.rows import as_floats, plain_array
from chicle_elastic.chunks.views import BFLOAT16, Array
from chicle_elastic.errors import DataError, MissingExtraError, UsageError

ENCODE = "encode it as numbers (sklearn.preprocessing.OneHotEncoder), or leave it out"
"""Remedy for a column that holds something else than numbers."""
NO_NUMBERS = str, bytes, bytearray, date, timedelta, np.datetime64, np.timedelta64, list, tuple, np.ndarray
"""What NumPy would make a number of without a word, or an error that names no place."""


def as_matrix(where: str, X: Any) -> Any:
    """Return features as scikit-learn validates them: an array, a sparse matrix, or a frame of numbers with its names.
    Raises DataError when values are no numbers, or missing in a list, or rows differ in length, UsageError when X is
    nothing that has rows and columns of numbers, or lies where NumPy cannot look.

    Args:
        where: What messages call X.
        X: What the user passed.
    """
    X = as_numpy(where, X)
    if isinstance(X, np.ndarray):
        return _of_array(where, X)
    if sparse.issparse(X) or X is None:
        return X
    if isinstance(X, list | tuple):
        return _of_list(where, X)
    if isinstance(X, str | bytes | PathLike | Mapping | Iterator):
        pass_on = "a frame of its values, as pandas.DataFrame(X)" if isinstance(X, Mapping) else "an array"
        raise UsageError(
            f"{where} is a {type(X).__name__}, which has no rows and columns; pass {pass_on} (or ChunkFolder(X) of "
            "what chicle convert made of a file)"
        )
    return _of_frame(where, X)


def as_vector(where: str, y: Any, *, are_numbers: bool = False) -> Any:
    """Return labels, or numbers to be regressed on, as scikit-learn validates them. Raises DataError for such a value,
    or a masked one, UsageError for a tensor that NumPy cannot look at.

    Args:
        where: What messages call y.
        y: What the user passed.
        are_numbers: Whether text, times and lists are refused; labels may be text.
    """
    y = as_numpy(where, y)
    if are_numbers and y is not None:
        _require_numbers(where, np.asarray(y), remedy="pass numbers")
    return as_floats(y) if isinstance(y, np.ndarray) else y


def like(X: Any, values: Any) -> Any:
    """Return an array in the library of X, where scikit-learn's array API dispatch is on; text stays NumPy's."""
    library = _library_of(X)
    if library is None or not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
        return values
    if values.dtype == np.float64 and _max_precision_float_dtype(get_namespace(X)[0], X.device) == library.float32:
        values = values.astype(np.float32)  # the device has no other
    return library.asarray(values, device=X.device)


def set_attributes_like(estimator: Any, X: Any) -> None:
    """Give the arrays that `fit` has found the library of X, as scikit-learn does; labels stay NumPy's."""
    if _library_of(X) is not None:
        names = [name for name in vars(estimator) if name.endswith("_") and name != "classes_"]
        vars(estimator).update({name: like(X, getattr(estimator, name)) for name in names})


def require_same_library(estimator: Any, X: Any, method: str) -> None:
    """Refuse rows of another library than those of `fit`, where scikit-learn's array API dispatch is on. Raises
    UsageError in the words that scikit-learn's own estimators have for it."""
    coef = getattr(estimator, "coef_", None)
    ours, theirs = ((_library_of(each), getattr(each, "device", None)) for each in (coef, X))
    if coef is None or ours[0] is theirs[0] is None or ours == theirs:
        return
    raise UsageError(
        f"Inputs passed to {type(estimator).__name__}.{method}() must use the same namespace and device as those "
        f"passed to fit(): {type(coef).__name__}, not {type(X).__name__}; pass X as that, or call {method}() without "
        "array_api_dispatch, which takes any X and answers with NumPy's"
    )


def _library_of(X: Any) -> Any:
    """Return the namespace of X, where answers are to have it; None for NumPy's."""
    if isinstance(X, np.ndarray) or not get_config()["array_api_dispatch"]:
        return None
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(X, torch.Tensor):
        return torch
    return X.__array_namespace__() if hasattr(X, "__array_namespace__") else None


def _on_host(X: Any) -> Any:
    """Return a copy in memory of an array on a device, where the dispatch is on; everything else as it is."""
    library, device = _library_of(X), getattr(X, "device", None)
    if library is None or getattr(device, "type", None) == "meta" or str(device) in ("cpu", "CPU_DEVICE"):
        return X
    return X.cpu() if library.__name__ == "torch" else _convert_to_numpy(X, library)


def as_numpy(where: str, X: Any) -> Any:
    """Return data sets and tensors as Arrow and NumPy have them, over the same memory; everything else as it is."""
    X = _on_host(X)
    if hasattr(type(X), "with_format") and not isinstance(X, Mapping):  # a data set of Hugging Face
        if not hasattr(X, "__len__"):
            raise UsageError(
                f"{where} is an {type(X).__name__}, whose rows are not there yet; pass a Dataset of some rows"
            )
        return X.with_format("arrow")[:]
    if (type(X).__module__, type(X).__name__) == ("datasets.arrow_dataset", "Column"):
        X = X[:]
    torch: Any = sys.modules.get("torch")  # who has a tensor has imported it
    arrow: Any = sys.modules.get("pyarrow")
    if torch is not None and isinstance(X, torch.Tensor):
        faults = {
            "is sparse: pass X.to_dense()": X.layout != torch.strided,
            f"is on the device {X.device}: pass X.cpu()": X.device.type != "cpu",
            "requires grad: pass X.detach()": X.requires_grad,
        }
        if any(faults.values()):
            fault = next(words for words, is_so in faults.items() if is_so)
            raise UsageError(f"{where} is a tensor that {fault}")
        X = X.view(torch.int16).numpy().view(BFLOAT16) if X.dtype == torch.bfloat16 else X.numpy()
    has_array = hasattr(X, "__array__")
    if hasattr(X, "__array_namespace__" if has_array else "__dlpack__") and not isinstance(X, np.ndarray | np.generic):
        try:
            X = np.asarray(X) if has_array else np.from_dlpack(X)
        except (BufferError, RuntimeError, TypeError) as error:
            raise UsageError(f"{where} is not in memory that NumPy can look at ({error}); copy it there") from error
    if np.ma.isMaskedArray(X):
        if np.ma.is_masked(X):
            place = _place(int(np.argmax(np.ma.getmaskarray(X))), X.shape)
            raise DataError(f"{where} is masked in {place}; fill these values in (X.filled(...)), or drop the samples")
        return X.data
    if arrow is not None and isinstance(X, arrow.RecordBatch):
        return arrow.Table.from_batches([X])
    return arrow.chunked_array([X]) if arrow is not None and isinstance(X, arrow.Array) else X


def _of_array(where: str, X: Array) -> Array:
    if X.dtype.kind == "O" and X.ndim == 1 and len(X) and _is_row(X[0]):
        return _of_list(where, X.tolist())
    if X.dtype.names:
        raise DataError(
            f"{where} is a structured array; pass pandas.DataFrame(X), or the array that "
            "numpy.lib.recfunctions.structured_to_unstructured makes of it"
        )
    _require_numbers(where, X)
    return plain_array(X)


def _require_numbers(where: str, X: Array, *, remedy: str = ENCODE) -> None:
    """Refuse text, times and sequences, wherever they are among objects."""
    if X.dtype.kind in "Mm":
        raise DataError(f"{where} holds times ({X.dtype}); {remedy}")
    if X.dtype.kind not in "OUS":
        return
    for place, cell in enumerate(X.ravel().tolist() if X.dtype.kind in "US" else X.ravel()):
        if isinstance(cell, NO_NUMBERS):
            what = "text" if isinstance(cell, str | bytes | bytearray) else type(cell).__name__
            raise DataError(f"{where} holds {what}, as {cell!r:.40} in {_place(place, X.shape)}; {remedy}")


def _place(position: int, shape: tuple[int, ...]) -> str:
    return ", ".join(
        f"{word} {i}" for word, i in zip(("row", "column"), np.unravel_index(position, shape), strict=False)
    )


def _is_row(item: Any) -> bool:
    return isinstance(item, list | tuple | np.ndarray | Mapping)


def _of_list(where: str, rows: Any) -> Array:
    """Return rows, each a sequence of numbers, as an array."""
    if len(rows) and isinstance(rows[0], Mapping):
        raise DataError(f"{where} has a {type(rows[0]).__name__} for each row; pass pandas.DataFrame(X)")
    try:
        X = np.asarray(rows)
    except ValueError as error:
        lengths = [len(row) if hasattr(row, "__len__") else -1 for row in rows]
        usual = max(lengths, key=lengths.count)
        if set(lengths) == {usual}:
            raise DataError(f"{where} has lists within some of its rows ({error}); pass numbers alone") from error
        row = next(place for place, length in enumerate(lengths) if length != usual)
        found = f"is {rows[row]!r:.40}" if lengths[row] < 0 else f"has the length {lengths[row]}"
        raise DataError(
            f"{where}: row {row} {found}, and most rows have the length {usual}; correct this row, or drop it"
        ) from error
    return _of_array(where, np.asarray(rows, dtype=object) if X.dtype.kind in "US" else X)


def _of_frame(where: str, X: Any) -> Any:
    """Return a frame of numbers as it is, and a column of lists as a matrix; anything that is neither as it is."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is not None and isinstance(X, pandas.DataFrame):  # in a fraction of the time that narwhals takes
        are_numbers = all(dtype.kind in "biuf" for dtype in X.dtypes)
        if are_numbers and X.columns.is_unique:
            return X
    try:
        import narwhals as nw
    except ImportError:  # comes with scikit-learn from 1.9 on
        return X
    try:
        frame = nw.from_native(X, pass_through=True, allow_series=True)
    except nw.exceptions.DuplicateError as error:
        names = ", ".join(str(error).split("\n- ")[1:])
        raise DataError(f"{where} has columns of the same name: {names}; rename them, or leave some out") from error
    if isinstance(frame, nw.LazyFrame):
        raise UsageError(f"{where} is a lazy frame; pass X.collect()")
    if isinstance(frame, nw.Series):
        return _of_column(where, nw, frame)
    if not isinstance(frame, nw.DataFrame):
        return X
    found = [_of_column(where, nw, column) for column in frame.iter_columns()]
    are_lists = [isinstance(part, np.ndarray) for part in found]
    if not any(are_lists):
        return X
    if len(found) > 1:
        name = frame.columns[are_lists.index(True)]
        raise UsageError(f"{where} has a column {name!r} of lists among {len(found)} columns; pass this column alone")
    return found[0]


def _of_column(where: str, nw: Any, column: Any) -> Any:
    """Return a column of lists as a matrix and one of numbers as it is; refuse everything else."""
    kind, name, native = column.dtype, column.name or 0, column.to_native()
    is_arrow = hasattr(native, "chunks")
    if kind == nw.Object:
        if _is_row(next((value for value in column if value is not None), None)):
            return _of_list(f"{where}, column {name!r}", column.to_list())
        _require_numbers(f"{where}, column {name!r}", np.fromiter(column.to_list(), dtype=object))
        return native
    elif kind.is_numeric() or kind == nw.Boolean or (kind == nw.Unknown and not is_arrow):
        return native
    elif kind in (nw.List, nw.Array, nw.Unknown):
        try:
            parts = native.chunks if is_arrow else [column.to_arrow()]
        except ImportError as error:
            raise MissingExtraError.for_package("pyarrow", extra="parquet", purpose="a column of lists in X") from error
        matrices: list[Array] = []
        for part in filter(len, parts):
            require_numbers(where, name, part.type, ENCODE)
            width, first_row = matrices[-1].shape[1] if matrices else None, sum(map(len, matrices))
            matrices.append(column_values(where, name, part, first_row, width))
        return matrices[0] if len(matrices) == 1 else np.concatenate(matrices or [np.empty((0, 1))])
    raise DataError(f"{where}: column {name!r} is {kind}, not numbers; {ENCODE}")
