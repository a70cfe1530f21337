"""What all tasks have in common while a model with an l1 penalty is fitted, and the layout of the sums of a pass.

D is num_features + 1, the intercept column included.
"""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.certified import ROUNDING, TINY
from chicle_elastic.solvers.linear.l1.objective import Objective, SlopeSums
from chicle_elastic.solvers.linear.pass_solver import HEAD
from chicle_elastic.solvers.linear.progress import Numbers, ProgressState, no_numbers, nothing

SHARES = (0.75, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.025, 0.01, 1e-3, 1e-4, 1e-6)
"""Shares of a direction that is too long at which a pass looks."""
FIRST_SHARE = 0.9
"""Share of tol that is aimed at before a certificate has refused anything."""
PATIENCE = 3
"""Certificates refused before w counts as good as it gets: what has no room for its digits, or another step."""


class L1Phase(IntEnum):
    """What the next pass does for an output."""

    LOOK = 0
    """Weights of the classes, or means; and lengths of columns."""
    EVALUATE = 1
    """Losses and slopes at the end of the direction; if W always has all columns their products with it, unless they
    are known."""
    MULTIPLY = 2
    """Products of the columns of the working set, at w."""
    SOLVE = 3
    """One task solves for the direction: from products, or where there are none from the columns of its rows."""
    SEARCH = 4
    """Losses along a direction that was too long."""
    REST = 5
    """Nothing: w is good enough, and a certificate follows."""


@dataclass(slots=True, kw_only=True)
class OutputState(ProgressState):
    """Where one output is.

    Attributes:
        phase: What the next pass does.
        value: The objective at w; infinite where it is not known.
        gap: Relative duality gap at w, as far as the last evaluation can tell; infinite where it is not known.
        plus, minus: What the slopes of its class and of the others are multiplied by for duals that are feasible; 0
            where that is not known.
        accuracy: Share of how far slopes are off that a solution may leave.
        damping: Share of the largest possible curvature that is added to the second derivatives, because the direction
            before was much too long; the model then trusts w more.
        num_solved: Directions found since the beginning, or since a certificate was not good enough.
        num_still: Steps in a row that lowered neither the objective nor the gap.
        is_rough: Products are summed up in float32.
        is_chosen: The direction has the length that a search has found.
        slopes: sum_i a_i x_i of the slopes a_i at w, shape (D,).
        direction: Where to go from w, shape (D,). At rest from w to where the duals are the slopes, which may be less
            than w has digits for.
        columns: The working set W, ascending, shape (h,); empty where it always has all columns.
        products: Second derivatives in the columns of W, packed by rows; those of the squared loss are kept.
    """

    phase: L1Phase = L1Phase.LOOK
    value: float = np.inf
    gap: float = np.inf
    plus: float = 0.0
    minus: float = 0.0
    accuracy: float = 1.0
    damping: float = 0.0
    num_solved: int = 0
    num_still: int = 0
    is_rough: bool = False
    is_chosen: bool = False
    slopes: Array = field(default_factory=nothing)
    direction: Array = field(default_factory=nothing)
    columns: Numbers = field(default_factory=no_numbers)
    products: Array = field(default_factory=nothing)


@dataclass(slots=True, kw_only=True)
class L1State(ProgressState):
    """Of all outputs.

    Attributes:
        is_whole: W always has all columns.
        is_parabola: The loss is the squared one: second derivatives are the same everywhere.
        from_columns: The task that is alone solves from the columns of its rows, without products.
        most_columns: Columns of W at most, the intercept included.
        num_sides: Of `SlopeSums`.
        D: Columns, the intercept included.
        num_rows: Rows that were looked at first.
        share: Share of tol below which an output rests.
        num_refused: Certificates that were not good enough.
        turn: The task whose rank this is, modulo their number, solves for the first output, and so on.
        total: Sum of the weights of a squared loss, which its C_i are divided by; else 1.
        target_mean: Weighted mean of real targets; 0 without a free intercept.
        means: Those of the columns of a squared loss with a free intercept, shape (D,); else zeros.
        norms: Lengths of the columns, rows weighted by C_i, and less their means, shape (D,); zeros where W has all
            columns of a squared loss.
        outputs: By number.
    """

    is_whole: bool
    is_parabola: bool
    from_columns: bool = False
    most_columns: int
    num_sides: int
    D: int
    num_rows: float = 0.0
    share: float = FIRST_SHARE
    num_refused: int = 0
    turn: int = 0
    total: float = 1.0
    target_mean: float = 0.0
    means: Array = field(default_factory=nothing)
    norms: Array = field(default_factory=nothing)
    outputs: list[OutputState]

    @classmethod
    def fresh(
        cls, num_outputs: int, D: int, objective: Objective, *, is_whole: bool, is_rough: bool, most_columns: int
    ) -> "L1State":
        """Before the first pass."""
        return cls(
            is_whole=is_whole,
            is_parabola=objective.loss is None,
            most_columns=most_columns,
            num_sides=objective.num_sides,
            D=D,
            outputs=[OutputState(is_rough=is_rough) for _ in range(num_outputs)],
        )

    @property
    def floor(self) -> float:
        """Return what P counts as at least: constant targets leave rounding."""
        return max(ROUNDING * self.target_mean**2, TINY)

    @property
    def has_last_word(self) -> bool:
        """Say whether the next solution is for the duals alone, as w has no room for its digits: every other one."""
        return self.is_parabola and self.num_refused >= PATIENCE and (self.num_refused - PATIENCE) % 2 == 0

    @property
    def is_looking(self) -> bool:
        """Whether the next pass looks at the data; all outputs do so together."""
        return self.outputs[0].phase is L1Phase.LOOK

    @property
    def is_at_rest(self) -> bool:
        """Whether no output has anything left to do."""
        return all(output.phase is L1Phase.REST for output in self.outputs)

    @property
    def gap(self) -> float:
        """The largest relative gap of all outputs."""
        return max([output.gap for output in self.outputs])

    @property
    def reads_rows(self) -> bool:
        """Say whether the next pass reads the rows."""
        return any(output.phase not in (L1Phase.SOLVE, L1Phase.REST) for output in self.outputs)

    @property
    def sums_size(self) -> int:
        """Length of the sums of the next pass: HEAD, of a look sums of C_i x_i (D) and C_i x_i^2 (D), of outputs."""
        looks = 2 * self.D if self.is_looking else 0
        return HEAD + looks + sum(map(self._output_size, self.outputs))

    def parts(self, sums: Array) -> list[Array]:
        """Views of the sums of each output."""
        position, found = len(sums), []
        for output in reversed(self.outputs):
            size = self._output_size(output)
            found.append(sums[position - size : position])
            position -= size
        return found[::-1]

    def needs_products(self, output: OutputState) -> bool:
        """Say whether an evaluation brings the products of all columns."""
        return self.is_whole and not len(output.products)

    def _output_size(self, output: OutputState) -> int:
        """Of one output.

        LOOK:      sum of C_i of its class, and of the others; of real targets sum of weights, and of their product
        EVALUATE:  see `SlopeSums`; products (packed, where `needs_products`)
        MULTIPLY:  products (packed)
        SOLVE:     whether it was solved, whether to rounding, changes of the weights of W (h)
        SEARCH:    losses at each of SHARES
        REST:      nothing
        """
        h = self.D if self.is_whole or self.from_columns else len(output.columns)
        if output.phase is L1Phase.LOOK:
            return 2
        if output.phase is L1Phase.EVALUATE:
            return SlopeSums.size(self.num_sides, self.D) + self.needs_products(output) * h * (h + 1) // 2
        if output.phase is L1Phase.MULTIPLY:
            return h * (h + 1) // 2
        if output.phase is L1Phase.SOLVE:
            return 2 + h
        return len(SHARES) if output.phase is L1Phase.SEARCH else 0
