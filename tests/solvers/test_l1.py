"""Classifiers with an l1 penalty below the estimator: duals, state, steps, kernels, columns, disturbed jobs."""

import dataclasses
import inspect
import textwrap

import numpy as np
import pytest
from scipy import sparse

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.kernels import penalised as kernels
from chicle_elastic.solvers.linear.certified import STUCK
from chicle_elastic.solvers.linear.l1 import steps
from chicle_elastic.solvers.linear.l1.columns import Columns
from chicle_elastic.solvers.linear.l1.objective import Objective
from chicle_elastic.solvers.linear.l1.state import L1Output, L1State
from chicle_elastic.solvers.linear.l1.steps import working_set
from chicle_elastic.solvers.linear.l1.trainer import L1Trainer
from chicle_elastic.solvers.linear.newton.state import NewtonPhase
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, each_loss_and_slope, primal_losses
from chicle_elastic.solvers.linear.pass_solver import HEAD

LOSSES = (Loss.SQUARED_HINGE, Loss.LOGISTIC)


def objective_of(loss, *, l1_ratio=1.0, is_free=None):
    """As the estimators have it."""
    is_free = loss is Loss.LOGISTIC if is_free is None else is_free
    return Objective(loss=loss, l1=l1_ratio, l2=1.0 - l1_ratio, has_free_intercept=is_free, tol=1e-3)


def state_of(objective, num_outputs, D, *, is_whole=True):
    """Before the first pass."""
    outputs = [L1Output(is_rough=True, direction=np.zeros(D)) for _ in range(num_outputs)]
    is_parabola = objective.loss is None
    return L1State(is_whole=is_whole, is_parabola=is_parabola, num_sides=objective.num_sides, D=D, outputs=outputs)


def rows_of(n=40, d=6, seed=0):
    """Rows with the intercept column, signs and C_i; some C_i are 0."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(n, d)), np.ones(n)])
    signs = np.where(X[:, 0] + 0.5 * rng.normal(size=n) > 0.2, 1.0, -1.0)
    return X, signs, rng.uniform(0, 2, size=n) * (rng.random(n) < 0.9)


def sums_at(objective, X, signs, upper, w):
    """As the tasks sum them up."""
    sides = [signs > 0, signs < 0] if objective.num_sides == 2 else [signs != 0]
    losses, slopes, _ = each_loss_and_slope(objective.loss, signs * (X @ w), upper)
    products, rows = slopes * signs * (X @ w), (slopes * signs)[:, None] * X
    parts = [[each[side].sum(axis=0) for side in sides] for each in (losses, products, rows)]
    return np.column_stack(parts), slopes


@pytest.mark.parametrize("l1_ratio", [1.0, 0.3])
@pytest.mark.parametrize("is_free", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_duals_are_feasible_and_below_every_objective(loss, is_free, l1_ratio):
    """Scaled as the sums at any w say; the sum of their values follows from losses and products."""
    objective = objective_of(loss, l1_ratio=l1_ratio, is_free=is_free)
    X, signs, upper = rows_of()
    rng, primals, duals = np.random.default_rng(1), [], []
    for scale in (0.0, 0.05, 0.3, 1.0, 5.0):
        w = scale * rng.normal(size=X.shape[1])
        sums, slopes = sums_at(objective, X, signs, upper, w)
        values = float(dual_values(loss, slopes, upper).sum())
        assert sums[:, :2].sum() == pytest.approx(values, rel=1e-9, abs=1e-12)
        primal = float(primal_losses(loss, signs * (X @ w), upper).sum()) + objective.penalty(w)
        sides, gap = objective.scaled(w, primal, sums)
        assert 0 <= max(sides) <= 1
        alpha = slopes * np.where(signs > 0, sides[0], sides[-1])
        assert (alpha <= upper * (1 + 1e-12)).all() or loss is Loss.SQUARED_HINGE
        v = (signs * alpha) @ X
        if l1_ratio == 1.0:
            assert np.abs(objective.penalised(v)).max() <= objective.l1 * (1 + 1e-12)
        if is_free:
            assert abs(v[-1]) <= 1e-12 * alpha.sum()
        dual = objective.certified(float(dual_values(loss, alpha, upper).sum()), v, float(alpha.sum()))
        # An estimate: how much a dual value bends along its ray is known at two points.
        assert gap == pytest.approx(primal - dual, abs=0.2 * primal)
        primals.append(primal)
        duals.append(dual)
    assert max(duals) <= min(primals)


def test_duals_that_are_not_feasible_certify_what_a_multiple_of_them_does():
    """And nothing where the classes do not balance, as after an interruption."""
    objective = objective_of(Loss.LOGISTIC)
    v = np.array([0.5, -4.0, 0.0])
    assert objective.certified(8.0, v, 1.0) == 2.0
    assert objective.certified(8.0, np.array([0.5, -1.0, 1e-3]), 1.0) == 0.0
    assert objective.certified(-3.0, v, 1.0) == 0.0
    penalised = objective_of(Loss.SQUARED_HINGE, is_free=False)
    assert penalised.certified(8.0, np.array([0.5, 1.0, 2.0]), 1.0) == 4.0
    assert objective_of(Loss.LOGISTIC, l1_ratio=0.5).certified(8.0, np.array([1.5, 0.0, 0.0]), 1.0) == 7.0


def a_run(loss=Loss.LOGISTIC, *, is_whole=True, D=3):
    """A state behind its look, and its objective."""
    objective = objective_of(loss)
    state = state_of(objective, 1, D, is_whole=is_whole)
    sums = np.zeros(state.sums_size())
    sums[1], sums[HEAD + D : HEAD + 2 * D], sums[-2:] = 10.0, 4.0, (6.0, 2.0)
    model = steps.advance(state, objective, np.zeros(D), sums, 1.0)
    return state, model, objective


def test_a_look_finds_the_intercept_that_is_best_without_weights():
    """Its logarithm has the same digits on every processor; a penalised one stays 0."""
    state, model, _ = a_run()
    np.testing.assert_allclose(model, [0.0, 0.0, np.log(3.0)], rtol=1e-15)
    assert state.outputs[0].phase is NewtonPhase.EVALUATE
    np.testing.assert_array_equal(state.norms, [2.0, 2.0, 2.0])
    assert not a_run(Loss.SQUARED_HINGE)[1].any()


def test_rows_that_are_lost_or_come_back_start_the_steps_anew():
    """Sums are of another objective; interrupted tasks make the pass again."""
    state, model, objective = a_run()
    sums = np.zeros(state.sums_size())
    sums[0] = 1.0
    assert steps.advance(state, objective, model, sums, 1.0) is model
    assert state.outputs[0].phase is NewtonPhase.EVALUATE
    sums[:2] = 0.0, 9.0
    state.num_refused = 2
    assert steps.advance(state, objective, model, sums, 1.0) is model
    assert state.is_looking
    look = np.zeros(state.sums_size())
    look[1] = 9.0
    steps.advance(state, objective, model, look, 1.0)
    assert state.num_refused == 0


def a_step(direction, *, D=3):
    """A state behind a step that was found, and sums of three tasks at its end."""
    state, model, objective = a_run()
    (output,) = state.outputs
    output.value, output.slopes, output.direction = 5.0, np.array([0.0, 2.0, 0.0]), np.array(direction)
    output.reach = 1.0
    sums = np.zeros(state.sums_size())
    sums[1], sums[HEAD : HEAD + D] = 10.0, 3.0 * output.direction
    return state, model, objective, sums


def test_a_weight_that_cancels_is_0_after_the_mean_of_all_steps():
    """Whatever rounding leaves of the mean; others have it, and a step of zeros or NaN is the last one."""
    state, model, objective, sums = a_step([0.1 * (1 + 1e-15), -0.5, 0.0])
    model[:2] = -0.1, 1.0
    sums[HEAD + 3] = 1.0
    np.testing.assert_array_equal(steps.advance(state, objective, model, sums, 3.0)[:2], [0.0, 0.5])
    for change in (0.0, np.nan):
        state, model, objective, sums = a_step([0.0, change, 0.0])
        assert np.array_equal(steps.advance(state, objective, model, sums, 3.0), model)
        assert state.outputs[0].phase is NewtonPhase.REST


def test_a_step_that_is_too_long_is_shortened_and_the_model_damped():
    """To where a cubic is least, a tenth of the way at least; where no part is good, another direction is next."""
    state, model, objective, sums = a_step([0.0, 1.0, 0.0])
    sums[HEAD + 3] = 13.5
    assert np.array_equal(steps.advance(state, objective, model, sums, 3.0), model)
    (output,) = state.outputs
    assert output.phase is NewtonPhase.EVALUATE
    np.testing.assert_allclose(output.direction, [0.0, 0.1, 0.0])
    sums[HEAD : HEAD + 3], sums[HEAD + 3] = 3.0 * output.direction, 4.0
    steps.advance(state, objective, model, sums, 3.0)
    assert output.damping == steps.FIRST_DAMPING
    for damping, phase in ((0.0, NewtonPhase.EVALUATE), (1.0, NewtonPhase.REST)):
        state, model, objective, sums = a_step([0.0, 1.0, 0.0])
        (output,) = state.outputs
        sums[HEAD + 3], output.damping, output.reach = np.inf, damping, 2e-6
        with np.errstate(invalid="ignore"):
            steps.advance(state, objective, model, sums, 3.0)
        assert output.phase is phase
        assert output.damping > damping
        assert not output.direction.any()


def test_a_direction_from_columns_is_of_a_task_that_is_alone():
    """One that came to have company sums up products instead."""
    for num_alone, phase in ((1.0, NewtonPhase.EVALUATE), (0.0, NewtonPhase.MULTIPLY)):
        state, model, objective = a_run(is_whole=False)
        (output,) = state.outputs
        state.has_columns, output.phase, output.slopes = True, NewtonPhase.COLUMNS, np.array([0.0, 2.0, 0.0])
        sums = np.zeros(state.sums_size())
        sums[1], sums[2], sums[HEAD + 1] = 10.0, num_alone, 0.5
        steps.advance(state, objective, model, sums, 1.0)
        assert output.phase is phase
        assert output.direction.any() == (num_alone == 1.0)


def test_certificates_that_are_refused_without_progress_end_the_job():
    """Where rounding is all that is left, and not before; with tol=0 the job uses its iterations."""
    trainer = L1Trainer(tol=1e-12)
    X, signs, _ = rows_of()
    source = ArraySource(X[:, :-1] + 1e6, (signs > 0).astype(np.int32), num_classes=2)
    outcome = InProcess().run(Job(trainer=trainer, source=source, max_iterations=500))
    assert outcome.reason == STUCK
    assert 20 < len(outcome.history) < 200
    assert 1e-12 < trainer.relative_gap(outcome.model, outcome.certificate) < 1e-3
    endless = dataclasses.replace(trainer, tol=0.0)
    assert len(InProcess().run(Job(trainer=endless, source=source, max_iterations=200)).history) == 200


@pytest.mark.parametrize("loss", ["logistic", "squared_hinge"])
def test_columns_and_a_working_set_lead_to_the_same_objective(monkeypatch, loss):
    """Whichever is the less work: with no work for columns, with as much as they like, and as counted."""
    rng = np.random.default_rng(4)
    X = sparse.csr_matrix((np.ones(4000), rng.zipf(1.3, 4000) % 5000, np.arange(0, 4001, 10)), shape=(400, 5000))
    y = (np.asarray(X[:, 1:6].sum(axis=1)).ravel() + rng.normal(size=400) > 4).astype(np.int32)
    outcomes, counted = [], Columns.work_of_products
    for work in (lambda *_: 0.0, lambda *_: np.inf, counted):
        monkeypatch.setattr(Columns, "work_of_products", work)
        trainer = L1Trainer(loss=loss, C=0.5, tol=1e-8)
        outcomes.append(
            InProcess().run(Job(trainer=trainer, source=ArraySource(X, y, num_classes=2), max_iterations=99))
        )
    for outcome in outcomes:
        assert trainer.relative_gap(outcome.model, outcome.certificate) <= 1e-8
        assert outcome.model.any()


def csc(n=30, d=12, seed=0, dtype=np.float64):
    """A sparse matrix, and its arrays as the kernels take them."""
    matrix = sparse.random(n, d, density=0.3, random_state=seed, format="csc").astype(dtype)
    return matrix, matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data


def equivalent(kernel):
    """The NumPy code in a kernel's docstring."""
    return textwrap.dedent(inspect.getdoc(kernel.py_func).split("NumPy equivalent::")[1])


@pytest.mark.parametrize("num_sweeps", [1, 4, 200])
def test_sweeps_over_columns_are_those_of_their_numpy_equivalent(num_sweeps):
    """Weights that are left out for a while included, and they end where nothing is left to be gained."""
    matrix, starts, rows, values = csc()
    rng = np.random.default_rng(2)
    slopes, curvatures = rng.normal(size=30), rng.uniform(size=30)
    l1, l2, offsets = np.full(12, 0.4), np.full(12, 0.01), 0.1 * rng.normal(size=12)
    l1[-1] = 0.0
    squares = matrix.power(2).T @ curvatures
    start = rng.normal(size=12) * (rng.random(12) < 0.5)
    found, names = {}, {"np": np, "starts": starts, "rows": rows, "values": values}
    for mine in (found, names):
        mine |= {"places": rng.permutation(12) if mine is found else None, "residuals": slopes.copy()}
        mine |= {"w": start.copy()}
    names["places"] = found["places"].copy()
    names |= {"curvatures": curvatures, "squares": squares, "l1": l1, "l2": l2, "offsets": offsets}
    names |= {"num_sweeps": num_sweeps, "goal": 1e-10}
    arguments = (starts, rows, values, curvatures, squares, l1, l2, offsets, num_sweeps, 1e-10)
    left = kernels.descend_columns(*arguments, found["places"], found["residuals"], found["w"])
    exec(equivalent(kernels.descend_columns), names)
    np.testing.assert_allclose(found["w"], names["w"], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found["residuals"], names["residuals"], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(found["places"], names["places"])
    assert left == pytest.approx(names["total"], rel=1e-6, abs=1e-13)
    assert (left <= 1e-10) == (num_sweeps == 200)


def test_a_working_set_of_scores_is_that_of_a_sort():
    """Ties go to the first columns, and columns of length 0 come last."""
    rng = np.random.default_rng(0)
    slopes, norms = rng.integers(0, 6, size=400) / 4.0, np.ones(400)
    norms[::7] = 0.0
    w = np.where(rng.random(400) < 0.05, 1.0, 0.0)
    found = working_set(slopes, w, norms, l1=1.0, first=90, most=300)
    scores = np.where(norms > 0, np.where(w != 0, np.inf, slopes - 1.0), -np.inf)
    np.testing.assert_array_equal(found, np.sort(np.argsort(-scores, kind="stable")[:90]))
    np.testing.assert_array_equal(working_set(slopes, w, norms, l1=1.0, first=500, most=500), np.arange(400))
