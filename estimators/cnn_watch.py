"""What happens at the end of each epoch of a fit: callbacks are told, and early stopping has its say."""

from collections.abc import Callable

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.monitoring.records import IterationRecord
from estimators.watch import CallbackBridge


class EpochBridge(CallbackBridge):
    """One subcontext of the fit's callback context per epoch."""

    task_name = "epoch"

    def _ended(self, record: IterationRecord) -> int | None:
        return round(record.figures["epoch"]) if "epoch" in record.figures else None


class EarlyStopping:
    """Scores every epoch on samples that were held out, and remembers the best.

    Args:
        score: Takes a model, returns its score.
        tol: Least improvement that counts.
        patience: Epochs in a row without one that end the fit.

    Attributes:
        scores: One per epoch.
        best_model: That of the best epoch.
    """

    def __init__(self, score: Callable[[Array], float], *, tol: float, patience: int) -> None:
        self._score, self._tol, self._patience = score, tol, patience
        self._num_without = 0
        self._goal = -np.inf
        self.scores: list[float] = []
        self.best_model: Array | None = None

    def on_model(self, record: IterationRecord, model: Array) -> bool:
        """Score an epoch that has ended.

        Returns:
            Whether the score has not improved for long enough.
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
