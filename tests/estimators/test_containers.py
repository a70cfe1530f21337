"""Containers of features: each row of the table in docs/how-to/data.md is fitted, or refused."""

import datetime as dt
import itertools
import re
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.cluster.local.local_cluster import shared_cluster
from chicle_elastic.errors import ChicleError, DataError, UsageError
from estimators import ChicleCNNClassifier, ChicleRidge, ChicleSearchCV, ChicleSVM
from estimators.containers import as_numpy

PAGE = Path(__file__).parents[2] / "docs/how-to/data.md"
LINES = itertools.dropwhile(lambda line: line[:2] != "| ", PAGE.read_text(encoding="utf-8").splitlines())
HEAD, _, *ROWS = [
    re.split(r" *\| *", line.strip("| \n")) for line in itertools.takewhile(lambda line: line[:2] == "| ", LINES)
]
TABLE = {name: dict(itertools.zip_longest(HEAD[1:], cells, fillvalue="")) for name, *cells in ROWS}
FIT, SEARCH, CONVERT = HEAD[1:]

X = np.random.default_rng(0).integers(-8, 9, size=(60, 4)).astype(np.float64)
y = (X[:, 0] + X[:, 1] > 0).astype(int)
NAMED = dict(zip("abcd", X.T.copy(), strict=True))
MODEL = ChicleSVM(loss="squared_hinge", tol=1e-9, random_state=0)
EXPECTED = clone(MODEL).fit(X, y)


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


def require_equal(model):
    """Compare with the model of the array, whose values bfloat16 has, too."""
    np.testing.assert_allclose(model.coef_, EXPECTED.coef_, rtol=1e-3, atol=1e-4)


def with_labels(held):
    """Return a table of Arrow with the labels beside a container of columns."""
    pa, table = package("pyarrow"), as_numpy("X", held)
    table = table.to_arrow() if hasattr(table, "to_arrow") else table
    if hasattr(table, "to_frame") or hasattr(table, "iloc"):
        table = pa.Table.from_pandas(table.to_frame("e") if hasattr(table, "to_frame") else table, preserve_index=False)
    return (table if isinstance(table, pa.Table) else pa.table({"e": table})).append_column("y", pa.array(y))


def to_npy(held, path):
    """Write what `numpy.save` makes of a container."""
    np.save(path, held.numpy() if hasattr(held, "numpy") else held)


def to_npz(held, path):
    """Write a sparse matrix as SciPy does, and the labels."""
    sparse.save_npz(path, held)
    with np.load(path) as saved:
        np.savez(path, y=y, **saved)


def to_parquet(held, path):
    """Write columns and labels."""
    package("pyarrow.parquet").write_table(with_labels(held), path)


WRITERS = {"npy": to_npy, "npz": to_npz, "parquet": to_parquet}


def of_file(held, folder, ending):
    """Return the chunk folder of the file that a container goes to."""
    np.save(folder / "y.npy", y)
    WRITERS[ending](held, folder / f"held.{ending}")
    read = (
        ReadOptions(targets=folder / "y.npy")
        if ending == "npy"
        else ReadOptions(label_column=None if ending == "npz" else "y")
    )
    return convert([folder / f"held.{ending}"], folder / "out", ConvertOptions(max_tasks=1, dtype="float64", read=read))


@pytest.fixture(scope="module", autouse=True)
def _nodes():
    """The cluster that n_workers=2 means, for all tests of this file."""
    with shared_cluster(2) if find_spec("torch") else nullcontext():
        yield


@pytest.mark.filterwarnings("ignore:X has feature names")
@pytest.mark.parametrize("use", ["fit", "predict", "n_workers=2", "GridSearchCV", "convert"])
@pytest.mark.parametrize("name", TABLE)
def test_every_cell_of_the_table_is_true(name, use, tmp_path):
    """A container works, or is refused by name before the work; what the page says to pass works."""
    held, cells = made(name, tmp_path), TABLE[name]
    if use in ("fit", "predict") and cells[FIT].startswith("refused"):
        with pytest.raises(ChicleError, match=r"ChicleSVM: X.*pass|encode"):
            EXPECTED.predict(held) if use == "predict" else clone(MODEL).fit(held, y)
    elif use == "fit":
        require_equal(clone(MODEL).fit(held, y))
    elif use == "predict":
        np.testing.assert_allclose(
            EXPECTED.decision_function(held), EXPECTED.decision_function(X), rtol=1e-3, atol=1e-4
        )
    elif use == "n_workers=2" and cells[FIT].startswith("works"):
        package("torch")
        require_equal(clone(MODEL).set_params(n_workers=2).fit(held, y))
    elif use == "GridSearchCV" and cells[SEARCH]:
        code = re.search(r"pass `(.*)`", cells[SEARCH])
        require_equal(ChicleSearchCV(clone(MODEL), {"C": [1.0]}, cv=2).fit(held, y).best_estimator_)
        held = held if code is None else eval(code[1], {"X": held, "np": np, "pyarrow": sys.modules.get("pyarrow")})
        require_equal(GridSearchCV(clone(MODEL), {"C": [1.0]}, cv=2).fit(held, y).best_estimator_)
    elif use == "convert" and cells[CONVERT].startswith("refused"):
        with pytest.raises(ChicleError, match=re.search("`(.*)`", cells[CONVERT])[1]):
            of_file(held, tmp_path, re.match(r"refused: (\w+)", cells[CONVERT])[1])
    elif use == "convert" and cells[CONVERT]:
        require_equal(clone(MODEL).fit(of_file(held, tmp_path, cells[CONVERT])))


def test_the_table_is_complete():
    """Every row has a container here."""
    assert list(TABLE) == list(MAKERS)
    assert sum(cells[FIT].startswith("works") for cells in TABLE.values()) >= 20


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
