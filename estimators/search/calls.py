"""The calls by which scikit-learn fits and scores a candidate on a split, and how they run with models that are there.

`GridSearchCV`, `RandomizedSearchCV`, the halving searches, `cross_validate` and the curves all go through one function
of scikit-learn, which is not public. A call that is not of the form that is known here is left alone, and then runs as
it would anywhere; so another release of scikit-learn may cost time, and never a result.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import _validation

from chicle_elastic.chunks.views import Array

FIT_AND_SCORE = getattr(_validation, "_fit_and_score", None)
NEEDED = frozenset({"scorer", "train", "test", "parameters", "fit_params", "error_score"})
"""Arguments without which a call is not known."""
NOTHING: Array = np.zeros(0, dtype=np.intp)


@dataclass(slots=True, eq=False)
class Fitted:
    """What a job found for a call."""

    attributes: Mapping[str, Any]  # of the fitted estimator
    seconds: float  # what the fit took
    warn: Callable[[], None] | None = None  # called where the estimator's `fit` would warn; None where it would not


@dataclass(slots=True, eq=False)
class SearchCall:
    """One call."""

    function: Callable[..., Any]  # what would be called
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    X: Any  # all rows, and their labels or targets
    y: Any
    estimator: Any  # with the parameters of the candidate; a copy
    outcome: Fitted | Exception | None = field(default=None)  # what was found, or why there is no model; None before
    # no job takes it: it runs as it would anywhere, and finds the error by itself if there is one
    is_left_alone: bool = field(default=False)

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> "SearchCall | None":
        """The call; None where it is not known, or asks for more than a model."""
        if FIT_AND_SCORE is None or getattr(function, "function", function) is not FIT_AND_SCORE:
            return None
        if len(args) != 3 or not kwargs.keys() >= NEEDED or kwargs.get("return_estimator"):
            return None
        if getattr(kwargs.get("caller"), "_skl_callbacks", ()):  # they are told of each fit
            return None
        if not set(kwargs["fit_params"] or {}) <= {"sample_weight"}:
            return None
        try:
            estimator = clone(args[0]).set_params(**clone(kwargs["parameters"] or {}, safe=False))
        except (TypeError, ValueError):  # the call will say it
            return None
        return cls(function=function, args=args, kwargs=kwargs, X=args[1], y=args[2], estimator=estimator)

    @property
    def is_ready(self) -> bool:
        """Whether it can be run."""
        return self.is_left_alone or self.outcome is not None

    @property
    def sample_weight(self) -> Any:
        """Weights of all rows, or None."""
        return (self.kwargs["fit_params"] or {}).get("sample_weight")

    def value_of(self, name: str) -> float:
        """A parameter of the candidate as a number; 0 where it is none, or there is no such parameter."""
        value = getattr(self.estimator, name, 0.0)
        return float(value) if isinstance(value, Real) else 0.0

    @property
    def train(self) -> Array:
        """Numbers of the rows to fit, some perhaps twice; shape (n,), intp."""
        train = np.asarray(self.kwargs["train"])
        return np.flatnonzero(train) if train.dtype == np.bool_ else train

    def score(self) -> Any:
        """Run the call, with the model if one was found; returns what it returns. The model is let go then: all of a
        search may be more than a fit takes.

        Rows to fit are taken out of X only where they are scored.
        """
        estimator, outcome, kwargs = self.args[0], self.outcome, self.kwargs
        if outcome is None:
            return self.function(*self.args, **kwargs)

        def fit(X: Any, y: Any = None, **_: Any) -> Any:
            if isinstance(outcome, Exception):
                raise outcome
            for name, value in outcome.attributes.items():
                setattr(estimator, name, value)
            if outcome.warn is not None:
                outcome.warn()
            return estimator

        estimator.fit = fit
        try:
            train = kwargs["train"] if kwargs.get("return_train_score") else NOTHING
            result = self.function(*self.args, **{**kwargs, "train": train})
        finally:
            del estimator.fit
            self.outcome, self.args = None, ()
        if isinstance(outcome, Fitted) and "fit_time" in result:
            result["fit_time"] = outcome.seconds
        return result


@contextmanager
def failures_noted(calls: Sequence[SearchCall]) -> Iterator[None]:
    """Within this a job finds the outcomes of these calls, and may fail.

    A call whose arguments cannot be used is left alone, so that its error is that of a fit by itself: a row with NaN,
    for example, fails the splits that it is in and no other. Any other failure is one of all calls without an outcome.
    """
    try:
        yield
    except (TypeError, ValueError):
        for call in calls:
            call.is_left_alone = call.outcome is None
    except Exception as error:
        for call in calls:
            call.outcome = call.outcome or error
