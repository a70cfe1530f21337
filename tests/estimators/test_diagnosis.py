"""What a fit that did not converge says of its data: only what is so, by number or name, and with a way out."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from estimators import ChicleLogisticRegression, ChicleSVM
from estimators.diagnosis import findings


def data(rows=120, features=6):
    """Nothing is conspicuous about it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, features))
    return X, (X[:, 0] + rng.normal(size=rows) > 0).astype(np.int32)


def find(X, codes, *, C=1.0, decision=None, names=None):
    """Of dense and of sparse rows: the same."""
    classes = np.array(["a", "b", "c"])[: max(2, codes.max() + 1)]
    decision = np.zeros(len(codes)) if decision is None else decision
    upper = np.full(len(codes), C)
    dense = findings(X, codes, classes, upper=upper, decision=decision, names=names)
    assert findings(sparse.csr_matrix(X), codes, classes, upper=upper, decision=decision, names=names) == dense
    return dense


def test_nothing_is_said_of_good_data():
    """Also where a column and a row are 0, as in data that is sparse."""
    X, codes = data()
    X[:, 2], X[7] = 0.0, 0.0
    assert find(X, codes) == ()
    assert find(X.astype(np.float32), codes) == ()


@pytest.mark.parametrize("scale", [1e5, -1e8, 1e200])
def test_the_column_of_the_largest_scale_is_named(scale):
    """By number, or by name where there is one; half of the others say what is usual."""
    X, codes = data()
    X[:, 3] *= scale
    [text] = find(X, codes)
    assert text.startswith("column 3 reaches ")
    typical = np.median(np.abs(X).max(axis=0))
    assert f"reaches {np.abs(X[:, 3]).max():.1e}, and half of the features at most {typical:.1e}: scale" in text
    assert "StandardScaler" in text
    assert "MaxAbsScaler" in text
    [text] = find(X, codes, names=np.array(list("uvwxyz")))
    assert text.startswith("column 3 ('x') reaches ")


def test_one_small_column_is_named_beside_the_largest():
    """Most features are alike here, so their median says nothing."""
    X, codes = data()
    X[:, 3] *= 1e-6
    X[:, 5] *= 3.0
    [text] = find(X, codes)
    assert text.startswith("column 5 reaches ")
    assert f"and column 3 only {np.abs(X[:, 3]).max():.1e}: scale the features" in text


def test_scales_that_differ_by_less_are_not_worth_a_word():
    """A factor of a thousand costs digits, and no iterations."""
    X, codes = data()
    X[:, 3] *= 1e3
    assert find(X, codes) == ()


def test_constant_columns_are_named():
    """The first, and how many others; one of zeros is none, and does no harm."""
    X, codes = data()
    X[:, 4] = 3.5
    assert find(X, codes) == ("column 4 is constant: drop it (VarianceThreshold)",)
    X[:, 1], X[:, 2] = -1.0, 0.0
    assert find(X, codes) == ("column 1 and 1 other are constant: drop them (VarianceThreshold)",)


def test_columns_that_are_there_twice_are_named():
    """Equal in every row, and not only where they are looked at first."""
    X, codes = data(rows=700)
    X[:, 4] = X[:, 1]
    assert find(X, codes) == ("column 4 is equal to an earlier one: drop it",)
    X[:, 5] = X[:, 1]
    assert find(X, codes) == ("column 4 and 1 other are equal to an earlier one: drop them",)
    X[-1, 4:] += 1.0, 2.0
    assert find(X, codes) == ()


def test_more_features_than_samples_are_named():
    """With both numbers."""
    X, codes = data(rows=10, features=30)
    assert find(X, codes) == ("there are more features (30) than samples (10): lower C, or select features",)


def test_a_class_of_one_sample_is_named():
    """By its label."""
    X, codes = data()
    codes[17] = 2
    [text] = find(X, codes, decision=np.zeros((120, 3)))
    assert text == "the class 'c' has a single sample: add some, or leave it out"


def test_a_large_C_is_named_where_the_classes_look_separable():
    """It is not to blame where rows are on the wrong side: a loss of these bounds w."""
    X, codes = data()
    right = np.where(codes == 1, 1.0, -1.0)
    [text] = find(X, codes, C=1e6, decision=right)
    assert text == "the classes look separable, and C is so large that the regularisation is negligible: lower C"
    assert find(X, codes, C=1e6, decision=-right) == ()
    assert find(X, codes, C=1.0, decision=right) == ()
    outputs = np.where(codes[:, None] == np.arange(2), 1.0, -1.0)
    assert findings(X, codes, np.arange(2), upper=np.full(120, 1e6), decision=outputs) == (text,)
    weightless = np.append(np.zeros(119), 1e6)  # what is wrong with samples that do not count is not looked at
    assert findings(X, codes, np.arange(2), upper=weightless, decision=np.append(-right[:-1], right[-1])) == (text,)


@pytest.mark.parametrize("make", [ChicleSVM, ChicleLogisticRegression])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_the_warning_of_a_fit_says_it(make, form):
    """Everything that is conspicuous, between how far the fit came and what helps in general."""
    X, codes = data()
    X[:, 3] *= 1e6
    X[:, 4] = X[:, 1]
    with pytest.warns(ConvergenceWarning) as caught:
        make(max_iter=1, tol=1e-9).fit(form(X), codes)
    [text] = [str(warning.message) for warning in caught]
    assert ". The data looks like this: column 3 reaches " in text
    assert "; column 4 is equal to an earlier one: drop it. To converge: scale the features" in text


def test_the_warning_of_a_fit_on_good_data_says_nothing_of_it():
    """Then max_iter was too small, and that is all."""
    with pytest.warns(ConvergenceWarning) as caught:
        ChicleSVM(max_iter=1, tol=1e-9, algorithm="newton").fit(*data())
    assert "The data looks" not in str(caught[0].message)
