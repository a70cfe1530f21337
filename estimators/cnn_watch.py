"""What happens at the end of each epoch of a fit: callbacks are told, and early stopping has its say."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from chicle_elastic.monitoring.records import IterationRecord
from estimators.watch import CallbackBridge

Array: TypeAlias = npt.NDArray[Any]


class EpochBridge(CallbackBridge):
    """One subcontext of the fit's callback context per epoch; arguments as there, `max_iter` counts epochs."""

    def on_model(self, record: IterationRecord, model: Array) -> bool:
        """Close the subcontext of an epoch that has ended, and open the next one when there will be one.

        Returns
        -------
        stop : bool
            A callback asks to end the fit here.
        """
        if "epoch" not in record.figures or self._iteration is None:
            return False
        epoch = round(record.figures["epoch"])
        ended, self._iteration = self._iteration, None
        stop: bool = ended.call_on_fit_task_end(
            estimator=self._estimator,
            reconstruction_attributes=lambda: self._attributes(model, epoch),
            **self._arguments,
        )
        if not stop and epoch < self._max_iter:
            self.begin(model, epoch)
        return stop


class EarlyStopping:
    """Scores every epoch on samples that were held out, and remembers the best.

    Parameters
    ----------
    score : callable
        Takes a model, returns its score.
    tol : float
        Least improvement that counts.
    patience : int
        Epochs in a row without one that end the fit.

    Attributes
    ----------
    scores : list of float
        One per epoch.
    best_model : ndarray or None
        That of the best epoch.
    """

    def __init__(self, score: Callable[[Array], float], *, tol: float, patience: int) -> None:
        self._score, self._tol, self._patience = score, tol, patience
        self._num_without = 0
        self._goal = -np.inf
        self.scores: list[float] = []
        self.best_model: Array | None = None

    def on_model(self, record: IterationRecord, model: Array) -> bool:
        """Score an epoch that has ended.

        Returns
        -------
        stop : bool
            The score has not improved for long enough.
        """
        if "epoch" not in record.figures:
            return False
        score = self._score(model)
        if not self.scores or score > max(self.scores):
            self.best_model = np.array(model)
        self.scores.append(score)
        self._num_without = 0 if score > self._goal + self._tol else self._num_without + 1
        self._goal = max(self._goal, score)
        return self._num_without >= self._patience
