"""What happens at the end of each epoch of a fit: callbacks are told, and early stopping has its say."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.records import IterationRecord
from estimators.watch import CallbackBridge

SCORE = "validation_score"
"""The figure of a record at the end of an epoch: accuracy on the samples that are held out."""


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
        self._score_of: dict[int, float] = {}
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
        self._score_of[round(record.figures["epoch"])] = score
        return self._num_without >= self._patience

    def scored(self, record: IterationRecord) -> IterationRecord:
        """The record, with the score where an epoch has ended."""
        score = self._score_of.get(round(record.figures.get("epoch", -1.0)))
        return record if score is None else replace(record, figures={**record.figures, SCORE: score})

    def scored_history(self, history: History) -> History:
        """A history with the scores of its epochs."""
        scored = History(self.scored(record) for record in history)
        scored.members, scored.methods = history.members, history.methods
        for transition in history.transitions:
            scored.note(transition)
        return scored
