"""A policy that fails does not end a fit, and the user hears of it: a warning, a line, the history."""

import functools
import re
import warnings
from typing import Any

import pytest

from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.runtime import in_process
from chicle_elastic.runtime.cluster_task.policy_runner import TimeLimitedPolicy
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleSVM
from tests.cluster.local.local_trainers import Faulty, Shift
from tests.estimators import problems

WORDS = {
    "raises": r"policy Faulty is disabled: it raised ZeroDivisionError: no reports \(local_trainers\.py, line \d+\)",
    "nonsense": r"policy Faulty is disabled: it decided nonsense: n7 is not a member that stays",
    "sleeps": r"policy Faulty is disabled: it did not answer within 0\.01 s",
}


@pytest.fixture(scope="module")
def cluster() -> Any:
    """One for all tests of this file."""
    with LocalCluster(2) as cluster:
        yield cluster


def fit(runtime: Any, **params: Any) -> ChicleSVM:
    """Thirty iterations on a hundred samples."""
    X, y = problems.digits()
    params = {"C": 0.05, "tol": 0.0, "max_iter": 30, "random_state": 0} | params
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*has not converged")
        return ChicleSVM(runtime=runtime, **params).fit(X[:100], y[:100])


@pytest.mark.parametrize("fault", WORDS)
def test_in_process_the_user_is_warned_of_a_policy_that_fails(
    fault: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, where fit was called; a line says so, too, and the history of the next iteration."""
    monkeypatch.setattr(in_process, "TimeLimitedPolicy", functools.partial(TimeLimitedPolicy, patience_s=0.01))
    with pytest.warns(RuntimeWarning, match=f"^{WORDS[fault]}; the fit goes on without it$") as caught:
        model = fit(InProcess(num_tasks=2), policy=(Shift(keep=1000), Faulty(fault=fault)), verbose=1)
    assert [warning.filename for warning in caught] == [__file__]
    assert model.n_iter_ == 30
    [said] = [line for line in capsys.readouterr().out.splitlines() if "disabled" in line]
    assert re.fullmatch(rf"\[ChicleSVM\] {WORDS[fault]}; the fit goes on without it", said)
    [told] = [(record.iteration, event) for record in model.history_ for event in record.events if "disabled" in event]
    assert told[0] == 3
    assert re.fullmatch(WORDS[fault], told[1])


def test_a_policy_that_works_is_no_warning() -> None:
    """Nor is one that wants nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fit(InProcess(num_tasks=2), policy=Shift(keep=1000))


def test_the_warning_may_be_an_error() -> None:
    """It ends the fit where it happens."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(RuntimeWarning, match="Faulty"):
            fit(InProcess(num_tasks=2), policy=Faulty())


@pytest.mark.parametrize(("fault", "of_whom"), [("raises", "estimator"), ("nonsense", "cluster")])
def test_on_a_local_cluster_the_user_is_warned_in_the_same_words(
    cluster: LocalCluster, fault: str, of_whom: str
) -> None:
    """Although the policy runs in a thread of a task, whose output no user sees."""
    policies = (Faulty(fault=fault),)
    mine = LocalCluster(2, policies=policies if of_whom == "cluster" else (), address=cluster.address)
    with pytest.warns(RuntimeWarning, match=WORDS[fault]) as caught:
        model = fit(mine, max_iter=150, policy=policies if of_whom == "estimator" else None)
    assert [warning.filename for warning in caught] == [__file__]
    assert any(re.fullmatch(WORDS[fault], event) for record in model.history_ for event in record.events)
