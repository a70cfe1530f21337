"""Fits of a linear regressor on one split: all rows as they are, with a weight of 0 for those to be left out."""

import threading
import time
from collections.abc import Sequence

import numpy as np

from chicle_elastic.runtime.in_process import InProcess
from estimators.place import runtime_of
from estimators.search.calls import Fitted, SearchCall, failures_noted
from estimators.search.rows import Rows

MODEL = ("coef_", "intercept_", "n_iter_", "duality_gap_", "objective_", "dual_objective_")


class RegressorWork:
    """One fit after the other; a smaller penalty goes on from a larger one where the estimator can.

    Args:
        rows: The data.
        calls: On the same split, with the same parameters but `alpha`.

    Attributes:
        needs_main_thread: Whether the fits are jobs of a cluster.
    """

    def __init__(self, rows: Rows, calls: Sequence[SearchCall]) -> None:
        self._rows = rows
        self._calls = sorted(calls, key=lambda call: -call.value_of("alpha"))
        try:
            self.needs_main_thread = not isinstance(runtime_of(calls[0].estimator), InProcess)
        except ValueError:  # the fit will say it
            self.needs_main_thread = False

    def run(self, stop: threading.Event) -> None:
        """See `plan.Work`."""
        with failures_noted(self._calls):
            self._fit(stop)

    def _fit(self, stop: threading.Event) -> None:
        rows = self._rows
        rows.check()
        weights = np.bincount(self._calls[0].train, minlength=len(rows.targets)).astype(np.float64)
        if rows.weights is not None:
            weights *= rows.weights
        before = None
        for call in self._calls:
            if stop.is_set():
                return
            estimator = call.estimator
            if before is not None and "warm_start" in estimator.get_params(deep=False):
                alpha = estimator.alpha
                estimator = before.set_params(alpha=alpha, warm_start=True)
            clock_s = time.perf_counter()
            estimator.fit(rows.features, rows.targets, sample_weight=weights)
            seconds = time.perf_counter() - clock_s
            attributes = {name: getattr(estimator, name) for name in MODEL}
            call.outcome = Fitted(attributes={**rows.names, **attributes}, seconds=seconds)
            before = estimator
