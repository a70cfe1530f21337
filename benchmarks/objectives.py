"""The objective that all sides of a benchmark minimise, evaluated here and by none of the libraries.

C * sum(loss) + l1 * |w|_1 + l2 / 2 * |w|^2, in float64, the sum of all outputs. The losses of classes take margins
y <w, x>, one class against the rest, with y = 1 or -1; those of numbers take residuals.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp

from benchmarks.datasets import BLOCK_ROWS, DataSet
from benchmarks.fits import coef_of, intercept_of

MARGINS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "hinge": lambda margins: np.maximum(0.0, 1.0 - margins),
    "squared hinge": lambda margins: np.maximum(0.0, 1.0 - margins) ** 2,
    "logistic": lambda margins: np.logaddexp(0.0, -margins),
}


@dataclass(frozen=True, slots=True)
class Objective:
    """Evaluate what a model costs.

    Attributes:
        loss: One of `MARGINS`, or "softmax"; of numbers "squares" (with a half), "tube" or "squared tube".
        C: Factor of the sum of losses.
        l1, l2: Factors of the penalties.
        epsilon: Half the width of a tube.
        intercept: "penalised" as a weight, "free", or "none".
    """

    loss: str
    C: float = 1.0
    l1: float = 0.0
    l2: float = 1.0
    epsilon: float = 0.0
    intercept: str = "penalised"

    def of(self, model: Any, data: DataSet) -> float:
        """Evaluate a fitted model; infinite for one that makes no sense."""
        coef = np.asarray(coef_of(model, data), dtype=np.float64)
        intercept = np.zeros(len(coef)) if self.intercept == "none" else intercept_of(model)
        classes = None if self._is_of_numbers() else np.unique(data.y)
        total = 0.0
        for start in range(0, data.num_samples, BLOCK_ROWS):
            part = slice(start, start + BLOCK_ROWS)
            rows = data.X[part] if data.is_sparse else np.asarray(data.X[part], dtype=np.float64)
            with np.errstate(invalid="ignore"):
                total += self._losses(np.asarray(rows @ coef.T) + intercept, data.y[part], classes)
        weights = coef if self.intercept == "free" else np.column_stack([coef, intercept])
        value = self.C * total + self.l1 * np.abs(weights).sum() + 0.5 * self.l2 * np.vdot(weights, weights)
        return float(value) if np.isfinite(value) else np.inf

    def _is_of_numbers(self) -> bool:
        return self.loss in ("squares", "tube", "squared tube")

    def _losses(self, scores: np.ndarray, y: np.ndarray, classes: np.ndarray | None) -> float:
        """Sum of the losses of scores of shape (rows, outputs); one output means the second class."""
        if classes is None:
            excess = np.maximum(np.abs(y - scores[:, 0]) - self.epsilon, 0.0)
            return float(
                excess.sum() if self.loss == "tube" else excess @ excess * (0.5 if self.loss == "squares" else 1)
            )
        if self.loss == "softmax":
            own = scores[np.arange(len(y)), np.searchsorted(classes, y)]
            return float((logsumexp(scores, axis=1) - own).sum())
        positive = classes[1:] if scores.shape[1] == 1 else classes
        return float(MARGINS[self.loss](np.where(y[:, None] == positive, 1.0, -1.0) * scores).sum())
