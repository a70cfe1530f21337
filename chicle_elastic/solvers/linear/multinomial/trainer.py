"""Multinomial logistic regression: the model, the method, and when to stop. See `objective` and `steps`."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Context, Report, Solver, Summed
from chicle_elastic.solvers.linear.certified import TINY, CertifiedTrainer, num_outputs
from chicle_elastic.solvers.linear.methods import ROWS_PER_COLUMN, most_block_columns
from chicle_elastic.solvers.linear.multinomial import objective, steps
from chicle_elastic.solvers.linear.multinomial.state import (
    MultinomialPhase,
    MultinomialState,
)

FIRST_SHARE = 0.3
"""Share of tol that is aimed at before a certificate has refused anything."""
KEPT_PRODUCTS, KEPT_CHEAP = 16, 2
"""Products of a run up to which the next one has the same blocks: where these are dear, of all rows or of sparse ones;
and of some dense rows, or diagonals. Blocks of all rows and 785 columns that were kept for 8 took half the passes and
twice the time; blocks of some rows that were kept for 16 took twice the passes."""
MOST_JOINT_COLUMNS, MOST_JOINT_PRODUCTS = 256, 1 << 24
"""Weights of all classes, and multiplications of all their second derivatives, up to which these are summed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultinomialTrainer(CertifiedTrainer):
    """Logistic regression with one softmax over all classes, as scikit-learn's LogisticRegression has it.

    The model is W of shape (num_classes, num_features + 1), flattened, float64; its last column has the intercepts.

    Attributes:
        C: Factor of the sum of losses, > 0.
        tol: Relative duality gap at which to stop; 0 for never.
        has_intercept: Whether there are intercepts, which are not penalised.
        class_weights: Factor of C per class code; None for 1.
    """

    name = "Multinomial"
    state_type = MultinomialState
    sums = "loss", "entropy", "rows"
    C: float = 1.0
    tol: float = 1e-3
    has_intercept: bool = True
    class_weights: tuple[float, ...] | None = None
    has_one_softmax: ClassVar[bool] = True
    intercept_scaling: ClassVar[float] = 1.0
    """Of the last column of the model."""

    def __post_init__(self) -> None:
        if not 0 < self.C < np.inf or not self.tol >= 0:
            raise UsageError(f"multinomial regression needs C > 0 and tol >= 0, got C={self.C}, tol={self.tol}")

    @property
    def problem(self) -> steps.Goal:
        """See `CertifiedTrainer`."""
        return steps.Goal(tol=self.tol, has_intercept=self.has_intercept)

    def num_outputs(self, schema: DataSchema) -> int:
        """One output per class.

        Raises:
            UsageError: The targets are not class codes.
        """
        return max(num_outputs(schema), schema.num_classes)

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task."""
        from chicle_elastic.solvers.linear.multinomial.solver import MultinomialSolver

        return MultinomialSolver(
            ctx, C=float(self.C), class_weights=self.class_weights, has_intercept=self.has_intercept
        )

    def _first_state(self, schema: DataSchema, model: Array, num_tasks: int) -> MultinomialState:
        return first_state(schema, is_cold=not model.any())

    def _rests(self, progress: Array) -> bool:
        return len(progress) > 0 and MultinomialState.look(progress).phase is MultinomialPhase.REST

    def _reopen(self, state: MultinomialState, model: Array) -> None:
        steps.reopen(state)

    def _step(self, state: MultinomialState, model: Array, summed: Summed) -> Array:
        W = model.reshape(state.num_classes, state.D)
        return steps.advance(state, W, summed.delta, summed.weight, self.problem).reshape(-1)

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """In words for the user."""
        state = first_state(schema, is_cold=True)
        if state.is_joint:
            return (
                "Newton's method on chunks, because of the multinomial loss, and second derivatives of "
                f"{state.D} columns and {state.num_classes} classes are few"
            )
        what = f"{state.D} columns and {state.num_classes} classes"
        fit = "fit" if state.is_narrow else "do not fit"
        return (
            "Newton's method on chunks by conjugate gradients, because of the multinomial loss; second derivatives by "
            f"class of {what} {fit} into a message"
        )

    def primal_and_dual(self, model: Array, report: Report) -> tuple[float, float]:
        """P and D at a certificate; D is unknown, minus infinity, where other rows were looked at before."""
        assert report.rebuilt is not None, "only a certificate has P and D"
        state = MultinomialState.look(report.progress) if len(report.progress) else None
        is_known = state is not None and report.metrics["rows"] == state.num_rows and len(state.totals) > 0
        num_classes = state.num_classes if state is not None else 1
        with np.errstate(over="ignore", invalid="ignore"):
            primal, dual = objective.primal_and_dual(
                model.reshape(num_classes, -1),
                report.rebuilt.reshape(num_classes, -1),
                loss=report.metrics["loss"],
                entropy=report.metrics["entropy"],
                totals=state.totals if state is not None and is_known else np.ones(num_classes),
                class_sums=state.class_sums if state is not None and is_known else np.zeros((num_classes, 1)),
                has_intercept=self.has_intercept and is_known,
            )
        return primal, dual if is_known and not np.isnan(dual) else -np.inf

    def estimate(self, model: Array, report: Report) -> float:
        """See `CertifiedTrainer`."""
        if not len(report.progress):
            return np.inf
        state = MultinomialState.look(report.progress)
        is_known = np.isfinite(state.gap) and np.isfinite(state.value)
        return state.gap / max(state.value, TINY) if is_known else np.inf


def first_state(schema: DataSchema, *, is_cold: bool) -> MultinomialState:
    """Before the first pass over such data: which second derivatives are summed up, and of how many rows.

    Args:
        schema: Of the data.
        is_cold: Whether the run begins with W = 0.
    """
    K, n, D = schema.num_classes, schema.num_rows, schema.num_features + 1
    is_narrow = most_block_columns(K) >= D
    enough, is_sparse = ROWS_PER_COLUMN * D, schema.kind == "csr"
    is_joint = K * D <= MOST_JOINT_COLUMNS and n * (K * D) ** 2 <= MOST_JOINT_PRODUCTS
    return MultinomialState(
        phase=MultinomialPhase.LOOK,
        num_classes=K,
        D=D,
        num_all_rows=n,
        is_joint=is_joint,
        is_narrow=is_narrow,
        block_rows=enough if is_narrow and n > enough else 0,
        kept_products=KEPT_PRODUCTS if is_narrow and (is_sparse or n <= enough) else KEPT_CHEAP,
        is_rough=not is_sparse and schema.dtype != "float64" and not is_joint,
        is_cold=is_cold,
        share=FIRST_SHARE,
    )
