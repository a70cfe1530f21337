"""Policies as values: their fields are parameters for scikit-learn, and their names tell them apart."""

from dataclasses import dataclass

import pytest
from sklearn.base import BaseEstimator, clone

from chicle_elastic.errors import UsageError
from chicle_elastic.policies.base import Decision, Observations, Policy, require_policies
from chicle_elastic.policies.rebalance import Rebalance


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


@pytest.mark.parametrize("params", [{"window": 1}, {"horizon": 3}, {"gain": 0.5, "window": 99}])
def test_what_cannot_be_set_changes_nothing(params):
    """Neither an unknown name nor a value that the policy refuses."""
    policy = Rebalance()
    with pytest.raises(UsageError):
        policy.set_params(**params)
    assert policy == Rebalance()


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
