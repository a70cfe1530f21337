"""The objective that all sides of a benchmark minimise, evaluated here and by none of the libraries.

0.5 * |w|^2 + C * sum(loss(m)), without intercept, m = y <w, x> with y = 1 or -1 for each output; the loss is
max(0, 1 - m), its square (without a half), or log(1 + exp(-m)). Each dual has 0 <= alpha (<= C but for the square), and
D(alpha) = -0.5 * |sum(alpha y x)|^2 + sum(conjugate) is below every value of the objective.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, xlogy

from benchmarks.datasets import BLOCK_ROWS, DataSet

LOSSES = ("hinge", "squared_hinge", "logistic")


@dataclass(frozen=True, slots=True)
class Problem:
    """Data, loss, and the factor C of the sum of losses."""

    data: DataSet
    loss: str
    C: float

    @property
    def key(self) -> str:
        """Part of the names of cached files."""
        return f"{self.data.key}-{self.loss}-C{self.C:.10g}"

    @property
    def strength(self) -> str:
        """C in words."""
        return "C = 100/n" if strong(self.data) == self.C else f"C = {self.C:g}"

    @property
    def title(self) -> str:
        """Name for people."""
        return f"{self.data.title}, {self.loss}, {self.strength}"


def strong(data: DataSet) -> float:
    """C of lambda = 0.01 n."""
    return 100.0 / data.num_samples


def blocks(data: DataSet, weights: np.ndarray) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Rows, signs and margins of all outputs, block by block, in float64.

    Args:
        data: The samples.
        weights: ndarray of shape (outputs, num_features); one output means the second class against the first.

    Yields:
        Slice of rows; signs and margins, ndarrays of shape (rows, outputs).
    """
    classes = np.unique(data.y)
    positive = classes[1:] if len(weights) == 1 else classes
    for start in range(0, data.num_samples, BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        block = data.X[rows] if data.is_sparse else data.X[rows].astype(np.float64)
        signs = np.where(data.y[rows, None] == positive, 1.0, -1.0)
        yield rows, signs, signs * (block @ weights.T)


def losses_of(loss: str, margins: np.ndarray) -> np.ndarray:
    """The loss of each margin."""
    if loss == "logistic":
        return np.logaddexp(0.0, -margins)
    slack = np.maximum(0.0, 1.0 - margins)
    return slack if loss == "hinge" else slack**2


def one_vs_rest_loss(loss: str, scores: np.ndarray, y: np.ndarray) -> float:
    """Sum of the losses of all outputs, of scores of shape (rows, outputs); one output means the second class."""
    classes = np.unique(y)
    positive = classes[1:] if scores.shape[1] == 1 else classes
    return float(losses_of(loss, np.where(y[:, None] == positive, 1.0, -1.0) * scores).sum())


def softmax_loss(scores: np.ndarray, own: np.ndarray) -> float:
    """Sum of the losses of a softmax, of scores of shape (rows, classes) and the class of each row as a number."""
    return float((logsumexp(scores, axis=1) - scores[np.arange(len(scores)), own]).sum())


def conjugates_of(loss: str, alpha: np.ndarray, C: float) -> np.ndarray:
    """What each dual variable adds to the dual objective."""
    if loss == "logistic":
        share = alpha / C
        return -C * (xlogy(share, share) + xlogy(1.0 - share, 1.0 - share))
    return alpha if loss == "hinge" else alpha - alpha**2 / (4.0 * C)


def primal(problem: Problem, coef: np.ndarray) -> np.ndarray:
    """The objective of each output in float64.

    Args:
        problem: Data, loss and C.
        coef: ndarray of shape (outputs, num_features).

    Returns:
        ndarray of shape (outputs,), float64.
    """
    weights = np.asarray(coef, dtype=np.float64)
    losses = np.zeros(len(weights))
    for _, _, margins in blocks(problem.data, weights):
        losses += losses_of(problem.loss, margins).sum(axis=0)
    return 0.5 * np.einsum("kd,kd->k", weights, weights) + problem.C * losses


def dual(problem: Problem, alpha: np.ndarray) -> np.ndarray:
    """The dual objective of each output in float64.

    Args:
        problem: Data, loss and C.
        alpha: ndarray of shape (num_samples, outputs); what is out of bounds counts as on them.

    Returns:
        ndarray of shape (outputs,), float64: bounds from below for the best possible objective.
    """
    data = problem.data
    alpha = np.clip(alpha.astype(np.float64), 0.0, np.inf if problem.loss == "squared_hinge" else problem.C)
    w = np.zeros((alpha.shape[1], data.num_features))
    for rows, signs, _ in blocks(data, w):
        block = data.X[rows] if data.is_sparse else data.X[rows].astype(np.float64)
        w += (block.T @ (alpha[rows] * signs)).T
    return conjugates_of(problem.loss, alpha, problem.C).sum(axis=0) - 0.5 * np.einsum("kd,kd->k", w, w)
