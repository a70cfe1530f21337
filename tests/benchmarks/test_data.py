"""Data of the benchmark of linear models: the same from every run, and shaped as they say."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.linear import SHAPED
from benchmarks.real import load_real
from benchmarks.shapes import NUM_COUNTS, click_log, few_binary, tfidf_text, topics


@pytest.mark.parametrize("name", SHAPED)
def test_a_generator_makes_the_same_data_again(name: str) -> None:
    """Two calls agree to the last bit, and both classes are there."""
    _, make, _, rows = SHAPED[name]
    (X, y), (X_again, y_again) = make(rows), make(rows)
    assert X.shape[0] == len(y) == rows
    assert set(np.unique(y)) == set(range(12 if name == "topics" else 2))
    np.testing.assert_array_equal(y, y_again)
    if sp.issparse(X):
        assert X.format == "csr"
        assert X.indices.dtype == np.int32
        for part in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(X, part), getattr(X_again, part))
    else:
        np.testing.assert_array_equal(X, X_again)


def test_a_click_log_has_heavy_tails_and_few_clicks() -> None:
    """Raw counts reach the thousands while their medians are small; 15% of the rows are clicks."""
    X, y = click_log(3000, 1 << 18)
    counts = X[:, :NUM_COUNTS].toarray()
    assert counts.max() > 1000
    assert np.median(counts) < 20
    assert y.mean() == pytest.approx(0.15, abs=0.01)


@pytest.mark.parametrize("make", [tfidf_text, topics])
def test_rows_of_a_text_have_length_one(make: Callable[[int], tuple[sp.csr_matrix, np.ndarray]]) -> None:
    """They are normalised as `TfidfVectorizer` does it, and none is empty."""
    X, _ = make(300)
    np.testing.assert_allclose(X.multiply(X).sum(axis=1), 1.0, rtol=1e-12)


def test_few_binary_columns_repeat_rows() -> None:
    """Every attribute has one level per row, and a good part of the rows occurs more than once."""
    X, _ = few_binary(2000)
    assert X.shape[1] == 68
    assert np.all(X.sum(axis=1) == 30)
    assert len(np.unique(X.toarray(), axis=0)) < 0.7 * 2000


def test_real_files_are_read_in_their_own_formats(tmp_path: Path) -> None:
    """svmlight, idx and CSV, each gzipped; labels become 0 and 1."""
    for folder in ("a9a", "fashion-mnist", "higgs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "a9a/a9a.gz").write_bytes(gzip.compress(b"-1 3:1 11:1\n+1 5:1\n"))
    pixels = bytes(range(256)) * 10
    header = b"\0\0\x08\x03" + b"".join(size.to_bytes(4, "big") for size in (3, 28, 28))
    (tmp_path / "fashion-mnist/train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels[: 3 * 784]))
    labels = b"\0\0\x08\x01" + (3).to_bytes(4, "big") + bytes([9, 0, 6])
    (tmp_path / "fashion-mnist/train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    lines = "\n".join(
        f"{label},{','.join(str(column + row) for column in range(28))}" for row, label in enumerate([1, 0])
    )
    (tmp_path / "higgs/HIGGS_lgb_train7000.csv.gz").write_bytes(gzip.compress(lines.encode()))

    a9a, fashion, higgs = (load_real(name, tmp_path, quick=False) for name in ("a9a", "fashion", "higgs-real"))
    assert a9a.X.shape == (2, 123)
    assert a9a.X.indices.dtype == np.int32
    assert a9a.y.tolist() == [0, 1]
    assert fashion.X.shape == (3, 784)
    assert fashion.X.dtype == np.float32
    assert fashion.X.max() == 1.0
    assert fashion.y.tolist() == [0, 1, 1]
    assert higgs.X.shape == (2, 28)
    assert higgs.y.tolist() == [1, 0]
