"""What all tasks have in common while Newton's method runs, one `OutputState` per output, and where its sums lie.

D is num_features + 1, the intercept column included; theta, c_i and alpha are those of `losses`. A *block* has the
second derivatives in some columns or all of them, packed.

Sums of a pass, one vector: HEAD (see `progress`), then of each output, by its phase

    LOOK:      sum c, sum c |y|, sum c y, sum c y^2; of few rows their numbers of values, or what the problem looks at
    GATHER:    c and y of all rows, their columns, and their values
    SOLVE:     the change of w (D), theta, the gap, whether that is small, the work of all passes alone so far, and the
               duals of all rows, per unit of c
    EVALUATE:  see `Evaluation`
    MULTIPLY:  sum c f'' <x, p> x (D), p (D)
    PRODUCTS:  sum c f'' x x^T in the columns of the block, packed
    COLUMNS:   the direction (D)
    REST:      nothing
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import squared
from chicle_elastic.solvers.linear.certified import AGAIN, LEAST_SHARE
from chicle_elastic.solvers.linear.losses import RegressionLoss
from chicle_elastic.solvers.linear.newton.directions import Preconditioner, exact_solver
from chicle_elastic.solvers.linear.objectives import ROUNDING, ROWS_IN_CACHE, TINY
from chicle_elastic.solvers.linear.products import unpack
from chicle_elastic.solvers.linear.progress import HEAD, NOTHING, Numbers, ProgressState, no_numbers, nothing

SHARES = (1.0, 0.8, 0.6, 0.45, 0.3, 0.2, 0.13, 0.08, 0.04, 0.02, 0.005, 0.001)
"""Shares of a direction whose losses a pass looks at."""
KEPT_PRODUCTS = 8  # products of a run up to which the next one has the same preconditioner


class NewtonPhase(IntEnum):
    """What the next pass sums up for an output."""

    LOOK = 0  # how large targets are
    EVALUATE = 1  # losses, gradient and second derivatives at the end of the direction, and losses along it
    MULTIPLY = 2  # the product of the second derivatives with `conjugate`
    COLUMNS = 4  # with an l1 penalty: a task that is alone finds the direction from the columns of its rows
    PRODUCTS = 6  # with an l1 penalty: second derivatives in the columns of a working set
    GATHER = 5  # the values of all rows
    SOLVE = 7  # the w that each task finds alone, of the rows that were gathered
    REST = 3  # nothing: w is good enough, and a certificate follows once that is so for all outputs


class Sum(IntEnum):
    """Places of the scalars that an evaluation begins with: sums of c_i times what is said."""

    ROUND = 0  # losses with round corners
    LOSS = 1  # losses
    LACK = 2  # losses less duals and scores (`dual_values`) of the duals
    PLUS = 3  # positive duals
    MINUS = 4  # negative duals
    BY_SCALE = 5  # first and second derivatives by a scale
    TWICE_BY_SCALE = 6
    ROUND_BEFORE = 7  # with corners, losses with those of the width before
    LACK_OF_SLOPES = 8  # with corners, losses less duals and scores of the slopes
    DUALS = 9  # dual values: of the duals in the chunks, in a first pass with such; of a softmax the entropy
    SIGNED = 10  # duals in the chunks times targets
    SQUARES = 11  # with a theta, squares of the duals
    OF_POSITIVE = 12  # losses of positive slopes, where duals of both signs are scaled apart


class Block(IntEnum):
    """Which second derivatives an evaluation adds up."""

    KEPT = 0  # None: the last ones are good enough
    SAMPLED = 1  # of a sample of the rows, see `NewtonState.row_step`
    ROUGH = 2  # of all rows, in float32 where the rows are dense
    EXACT = 3  # of all rows, in float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is minimised, and what of a step depends on how its outputs and their intercepts hang together."""

    takes_steps: ClassVar[bool] = False  # steps are the problem's own (`evaluated`, `solved`)
    loss: RegressionLoss  # the loss
    tol: float  # relative gap to reach
    alpha: float = 1.0  # factor of 1/2 |w|^2
    is_mean: bool = False  # the losses count as C times their mean and not as their sum
    C: float = 1.0  # what the c_i are multiples of
    num_classes: int = 1  # K, of which one output has the weights: with a softmax more than 1
    has_free_intercept: bool = False  # the last weight is not penalised
    has_duals: bool = False  # the chunks have duals, from which w follows in the end; else targets are looked at first
    steps_of_rows: Callable[..., tuple[Array, Array, Array]] | None = None  # finds exact `steps`, of few rows

    @property
    def has_duals_of_w(self) -> bool:
        """Say whether the duals are always those of the present w; those of a softmax follow from the probabilities."""
        return self.loss.is_parabola or self.num_classes > 1 or (self.has_duals and not self.loss.has_corners)

    @property
    def has_sides(self) -> bool:
        """Whether evaluations sum up positive slopes times rows by themselves, too."""
        return self.takes_steps and self.has_free_intercept and not self.loss.is_parabola

    def penalty(self, state: "NewtonState", w: Array) -> float:
        """Return that of w beside the sum of losses."""
        return 0.5 * self.strength(state) * squared(self.penalised(w))

    def lack(self, state: "NewtonState", w: Array, v: Array, of_losses: float, primal: float, squares: float) -> float:
        """Return P - D of duals, but for what an intercept lacks that is not penalised.

        `v` is sum c a x of the duals a, `of_losses` the sum of losses, less dual values and <w, v>, `primal` is P, and
        `squares` the sum of c a^2.
        """
        alpha = self.strength(state)
        lack = of_losses + 0.5 * alpha * squared(self.penalised(w) - self.penalised(v) / alpha)
        if self.loss.has_scale:  # too large duals are made smaller: their part of D is linear, the norm a square
            share = min(1.0, math.sqrt(4.0 * state.total / max(squares, TINY)))
            norm = self.penalty(state, v / alpha)
            lack += (1.0 - share) * (primal - lack + norm) - (1.0 - share * share) * norm
        return lack

    def has_last_word(self, state: "NewtonState") -> bool:
        """Say whether the next steps are for the duals alone."""
        return False

    def unit(self, state: "NewtonState") -> float:
        """Return what sums of losses and penalties are divided by in P."""
        return state.total / self.C if self.is_mean else 1.0

    def strength(self, state: "NewtonState") -> float:
        """Alpha beside the sum of losses."""
        return self.alpha * self.unit(state)

    def ridge(self, state: "NewtonState") -> Array:
        """Second derivatives of the penalty, shape (D,)."""
        ridge = np.full((self.num_classes, state.D // self.num_classes), self.strength(state))
        ridge[:, -1] *= not self.has_free_intercept
        return ridge.ravel()

    def eliminates_intercept(self, state: "NewtonState") -> bool:
        """Say whether conjugate gradients eliminate an intercept first: where no block may have its column."""
        return self.has_free_intercept and state.block_columns == 0

    def penalised(self, w: Array) -> Array:
        """w with 0 for weights that are not penalised."""
        if not self.has_free_intercept:
            return w
        W = self.by_class(w).copy()
        W[:, -1] = 0.0
        return W.ravel()

    def by_class(self, w: Array) -> Array:
        """View what is flat as (K, D)."""
        return w.reshape(self.num_classes, -1)

    def look_size(self, state: "NewtonState", output: "OutputState") -> int:
        """Length of the sums of a look at the targets."""
        return 4 + state.few_rows

    def sizes(self, state: "NewtonState", output: "OutputState") -> tuple[int, int, int]:
        """Return the lengths of `second`, `diagonal` and `beside` of an evaluation."""
        is_kept = output.block is Block.KEPT
        h = 0 if is_kept else state.D if state.has_all_columns else len(output.columns)
        diagonal = 0 if is_kept or state.has_all_columns else state.D
        second = h * (h + 1) // 2
        return second, diagonal, diagonal * self.has_free_intercept

    def looked(
        self, state: "NewtonState", output: "OutputState", w: Array, sums: Array
    ) -> tuple[Array, "Evaluation | None"]:
        """Return the w to begin with, and its evaluation if it is known; set the first width of corners, or scale."""
        loss = self.loss
        total, size, total_y, squares = sums[:4].tolist()
        state.total = max(total, TINY)
        state.typical = size / state.total or 1.0
        share = ROUNDING * (state.typical if loss.is_quadratic else math.sqrt(1.0 / ROUNDING))
        state.floor = max(share * state.typical * state.total, TINY)
        mean = total_y / state.total if self.has_free_intercept else 0.0
        deviation = math.sqrt(max(squares / state.total - mean * mean, 0.0))
        if loss.has_corners or not w.any():
            output.theta = (loss.has_scale and deviation) or state.typical
        output.phase = NewtonPhase.EVALUATE
        if loss.is_parabola:  # what the last certificate had beside w
            w, output.shift = w + output.shift, np.zeros_like(output.shift)
        is_begun = not self.has_free_intercept or w.any()
        return (w if is_begun else np.append(w[:-1], loss.start(mean))), None

    def is_begun(self, w: Array) -> bool:
        """Say whether w may be good enough: of a large alpha 0 is within tol, and says nothing of the targets."""
        return not (self.loss.is_parabola or self.num_classes > 1) or bool(self.penalised(w).any())

    def steepness_of(self, output: "OutputState", gradient: Array, alpha: float) -> float:
        """Return what the gradient adds to the gap, once a free intercept has taken what it can take.

        With h the second derivatives by the intercept b, a step of b alone changes the gradient g of the weights to g -
        g_b h / h_b, and is worth g_b^2 / (2 h_b).
        """
        if not self.has_free_intercept:
            return 0.5 * squared(gradient) / alpha
        share = float(gradient[-1]) / max(float(output.beside[-1]), TINY)
        return 0.5 * (squared((gradient - share * output.beside)[:-1]) / alpha + share * float(gradient[-1]))

    def steepness_at(
        self, state: "NewtonState", output: "OutputState", w: Array, gradient: Array, found: "Evaluation"
    ) -> float:
        """Return the same at w, from its evaluation."""
        return self.steepness_of(output, gradient, self.strength(state))

    def resting(self, output: "OutputState", w: Array, gradient: Array, found: "Evaluation") -> Array:
        """Return the model at which an output comes to rest whose steps have led to w."""
        return w

    def solver(
        self, state: "NewtonState", output: "OutputState", second: Array, ridge: Array, *, is_rough: bool
    ) -> tuple[Callable[[Array], Array], Array]:
        """Find exact directions, see `exact_solver`; `second` is packed, and `ridge` may have damping in it."""
        return exact_solver(unpack(second, state.D), ridge, is_rough=is_rough)

    def steps(
        self, state: "NewtonState", output: "OutputState", w: Array, gradient: Array, found: "Evaluation", ridge: Array
    ) -> tuple[Array, Array, Array]:
        """Return an exact direction from w, what the scale changes it by, and the null space (see `exact_solver`)."""
        if self.steps_of_rows is not None:
            return self.steps_of_rows(output, w, ridge, self.ridge(state))
        solve, null = self.solver(state, output, found.second, ridge, is_rough=output.block is Block.ROUGH)
        return -solve(gradient), solve(found.mixed) if self.loss.has_scale else NOTHING, null

    def preconditioner(self, state: "NewtonState", output: "OutputState") -> Callable[[Array], Array]:
        """Return what estimates the solution for a right-hand side."""
        beside = output.beside if self.eliminates_intercept(state) else NOTHING
        return Preconditioner(output.diagonal, output.factor, output.columns, beside).solve

    def precondition(
        self, state: "NewtonState", output: "OutputState", diagonal: Array, found: "Evaluation", ridge: Array
    ) -> None:
        """Keep the diagonal and the factor of an evaluation for `preconditioner`."""
        beside = found.beside if self.eliminates_intercept(state) else NOTHING
        made = Preconditioner.of(found.second, diagonal, output.columns, beside, ridge)
        output.diagonal, output.factor = made.diagonal, made.factor


@dataclass(slots=True, kw_only=True)
class OutputState(ProgressState):
    """Where one output is."""

    phase: NewtonPhase = NewtonPhase.LOOK  # what the next pass sums up
    block: Block = Block.EXACT  # which second derivatives the next evaluation adds up
    is_first: bool = True  # no pass was made yet; the duals in the chunks may be good enough
    keeps_duals: bool = False  # they are, and are not to be written
    keeps_factor: bool = False  # the preconditioner is for another fit, too
    theta: float = 1.0  # of the loss, above 0
    change: float = 0.0  # by how much theta changes along the direction; the width of corners at its end
    foreseen: float = 0.0  # the part of a scale's change that the direction follows
    value: float = np.inf  # the objective with round corners at w; infinite where it is not known
    gap: float = np.inf  # relative duality gap; infinite where it is not known
    dual: float = -np.inf  # largest D of slopes so far; they are the duals
    dual_theta: float = 1.0  # the theta that these slopes had
    is_best: bool = False  # the duals of the last evaluation have that D
    reach: float = 1.0  # share of the direction that was found which the present one is
    slope: float = 0.0  # of the objective along the direction
    is_chosen: bool = False  # the direction has the length that the losses along it have told
    is_searched: bool = False  # the direction is a part of one that was too long
    is_wary: bool = False  # a direction was too long, or is likely to be
    # share of the largest second derivatives so far that is added to the diagonal, because no share of a direction was
    # good; of losses with kinks only
    damping: float = 0.0
    steepness: float = np.inf  # what the gradient adds to the gap at w, with the slopes as duals
    corners: float = 0.0  # what the corners add to it then
    enough: float = 0.0  # the gap at which the output rests, not relative
    is_refused: bool = False  # a certificate was not good enough, and no step was taken since
    is_blind: bool = False  # the last step is so short that rounding hides what it did to the objective
    # plus, minus: what positive and negative slopes are multiplied by for duals that are feasible; 0 where that is not
    # known
    plus: float = 1.0
    minus: float = 1.0
    num_products: int = 0  # products of this run of conjugate gradients
    num_spared: int = 0  # products with one block of a softmax that still take less time than a block of each class
    # with an l1 penalty: directions found since the look, and steps in a row that lowered neither objective nor gap
    num_solved: int = 0
    num_still: int = 0
    goal: float = 0.0  # squared residual in the norm of the diagonal at which the run ends
    direction: Array = field(default_factory=nothing)  # where to go from w; grows with each product
    # from w to where the duals are the slopes, which may be less than w has digits for
    shift: Array = field(default_factory=nothing)
    # second derivatives by the intercept and each weight, as of the last evaluation
    beside: Array = field(default_factory=nothing)
    # diagonal, factor: of the preconditioner, see `Preconditioner`; a parabola has the factor of all columns. With
    # kinks and exact steps, the largest diagonal so far
    diagonal: Array = field(default_factory=nothing)
    factor: Array = field(default_factory=nothing)
    # columns of the block, int64; empty for all, or for none where there is no room for all
    columns: Numbers = field(default_factory=no_numbers)
    # residual, conjugate: of conjugate gradients: what is left, and the vector to be multiplied. At rest, w as it was
    # before another one was made of the duals. With an l1 penalty, slopes times rows at w
    residual: Array = field(default_factory=nothing)
    conjugate: Array = field(default_factory=nothing)
    # vectors and products of the last run of conjugate gradients, see `conjugate`; flat
    pairs: Array = field(default_factory=nothing)
    met: Array = field(default_factory=nothing)  # vectors and products of this run; flat
    # at rest, those of all rows of the data set where the w was found alone, per unit of c
    duals: Array = field(default_factory=nothing)
    # of a softmax, the weights and features of each class: sum c y (x, 1)^T, flat
    linear: Array = field(default_factory=nothing)

    def kept(self) -> tuple[str, ...]:
        """Return the vectors that the next pass, or a certificate, needs."""
        kept = "direction", "shift", "beside", "columns", "diagonal", "linear"
        if self.phase is NewtonPhase.MULTIPLY:
            return (*kept, "factor", "residual", "conjugate", "pairs", "met")
        if self.phase in (NewtonPhase.REST, NewtonPhase.PRODUCTS, NewtonPhase.COLUMNS):
            return (*kept, "residual", "duals", *["factor"] * self.keeps_factor)
        return (*kept, "factor", "pairs") if self.block is Block.KEPT else kept

    @property
    def step(self) -> Array:
        """The direction, the change of theta with it, and the slope: what a task has found with a factor of its own."""
        return np.concatenate([self.direction, [self.change, self.slope]])


@dataclass(slots=True, kw_only=True)
class NewtonState(ProgressState):
    """A state whose sums follow each other until all outputs rest."""

    D: int  # columns, the intercept included
    block_columns: int  # columns of a block at most
    row_step: int = 1  # one row in so many counts for a block that is a preconditioner, so many times
    is_exact: bool = True  # steps come from the block, which has all columns and rows; else from conjugate gradients
    is_rough: bool = False  # second derivatives are summed up in float32, until that is not good enough
    has_many_rows: bool = False  # a pass looks at the losses along a direction only after one that was too long
    is_alone: bool = False  # there was one task in the last pass
    num_rows: float = 0.0  # rows that were looked at first; 0 before
    # how many the next iteration has if there is one task; with more than 1 its update has room for the w and the state
    # that they lead to
    passes: int = 1
    total: float = 1.0  # sum of the c_i
    typical: float = 1.0  # mean size of the targets, by weight; 1 where all are 0
    floor: float = TINY  # what the objective counts as at least: less is rounding of the targets
    # products of a run of conjugate gradients up to which the next one has the same preconditioner
    kept_products: int = KEPT_PRODUCTS
    num_refused: int = 0  # certificates that were not good enough
    # how many rows there are, if so few that memory has room for their products; else 0
    few_rows: int = 0
    work: float = 0.0  # what all passes have cost since few rows were looked at, see `race`
    work_alone: float = 0.0  # what the passes over the gathered rows have cost that each task makes alone
    lengths: Numbers = field(default_factory=no_numbers)  # of these rows, by their numbers in the data set
    gathered: Array = field(default_factory=nothing)  # sums of the last pass, if it was GATHER
    num_classes: int = 1  # classes that one output has the weights of, with a softmax
    outputs: list[OutputState]  # by number

    @property
    def share(self) -> float:
        """Share of tol below which an output rests: the less, the more certificates were refused."""
        return max(AGAIN * 0.5**self.num_refused, LEAST_SHARE)

    @property
    def is_at_rest(self) -> bool:
        """Say whether no output has anything left to do."""
        return all(output.phase is NewtonPhase.REST for output in self.outputs)

    @property
    def gap(self) -> float:
        """The largest relative gap of all outputs."""
        return max([output.gap for output in self.outputs])

    def sums_size(self, problem: Any = None) -> int:
        """Length of the sums of the next pass."""
        return self._ends(problem)[-1]

    def parts(self, sums: Array, problem: Any = None) -> list[Array]:
        """Views of the sums of each output."""
        return [sums[begin:end] for begin, end in pairwise(self._ends(problem))]

    def _ends(self, problem: Any) -> list[int]:
        return list(accumulate((self._size(output, problem) for output in self.outputs), initial=HEAD))

    @property
    def layout(self) -> tuple[int, int, int, int]:
        """Return what a preconditioner is laid out by."""
        return self.D, self.block_columns, self.num_classes, len(self.outputs)

    @property
    def is_looking(self) -> bool:
        """Whether an output asks what the rows are like, as before the first step."""
        return any(output.phase is NewtonPhase.LOOK for output in self.outputs)

    @property
    def first_block(self) -> Block:
        """Which second derivatives are added up at first."""
        return Block.SAMPLED if self.row_step > 1 else Block.ROUGH if self.is_rough else Block.EXACT

    @property
    def has_all_columns(self) -> bool:
        """Whether a block has all columns."""
        return self.block_columns >= self.D

    @property
    def room(self) -> int:
        """Values that a later state may take of one that has neither blocks nor pairs."""
        of_rows = 3 * self.few_rows + 2 * int(self.lengths.sum())
        heads = 1 + len(fields(self)) + len(self.outputs) * (1 + len(fields(OutputState)))
        return heads + 6 * self.D * len(self.outputs) + of_rows

    @property
    def has_newton_duals(self) -> bool:
        """Whether outputs rest with duals of which another w is made."""
        return self.is_at_rest and any(output.shift.any() for output in self.outputs)

    def _size(self, output: OutputState, problem: Problem) -> int:
        if output.phase is NewtonPhase.LOOK:
            return problem.look_size(self, output)
        if output.phase is NewtonPhase.GATHER:
            return 2 * (self.few_rows + int(self.lengths.sum()))
        if output.phase is NewtonPhase.SOLVE:
            return self.D + 4 + self.few_rows
        if output.phase is NewtonPhase.EVALUATE:
            return sum(Evaluation.sizes(self, output, problem))
        if output.phase is NewtonPhase.PRODUCTS:
            h = len(output.columns) or self.D
            return h * (h + 1) // 2
        return {NewtonPhase.MULTIPLY: 2, NewtonPhase.COLUMNS: 1}.get(output.phase, 0) * self.D


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Sums of c_i times what is said."""

    scalars: Array  # see `Sum`
    v: Array  # slopes times rows, shape (D,)
    # of_duals: duals times rows with corners, shape (D,); with sides positive slopes times rows; else empty
    of_duals: Array
    second: Array  # curvatures times x x^T in the columns of the block, packed; empty where it is kept
    diagonal: Array  # curvatures times x^2, shape (D,); empty where the block has all columns, or is kept
    beside: Array  # curvatures times rows, where there is a free intercept; else empty, and as above
    mixed: Array  # derivatives by scale and score, times rows, where there is a scale; else empty
    line: Array  # losses at each of SHARES of the direction, with the corners of its beginning; or empty
    step: Array  # of each task; their mean counts (see `agreement`). Shape (D + 2,)

    @staticmethod
    def sizes(state: NewtonState, output: OutputState, problem: Problem) -> tuple[int, ...]:
        """Return the lengths of all of them."""
        D, loss = state.D, problem.loss
        # Of a softmax a look at the losses along saves no pass.
        has_line = (output.is_searched or output.is_wary) and not output.is_chosen and state.num_classes == 1
        if has_line:
            # Beside another pass; with a fourth of the rows regressions on 68 tables take 1 to 3 % more passes.
            is_cheap = 2 * state.num_rows <= ROWS_IN_CACHE or not (state.has_many_rows or state.is_alone)
            has_line = (output.is_searched or is_cheap) and bool(output.direction.any() or output.change)
        return (
            len(Sum),
            D,
            D * (loss.has_theta or problem.has_sides),
            *problem.sizes(state, output),
            D * loss.has_scale,
            len(SHARES) * has_line,
            D + 2,
        )

    @classmethod
    def of(cls, state: NewtonState, output: OutputState, problem: Problem, part: Array) -> "Evaluation":
        """Views of the sums of an output."""
        ends = list(accumulate((0, *cls.sizes(state, output, problem))))
        return cls(*(part[begin:end] for begin, end in pairwise(ends)))
