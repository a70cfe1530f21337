"""Memory layouts, dtypes and labels: the same model, the user's memory untouched and not copied.

Containers have a matrix of their own, `test_containers`.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleSVM
from estimators.inputs import encode_labels, training_set
from tests.estimators import problems


def rounded_cancer():
    """Values that float32 and integers hold too, some of them 0."""
    X, y = problems.cancer()
    return np.round(4 * X), y


def with_int64_indices(X):
    """CSR as load_svmlight_file returns it."""
    X = sparse.csr_matrix(X)
    return sparse.csr_matrix((X.data, X.indices.astype(np.int64), X.indptr.astype(np.int64)), shape=X.shape)


def unsorted_with_duplicates(X):
    """CSR with descending indices, and each value in two halves."""
    X = sparse.csr_matrix(X)
    indptr, indices, data = 2 * X.indptr, np.repeat(X.indices, 2), np.repeat(X.data, 2) / 2
    for begin, end in pairwise(indptr):
        indices[begin:end], data[begin:end] = indices[begin:end][::-1].copy(), data[begin:end][::-1].copy()
    return sparse.csr_matrix((data, indices, indptr), shape=X.shape)


def unaligned(X):
    """Bytes that begin at an odd address."""
    memory = bytearray(1) + bytearray(X.tobytes())
    return np.frombuffer(memory, dtype=X.dtype, offset=1).reshape(X.shape)


FORMS = {
    "float32": lambda X: X.astype(np.float32),
    "int": lambda X: X.astype(np.int16),
    "object": lambda X: X.astype(object),
    "big-endian": lambda X: X.astype(">f8"),
    "unaligned": unaligned,
    "csr array": sparse.csr_array,
    "csr int64": with_int64_indices,
    "csr unsorted": unsorted_with_duplicates,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_same_data_gives_the_same_model(form):
    """To what the certified gaps allow, as dense and sparse rows are visited differently; predictions too.

    P is strongly convex, so 1/2 |w - w*|^2 <= gap, and two models differ by at most twice that distance.
    """
    X, y = rounded_cancer()
    settings = {"C": 0.01, "loss": "squared_hinge", "tol": 1e-9, "random_state": 0}
    expected = ChicleSVM(**settings).fit(X, y)
    rows = FORMS[form](X)
    parts = [rows.indptr, rows.indices, rows.data] if form.startswith("csr") else []
    before = [part.copy() for part in parts]
    model = ChicleSVM(**settings).fit(rows, y)
    assert all(np.array_equal(part, copy) for part, copy in zip(parts, before, strict=True)), "the user's memory"
    distance = np.linalg.norm(model.coef_ - expected.coef_)
    assert distance <= 2 * np.sqrt(2 * 1e-9 * expected.objective_.sum())
    np.testing.assert_allclose(model.decision_function(rows), X @ model.coef_[0] + model.intercept_, atol=1e-5)
    assert model.coef_.dtype == np.float64
    assert model.decision_function(rows).dtype == np.float64


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["dense", "csr int32", "csr int64"])
def test_rows_are_not_copied(dtype, kind):
    """With one task the chunks lie over the memory of the caller."""
    X, y = rounded_cancer()
    X = X.astype(dtype)
    if kind != "dense":
        X = with_int64_indices(X) if kind == "csr int64" else sparse.csr_matrix(X)
    estimator = ChicleSVM()
    source = training_set(estimator, X, y, None, max_tasks=1, seed=0).source
    state = estimator._trainer(training_set(estimator, X, y, None, max_tasks=1, seed=0), InProcess()).state(
        source.schema
    )
    infos = source.infos(state)
    assert sum(info.num_rows for info in infos) == len(y)
    for info in infos:
        rows = source.load(info.id, state).rows
        values, memory = (rows, X) if kind == "dense" else (rows.values, X.data)
        assert np.shares_memory(values, memory)
        assert kind == "dense" or np.shares_memory(rows.indices, X.indices)


def test_predictions_of_float32_convert_a_block_at_a_time(monkeypatch):
    """Whatever the size of a block, the scores are those of the same numbers in float64."""
    X, y = rounded_cancer()
    model = ChicleSVM(C=0.01).fit(X, y)
    for values in (1, 1000, 10**9):
        monkeypatch.setattr("chicle_elastic.chunks.rows.VALUES_PER_BLOCK", values)
        np.testing.assert_allclose(
            model.decision_function(X.astype(np.float32)), model.decision_function(X), rtol=1e-12
        )


@pytest.mark.parametrize(
    "container",
    [np.array, list, pd.Series, lambda y: np.array(y, dtype=object) if isinstance(y[0], str) else np.array(y)],
    ids=["array", "list", "Series", "objects"],
)
@pytest.mark.parametrize(
    "labels", [["no", "yes"], [False, True], [-1, 1], [-3.0, 5.0], [-(10**12), 10**12], ["a longer one", "ü"]], ids=str
)
def test_labels_come_back_as_they_were(labels, container):
    """Strings, bools, negative and large numbers, in every container; the second in order is the positive one."""
    X, y = rounded_cancer()
    named = [labels[code] for code in y]
    model = ChicleSVM(C=0.01).fit(X, container(named))
    assert model.classes_.tolist() == labels
    predicted = model.predict(X)
    assert set(predicted.tolist()) == set(labels)
    assert np.mean([a == b for a, b in zip(predicted.tolist(), named, strict=True)]) > 0.95
    np.testing.assert_array_equal(model.decision_function(X) > 0, predicted == labels[1])


@pytest.mark.parametrize(
    "labels",
    [
        np.array([3, -2, 3, 7]),
        np.array([-1.0, 1.0, 1.0], dtype=np.float32),
        np.array([0.5, 1.0, 0.5]),
        np.array([2**40, -5, 2**40]),
        np.array([1e30, -1.0]),
        np.array([200, 3, 200], dtype=np.uint8),
        np.array([True, False]),
        np.array(["b", "a", "b"]),
        np.array([2**63 + 1, 5], dtype=np.uint64),
        np.array([-128, 127], dtype=np.int8),
        np.repeat([0, 9, -3, 1], 40_000),  # a block at a time, and each widens the range
        np.repeat([1, 2**40], 40_000),
        np.repeat([1.0, 0.5], 40_000),
    ],
    ids=str,
)
def test_labels_are_encoded_as_numpy_unique_does(labels):
    """Classes of the same dtype in order, and codes that give the labels back."""
    classes, codes, counts = encode_labels(labels)
    np.testing.assert_array_equal(classes, np.unique(labels))
    assert classes.dtype == labels.dtype
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(classes[codes], labels)
    np.testing.assert_array_equal(counts, np.unique(labels, return_counts=True)[1])
