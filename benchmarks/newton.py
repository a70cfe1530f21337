"""A slow and sure solver for references: Newton's method in float64 for one output, with a certificate.

It knows nothing of the product. Losses with a derivative are minimised as they are. The hinge is rounded off over a
width that shrinks tenfold each time its minimum is found; the slopes of the round loss are dual variables of the sharp
one, so every stage certifies an interval for the best possible objective.

A step solves (I + A' diag(c) A) p = -g, A = rows times signs and c = C times curvature: by a Cholesky factor of that
matrix where there are few columns, or of its counterpart of size n (Woodbury's identity) where few rows have curvature,
or else by conjugate gradients. Steps are as long as brings the objective to its minimum on the line.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import cho_factor, cho_solve
from scipy.special import expit

from benchmarks.problems import conjugates_of, losses_of

MOST_COLUMNS = 2000
MOST_CURVED_ROWS = 6000
MOST_CG_STEPS = 2000
FIRST_WIDTH, LAST_WIDTH = 1.0, 1e-10


@dataclass(slots=True)
class Newton:
    """One output.

    Attributes:
        A: Rows times signs, CSR matrix or ndarray, float64.
        loss: One of `problems.LOSSES`.
        C: Factor of the sum of losses.
        deadline: Moment of `time.process_time` at which the search ends, wherever it is.
        w: The best model found.
        lower: Largest dual objective found.
        upper: Smallest objective found, at `w`.
    """

    A: Any
    loss: str
    C: float
    deadline: float
    w: np.ndarray
    lower: float = -np.inf
    upper: float = np.inf

    def solve(self, tol: float) -> None:
        """Search until (upper - lower) / upper <= tol, or the deadline, or rounding stops it."""
        width = FIRST_WIDTH if self.loss == "hinge" else 0.0
        w = self.w
        while width == 0.0 or width >= LAST_WIDTH:
            w = self.minimise(w, width, tol)
            if width == 0.0 or self.is_done(tol):
                return
            width /= 10
            w = self.predict(w, width)

    def is_done(self, tol: float) -> bool:
        """Whether there is nothing more to do, or no time."""
        return self.upper - self.lower <= tol * self.upper or time.process_time() >= self.deadline

    def minimise(self, w: np.ndarray, width: float, tol: float) -> np.ndarray:
        """The minimum for one width: half the square of the gradient is how far it is away."""
        margins = self.A @ w
        for _ in range(200):
            slopes, curvatures = self.derivatives(margins, width)
            gradient = w - self.A.T @ slopes
            distance = 0.5 * gradient @ gradient
            rounded_off = self.certify(w, margins, slopes, gradient) - distance
            if self.is_done(tol) or distance <= 0.1 * max(tol * self.upper, rounded_off):
                break
            step = self.direction(gradient, curvatures)
            along = self.A @ step
            length = self.line_search(w, step, margins, along, width)
            if length == 0.0 or np.max(np.abs(length * step)) <= 1e-16 * np.max(np.abs(w)):
                break
            w = w + length * step
            margins = self.A @ w
        return w

    def predict(self, w: np.ndarray, width: float) -> np.ndarray:
        """The minimum for a width, from that for ten times as much, if the same rows are curved at both."""
        slack = 1.0 - self.A @ w
        inside = (slack > 0) & (slack < 10 * width)
        slopes = np.where(inside, self.C * slack / width, self.C * (slack > 0))
        return w + self.direction(w - self.A.T @ slopes, self.C / width * inside)

    def derivatives(self, margins: np.ndarray, width: float) -> tuple[np.ndarray, np.ndarray]:
        """C times the negative first and C times the second derivative of the loss at each margin."""
        if self.loss == "logistic":
            share = expit(-margins)
            return self.C * share, self.C * share * (1.0 - share)
        slack = 1.0 - margins
        if self.loss == "squared_hinge":
            return 2.0 * self.C * np.maximum(0.0, slack), 2.0 * self.C * (slack > 0)
        inside = (slack > 0) & (slack < width)
        return self.C * np.clip(slack / width, 0.0, 1.0), self.C / width * inside

    def certify(self, w: np.ndarray, margins: np.ndarray, slopes: np.ndarray, gradient: np.ndarray) -> float:
        """The gap between a model and its slopes, which are dual variables with w - gradient = sum(slopes y x)."""
        upper = 0.5 * w @ w + self.C * losses_of(self.loss, margins).sum()
        if upper < self.upper:
            self.upper, self.w = upper, w
        w_dual = w - gradient
        lower = conjugates_of(self.loss, slopes, self.C).sum() - 0.5 * w_dual @ w_dual
        self.lower = max(self.lower, lower)
        return float(upper - lower)

    def direction(self, gradient: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
        """Newton's step."""
        curved = np.flatnonzero(curvatures)
        if len(curved) == 0:
            return -gradient
        A, c = self.A[curved], curvatures[curved]
        if A.shape[1] <= MOST_COLUMNS:
            scaled = A.multiply(np.sqrt(c)[:, None]).tocsr() if sp.issparse(A) else A * np.sqrt(c)[:, None]
            hessian = scaled.T @ scaled
            hessian = hessian.toarray() if sp.issparse(hessian) else hessian
            hessian[np.diag_indices_from(hessian)] += 1.0
            return -cho_solve(cho_factor(hessian, overwrite_a=True), gradient)
        if len(curved) <= MOST_CURVED_ROWS:
            gram = A @ A.T
            gram = gram.toarray() if sp.issparse(gram) else gram
            gram[np.diag_indices_from(gram)] += 1.0 / c
            factor = cho_factor(gram, overwrite_a=True)
            step = np.zeros_like(gradient)
            for _ in range(2):  # the second time repairs what rounding did
                residual = -gradient - step - A.T @ (c * (A @ step))
                step += residual - A.T @ cho_solve(factor, A @ residual)
            return step
        return self.conjugate_gradients(A, c, gradient)

    def conjugate_gradients(self, A: Any, c: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Newton's step to a residual that shrinks with the gradient, preconditioned by the diagonal."""
        squares = A.multiply(A) if sp.issparse(A) else A * A
        diagonal = 1.0 + squares.T @ c
        step, residual = np.zeros_like(gradient), -gradient
        along = scaled = residual / diagonal
        product = residual @ scaled
        goal = product * min(0.01, np.sqrt(product / max(self.upper, 1e-300))) ** 2
        for _ in range(MOST_CG_STEPS):
            bent = along + A.T @ (c * (A @ along))
            length = product / (along @ bent)
            step = step + length * along
            residual = residual - length * bent
            scaled = residual / diagonal
            before, product = product, residual @ scaled
            if product <= goal or time.process_time() >= self.deadline:
                break
            along = scaled + product / before * along
        return step

    def line_search(
        self, w: np.ndarray, step: np.ndarray, margins: np.ndarray, along: np.ndarray, width: float
    ) -> float:
        """Length of the step at which the objective is least; 0 where the step leads nowhere."""
        linear, square = w @ step, step @ step

        def slope(length: float) -> float:
            return float(linear + length * square - self.derivatives(margins + length * along, width)[0] @ along)

        if not slope(0.0) < 0.0:
            return 0.0
        if abs(slope(1.0)) <= 0.1 * abs(slope(0.0)):
            return 1.0
        low, high = 0.0, 1.0
        while slope(high) < 0.0:
            low, high = high, 2.0 * high
        for _ in range(30):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if slope(middle) < 0.0 else (low, middle)
        return 0.5 * (low + high)
