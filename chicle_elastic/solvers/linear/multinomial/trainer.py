"""Multinomial logistic regression: the model, the method, and when to stop. See `objective` and `problem`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.base import Context, Report, Solver
from chicle_elastic.solvers.linear.certified import LEAST_SHARE, CertifiedTrainer, num_outputs
from chicle_elastic.solvers.linear.methods import MOST_BLOCK_VALUES, ROWS_PER_COLUMN
from chicle_elastic.solvers.linear.multinomial import objective
from chicle_elastic.solvers.linear.multinomial.problem import SoftmaxProblem, num_blocks
from chicle_elastic.solvers.linear.newton import steps
from chicle_elastic.solvers.linear.newton.state import KEPT_PRODUCTS, NewtonState
from chicle_elastic.solvers.linear.products import MOST_EXACT

MOST_JOINT_PRODUCTS = 1 << 24
"""Multiplications of the second derivatives by all weights of all classes up to which these are summed up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MultinomialTrainer(CertifiedTrainer):
    """Logistic regression with one softmax over all classes, as scikit-learn's LogisticRegression has it.

    The model is W of shape (num_classes, num_features + 1), flattened, float64; its last column has the intercepts.
    """

    name = "Multinomial"
    machines: ClassVar[Any] = {NewtonState: steps}
    sums = "loss", "entropy", "rows"
    C: float = 1.0  # factor of the sum of losses, > 0
    tol: float = 1e-3  # relative duality gap at which to stop; 0 for never
    has_intercept: bool = True  # whether there are intercepts, which are not penalised
    # factor of C per target code; None for 1. Rows of a code with the factor 0 are left out
    class_weights: tuple[float, ...] | None = None
    code_classes: tuple[int, ...] | None = None  # class of each target code, from 0; None where codes are classes
    has_one_softmax: ClassVar[bool] = True
    intercept_scaling: ClassVar[float] = 1.0  # of the last column of the model

    def __post_init__(self) -> None:
        if not 0 < self.C < np.inf or not self.tol >= 0:
            raise UsageError(f"multinomial regression needs C > 0 and tol >= 0, got C={self.C}, tol={self.tol}")

    def problem_of(self, state: NewtonState) -> SoftmaxProblem:
        """Return what is minimised."""
        return SoftmaxProblem(tol=self.tol, has_free_intercept=self.has_intercept, num_classes=state.num_classes)

    def num_outputs(self, schema: DataSchema) -> int:
        """One output per class; a UsageError where targets are not class codes."""
        K = self._num_classes(schema)
        return max(num_outputs(schema, K), K)

    def _num_classes(self, schema: DataSchema) -> int:
        return schema.num_classes if self.code_classes is None else max(self.code_classes) + 1

    def identity(self) -> Mapping[str, Any]:
        """Leave out what is as it was before there were codes, as checkpoints do."""
        found = CertifiedTrainer.identity(self)
        return {name: value for name, value in found.items() if (name, value) != ("code_classes", None)}

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task."""
        from chicle_elastic.solvers.linear.multinomial.solver import MultinomialSolver

        return MultinomialSolver(ctx, self)

    def _first_state(self, schema: DataSchema, model: Array, num_tasks: int) -> NewtonState:
        state = first_state(schema, self._num_classes(schema))
        return steps.start(state, self.problem_of(state), model)

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """In words for the user."""
        K, D = self._num_classes(schema), schema.num_features + 1
        state = first_state(schema, K)
        if state.is_exact:
            return (
                "Newton's method on chunks, because of the multinomial loss, and second derivatives of "
                f"{D} columns and {K} classes are few"
            )
        fit = {K: "fit", 1: "do not fit, but their mean does,", 0: "do not fit"}[num_blocks(K, D)]
        return (
            "Newton's method on chunks by conjugate gradients, because of the multinomial loss; second derivatives by "
            f"class of {D} columns and {K} classes {fit} into a message"
        )

    def primal_and_dual(self, model: Array, report: Report) -> tuple[float, float]:
        """P and D at a certificate; D is unknown, minus infinity, where other rows were looked at before."""
        assert report.rebuilt is not None, "only a certificate has P and D"
        state = NewtonState.look(report.progress)
        linear = state.outputs[0].linear
        is_known = report.metrics["rows"] == state.num_rows and len(linear) > 0
        W = model.reshape(state.num_classes, -1)
        with np.errstate(over="ignore", invalid="ignore"):
            primal, dual = objective.primal_and_dual(
                W,
                report.rebuilt.reshape(W.shape),
                loss=report.metrics["loss"],
                entropy=report.metrics["entropy"],
                linear=linear.reshape(W.shape) if is_known else np.ones_like(W),
                has_intercept=self.has_intercept and is_known,
            )
        return primal, dual if is_known and not np.isnan(dual) else -np.inf

    def has_last_word(self, report: Report) -> bool:
        """See `CertifiedTrainer`."""
        return NewtonState.look(report.progress).share <= LEAST_SHARE


def first_state(schema: DataSchema, K: int) -> NewtonState:
    """Say before the first pass over data of K classes which second derivatives are summed up, and of which rows."""
    n, D = schema.num_rows, schema.num_features + 1
    is_joint = K * D <= MOST_EXACT and n * (K * D) ** 2 <= MOST_JOINT_PRODUCTS
    row_step = 1 if is_joint or not num_blocks(K, D) else max(1, n // (ROWS_PER_COLUMN * D))
    return NewtonState(
        D=K * D,
        block_columns=K * D if is_joint else 0,
        row_step=row_step,
        is_exact=is_joint,
        is_rough=schema.kind != "csr" and schema.dtype != "float64" and not is_joint,
        has_many_rows=n * D > MOST_BLOCK_VALUES,
        # As many products as take the time of the blocks of dense rows: one per 8 columns. With 2 and 32 in place of 8,
        # 44 tables take 8 % more and 2 % fewer iterations, and 20,000 rows of 300 columns 1.0 and 1.3 of the time.
        kept_products=min(max(D // (KEPT_PRODUCTS * row_step), KEPT_PRODUCTS // 4), 2 * KEPT_PRODUCTS),
        num_classes=K,
        outputs=[],
    )
