"""Coordinate descent of the epsilon-insensitive loss: its steps, where it ends, and what its gap is worth."""

import inspect
import math
import re
import textwrap

import numpy as np
import pytest

from chicle_elastic.solvers.kernels import tube
from estimators import ChicleSVR


class Case:
    """Random rows, one of them of zeros and one of weight 0, and what a descent keeps."""

    def __init__(self, epsilon, num_rows=60, num_columns=4):
        rng = np.random.default_rng(0)
        self.epsilon = epsilon
        self.rows = rng.normal(size=(num_rows, num_columns))
        self.rows[7] = 0.0
        self.targets = self.rows @ rng.normal(size=num_columns) + rng.standard_t(2, size=num_rows)
        self.upper = rng.uniform(0.1, 2.0, size=num_rows)
        self.upper[3] = 0.0
        self.norms = np.maximum((self.rows**2).sum(axis=1), 1e-150)
        self.order, self.counts = np.arange(num_rows, dtype=np.int32), np.array([0, num_rows, 5])
        self.duals, self.w = np.zeros(num_rows), np.zeros(num_columns)
        self.found = np.array([0.0, 0.0, 0.0, math.inf, tube.FIRST_PER_GAP])

    def descend(self, goal, most_visits):
        """Run the kernel."""
        given = self.rows, self.targets, self.upper, self.norms, self.epsilon
        tube.descend(*given, goal, most_visits, self.order, self.counts, self.duals, self.w, self.found)

    def primal_and_dual(self):
        """P of w, and D of the duals, from their definitions."""
        residuals = self.targets - self.rows @ self.w
        losses = self.upper * np.maximum(np.abs(residuals) - self.epsilon, 0.0)
        of_duals = self.duals @ self.rows
        dual = self.duals @ self.targets - self.epsilon * np.abs(self.duals).sum() - 0.5 * of_duals @ of_duals
        return losses.sum() + 0.5 * self.w @ self.w, dual


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_a_pass_equals_its_numpy_form(epsilon):
    """In the order that it was shuffled into."""
    case, same = Case(epsilon), Case(epsilon)
    case.descend(0.0, 1)
    text = re.split(r"NumPy equivalent.*::", inspect.getdoc(tube.descend.py_func))[1]
    exec(textwrap.dedent(text), {"np": np, "visited": case.order, **vars(same)})
    np.testing.assert_allclose(case.duals, same.duals, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(case.w, same.w, rtol=1e-9, atol=1e-12)
    assert case.found[tube.VISITS] == len(case.rows)
    assert case.duals.any()


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_it_ends_with_the_gap_of_its_w_and_feasible_duals(epsilon):
    """The gap is at the goal, and is that of all rows, those that were left out among them."""
    case = Case(epsilon)
    case.descend(1e-6, 1e7)
    gap, primal, visits = case.found[: tube.WORST]
    assert gap <= 1e-6 * primal
    assert visits < 1e7
    assert (np.abs(case.duals) <= case.upper).all()
    assert case.primal_and_dual()[0] == pytest.approx(primal, rel=1e-12)
    assert case.primal_and_dual()[0] - case.primal_and_dual()[1] == pytest.approx(gap, abs=1e-9 * primal)


def test_it_leaves_duals_out_that_stay_at_their_bounds():
    """Passes visit fewer rows than there are once most residuals are large."""
    case = Case(0.0)
    case.descend(0.0, 200 * len(case.rows))
    assert case.counts[1] < len(case.rows) / 2


@pytest.mark.parametrize("params", [{}, {"epsilon": 0.2}, {"C": 100.0}, {"C": 0.01, "epsilon": 0.5}])
def test_little_data_is_fitted_with_or_without_newtons_method(params):
    """Data that is repeated is too much for the descent, and comes to the same objective per row."""
    case = Case(0.0, num_rows=50)
    few = ChicleSVR(tol=1e-7, **params).fit(case.rows, case.targets)
    C = few.C / 200
    many = ChicleSVR(tol=1e-7, **{**params, "C": C}).fit(np.tile(case.rows, (200, 1)), np.tile(case.targets, 200))
    assert few.duality_gap_ <= 1e-7
    assert few.objective_ == pytest.approx(many.objective_, rel=1e-6)
    assert few.n_iter_ < many.n_iter_
