"""The time of a whole fit, on two clocks, and the model that comes out of it whatever library it is of."""

import gc
import statistics
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.datasets import DataSet


@dataclass(frozen=True, slots=True)
class Seconds:
    """One fit: processor time of all threads of the process, and time on the wall."""

    cpu: float
    wall: float


def timed_fit(model: Any, data: DataSet) -> Seconds:
    """Time of a whole `fit`, whatever the library does in it, conversions included."""
    X = data.fresh()
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of stopping short, which is what the benchmark asks for
        wall, cpu = time.perf_counter(), time.process_time()
        model.fit(X, data.y)
        return Seconds(cpu=time.process_time() - cpu, wall=time.perf_counter() - wall)


def median(times: list[Seconds], clock: str) -> float:
    """Median seconds on one of the two clocks."""
    return statistics.median(getattr(seconds, clock) for seconds in times)


def parts_of(model: Any) -> list[Any]:
    """The fitted models that one-vs-rest is made of, or the model itself."""
    return list(getattr(model, "estimators_", [model]))


def intercept_of(model: Any) -> np.ndarray:
    """Intercepts of a fitted model as ndarray of shape (outputs,), float64."""
    return np.concatenate([np.ravel(np.asarray(part.intercept_, np.float64)) for part in parts_of(model)])


def coef_of(model: Any, data: DataSet) -> np.ndarray:
    """Weights of a fitted model as ndarray of shape (outputs, num_features), whatever shape its library gives them."""
    if hasattr(model, "estimators_"):
        return np.vstack([np.ravel(part.coef_) for part in parts_of(model)])
    coef = np.atleast_2d(np.asarray(model.coef_))
    return coef if coef.shape[1] == data.num_features else coef.T


def method_of(estimator: Any) -> str:
    """Which method a fit of ours took."""
    return str(estimator.history_.method).partition(", because")[0]
