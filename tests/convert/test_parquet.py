"""Parquet: columns become features in their order, and every fault names its row and its column."""

import sys
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.chunks.readers.checks import checked_rows
from chicle_elastic.chunks.readers.parquet import read_parquet
from chicle_elastic.errors import DataError, MissingExtraError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


def write(folder: Path, columns: dict[str, object], **options: object) -> Path:
    """The columns as train.parquet."""
    path = folder / "train.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return path


def fault(folder: Path, columns: dict[str, object]) -> str:
    """The message with which the columns are refused, without the folder."""
    with pytest.raises(DataError) as caught:
        [checked_rows(block, "float32") for block in read_parquet(write(folder, columns), ReadOptions())]
    return str(caught.value).replace(f"{folder}/", "")


def test_batches_over_many_row_groups_give_all_rows_in_order(tmp_path: Path) -> None:
    """The first column is the label, the others are the features."""
    rng = np.random.default_rng(0)
    columns = {"y": np.arange(1000), "a": rng.normal(size=1000), "b": rng.normal(size=1000)}
    path = write(tmp_path, columns, row_group_size=170)
    blocks = list(read_parquet(path, ReadOptions(block_bytes=2400, label_column="y")))
    assert len(blocks) >= 10
    np.testing.assert_array_equal(np.concatenate([block.targets for block in blocks]), columns["y"])
    rows = np.concatenate([np.asarray(block.rows) for block in blocks])
    np.testing.assert_array_equal(rows, np.stack([columns["a"], columns["b"]], axis=1))
    assert blocks[1].origin.row(0) == f"{path}, row {blocks[0].num_rows}"
    assert blocks[1].origin.column(1) == "column 'b'"


def test_integers_decimals_truth_values_and_categories_are_read(tmp_path: Path) -> None:
    """Category labels (pandas writes them as dictionaries) are text; decimals become float64."""
    columns = {
        "y": pa.array(["b", "a"]).dictionary_encode(),
        "i": pa.array([1, 2], pa.int8()),
        "d": pa.array([1, 2], pa.decimal128(5, 2)),
        "b": pa.array([True, False]),
    }
    (block,) = read_parquet(write(tmp_path, columns), ReadOptions())
    assert list(block.targets) == ["b", "a"]
    np.testing.assert_array_equal(block.rows, [[1, 1, 1], [2, 2, 0]])


@pytest.mark.parametrize("form", ["list", "large_list", "fixed_size_list", "tensor"])
def test_a_column_of_lists_is_a_feature_for_each_place(tmp_path: Path, form: str) -> None:
    """Beside other columns, in batches whose bytes count all values; two files with lists of one length are one set."""
    X = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    forms = {
        "list": lambda: pa.array(X.tolist(), pa.list_(pa.float32())),
        "large_list": lambda: pa.array(X.tolist(), pa.large_list(pa.float32())),
        "fixed_size_list": lambda: pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), 8),
        "tensor": lambda: pa.FixedShapeTensorArray.from_numpy_ndarray(X),
    }
    path = write(tmp_path, {"y": np.arange(500) % 3, "e": forms[form](), "n": X[:, 0]}, row_group_size=170)
    blocks = list(read_parquet(path, ReadOptions(block_bytes=8 * 10 * 50)))
    assert max(block.num_rows for block in blocks) <= 50
    rows = np.concatenate([np.asarray(block.rows) for block in blocks])
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, np.column_stack([X, X[:, 0]]))
    assert [blocks[1].origin.column(feature) for feature in (0, 7, 8)] == [
        "column 'e[0]'",
        "column 'e[7]'",
        "column 'n'",
    ]


def test_lists_of_another_length_in_a_later_batch_are_refused(tmp_path: Path) -> None:
    """With the row of the file, not of the batch."""
    path = write(tmp_path, {"y": np.arange(40) % 3, "e": [[1.0, 2.0]] * 30 + [[1.0]] * 10})
    with pytest.raises(DataError, match="row 30: column 'e' has a list of length 1, and rows before it have 2"):
        list(read_parquet(path, ReadOptions(block_bytes=8 * 3 * 10)))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"y": [1, 2], "a": [1.0, None]}, "train.parquet, row 1: column 'a' has no value"),
        ({"y": [1, None], "a": [1.0, 2.0]}, "train.parquet, row 1: column 'y' has no value"),
        ({"y": [1], "a": ["red"]}, "train.parquet: column 'a' is string, not numbers"),
        ({"y": [1, 2], "a": [[1.0, 2.0], [3.0]]}, "train.parquet, row 1: column 'a' has a list of length 1"),
        ({"y": [1, 2], "a": [[1.0, 2.0], None]}, "train.parquet, row 1: column 'a' has no value"),
        ({"y": [1, 2], "a": [[1.0, 2.0], [3.0, None]]}, "train.parquet, row 1: column 'a[1]' has no value"),
        ({"y": [1, 2], "a": [[1.0, 2.0], [3.0, np.nan]]}, "train.parquet, row 1: column 'a[1]': value nan"),
        (
            {"y": [1], "a": pa.array([[]], pa.list_(pa.int8()))},
            "train.parquet, row 0: column 'a' has a list of length 0",
        ),
        ({"y": [1], "a": [[[1.0]]]}, "train.parquet: column 'a' is list<element: list<element: double>>, not numbers"),
        ({"y": [1], "a": [{"bytes": b"", "path": ""}]}, "train.parquet: column 'a' is struct"),
        ({"y": [[1]], "a": [1.0]}, "train.parquet: column 'y' is list<element: int64>; labels"),
        ({"y": [1]}, "train.parquet: no column is left for features"),
    ],
)
def test_a_fault_names_row_and_column(tmp_path: Path, columns: dict[str, object], message: str) -> None:
    """Gaps, text features and columns of lists."""
    assert message in fault(tmp_path, columns)


def test_without_pyarrow_the_extra_to_install_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The import is tried when the file is read, and not before."""
    path = write(tmp_path, {"y": [1], "a": [1.0]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'chicle-elastic\[parquet\]'"):
        list(read_parquet(path, ReadOptions()))
