"""Input that cannot be used: the message says what, where, and what to do."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from chicle_elastic.errors import ChicleError, MissingExtraError
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleLogisticRegression, ChicleRidge, ChicleSVM
from tests.estimators import problems

both = pytest.mark.parametrize("estimator_class", [ChicleSVM, ChicleLogisticRegression])


def spoiled(value, *places):
    """cancer with `value` at some (row, column)."""
    X, y = problems.cancer()
    for row, column in places:
        X[row, column] = value
    return X, y


@both
@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, np.float32, pd.DataFrame])
def test_a_value_that_is_not_finite_is_named_by_column_and_row(estimator_class, value, word, form):
    """In fit and in predict, dense and sparse."""
    X, y = spoiled(value, (17, 4))
    message = f"Input X of {estimator_class.__name__} contains {word} in column 4, row 17; drop .* or fill"
    with pytest.raises(ValueError, match=message) as caught:
        estimator_class().fit(form(X), y)
    assert isinstance(caught.value, ChicleError)
    model = estimator_class().fit(form(problems.cancer()[0]), y)
    with pytest.raises(ValueError, match=message):
        model.predict(form(X))
    X, y = spoiled(value, (9, 2), (9, 5), (11, 2))
    with pytest.raises(ValueError, match=rf"{word} in column 2 \('f2'\), row 9 and 2 more such values in 2 column"):
        estimator_class().fit(pd.DataFrame(X).add_prefix("f"), y)


def test_values_whose_sum_overflows_are_fine():
    """Finite is finite; the certificate does not suffer."""
    X, y = problems.cancer()
    X = X.astype(np.float32)
    X[:, 0] = np.where(y == 1, 3e38, -3e38)
    with np.errstate(all="ignore"):
        assert ChicleSVM().fit(X, y).n_iter_ >= 1


@both
def test_one_class_is_refused_by_name(estimator_class):
    """In the words of scikit-learn, with the class."""
    X, _ = problems.cancer()
    with pytest.raises(ValueError, match=f"{estimator_class.__name__} needs samples of at least 2 classes.*: 'a'"):
        estimator_class().fit(X, ["a"] * len(X))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (X[:0], y[:0]), "0 sample"),
        (lambda X, y: (X[:, :0], y), "0 feature"),
        (lambda X, y: (X, y[:-1]), "inconsistent numbers of samples"),
        (lambda X, y: (X[0], y), "Expected 2D array, got 1D array"),
        (lambda X, y: (X[np.newaxis], y), r"shape \(1, 569, 30\)"),
        (lambda X, y: (X, np.column_stack([y, y])), "should be a 1d array"),
        (lambda X, y: (X, np.where(y == 1, np.nan, 0.0)), "Input y contains NaN"),
        (lambda X, y: (X, y + 0.5), "Unknown label type"),
        (lambda X, y: (X, None), "requires y to be passed, but the target y is None"),
        (lambda X, y: (X + 1j, y), "Complex data not supported"),
        (lambda X, y: ([["a", "b"]] * len(y), y), "text, as 'a' in row 0, column 0"),
        (lambda X, y: ("X.npy", y), "is a str.*chicle convert"),
    ],
)
def test_data_of_a_wrong_shape_or_type_is_refused(change, message):
    """By scikit-learn's own validation, whose messages people know."""
    with pytest.raises(ValueError, match=message):
        ChicleSVM().fit(*change(*problems.cancer()))


def test_parameters_that_do_not_go_together_are_refused():
    """Each of them would do by itself."""
    X, y = problems.cancer()
    with pytest.raises(ValueError, match="leave one of them out"):
        ChicleRidge(n_workers=2, runtime=InProcess(num_tasks=1)).fit(X, y)
    with pytest.raises(ValueError, match="an l1 penalty has none; leave store_duals"):
        ChicleLogisticRegression(l1_ratio=1.0, store_duals=True).fit(X, y)


def test_a_fit_that_has_not_converged_says_what_to_do():
    """Gap, tol, and the four ways out; the warning points at the caller of fit."""
    X, y = problems.cancer()
    with pytest.warns(
        ConvergenceWarning, match=r"after max_iter=1 .* gap is \d\.\de[+-]0\d, above tol=0\.001"
    ) as caught:
        model = ChicleSVM(C=1000.0, max_iter=1).fit(X, y)
    text = str(caught[0].message)
    assert all(advice in text for advice in ("scale the features", "raise max_iter", "lower C", "squared_hinge"))
    assert caught[0].filename == __file__
    assert model.n_iter_ == 1
    assert model.duality_gap_ > model.tol
    with pytest.warns(ConvergenceWarning) as caught:
        ChicleSVM(C=1e5, max_iter=1, loss="squared_hinge").fit(X, y)
    assert "squared_hinge" not in str(caught[0].message)


@pytest.mark.parametrize(
    ("runtime", "tasks"),
    [
        (InProcess(num_tasks=1), ""),
        (InProcess(num_tasks=4), " on 4 tasks"),
        (InProcess(num_tasks=1, changes=((1, 3),)), " on 1 to 3 tasks"),
    ],
)
def test_a_fit_that_has_not_converged_says_how_many_tasks_took_part(runtime, tasks):
    """Fewer are a way out of coordinate descent, and none of Newton's method, whose steps are those of one task."""
    X, y = problems.cancer()
    with pytest.warns(ConvergenceWarning) as caught:
        ChicleLogisticRegression(C=10.0, max_iter=3, tol=1e-9, runtime=runtime).fit(X, y)
    text = str(caught[0].message)
    assert f"after max_iter=3 iterations{tasks} the relative duality gap is" in text
    assert text.endswith("raise max_iter or tol, or lower C.")
    X = np.random.default_rng(0).normal(size=(60, 2100))  # too wide for second derivatives
    with pytest.warns(ConvergenceWarning, match="on 4 tasks.*use fewer tasks"):
        ChicleSVM(C=1e-3, max_iter=2, tol=1e-12, runtime=InProcess(num_tasks=4)).fit(X, X[:, 0] > 0)


def test_a_fit_without_a_certificate_says_so_and_no_number():
    """Samples of a node that was lost may not be back when the iterations are used up."""
    model = ChicleSVM(max_iter=3)
    model.history_ = History([IterationRecord(iteration=3, epochs=3, time_s=1, num_tasks=2, samples=1)])
    model.duality_gap_ = np.nan
    assert "on 2 tasks no duality gap is certified, because the samples of lost nodes" in model._not_converged()


def test_logdir_without_tensorboard_names_the_extra(tmp_path, monkeypatch):
    """Before anything is trained."""
    monkeypatch.setitem(__import__("sys").modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(MissingExtraError, match=r"chicle-elastic\[tensorboard\]"):
        ChicleSVM(logdir=tmp_path).fit(*problems.cancer())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_a_bad_value_in_large_data_is_found_by_the_solver_and_named_by_the_estimator(value, is_sparse, monkeypatch):
    """Large data is not read once more for it; the message is the same, and the next fit works."""
    X, y = problems.cancer()
    X = X.astype(np.float32)
    X[300, 7] = value
    monkeypatch.setattr("estimators.checks.MAX_VALUES_CHECKED_FIRST", 0)
    word = "NaN" if np.isnan(value) else "infinity"
    model = ChicleSVM()
    with pytest.raises(ValueError, match=f"Input X of ChicleSVM contains {word} in column 7, row 300"):
        model.fit(sparse.csr_matrix(X) if is_sparse else X, y)
    X[300, 7] = 0
    assert model.fit(X, y).duality_gap_ <= 1e-3
