"""How a model with an l1 penalty goes on from the sums of a pass, as a problem of `newton`. Pure: no row is in sight.

The objective is below. It is minimised by a proximal Newton method (Lee, Sun and Saunders
2014, "Proximal Newton-type methods for minimizing composite functions"; for the losses of classes Yuan, Ho and Lin
2012, "An improved GLMNET for l1-regularized logistic regression"), output by output:

    EVALUATE   Losses at the end of the direction, and the slopes of all columns. The end becomes w if the objective has
               fallen enough there (Armijo's rule); these slopes give the gap, and the next direction. Else the next
               pass evaluates a part of the direction, where a cubic through what is known is least. If that is a small
               part, the next models are damped (Levenberg and Marquardt).
    PRODUCTS   Second derivatives, weighted products of columns, of the working set W at w.

Each task minimises the second order model, with the penalties as they are, over the weights of W from these sums alone
(`subproblem`). Tasks send along what they have found and go on with its mean (see `agreement`), but a weight that
cancels is 0, whatever rounding leaves of the mean.

Sums do not depend on which task has a row, and so the number of passes is the same for any number of tasks. Where
products of all columns cost little, W always has all of them, and EVALUATE brings them along. Else W has the columns
with a weight and those that are closest to having one (Celer's rule and size; Massias, Gramfort and Salmon 2018).

A task that is alone and has sparse rows of many columns with classes does both in a pass of its own (COLUMNS), and goes
without products and W where the direction is found with less work from the columns of its rows (`columns`).

Of squares without a tube (lasso and elastic net) the model is the objective. So its end is w whatever the objective is
there, and products are kept. A task that is alone and has those of all columns is done with one solution: a certificate
follows in place of an evaluation. Rows and targets are centred by weighted means, dense rows before they are
multiplied. The slopes are those of the rows and not of sums of products, so what these have lost to rounding (or to
float32, of dense float32 rows) is repaired by the next solution. Of large features the residuals at any w are mostly
rounding of w. Then the last solution is a change of w that is kept beside it, with digits of its own, and the duals are
those of w + change.

With scores z_i = <w, x_i> + b, and b the weight of the intercept column, whose value is part of x_i from here on,

    P(w) = sum_i c_i loss(z_i) + sum_j (l1 |w_j| + l2/2 w_j^2)
    D(a) = sum_i c_i dual_i(a_i) - sum_j penalty*(v_j),      v = sum_i c_i a_i x_i

Without l2 penalty*(v_j) is 0 where |v_j| <= l1, and infinite beyond; with l2 it is max(|v_j| - l1, 0)^2 / (2 l2). A
column that is not penalised, as the intercept of the logistic and of the squared loss, needs v_j = 0.

Slopes a_i = -loss'(z_i) need not be feasible. Two steps make them so, and leave them in their box:

    sides         Where the intercept is not penalised, the slopes of the sign whose sum is larger are multiplied by the
                  ratio of the two sums, which makes v = 0 in its column. Those of the squared loss lose their mean.
    factor        All are multiplied by l1 / max |v_j| where that is below 1 (Ndiaye et al. 2017, "Gap safe screening
                  rules for sparsity enforcing penalties").

dual_i is concave and 0 at 0, so D(c a) >= c D(a) for 0 <= c <= 1: duals that were scaled with factors of an earlier
look, or that rounding has pushed out of the feasible set, still certify c D(a), whatever c has to be.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.agreement import SAME, dot, dots, squared
from chicle_elastic.solvers.linear.certified import LEAST_SHARE, PATIENCE, TINY, has_progress
from chicle_elastic.solvers.linear.l1.subproblem import minimise, step_with_signs, worst_slope
from chicle_elastic.solvers.linear.methods import most_block_columns
from chicle_elastic.solvers.linear.multinomial.objective import LEFT_OUT
from chicle_elastic.solvers.linear.newton.conjugate import ETA, LEAST_ETA
from chicle_elastic.solvers.linear.newton.directions import JITTERS
from chicle_elastic.solvers.linear.newton.state import (
    Block,
    Evaluation,
    NewtonPhase,
    NewtonState,
    OutputState,
    Problem,
    Sum,
)
from chicle_elastic.solvers.linear.newton.steps import DAMPED, FIRST_DAMPING, LEAST_REACH, SHORT
from chicle_elastic.solvers.linear.objectives import SLIGHT
from chicle_elastic.solvers.linear.products import MOST_EXACT, symmetric
from chicle_elastic.solvers.linear.progress import NO_NUMBERS, NOTHING


@dataclass(frozen=True, slots=True)
class L1Penalty:
    """The penalty of one output; vectors have the shape (D,), and 0 in a column that is not penalised."""

    l1: float  # factor of |w|_1, > 0 if l2 is 0
    l2: float  # factor of 1/2 |w|^2

    def value(self, w: Array) -> float:
        """Return that of w."""
        return self.l1 * dot(np.abs(w), np.ones(len(w))) + (0.5 * self.l2 * squared(w) if self.l2 else 0.0)

    def slope(self, w: Array, direction: Array) -> float:
        """Return its derivative at w along a direction."""
        return dot(self.l1 * np.sign(w) + self.l2 * w, direction)

    def conjugate(self, v: Array) -> float:
        """Sum penalty*(v_j) where l2 makes it finite; else 0."""
        return 0.5 * squared(np.maximum(np.abs(v) - self.l1, 0.0)) / self.l2 if self.l2 else 0.0

    def factor(self, v: Array) -> float:
        """Return what duals with this v are multiplied by to be feasible without l2."""
        return self.l1 / max(largest(v), self.l1, TINY)

    def scaled(self, w: Array, primal: float, losses: Array, v: Array) -> tuple[Array, float]:
        """Return what the slopes of each side are multiplied by, and the gap with it.

        A part that vanishes faster than the gap is left out: along a ray the sum of dual_i is concave and 0 at 0, and
        at 1 its value and slope are known. A parabola has all three, and that of the squared loss is one. Of each side
        (the positive slopes and the others, or all), `losses` are sums, shape (sides,), and `v` is sum_i c_i a_i x_i
        of the slopes, shape (sides, D), the intercept's at the end. <w, v> is the sum of c_i a_i z_i, so that the sum
        of dual values is that of both.
        """
        sides, products = np.ones(len(losses)), dots(np.tile(w, (len(v), 1)), v)
        if len(sides) == 2:
            masses = np.abs(v[:, -1])
            sides = masses.min() / np.maximum(masses, TINY)  # zeros where one side has nothing to balance the other
        v = (sides[:, np.newaxis] * v).sum(axis=0)  # in the same order on every processor
        if len(sides) == 2:
            v[-1] = 0.0
        factors = [self.factor(v)]
        if self.l2:
            factors += [1.0, self.factor((v - self.l2 * w)[: len(w) - (len(sides) == 2)])]
        best, highest = sides, -np.inf
        for factor in factors:
            share = factor * sides
            dual = float((share * products + (1.0 - (1.0 - share) ** 2) * losses).sum())
            dual -= self.conjugate(factor * v) if self.l2 else 0.0
            if dual > highest:
                best, highest = share, dual
        return best, primal - credible(max(highest, 0.0), primal)

    def lack(self, w: Array, v: Array, of_losses: float, primal: float, size: float) -> float:
        """Return P - D of duals, or of a feasible multiple; `size` is the sum of c_i a_i^2 / 4 of a parabola, or 0."""
        lack = of_losses + dot(self.l1 * np.abs(w) + (0.5 * self.l2 * w - v) * w, np.ones(len(w)))
        if self.l2:
            return lack + self.conjugate(v)
        factor = self.factor(v)
        return primal - factor * (primal - lack + (1.0 - factor) * size)


def largest(slopes: Array) -> float:
    """Return the largest absolute value; 0 for none."""
    return float(np.max(np.abs(slopes), initial=0.0))


def credible(dual: float, primal: float) -> float:
    """D, which is never above P; what is far above it was made from slopes that are rounding."""
    return dual if dual <= primal * (1.0 + SLIGHT) else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class L1Problem(Problem):
    """Minimise losses without corners and scale, l1 |w|_1 and alpha/2 |w|^2."""

    takes_steps: ClassVar[bool] = True
    l1: float  # factor of |w|_1, > 0
    is_of_classes: bool = False  # targets are 1 and -1

    def penalty_of(self, state: NewtonState) -> L1Penalty:
        """Return the penalty beside the sum of losses."""
        return L1Penalty(self.l1 * self.unit(state), self.strength(state))

    def penalty(self, state: NewtonState, w: Array) -> float:
        """See `Problem`."""
        return self.penalty_of(state).value(self.penalised(w))

    def lack(self, state: NewtonState, w: Array, v: Array, of_losses: float, primal: float, squares: float) -> float:
        """See `L1Penalty.lack`."""
        size = 0.25 * squares * self.loss.is_parabola
        return self.penalty_of(state).lack(self.penalised(w), self.penalised(v), of_losses, primal, size)

    def has_last_word(self, state: NewtonState) -> bool:
        """Say whether the next solution is for the duals alone, as w has no room for its digits: every other one."""
        num_more = state.num_refused - PATIENCE
        return self.loss.is_parabola and num_more >= 0 and num_more % 2 == 0

    def look_size(self, state: NewtonState, output: OutputState) -> int:
        """See `Problem`; sums of c of either sign, of c x, of c x^2, the shift of each task, and how many there are.

        The shift is a solution of each task by itself, so they go on with its mean.
        """
        return 4 + 2 + 3 * state.D + 1

    def looked(self, state: NewtonState, output: OutputState, w: Array, sums: Array) -> tuple[Array, Evaluation | None]:
        """Add the shift to w; set the best intercept where it is free and there are no weights, or one side has none.

        Keep the largest second derivatives there may be, and of real targets what makes means of columns.
        """
        of_columns, squares, shift = sums[6:-1].reshape(3, -1)
        plus, minus = sums[4:6].tolist()
        output.shift = np.zeros(state.D)
        w, _ = Problem.looked(self, state, output, w + shift / max(sums[-1], 1.0), sums[:4])
        output.reach, output.num_solved, output.num_still, output.factor = 0.0, 0, 0, NOTHING
        output.columns, output.beside = NO_NUMBERS, np.zeros(state.D)
        if self.loss.is_parabola:
            if self.has_free_intercept:
                output.beside = of_columns.copy()
                squares = np.maximum(squares - of_columns * (of_columns / state.total), 0.0)
        elif self.is_of_classes:
            state.floor = TINY
            if self.has_free_intercept and (plus > 0) != (minus > 0):
                w[:-1], w[-1] = 0.0, -LEFT_OUT if plus > 0 else LEFT_OUT
            elif self.has_free_intercept and plus > 0 and not w[:-1].any():
                # Of libm's logarithm the last digit depends on the processor, and every task has to find the same.
                w[-1] = float(Decimal(plus / minus).ln())
        output.diagonal = self.loss.most_curvature * squares
        return w, None

    def sizes(self, state: NewtonState, output: OutputState) -> tuple[int, int, int]:
        """See `Problem`; an evaluation has products of all columns or none."""
        has_products = state.is_exact and output.block is not Block.KEPT
        return state.D * (state.D + 1) // 2 * has_products, 0, 0

    def evaluated(self, state: NewtonState, output: OutputState, w: Array, found: Evaluation, weight: float) -> Array:
        """Take the step if it is good enough, and find the next one; returns w."""
        direction, penalty = found.step[:-2] / weight, self.penalty_of(state)
        output.slope = float(found.step[-1]) / weight
        if output.reach and not _leads_on(direction):
            output.phase, output.direction = NewtonPhase.REST, np.zeros(state.D)
            return w
        there = w + direction
        there[np.abs(there) <= SAME * np.abs(w)] = 0.0
        at_end, v, loss = penalty.value(self.penalised(there)), found.v, float(found.scalars[Sum.ROUND])
        value, before, old = loss + at_end, output.gap, output.value
        if output.reach and not self.loss.is_parabola:
            slope = min(at_end - penalty.value(self.penalised(w)) + output.slope, 0.0)
            if not value <= old + 1e-4 * slope + SAME * abs(old):
                step = self.penalised(direction)
                self._shorten(output, direction, slope, value - old, penalty.slope(there, step) - dot(v, direction))
                return w
            if output.reach < SHORT:
                output.damping = max(output.damping * DAMPED, FIRST_DAMPING)
            elif output.reach == 1.0:
                output.damping = output.damping / DAMPED if output.damping > FIRST_DAMPING else 0.0
        output.value, output.direction = value, np.zeros(state.D)
        losses, sides = np.array([loss]), v[np.newaxis]
        if self.has_sides:
            of_positive = float(found.scalars[Sum.OF_POSITIVE])
            losses, sides = np.array([of_positive, loss - of_positive]), np.stack([found.of_duals, v - found.of_duals])
        elif self.has_free_intercept:  # of a parabola: less the mean of the slopes
            losses, sides = losses - 0.25 * v[-1] * v[-1] / state.total, self._centred(output, v)[np.newaxis]
        point = there if self.has_sides else self.penalised(there)
        factors, gap = penalty.scaled(point, value, losses, sides)
        output.gap, output.plus, output.minus = gap / max(value, state.floor), float(factors[0]), float(factors[-1])
        is_parabola = self.loss.is_parabola
        is_still = not has_progress(output.gap, value, before, old, tol=self.tol if is_parabola else SAME)
        output.num_still = output.num_still + 1 if output.num_solved and is_still else 0
        patience = 1 if is_parabola and not state.is_rough else PATIENCE
        if len(found.second):
            output.factor = found.second.copy()
            output.block = Block.KEPT if is_parabola else output.block
        if self._is_good(state, output, there, v) or output.num_still >= patience:  # what more steps bring is rounding
            output.phase = NewtonPhase.REST
            return there
        return self._begin_solution(state, output, there, v)

    def _shorten(self, output: OutputState, direction: Array, slope: float, rise: float, at_end: float) -> None:
        """Go a part of the way: to where the cubic is least that has these slopes and rises by that much."""
        middle = slope + at_end - 3.0 * rise
        root = np.sqrt(max(middle * middle - slope * at_end, 0.0))
        share = 1.0 - (at_end + root - middle) / max(at_end - slope + 2.0 * root, TINY)
        share = min(max(share, 0.5 * SHORT), 1.0 - 0.5 * SHORT) if np.isfinite(share) else 0.5 * SHORT
        output.reach, output.direction, output.slope = share * output.reach, share * direction, share * output.slope
        if output.reach < LEAST_REACH:  # damped by all the curvature there may be it leads down, but for rounding
            output.phase = NewtonPhase.EVALUATE if output.damping < 1.0 else NewtonPhase.REST
            output.reach, output.direction = 0.0, np.zeros(len(direction))
            output.damping = max(output.damping * DAMPED**2, FIRST_DAMPING)

    def _centred(self, output: OutputState, v: Array) -> Array:
        """Return the slopes of penalised columns; of the squared loss those of columns less their means."""
        if self.loss.is_parabola and self.has_free_intercept:
            v = v - v[-1] * (output.beside / max(float(output.beside[-1]), TINY))
        return self.penalised(v)

    def _is_good(self, state: NewtonState, output: OutputState, w: Array, v: Array) -> bool:
        """Say whether the gap is small enough for a certificate."""
        if not output.gap <= state.share * self.tol:
            return False
        if not self.loss.is_parabola:
            return bool(output.num_solved or not state.num_refused)
        # Where weights have slopes beyond l1, w = 0 may be within tol, and says nothing: one solution is made.
        return bool(w[:-1].any()) or largest(self._centred(output, v)) <= self.penalty_of(state).l1

    def _begin_solution(self, state: NewtonState, output: OutputState, w: Array, v: Array) -> Array:
        """Begin one, from columns of one task, products of a working set, or products known and good enough."""
        output.residual = v.copy()
        if state.block_columns == 0 and state.is_alone:
            output.phase = NewtonPhase.COLUMNS
            return w
        if state.is_rough and self.loss.is_parabola and output.num_still:  # float32 has no room for more
            state.is_rough, output.factor, output.block = False, NOTHING, Block.EXACT
            columns = output.columns
        else:
            columns = NO_NUMBERS if state.is_exact else self.chosen(state, output, w, v)
            if len(output.factor) and np.isin(columns, output.columns).all():
                return self.solved(state, output, w)
        output.factor, output.columns, output.phase = NOTHING, columns, NewtonPhase.PRODUCTS
        return w

    def chosen(self, state: NewtonState, output: OutputState, w: Array, v: Array) -> Array:
        """Choose the columns of the next working set, ascending, int64."""
        size, penalty = state.D - self.has_free_intercept, self.penalty_of(state)
        slopes = (self._centred(output, v) - penalty.l2 * w)[:size]
        room = most_block_columns(len(state.outputs)) - self.has_free_intercept
        norms = np.sqrt(output.diagonal[:size])
        columns = working_set(slopes, w[:size], norms, l1=penalty.l1, first=MOST_EXACT, most=room)
        return np.append(columns, np.arange(size, state.D))  # the intercept, where it is not penalised

    def damped(self, output: OutputState) -> Array:
        """Return what is added to the diagonal of the second derivatives, shape (D,)."""
        if not output.damping:  # squared lengths may be beyond all numbers
            return np.zeros(len(output.diagonal))
        return output.damping * output.diagonal

    def solved(self, state: NewtonState, output: OutputState, w: Array, found: Array | None = None) -> Array:
        """Go on with products or a direction that were `found`, or products known, to the least of the model."""
        if output.phase is NewtonPhase.COLUMNS and found is not None:
            if not state.is_alone:  # another task has come while this one was at work
                return self._begin_solution(state, output, w, output.residual)
            self._go(state, output, found.copy())
            return w
        if found is not None:
            output.factor = found.copy()
        places = output.columns if len(output.columns) else np.arange(state.D)
        direction = np.zeros(state.D)
        direction[places], is_found = self.solution(state, output, places, w[places])
        is_parabola, has_last_word = self.loss.is_parabola, self.has_last_word(state)
        output.block = Block.KEPT if is_parabola else state.first_block
        if not is_parabola:
            output.factor, output.columns = NOTHING, NO_NUMBERS
        is_last = state.is_alone and is_parabola and state.is_exact and is_found
        is_last = is_last and not (state.is_rough and output.num_solved == 0)
        self._go(state, output, direction)
        if output.phase is NewtonPhase.EVALUATE and (has_last_word or is_last):
            output.phase, output.plus, output.minus, output.direction = NewtonPhase.REST, 1.0, 1.0, np.zeros(state.D)
            if not has_last_word:
                return w + direction
            output.shift = direction
        return w

    def _go(self, state: NewtonState, output: OutputState, direction: Array) -> None:
        """Evaluate the end of a direction, or rest where it leads nowhere: nothing is left but rounding."""
        output.phase, output.reach, output.direction = NewtonPhase.EVALUATE, 1.0, direction
        output.slope = -dot(output.residual, direction)
        output.num_solved += 1
        if state.is_alone and not _leads_on(direction):  # else all tasks find that out from its mean
            output.phase, output.direction = NewtonPhase.REST, np.zeros(state.D)

    def solution(self, state: NewtonState, output: OutputState, places: Array, w: Array) -> tuple[Array, bool]:
        """Find the changes of w to where the model is least over these places, and whether they are exact."""
        penalty, is_parabola, is_free = self.penalty_of(state), self.loss.is_parabola, self.has_free_intercept
        size, products = len(places) - is_free, output.factor
        num_products = size * (size + 1) // 2
        H, damped = symmetric(products[:num_products], size), self.damped(output)[places]
        H.ravel()[:: size + 1] *= 1.0 + JITTERS[2] * state.is_rough
        H.ravel()[:: size + 1] += damped[:size]
        q = output.residual[places]
        with np.errstate(all="ignore"):  # of squares beyond all numbers; the gap is then NaN
            if is_free:
                # The best intercept for any weights is known: what is left are columns centred by their curvatures.
                h, beside = products[num_products:-1], output.beside[places]
                top = max(2.0 * float(beside[-1]) if is_parabola else float(products[-1] + damped[-1]), TINY)
                means = 2.0 * beside[:-1] / top if is_parabola else h / top
                if h.any():  # else the rows were centred before they were multiplied
                    H -= np.outer(h, h / top)
                q, offset, w = q[:-1] - means * q[-1], q[-1] / top, w[:-1]
            if self.has_last_word(state):
                found, is_found = step_with_signs(H, q, w, l1=penalty.l1, l2=penalty.l2), True
            else:
                least = LEAST_SHARE * self.tol * penalty.l1
                most_left = enough = least
                if not is_parabola:
                    share, worst = accuracy(output), worst_slope(q, w, penalty.l1, penalty.l2)
                    most_left = max(least, share * worst)
                    # Over few columns a solution takes less time than a pass.
                    enough = max(least, min(share, LEAST_ETA) * worst) if size <= MOST_EXACT else most_left
                elif state.is_exact:
                    enough = 0.0
                found, is_found = minimise(H, q, w, l1=penalty.l1, l2=penalty.l2, enough=enough, accuracy=most_left)
                found -= w
            if is_free:
                found = np.append(found, offset - means @ found)
        return found, is_found


def accuracy(output: OutputState) -> float:
    """Return the share of how far slopes are off that a solution may leave."""
    return min(ETA, output.gap) if np.isfinite(output.gap) else ETA


def _leads_on(direction: Array) -> bool:
    return bool(direction.any() and np.isfinite(direction).all())


def working_set(slopes: Array, w: Array, norms: Array, *, l1: float, first: int, most: int) -> Array:
    """Return the columns with a weight and those that are closest to having one, twice as many as there are weights.

    There are `first` at least and `most` at most: then the worst ones. Columns of length (`norms`) 0 are left out.
    `slopes` are the negative gradient of all but the l1 penalty.
    """
    num_weights = int(np.count_nonzero(w))
    has_room = 2 * num_weights <= most or num_weights + first <= most
    size = min(max(first, 2 * num_weights) if has_room else most, most, len(w))
    scores = (np.abs(slopes - l1 * np.sign(w)) - l1 * (w == 0)) / np.maximum(norms, TINY)
    scores[norms == 0], scores[(w != 0) & (norms > 0) & has_room] = -np.inf, np.inf
    least = np.partition(scores, -size)[-size]  # a sort of all takes ten times as long
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    return np.sort(np.concatenate([above, equal[: size - len(above)]]))
