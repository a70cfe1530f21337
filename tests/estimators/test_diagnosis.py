"""What a fit that did not converge says of its data: only what is so, by number or name, and with a way out."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from estimators import ChicleLogisticRegression, ChicleSVM
from estimators.diagnosis import findings


def data(rows=120, features=6):
    """Return rows and classes about which nothing is conspicuous."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, features))
    return X, (X[:, 0] + rng.normal(size=rows) > 0).astype(np.int32)


def find(X, codes, *, C=1.0, decision=None, names=None):
    """Return what is said of dense and of sparse rows, which is the same."""
    classes = np.array(["a", "b", "c"])[: max(2, codes.max() + 1)]
    decision = np.zeros(len(codes)) if decision is None else decision
    upper = np.full(len(codes), C)
    dense = findings(X, codes, classes, upper=upper, decision=decision, names=names)
    assert findings(sparse.csr_matrix(X), codes, classes, upper=upper, decision=decision, names=names) == dense
    return dense


CHANGES = {
    "nothing": ({}, {}, ()),
    "a column and a row of zeros": ({2: lambda x: 0 * x}, {7: 0.0}, ()),
    "scales that cost digits and no iterations": ({3: lambda x: 1e3 * x}, {}, ()),
    "a constant column": ({4: lambda x: 0 * x + 3.5}, {}, ("column 4 is constant: drop it (VarianceThreshold)",)),
    "constant columns beside one of zeros": (
        {1: lambda x: 0 * x - 1.0, 2: lambda x: 0 * x, 4: lambda x: 0 * x + 3.5},
        {},
        ("column 1 and 1 other are constant: drop them (VarianceThreshold)",),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_only_what_is_conspicuous_is_said(name):
    """Of good data nothing; a column of zeros is no constant one, and does no harm."""
    columns, rows, expected = CHANGES[name]
    X, codes = data()
    for column, change in columns.items():
        X[:, column] = change(X[:, column])
    for row, value in rows.items():
        X[row] = value
    assert find(X, codes) == expected


@pytest.mark.parametrize("scale", [1e5, -1e8, 1e200])
def test_the_column_of_the_largest_scale_is_named(scale):
    """By number, or by name where there is one; half of the others say what is usual."""
    X, codes = data()
    X[:, 3] *= scale
    [text] = find(X, codes)
    typical = np.median(np.abs(X).max(axis=0))
    found = f"reaches {np.abs(X[:, 3]).max():.1e}, and half of the features at most {typical:.1e}: scale"
    assert text.startswith(f"column 3 {found}")
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


def test_columns_that_are_there_twice_are_named():
    """Equal in every row, and not only where they are looked at first."""
    X, codes = data(rows=700)
    X[:, 4] = X[:, 1]
    assert find(X, codes) == ("column 4 is equal to an earlier one: drop it",)
    X[:, 5] = X[:, 1]
    assert find(X, codes) == ("column 4 and 1 other are equal to an earlier one: drop them",)
    X[-1, 4:] += 1.0, 2.0
    assert find(X, codes) == ()


def test_few_samples_are_named():
    """Fewer than features, with both numbers; and one of a class, by its label."""
    X, codes = data(rows=10, features=30)
    assert find(X, codes) == ("there are more features (30) than samples (10): lower C, or select features",)
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
def test_the_warning_of_a_fit_says_it(make):
    """Everything that is conspicuous, between how far the fit came and what helps in general; of good data nothing."""
    X, codes = data()
    with pytest.warns(ConvergenceWarning) as caught:
        make(max_iter=1, tol=1e-9, algorithm="newton").fit(X, codes)
    assert "The data looks" not in str(caught[0].message)
    X[:, 3] *= 1e6
    X[:, 4] = X[:, 1]
    with pytest.warns(ConvergenceWarning) as caught:
        make(max_iter=1, tol=1e-9).fit(sparse.csr_matrix(X), codes)
    [text] = [str(warning.message) for warning in caught]
    assert ". The data looks like this: column 3 reaches " in text
    assert "; column 4 is equal to an earlier one: drop it. To converge: scale the features" in text
