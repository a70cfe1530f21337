"""Containers of features: each row of the table in docs/how-to/data.md is fitted, or refused."""

import datetime as dt
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from chicle_elastic import InProcess
from chicle_elastic.errors import ChicleError, DataError, UsageError
from estimators import ChicleCNNClassifier, ChicleRidge, ChicleSVM

PAGE = Path(__file__).parents[2] / "docs/how-to/data.md"
LINES = itertools.dropwhile(lambda line: line[:2] != "| ", PAGE.read_text(encoding="utf-8").splitlines())
ROWS = [line.strip("| \n").split(" | ") for line in itertools.takewhile(lambda line: line[:2] == "| ", LINES)]
TABLE = {name.strip(): outcome for name, outcome, *_ in ROWS[2:]}
CROSS_VALIDATED = {name.strip() for name, _, *cross in ROWS if cross == ["works"]}

X = np.random.default_rng(0).integers(-8, 9, size=(60, 4)).astype(np.float64)
y = (X[:, 0] + X[:, 1] > 0).astype(int)
NAMED = dict(zip("abcd", X.T.copy(), strict=True))
MODEL = ChicleSVM(loss="squared_hinge", tol=1e-9, random_state=0)


def package(name):
    """Import a package that a test needs; the test skips without it."""
    return pytest.importorskip(name, exc_type=ImportError)


def memmap(folder):
    """X in a file."""
    np.save(folder / "X.npy", X)
    return np.load(folder / "X.npy", mmap_mode="r")


def read_only():
    """Every second value of an array that nobody may write to."""
    wide = np.repeat(np.repeat(X, 2, axis=0), 2, axis=1)
    wide.flags.writeable = False
    return wide[::2, ::2]


class Exporter:
    """Memory that is known by DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def objects():
    """An array whose items are rows, as `to_numpy` of a column of lists."""
    rows = np.empty(len(X), dtype=object)
    rows[:] = list(X)
    return rows


def fixed(pa):
    """X as a FixedSizeList."""
    return pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 4)


def polars(make):
    """Return a maker that polars is passed to."""
    return lambda _: make(package("polars"))


def arrow(make):
    """Return a maker that pyarrow is passed to."""
    return lambda _: make(package("pyarrow"))


def hugging_face(make):
    """Return a maker that the class of data sets is passed to."""
    return lambda _: make(package("datasets").Dataset)


def lists(data_set):
    """X as a column of lists."""
    return data_set.from_dict({"e": X.tolist()})


MAKERS = {
    "NumPy: C or Fortran order": lambda _: np.asfortranarray(X),
    "NumPy: strided, read-only": lambda _: read_only(),
    "NumPy: memmap": memmap,
    "NumPy: float16, bfloat16 (ml_dtypes), int8, uint8, bool": lambda _: X.astype(package("ml_dtypes").bfloat16),
    "NumPy: an array of objects that are rows": lambda _: objects(),
    "NumPy: masked array": lambda _: np.ma.array(X),
    "NumPy: structured array, matrix": lambda _: pd.DataFrame(NAMED).to_records(index=False),
    "lists of rows": lambda _: X.tolist(),
    "SciPy: CSR": lambda _: sparse.csr_matrix(X),
    "SciPy: CSC, COO, other matrices and arrays": lambda _: sparse.dok_array(X),
    "pandas: numbers of several dtypes, bool": lambda _: pd.DataFrame(NAMED).astype({"a": "int64", "b": "float32"}),
    "pandas: nullable Int64, Float32": lambda _: pd.DataFrame(NAMED).astype({"a": "Int64", "b": "Float32"}),
    "pandas: columns of pyarrow": arrow(lambda pa: pd.DataFrame(NAMED).astype("float64[pyarrow]")),
    "pandas: sparse columns": lambda _: pd.DataFrame.sparse.from_spmatrix(sparse.csr_matrix(X)),
    "pandas: Series of lists": lambda _: pd.Series(X.tolist()),
    "pandas: one column of lists": lambda _: pd.DataFrame({"e": list(X)}),
    "pandas: categories, text, times": lambda _: pd.DataFrame(NAMED).assign(b=pd.Categorical(["u", "v"] * 30)),
    "Polars: DataFrame of numbers": polars(lambda pl: pl.DataFrame(NAMED, schema_overrides={"a": pl.Float32})),
    "Polars: one column of Array or List": polars(
        lambda pl: pl.DataFrame({"e": pl.Series(X, dtype=pl.Array(float, 4))})
    ),
    "Polars: Series of Array or List": polars(lambda pl: pl.Series(X.tolist())),
    "Polars: LazyFrame": polars(lambda pl: pl.DataFrame(NAMED).lazy()),
    "pyarrow: Table of numbers": arrow(lambda pa: pa.table(NAMED)),
    "pyarrow: RecordBatch": arrow(lambda pa: pa.table(NAMED).to_batches()[0]),
    "pyarrow: Array of lists, of equal length": arrow(lambda pa: pa.array(X.tolist())),
    "pyarrow: ChunkedArray of FixedSizeList": arrow(lambda pa: pa.chunked_array([fixed(pa)[:25], fixed(pa)[25:]])),
    "pyarrow: Table with one column of lists": arrow(lambda pa: pa.table({"e": fixed(pa)})),
    "pyarrow: Array of FixedShapeTensor": arrow(lambda pa: pa.FixedShapeTensorArray.from_numpy_ndarray(X)),
    "Hugging Face: Dataset of numbers, in any format": hugging_face(
        lambda data_set: data_set.from_dict({name: column.tolist() for name, column in NAMED.items()}).with_format(
            "numpy"
        )
    ),
    "Hugging Face: Dataset with one column of lists": hugging_face(lists),
    "Hugging Face: a column of lists": hugging_face(lambda data_set: lists(data_set)["e"]),
    "Hugging Face: IterableDataset": hugging_face(lambda data_set: lists(data_set).to_iterable_dataset()),
    "torch: tensor in memory, bfloat16 too": lambda _: package("torch").tensor(X).bfloat16(),
    "torch: tensor that requires grad, is sparse, or is on a device": lambda _: package("torch").tensor(X).to("meta"),
    "DLPack: anything that exports it from memory": lambda _: Exporter(X),
    "array API: array_api_strict": lambda _: package("array_api_strict").asarray(X),
    "xarray: DataArray of two dimensions": lambda _: package("xarray").DataArray(X),
    "dict, xarray Dataset, a dict for each row": lambda _: NAMED,
    "a path or another text, a generator": lambda _: (row for row in X),
}
NEEDS_NARWHALS = ("Polars", "pyarrow", "Hugging", "pandas: Series", "pandas: one", "pandas: cat")


def made(name, folder):
    """Return X in a container; the test skips where a package is missing."""
    if name.startswith(NEEDS_NARWHALS):
        package("narwhals")
    return MAKERS[name](folder)


@pytest.mark.parametrize("name", TABLE)
def test_every_container_of_the_table_is_fitted_or_refused(name, tmp_path):
    """Models, predictions and names are those of the array; three tasks and a grid take the same container."""
    held = made(name, tmp_path)
    if TABLE[name].startswith("refused"):
        with pytest.raises(ChicleError, match=r"ChicleSVM: X.*pass|encode"):
            clone(MODEL).fit(held, y)
        return
    expected, found = clone(MODEL).fit(X, y), clone(MODEL).fit(held, y)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.decision_function(held), expected.decision_function(X), rtol=1e-3, atol=1e-4)
    clone(MODEL).set_params(runtime=InProcess(num_tasks=3)).fit(held, y)
    if name in CROSS_VALIDATED and not hasattr(getattr(held, "dtype", None), "itemsize"):
        grid = GridSearchCV(clone(MODEL), {"C": [0.1, 1.0]}, cv=2).fit(held, y)
        assert grid.score(held, y) > 0.8


def test_the_table_is_complete():
    """Every row has a container here."""
    assert list(TABLE) == list(MAKERS)
    assert sum(outcome.startswith("works") for outcome in TABLE.values()) >= 20


def test_names_of_columns_are_compared_in_predict(tmp_path):
    """Of a RecordBatch and of a data set, too."""
    for name in ("pandas: nullable Int64, Float32", "pyarrow: RecordBatch"):
        model = clone(MODEL).fit(made(name, tmp_path), y)
        assert list(model.feature_names_in_) == list("abcd")
        with pytest.raises(ValueError, match="feature names"):
            model.predict(pd.DataFrame(NAMED)[list("badc")])


def frame(**columns):
    """Some columns of NAMED, with others."""
    return pd.DataFrame(NAMED).assign(**columns)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ([[1, 2], [3, 4], [5]], ["row 2"]),
        ([[1, 2], None, [5, 6]], ["row 1"]),
        ([[1, [2]], [3, [4, 5]]], ["lists within"]),
        ([[1, 2], [3, "b"]], ["'b'", "row 1, column 1"]),
        (["a text", "another"], ["'a text'", "row 0"]),
        ([{"a": 1}, {"a": 2}], ["dict", "DataFrame"]),
        (np.array([[1, 2], [3, "4"]], dtype=object), ["'4'", "row 1, column 1"]),
        (np.zeros((3, 2), dtype="M8[s]"), ["times"]),
        (np.ma.array([[1, 2], [3, 4]], mask=[[0, 0], [0, 1]]), ["masked", "row 1, column 1"]),
        (np.zeros((3, 2, 2)), ["(3, 2, 2)", "reshape"]),
        (frame(b="x"), ["'b'", "encode"]),
        (frame(b=pd.Timestamp("2020")), ["'b'", "encode"]),
        (frame(b=pd.Series([{"bytes": b""}] * 60)), ["'b'"]),
        (frame(e=X.tolist()), ["'e'", "alone"]),
        (pd.DataFrame({"e": [[1.0, 2.0], [3.0]]}), ["'e'", "row"]),
        (pd.DataFrame(X, columns=list("abca")), ["'a'", "rename"]),
    ],
    ids=lambda part: "" if not isinstance(part, list) or not isinstance(part[0], str) else "-".join(part),
)
def test_what_cannot_be_used_is_refused_by_its_place(held, words):
    """Row or column, and what to do."""
    if isinstance(held, pd.DataFrame):
        package("narwhals")
    with pytest.raises(ChicleError) as caught:
        ChicleSVM().fit(held, np.arange(len(held)) % 2)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[1.0, 2.0]] * 3 + [[1.0]], "row 3"),
        ([[1.0, 2.0], None], "row 1"),
        ([[1.0, 2.0], [3.0, None]], r"row 1.*\[1\]"),
        ([[["a"]], [["b"]]], "list<"),
        ([[["a"]]] * 2, "not numbers"),
        ([{"bytes": b"", "path": ""}] * 2, "not numbers"),
    ],
)
@pytest.mark.parametrize("pieces", [1, 2])
def test_lists_of_arrow_are_refused_by_row(rows, words, pieces):
    """Rows are counted through all chunks."""
    pa = package("pyarrow")
    package("narwhals")
    array = pa.array(rows)
    held = pa.chunked_array([array] if pieces == 1 else [array[:1], array[1:]])
    with pytest.raises(DataError, match=words):
        ChicleSVM().fit(held, np.arange(len(rows)) % 2)


def test_targets_come_in_the_same_containers(tmp_path):
    """A masked target is refused, not taken for what is under the mask."""
    expected = ChicleRidge().fit(X, y)
    for held in [pd.Series(y, dtype="Int64"), np.ma.array(y), y.astype(np.float16)]:
        np.testing.assert_allclose(ChicleRidge().fit(X, held).coef_, expected.coef_)
    with pytest.raises(DataError, match="ChicleRidge: y is masked in row 0"):
        ChicleRidge().fit(X, np.ma.array(y, mask=y == y[0]))
    torch = package("torch")
    np.testing.assert_allclose(ChicleRidge().fit(X, torch.tensor(y).bfloat16()).coef_, expected.coef_)
    with pytest.raises(UsageError, match=r"ChicleRidge: y is a tensor.*detach"):
        ChicleRidge().fit(X, torch.tensor(y * 1.0, requires_grad=True))
    with pytest.raises(UsageError, match=r"X is a tensor.*detach"):
        ChicleCNNClassifier().fit(torch.tensor(X, requires_grad=True), y)


@pytest.mark.parametrize(
    "cells",
    [
        [1.0, "7", 3.0],
        [1.0, None, "7"],
        [np.datetime64("2020-01-01"), 1.0, 2.0],
        [dt.timedelta(1), 2.0, 3.0],
        [1.0, b"2", 3.0],
    ],
)
def test_text_and_times_among_objects_are_found_in_any_row(cells):
    """NumPy would make numbers of some of them, or name no place."""
    column = np.fromiter(cells, dtype=object)
    for held in (np.column_stack([column, column]), pd.DataFrame({"a": column, "b": [1.0, 2.0, 3.0]})):
        with pytest.raises(DataError, match=r"row \d"):
            ChicleRidge().fit(held, [1.0, 2.0, 3.0])
    with pytest.raises(DataError, match=r"y holds .* in row \d"):
        ChicleRidge().fit(np.eye(3), column)


def test_masked_weights_are_refused():
    """And not taken for what is under the mask."""
    with pytest.raises(DataError, match="sample_weight is masked in row 0"):
        ChicleRidge().fit(X, y, np.ma.array(np.ones(len(y)), mask=np.arange(len(y)) == 0))
