"""Policies as values: their fields are parameters for scikit-learn, and their names tell them apart."""

from dataclasses import dataclass

import pytest
from sklearn.base import BaseEstimator, clone

from chicle_elastic.errors import UsageError
from chicle_elastic.policies.base import Policy, require_policies
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.scale import Scale
from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.policies.straggler import Straggler
from chicle_elastic.policies.tune import Tune
from chicle_elastic.values import Decision, Observations


class Estimator(BaseEstimator):
    """Has a policy for a parameter, as estimators do."""

    def __init__(self, policy=None):
        self.policy = policy


@dataclass(frozen=True)
class Silent(Policy):
    """Wants nothing."""

    title: str = "silent"

    @property
    def name(self) -> str:
        """As given."""
        return self.title

    def decide(self, observations: Observations, /) -> Decision | None:
        """Nothing."""
        return None


def test_a_grid_search_sets_the_parameters_of_a_policy():
    """`policy__window=5`, on a clone, so that the policy that was given stays as it is."""
    given = Rebalance()
    estimator = clone(Estimator(given)).set_params(policy__window=5)
    assert estimator.policy == Rebalance(window=5)
    assert estimator.get_params()["policy__window"] == 5
    assert given == Rebalance()


def test_a_clone_is_equal_and_another_one():
    """Also in a tuple of several."""
    policies = (Rebalance(gain=0.5), Silent())
    copies = clone(policies, safe=False)
    assert tuple(copies) == policies
    assert copies[0] is not policies[0]


NAN, INF = float("nan"), float("inf")
REFUSED = {
    Rebalance: (
        {"window": (2, 33, 5.0), "min_reports": (1,), "gain": (0.0,), "noise": (-1.0,), "confidence": (NAN,)}
        | {"min_iteration_s": (-0.1,)}
    ),
    Shuffle: (
        {"share": (0.0, 1.5, NAN, "half", True), "every": (0, 0.5, None), "until": (0, 2.5)}
        | {"patience": (0.0, 1, True, NAN)}
    ),
    Scale: (
        {"least": (0, True), "most": (0, 2.5), "time_value": (-1.0, NAN, "much"), "alone": (0.0, 1.0)}
        | {"target": (0.0, INF), "window": (0, 32), "margin": (1.0,), "change_s": (-0.1,)}
    ),
    Straggler: (
        {"factor": (1.2,), "margin": (0.0,), "spread": (-1.0, NAN), "min_iteration_s": (INF, "fast"), "window": (2, 33)}
        | {"min_reports": (1, True)}
    ),
    Tune: (
        {"on_stall": ("panic",), "stall": (0.0, 1.0, None), "window": (0, 32), "target": (0.0,), "least": (0,)}
        | {"most": (0,), "scaling": ("sqrt",)}
    ),
}
TOGETHER = [
    (Tune, {"scaling": None, "learning_rate": 0.1}),
    (Tune, {"scaling": "cubic", "learning_rate": 0.1}),
    (Tune, {"scaling": "sqrt", "learning_rate": 0.0}),
    (Tune, {"scaling": "sqrt", "learning_rate": INF}),
    (Tune, {"least": 3, "most": 2}),
    (Scale, {"least": 2, "most": 1}),
    (Rebalance, {"gain": 0.5, "window": 99}),
]
"""Values that are refused beside others."""


def test_values_that_cannot_be_are_refused_and_change_nothing():
    """The error names the policy and the field; `set_params` takes neither such a value nor an unknown name."""
    single = [(kind, {name: value}) for kind in REFUSED for name in REFUSED[kind] for value in REFUSED[kind][name]]
    for kind, fields in [*single, *TOGETHER]:
        policy = kind()
        with pytest.raises(UsageError, match=rf"{kind.__name__}\(({'|'.join(fields)})="):
            kind(**fields)
        with pytest.raises(UsageError):
            policy.set_params(**fields)
        with pytest.raises(UsageError):
            policy.set_params(horizon=3)
        assert policy == kind()


def test_a_policy_that_is_no_dataclass_says_what_to_do():
    """Its parameters would not be known."""

    class Bare(Silent.__base__):  # type: ignore[misc, name-defined]
        def decide(self, observations, /):
            return None

    with pytest.raises(UsageError, match="decorate it with @dataclass"):
        Bare().get_params()


@pytest.mark.parametrize(
    ("policies", "complaint"),
    [
        (Rebalance(), r"for one of them \(policy,\)"),
        ("Rebalance", "must be a sequence"),
        ((Rebalance,), "pass an object with name and decide"),
        ((3,), "pass an object with name and decide"),
        ((Silent(), Silent()), "they must differ"),
    ],
)
def test_what_cannot_be_the_policies_of_a_job_is_refused(policies, complaint):
    """With what was given."""
    with pytest.raises(UsageError, match=complaint):
        require_policies(policies)
