"""Parameters and attributes: each is described in the docstring of the class that has it, wherever that is written."""

import inspect
import pickle
import re

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_param_validation

import estimators
from chicle_elastic import __version__
from estimators import ChicleLogisticRegression, ChicleRidge, ChicleSVM
from estimators.params import parameters
from tests.estimators import problems
from tests.estimators.test_every_linear import EVERY, data_of

KINDS = sorted({*estimators.__all__} - {"LinearRegressor"})


def described(kind, section):
    """Names of the entries of a section."""
    _, _, rest = inspect.cleandoc(kind.__doc__).partition(f"{section}\n----------\n")
    body = re.match(r"(?:.+\n?)*", rest)[0]
    return [name for line in re.findall(r"^(\S.*?)(?: : .*)?$", body, re.MULTILINE) for name in line.split(", ")]


@pytest.mark.parametrize("name", KINDS)
def test_every_parameter_is_described_once(name):
    """Whichever class has it."""
    kind = getattr(estimators, name)
    stars = {inspect.Parameter.VAR_KEYWORD: "**"}
    names = [stars.get(each.kind, "") + each.name for each in inspect.signature(kind).parameters.values()]
    assert sorted(described(kind, "Parameters")) == sorted(names)


@EVERY
def test_every_attribute_is_described_once(model):
    """Those that a fit leaves, and a few more of other parameters."""
    model.fit(*data_of(model))
    found = described(type(model), "Attributes")
    assert len(found) == len({*found})
    assert {name for name in vars(model) if name.endswith("_")} <= {*found}


def test_a_class_without_sections_gets_those_of_its_bases():
    """Before its other sections; a parameter of its own comes first, and a text of its own wins."""

    @parameters
    class Own(ChicleRidge):
        """Summary.

        Parameters
        ----------
        tol : float, default=0.5
            Own text.
        extra : int, default=3
            More.

        Notes
        -----
        Last.
        """

        tol: float = 0.5
        extra: int = 3

    assert Own(2.0).get_params().items() >= {"alpha": 2.0, "tol": 0.5, "extra": 3}.items()
    assert described(Own, "Parameters")[:2] == ["tol", "extra"]
    assert "alpha" in described(Own, "Parameters")
    assert "coef_" in described(Own, "Attributes")
    assert Own.__doc__.endswith("\n\nNotes\n-----\nLast.")
    assert "Own text" in Own.__doc__


@pytest.mark.parametrize("name", [name for name in KINDS if hasattr(getattr(estimators, name), "to_sklearn")])
def test_a_parameter_that_cannot_be_used_is_named(name):
    """scikit-learn's own check: each has constraints, and at fit what they do not allow is refused by its name."""
    check_param_validation(name, getattr(estimators, name)())


@pytest.mark.parametrize(
    ("kind", "parameter", "value"),
    [(ChicleSVM, "C", np.nan), (ChicleLogisticRegression, "C", np.inf), (ChicleLogisticRegression, "l1_ratio", 1.5)],
)
def test_a_number_out_of_range_is_refused(kind, parameter, value):
    """In the words of scikit-learn."""
    with pytest.raises(ValueError, match=f"The '{parameter}' parameter of {kind.__name__} must be"):
        kind(**{parameter: value}).fit(*problems.cancer())


@pytest.mark.filterwarnings("error")
def test_a_pickle_of_another_version_says_which_one():
    """In one line; one of this version says nothing, and one of before versions were written says that."""
    model = ChicleRidge().fit(*problems.diabetes())
    content = pickle.dumps(model)
    assert pickle.loads(content).coef_.tolist() == model.coef_.tolist()
    with pytest.warns(UserWarning, match=r"ChicleRidge was pickled by chicle-elastic 9\.9\.9, and") as caught:
        old = pickle.loads(content.replace(__version__.encode(), b"9.9.9"))
    assert "\n" not in str(caught[0].message)
    assert old.predict(problems.diabetes()[0]).shape == (442,)
    state = model.__getstate__()
    del state["_written_by"], state["alpha"]
    old = ChicleRidge.__new__(ChicleRidge)
    with pytest.warns(UserWarning, match="a version that did not say so"):
        old.__setstate__(state)
    assert old.get_params() == ChicleRidge().get_params(), "a parameter of a later version has its default"
