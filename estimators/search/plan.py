"""Which jobs a list of calls makes: what shares rows with what, on how many threads."""

import math
import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from chicle_elastic import settings
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.local_chunk import MOST_CACHED_VALUES
from estimators.base import LinearClassifier
from estimators.logistic import ChicleLogisticRegression
from estimators.place import runtime_of
from estimators.regression.base import LinearRegressor
from estimators.regression.lasso import ChicleElasticNet, ChicleLasso
from estimators.regression.ridge import ChicleRidge
from estimators.regression.svr import ChicleSVR
from estimators.search.calls import SearchCall
from estimators.search.classifiers import Chain, ClassifierWork
from estimators.search.regressors import RegressorWork
from estimators.search.rows import Rows
from estimators.svm import ChicleSVM

SHARING: tuple[type, ...] = (
    ChicleSVM,
    ChicleLogisticRegression,
    ChicleRidge,
    ChicleLasso,
    ChicleElasticNet,
    ChicleSVR,
)
"""Estimators whose fits share rows; subclasses may do anything in `fit`, and so do not."""
PATH_PARAMETER = {LinearClassifier: "C", LinearRegressor: "alpha"}
"""The parameter along which a fit goes on from another."""
LEFT_OUT = ("logdir", "store_duals", "warm_start")
"""Parameters that ask for more than a model to predict with."""


class Work(Protocol):
    """A job, or several after each other."""

    @property
    def needs_main_thread(self) -> bool:
        """Whether it runs by itself: on a cluster, with Ctrl-C at its driver, or because it takes all threads."""
        ...

    def run(self, stop: threading.Event) -> None:
        """Give each of its calls an outcome; without one once `stop` is set."""
        ...


def reason_against(call: SearchCall) -> str:
    """Why a call shares nothing; empty where it does."""
    estimator = call.estimator
    name = type(estimator).__name__
    if type(estimator) not in SHARING:
        return f"{name} is none of {', '.join(each.__name__ for each in SHARING)}"
    if np.ndim(call.y) == 2:
        return "y has several targets"
    if getattr(estimator, "_skl_callbacks", ()):
        return "callbacks are told of each fit"
    for parameter in LEFT_OUT:
        if getattr(estimator, parameter, None):
            return f"{name} has {parameter}={getattr(estimator, parameter)!r}"
    if isinstance(estimator, LinearClassifier) and _may_have_l1(estimator):
        return f"{name} has an l1 penalty, whose fits are not a path"
    if hasattr(estimator.runtime, "submit"):
        return f"a fit on {type(estimator.runtime).__name__} is a job of its own"
    return ""


def _may_have_l1(estimator: LinearClassifier) -> bool:
    """Whether it has an l1 penalty, or parameters that `fit` refuses."""
    try:
        return estimator._l1_share() != 0
    except (TypeError, ValueError):
        return True


def works_of(calls: Sequence[SearchCall], num_threads: int) -> tuple[list[Work], tuple[str, ...]]:
    """The jobs, and a line about the fits of each estimator.

    Args:
        calls: Of estimators that share rows.
        num_threads: Jobs that run at the same time.
    """
    works: list[Work] = []
    shared_how: dict[tuple[str, str], list[SearchCall]] = {}
    rows: list[Rows] = []
    for group in _groups(calls):
        first = group[0].estimator
        splits = _by_split(group)
        shared = _rows_of(group[0], rows)
        if isinstance(first, LinearRegressor):
            works += [RegressorWork(shared, along) for along in splits]
            how = "one copy of the rows"
        else:
            chains = [Chain(calls=sorted(along, key=lambda call: call.value_of("C"))) for along in splits]
            how = _add_classifiers(works, shared, chains, num_threads)
        shared_how.setdefault((type(first).__name__, how), []).extend(group)
    works = _with_busy_threads(works, num_threads)
    lines = (
        f"{len(alike)} fits of {name} on {len(_by_split(alike))} splits share {how}"
        for (name, how), alike in shared_how.items()
    )
    return works, tuple(lines)


def _with_busy_threads(works: list[Work], num_threads: int) -> list[Work]:
    """The same works, where threads would be idle in the end cut at some C, and with threads of their own."""
    chains = [work for work in works if isinstance(work, ClassifierWork) and not work.needs_main_thread]
    others = [work for work in works if work not in chains]
    num_left = len(chains) % num_threads
    if num_left:
        for work in chains[-num_left:]:
            (chain,) = work.chains
            cuts = cut_path(len(chain.calls), num_threads // num_left)
            parts = [Chain(calls=chain.calls[start:stop]) for start, stop in pairwise([0, *cuts, len(chain.calls)])]
            chains.remove(work)
            chains += [ClassifierWork(rows=work.rows, chains=[part]) for part in parts]
    for work in chains:
        work.num_threads = max(1, settings.available_cores() // min(num_threads, len(chains)))
    return [*others, *chains]


def cut_path(num_stages: int, num_parts: int) -> list[int]:
    """Where to cut a path so that its parts take about the same time. Returns the first stage of each part but the
    first, ascending.

    A fit is expected to take longer the larger C is, and twice as long at the beginning of a part.

    Args:
        num_stages: Fits on the path.
        num_parts: How many parts there may be.
    """
    limit = num_stages * (num_stages + 1) // 2 // num_parts - 1
    while True:
        limit += 1
        cuts: list[int] = []
        cost = 0
        for stage in range(num_stages):
            cost += stage + 1
            if cost > limit:
                cuts.append(stage)
                cost = 2 * (stage + 1)
        if cost <= limit and len(cuts) < num_parts and 0 not in cuts:
            return cuts


def _add_classifiers(works: list[Work], rows: Rows, chains: list[Chain], num_threads: int) -> str:
    """Add what fits these chains: a job each in this process, and one for all where that is a cluster's."""
    first = chains[0].estimator
    try:
        runtime = runtime_of(first)
    except ValueError:  # found again, and told by each fit, where errors of fits belong
        runtime = InProcess()
    if isinstance(runtime, InProcess):
        is_alone = _takes_threads(chains[0].calls[0], num_threads)
        most = num_threads if is_alone else None
        works += [
            ClassifierWork(rows=rows, chains=[chain], needs_main_thread=is_alone, num_threads=most) for chain in chains
        ]
        return "one copy of the rows, and their path along C"
    for work in works:
        if isinstance(work, ClassifierWork) and work.rows is rows and work.may_have(first):
            work.chains += chains
            break
    else:
        works.append(ClassifierWork(rows=rows, chains=chains, needs_main_thread=True))
    return f"one job of a {type(runtime).__name__}, whose nodes keep the rows, and their path along C"


def _takes_threads(call: SearchCall, num_threads: int) -> bool:
    """Say whether fits take all threads, one after the other: a softmax of many values, of which a fold has a state
    that is as large as second derivatives and some copies of all weights. Side by side they take no less time.
    """
    estimator, size = call.estimator, math.prod(getattr(call.X, "shape", (0,)))
    is_large = 2 * getattr(call.X, "nnz", size) >= num_threads * MOST_CACHED_VALUES
    if num_threads == 1 or not is_large or estimator.n_threads or not isinstance(estimator, ChicleLogisticRegression):
        return False
    try:
        return estimator._is_multinomial(len(np.unique(call.y)))
    except (TypeError, ValueError):  # the fit will say it
        return False


def _rows_of(call: SearchCall, known: list[Rows]) -> Rows:
    has_labels = isinstance(call.estimator, LinearClassifier)
    for rows in known:
        if rows.are_those_of(call, has_labels=has_labels):
            return rows
    known.append(Rows(call, has_labels=has_labels))
    return known[-1]


def _groups(calls: Sequence[SearchCall]) -> list[list[SearchCall]]:
    """Calls that have the data, the class and all parameters but one in common, in order."""
    groups: list[tuple[tuple[Any, ...], dict[str, Any], list[SearchCall]]] = []
    for call in calls:
        kind = type(call.estimator)
        data = (kind, id(call.X), id(call.y), id(call.sample_weight))
        params = call.estimator.get_params(deep=False)
        for base, name in PATH_PARAMETER.items():
            if issubclass(kind, base):
                params.pop(name, None)
        for other, others, group in groups:
            if other == data and all(_is_same(params[name], others[name]) for name in params):
                group.append(call)
                break
        else:
            groups.append((data, params, [call]))
    return [group for _, _, group in groups]


def _is_same(one: Any, other: Any) -> bool:
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except ValueError:  # arrays
        return bool(np.array_equal(one, other))


def _by_split(calls: Sequence[SearchCall]) -> list[list[SearchCall]]:
    """Calls on the same rows, in order."""
    found: dict[int, list[SearchCall]] = {}
    for call in calls:
        found.setdefault(id(call.kwargs["train"]), []).append(call)
    return list(found.values())
