"""What is fixed while Newton's method runs on a data set, and where each sum of a pass lies.

Sums of a pass, one vector:

    part              length   meaning
    incomplete        1        tasks that were interrupted: nothing may follow from the sums
    then of an output in phase EVALUATE:
    direction         D        of each task; their mean counts (see `agreement`)
    start             2        of the hinge, value and slope of its smoothed losses at the beginning of the direction;
                               of a first pass, the sum of the dual values of the duals that the chunks have
    values            3 c      at each candidate: sums of losses, of dual values, and of smoothed losses
    slopes            g        slope of the smoothed losses at each share of GRID (hinge); of the squared hinge after
                               a direction that was rejected
    then for each candidate and variant:
    gradient          D        w(a) of the duals a that belong to the candidate
    block             h(h+1)/2 lower triangle of the second derivatives in the columns of the block, unless it is kept
    diagonal          D        of the second derivatives, where the block does not have all columns, unless it is kept
    and of an output in phase MULTIPLY:
    direction         D        p of each task; the mean counts
    product           D        second derivatives times p

A *candidate* is a share of the direction; several of them make it likely that one is good, and cost a block each. The
hinge has two *variants* of what belongs to a candidate: with the present centers, and with centers that move there. Of
the smooth losses only the losses are in `values`: w, losses and gradient have all that the gap is made of.
"""

from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState, OutputState
from chicle_elastic.solvers.linear.objectives import Loss

FEW_VALUES = 1 << 16
"""Values of a block, over all outputs, up to which several candidates are worth their cost."""
GRID = np.array([1e-3, 0.01, 0.05, 0.12, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0, 8.0])
"""Shares of a direction at which the hinge is looked at in case that no candidate is good enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewtonPlan:
    """The same in every task, whatever their number.

    Attributes:
        loss: The loss.
        tol: Relative gap to reach.
        num_outputs: Outputs of the model.
        D: Values of w of one output.
        block_columns: Columns of the block at most.
        row_step: Every so many-th row counts for the block, so many times.
        has_many_rows: A pass of the hinge looks at one candidate, and at slopes only after a rejected direction.
    """

    loss: Loss
    tol: float
    num_outputs: int
    D: int
    block_columns: int
    row_step: int = 1
    has_many_rows: bool = False

    @classmethod
    def of(cls, state: NewtonState, num_parameters: int, *, loss: Loss, tol: float) -> "NewtonPlan":
        """The plan that a state follows."""
        return cls(
            loss=loss,
            tol=tol,
            num_outputs=len(state.outputs),
            D=num_parameters // len(state.outputs),
            block_columns=state.block_columns,
            row_step=state.row_step,
            has_many_rows=state.has_many_rows,
        )

    @property
    def is_smooth(self) -> bool:
        """Whether the loss has second derivatives as it is."""
        return self.loss is not Loss.HINGE

    @property
    def candidates(self) -> tuple[float, ...]:
        """Shares of the direction that a pass evaluates."""
        is_cheap = self.num_outputs * self.block_columns * (self.block_columns + 1) // 2 <= FEW_VALUES
        is_cheap = is_cheap and not self.has_many_rows
        return (1.0, 0.4, 0.15) if is_cheap and not self.is_smooth else (1.0,)

    @property
    def num_variants(self) -> int:
        """See the module."""
        return 1 if self.is_smooth else 2

    @property
    def has_all_columns(self) -> bool:
        """Whether the block has all columns."""
        return self.block_columns >= self.D

    @property
    def is_exact(self) -> bool:
        """Whether the block is all of the second derivatives, so that no conjugate gradients are needed."""
        return self.has_all_columns and (self.row_step == 1 or not self.is_smooth)

    def num_block_values(self, output: OutputState) -> int:
        """Values of the block of an output; none before its columns are chosen, or where the last one is kept."""
        if output.keeps_block:
            return 0
        h = self.D if self.has_all_columns else len(output.columns)
        return h * (h + 1) // 2

    def num_diagonal_values(self, output: OutputState) -> int:
        """Values of the diagonal of an output beside its block."""
        return 0 if self.has_all_columns or output.keeps_block else self.D

    def num_slopes(self, output: OutputState) -> int:
        """Shares of the direction at which the pass finds the slope of an output in phase EVALUATE."""
        was_rejected = output.num_rejected > 0
        if self.loss is Loss.HINGE:
            return len(GRID) if was_rejected or not self.has_many_rows else 0
        return len(GRID) if was_rejected and self.loss is Loss.SQUARED_HINGE else 0

    def sums_size(self, state: NewtonState) -> int:
        """Length of the sums of the next pass."""
        return 1 + sum(self._output_size(output) for output in state.outputs)

    def _output_size(self, output: OutputState) -> int:
        if output.phase is NewtonPhase.REST:
            return 0
        if output.phase is NewtonPhase.MULTIPLY:
            return 2 * self.D
        per_variant = self.D + self.num_block_values(output) + self.num_diagonal_values(output)
        return self.D + 2 + self.num_slopes(output) + len(self.candidates) * (3 + self.num_variants * per_variant)

    def sums(self, state: NewtonState, buffer: Array) -> "list[OutputSums | None]":
        """Views of the sums in `buffer`, per output; None for one that rests."""
        found: list[OutputSums | None] = []
        position = 1
        for output in state.outputs:
            size = self._output_size(output)
            found.append(OutputSums(self, output, buffer[position : position + size]) if size else None)
            position += size
        return found


class OutputSums:
    """Views of the sums of one output in a pass; see the module for what they are.

    Attributes:
        direction: Shape (D,).
        product: Shape (D,), in phase MULTIPLY.
        start: Shape (2,).
        values: Shape (candidates, 3).
        slopes: Shape (len(GRID),), or empty.
        gradients: Shape (D,) by [candidate][variant].
        blocks: Shape (h (h + 1) / 2,) by [candidate][variant].
        diagonals: Shape (D,) by [candidate][variant]; empty where the block has all columns.
    """

    def __init__(self, plan: NewtonPlan, output: OutputState, part: Array) -> None:
        D, position = plan.D, 0

        def take(size: int) -> Array:
            nonlocal position
            position += size
            return part[position - size : position]

        self.direction = take(D)
        if output.phase is NewtonPhase.MULTIPLY:
            self.product = take(D)
            return
        candidates = range(len(plan.candidates))
        self.start = take(2)
        self.values = take(3 * len(plan.candidates)).reshape(-1, 3)
        self.slopes = take(plan.num_slopes(output))
        variants = range(plan.num_variants)
        sizes = (D, plan.num_block_values(output), plan.num_diagonal_values(output))
        found = [[tuple(take(size) for size in sizes) for _ in variants] for _ in candidates]
        self.gradients = [[found[c][v][0] for v in variants] for c in candidates]
        self.blocks = [[found[c][v][1] for v in variants] for c in candidates]
        self.diagonals = [[found[c][v][2] for v in variants] for c in candidates]
