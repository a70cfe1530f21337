"""What is fixed while Newton's method runs on a data set, and where each sum of a pass lies.

Sums of a pass, one vector:

    part              length   meaning
    incomplete        1        tasks that were interrupted: nothing may follow from the sums
    then of an output in phase EVALUATE:
    direction         D        of each task; their mean counts (see `agreement`)
    start             2        of the hinge, value and slope of its smoothed losses at the beginning of the direction;
                               of a first pass, sums of the dual values of the duals that the chunks have, and of these
                               with the signs of their classes
    values            3 c      at each candidate: sums of losses, of dual values, and of smoothed losses; with a free
                               intercept of losses, and of slopes of rows of its class and of others
    slopes            g        slope of the smoothed losses at each share of GRID (hinge); of smooth losses after a
                               direction that was rejected
    then for each candidate and variant:
    gradient          D        w(a) of the duals a that belong to the candidate
    block             h(h+1)/2 lower triangle of the second derivatives in the columns of the block, unless it is kept
    diagonal          D        of the second derivatives, where the block does not have all columns, unless it is kept
    beside            D        with a free intercept, second derivatives by it and each weight, likewise
    and of an output in phase MULTIPLY:
    direction         D        p of each task; the mean counts
    product           D        second derivatives times p
    and of an output in phase BALANCE:
    masses            2        sums of the duals of rows of its class, and of others

Outputs that follow each other and whose sums have the same parts are a *group*: each part is a matrix, with a row per
output. At first all outputs are in one.

A *candidate* is a share of the direction; several of them make it likely that one is good, and cost a block each. The
hinge has two *variants* of what belongs to a candidate: with the present centers, and with centers that move there. Of
the smooth losses only the losses are in `values`: w, losses and gradient have all that the gap is made of.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.newton.state import Block, NewtonPhase, NewtonState, OutputState
from chicle_elastic.solvers.linear.objectives import Loss

FEW_VALUES = 1 << 16
"""Values of a block, over all outputs, up to which several candidates are worth their cost."""
GRID = np.array([1e-3, 0.01, 0.05, 0.12, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 4.0, 8.0])
"""Shares of a direction at which slopes are looked at in case that no candidate is good enough."""


@dataclass(frozen=True, kw_only=True)
class NewtonPlan:
    """The same in every task, whatever their number.

    Attributes:
        loss: The loss.
        tol: Relative gap to reach.
        num_outputs: Outputs of the model.
        D: Values of w of one output.
        block_columns: Columns of the block at most.
        row_step: One row in so many counts for a preconditioner, so many times.
        is_cheap: Second derivatives of all rows may be asked for, again and again.
        has_many_rows: A pass of the hinge looks at one candidate, and at slopes only after a rejected direction.
        has_free_intercept: The weight of the last column is not penalised. For the logistic loss only.
    """

    loss: Loss
    tol: float
    num_outputs: int
    D: int
    block_columns: int
    row_step: int = 1
    is_cheap: bool = True
    has_many_rows: bool = False
    has_free_intercept: bool = False

    @staticmethod
    def of(
        state: NewtonState, num_parameters: int, *, loss: Loss, tol: float, has_free_intercept: bool = False
    ) -> "NewtonPlan":
        """The plan that a state follows; the same object again and again."""
        return _plan(
            loss=loss,
            tol=tol,
            num_outputs=len(state.outputs),
            D=num_parameters // len(state.outputs),
            block_columns=state.block_columns,
            row_step=state.row_step,
            is_cheap=state.is_cheap,
            has_many_rows=state.has_many_rows,
            has_free_intercept=has_free_intercept,
        )

    @cached_property
    def ridge(self) -> Array:
        """Second derivatives of the penalty: 1, or 0 of a free intercept; shape (D,)."""
        ridge = np.ones(self.D)
        ridge[-1] = 0.0 if self.has_free_intercept else 1.0
        return ridge

    def penalised(self, w: Array) -> Array:
        """w with 0 for a weight that is not penalised, shape (..., D): the gradient of the penalty."""
        if not self.has_free_intercept:
            return w
        w = w.copy()
        w[..., -1] = 0.0
        return w

    @cached_property
    def is_smooth(self) -> bool:
        """Whether the loss has second derivatives as it is."""
        return self.loss is not Loss.HINGE

    @cached_property
    def candidates(self) -> tuple[float, ...]:
        """Shares of the direction that a pass evaluates."""
        is_cheap = self.num_outputs * self.block_columns * (self.block_columns + 1) // 2 <= FEW_VALUES
        is_cheap = is_cheap and not self.has_many_rows
        return (1.0, 0.4, 0.15) if is_cheap and not self.is_smooth else (1.0,)

    @cached_property
    def num_variants(self) -> int:
        """See the module."""
        return 1 if self.is_smooth else 2

    @cached_property
    def has_all_columns(self) -> bool:
        """Whether the block has all columns."""
        return self.block_columns >= self.D

    @cached_property
    def needs_products(self) -> bool:
        """Say whether steps are found by conjugate gradients, because a block is not all of the second derivatives.

        With kinks a sum of all costs no more than the rows that have changed sides, and damped steps need it.
        """
        return self.is_smooth and not (self.has_all_columns and (self.is_cheap or self.loss.has_kinks))

    @cached_property
    def first_block(self) -> Block:
        """What the first evaluation adds up. Of the hinge the block is all there is."""
        if self.needs_products:
            return Block.SAMPLED if self.row_step > 1 else Block.EXACT
        return Block.ROUGH if self.is_smooth else Block.EXACT

    @cached_property
    def most_block_values(self) -> int:
        """Values of all blocks of a pass at most, which is what most sums are."""
        h = min(self.block_columns, self.D)
        return self.num_outputs * len(self.candidates) * self.num_variants * h * (h + 1) // 2

    def sums_size(self, outputs: Sequence[OutputState]) -> int:
        """Length of the sums of the next pass."""
        return 1 + sum(self._size(self._layout(output)) for output in outputs)

    def _layout(self, output: OutputState) -> "Layout | None":
        """None for an output that rests."""
        if output.phase is NewtonPhase.REST:
            return None
        if output.phase is NewtonPhase.MULTIPLY:
            return MULTIPLY
        if output.phase is NewtonPhase.BALANCE:
            return BALANCE
        h = 0 if output.block is Block.KEPT else self.D if self.has_all_columns else len(output.columns)
        was_rejected = output.num_rejected > 0
        has_slopes = was_rejected or not (self.is_smooth or self.has_many_rows)
        return Layout(
            num_block_values=h * (h + 1) // 2,
            num_diagonal_values=0 if self.has_all_columns or output.block is Block.KEPT else self.D,
            has_beside=self.has_free_intercept and not self.has_all_columns and output.block is not Block.KEPT,
            num_slopes=len(GRID) if has_slopes else 0,
        )

    def _size(self, layout: "Layout | None") -> int:
        if layout is None:
            return 0
        if layout is MULTIPLY:
            return 2 * self.D
        if layout is BALANCE:
            return 2
        per_variant = self.D + layout.num_block_values + layout.num_diagonal_values + layout.has_beside * self.D
        return self.D + 2 + layout.num_slopes + len(self.candidates) * (3 + self.num_variants * per_variant)

    def groups(self, outputs: Sequence[OutputState], buffer: Array) -> "list[Group]":
        """Views of the sums in `buffer`; outputs that rest are in no group."""
        found: list[Group] = []
        position = 1
        for layout, members in itertools.groupby(range(len(outputs)), key=lambda k: self._layout(outputs[k])):
            if layout is None:
                continue
            numbers = list(members)
            size = len(numbers) * self._size(layout)
            found.append(Group(self, layout, numbers, buffer[position : position + size].reshape(len(numbers), -1)))
            position += size
        return found


_plan = lru_cache(maxsize=8)(NewtonPlan)


class Layout(NamedTuple):
    """Lengths of the parts that not all sums have."""

    num_block_values: int
    num_diagonal_values: int
    num_slopes: int
    has_beside: bool = False


MULTIPLY = Layout(-1, -1, -1)
"""The one of phase MULTIPLY, which has no such parts."""
BALANCE = Layout(-2, -2, -2)
"""The one of phase BALANCE."""


class Group:
    """Views of the sums of some outputs in a pass; see the module for what they are. Rows are those outputs.

    Attributes:
        numbers: Which outputs, ascending.
        is_product: Whether they are in phase MULTIPLY.
        is_balance: Whether they are in phase BALANCE.
        masses: Shape (n, 2), in phase BALANCE, which has nothing else.
        direction: Shape (n, D).
        product: Shape (n, D), in phase MULTIPLY; none of those that follow is there.
        start: Shape (n, 2).
        values: Shape (n, candidates, 3).
        slopes: Shape (n, len(GRID)), or (n, 0).
        gradients: Shape (n, D) by [candidate][variant].
        blocks: Shape (n, h (h + 1) / 2) by [candidate][variant].
        diagonals: Shape (n, D) by [candidate][variant]; (n, 0) where the block has all columns.
        beside: Shape (n, D), of the only candidate; (n, 0) without a free intercept or where the block has all columns.
    """

    def __init__(self, plan: NewtonPlan, layout: Layout, numbers: list[int], parts: Array) -> None:
        D, position = plan.D, 0

        def take(size: int) -> Array:
            nonlocal position
            position += size
            return parts[:, position - size : position]

        self._plan, self._layout, self._parts = plan, layout, parts
        self.numbers = numbers
        self.is_product, self.is_balance = layout is MULTIPLY, layout is BALANCE
        if self.is_balance:
            self.masses = take(2)
            return
        self.direction = take(D)
        if self.is_product:
            self.product = take(D)
            return
        candidates, variants = range(len(plan.candidates)), range(plan.num_variants)
        self.start = take(2)
        self.values = take(3 * len(candidates)).reshape(len(numbers), -1, 3)
        self.slopes = take(layout.num_slopes)
        sizes = (D, layout.num_block_values, layout.num_diagonal_values)
        found = [[tuple(take(size) for size in sizes) for _ in variants] for _ in candidates]
        self.gradients = [[found[c][v][0] for v in variants] for c in candidates]
        self.blocks = [[found[c][v][1] for v in variants] for c in candidates]
        self.diagonals = [[found[c][v][2] for v in variants] for c in candidates]
        self.beside = take(D if layout.has_beside else 0)

    def add_directions(self, outputs: Sequence[OutputState]) -> None:
        """Add where the outputs go, once per task; the other sums are those over its rows."""
        if not self.is_balance:
            self.direction += [outputs[k].p if self.is_product else outputs[k].direction for k in self.numbers]

    def split(self, size: int) -> "list[Group]":
        """The same sums as groups of so many outputs at most."""
        if len(self.numbers) <= size:
            return [self]
        starts = range(0, len(self.numbers), size)
        return [
            Group(self._plan, self._layout, self.numbers[begin : begin + size], self._parts[begin : begin + size])
            for begin in starts
        ]
