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
from chicle_elastic.solvers.linear.l1.columns import Columns
from chicle_elastic.solvers.linear.l1.problem import working_set
from chicle_elastic.solvers.linear.losses import SmoothLoss
from chicle_elastic.solvers.linear.newton import steps
from chicle_elastic.solvers.linear.newton.state import Evaluation, NewtonPhase, NewtonState, Sum
from chicle_elastic.solvers.linear.newton.trainer import L1Trainer
from chicle_elastic.solvers.linear.objectives import Loss, dual_values, each_loss_and_slope, primal_losses
from chicle_elastic.solvers.linear.progress import HEAD

LOSSES = (Loss.SQUARED_HINGE, Loss.LOGISTIC)


def problem_of(loss, *, l1_ratio=1.0, is_free=None):
    """As the estimators have it."""
    trainer = L1Trainer(loss=SmoothLoss(loss), l1_ratio=l1_ratio)
    is_free = loss is Loss.LOGISTIC if is_free is None else is_free
    return dataclasses.replace(trainer, penalises_intercept=not is_free).problem


def state_of(problem, num_outputs, D, *, is_whole=True):
    """Before the first pass."""
    state = NewtonState(D=D, block_columns=D, is_exact=is_whole, is_rough=True, outputs=[])
    return steps.start(state, problem, np.zeros(num_outputs * D))


def rows_of(n=40, d=6, seed=0):
    """Rows with the intercept column, signs and C_i; some C_i are 0."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(n, d)), np.ones(n)])
    signs = np.where(X[:, 0] + 0.5 * rng.normal(size=n) > 0.2, 1.0, -1.0)
    return X, signs, rng.uniform(0, 2, size=n) * (rng.random(n) < 0.9)


@pytest.mark.parametrize("l1_ratio", [1.0, 0.3])
@pytest.mark.parametrize("is_free", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_duals_are_feasible_and_below_every_objective(loss, is_free, l1_ratio):
    """Scaled as the sums at any w say."""
    problem = problem_of(loss, l1_ratio=l1_ratio, is_free=is_free)
    state = state_of(problem, 1, 7)
    penalty, (X, signs, upper) = problem.penalty_of(state), rows_of()
    rng, primals, duals = np.random.default_rng(1), [], []
    for scale in (0.0, 0.05, 0.3, 1.0, 5.0):
        w = scale * rng.normal(size=X.shape[1])
        losses, slopes, _ = each_loss_and_slope(loss, signs * (X @ w), upper)
        sides = [signs > 0, signs < 0] if is_free else [signs != 0]
        v = np.array([(slopes * signs * side) @ X for side in sides])
        primal = float(primal_losses(loss, signs * (X @ w), upper).sum()) + problem.penalty(state, w)
        factors, gap = penalty.scaled(w, primal, np.array([losses @ side for side in sides]), v)
        assert 0 <= max(factors) <= 1
        alpha = slopes * np.where(signs > 0, factors[0], factors[-1])
        assert (alpha <= upper * (1 + 1e-12)).all() or loss is Loss.SQUARED_HINGE
        v = (signs * alpha) @ X
        if l1_ratio == 1.0:
            assert np.abs(problem.penalised(v)).max() <= 1 + 1e-12
        if is_free:
            assert abs(v[-1]) <= 1e-12 * alpha.sum()
        of_losses = losses.sum() - dual_values(loss, alpha, upper).sum() + (signs * alpha) @ (X @ w)
        dual = primal - problem.lack(state, w, v, of_losses, primal, 0.0) + w[-1] * v[-1] * is_free
        of_penalty = (
            0.5 * np.sum(np.maximum(np.abs(problem.penalised(v)) - penalty.l1, 0.0) ** 2) / max(penalty.l2, 1e-9)
        )
        assert dual == pytest.approx(dual_values(loss, alpha, upper).sum() - of_penalty, abs=1e-6)
        # An estimate: how much a dual value bends along its ray is known at two points.
        assert gap == pytest.approx(primal - dual, abs=0.2 * primal)
        primals.append(primal)
        duals.append(dual)
    assert max(duals) <= min(primals)


def test_duals_that_are_not_feasible_certify_what_a_multiple_of_them_does():
    """A fourth of duals that are four times too large; with l2 all duals are feasible."""
    w, v = np.zeros(3), np.array([0.5, -4.0, 0.0])
    problem = problem_of(Loss.LOGISTIC)
    state = state_of(problem, 1, 3)
    assert 10.0 - problem.lack(state, w, v, 2.0, 10.0, 0.0) == 2.0
    assert 10.0 - problem.lack(state, w, np.array([0.5, 1.0, 9.0]), 2.0, 10.0, 0.0) == 8.0  # of a free intercept
    both = problem_of(Loss.LOGISTIC, l1_ratio=0.5)
    assert 10.0 - both.lack(state, w, np.array([1.5, 0.0, 0.0]), 2.0, 10.0, 0.0) == 7.0


def a_run(loss=Loss.LOGISTIC, *, is_whole=True, D=3):
    """A state behind its look, and its problem."""
    problem = problem_of(loss)
    state = state_of(problem, 1, D, is_whole=is_whole)
    sums = np.zeros(state.sums_size(problem))
    sums[1], sums[HEAD : HEAD + 6], sums[HEAD + 6 + D : HEAD + 6 + 2 * D] = 10.0, (8.0, 8.0, 4.0, 8.0, 6.0, 2.0), 4.0
    model = steps.advance(state, problem, np.zeros(D), sums, 1.0)
    return state, model, problem


def test_a_look_finds_the_intercept_that_is_best_without_weights():
    """Its logarithm has the same digits on every processor; a penalised one stays 0."""
    state, model, _ = a_run()
    np.testing.assert_allclose(model, [0.0, 0.0, np.log(3.0)], rtol=1e-15)
    assert state.outputs[0].phase is NewtonPhase.EVALUATE
    np.testing.assert_array_equal(state.outputs[0].diagonal, [1.0, 1.0, 1.0])
    assert not a_run(Loss.SQUARED_HINGE)[1].any()


def test_rows_that_are_lost_or_come_back_start_the_steps_anew():
    """Sums are of another objective; interrupted tasks make the pass again."""
    state, model, problem = a_run()
    sums = np.zeros(state.sums_size(problem))
    sums[0] = 1.0
    assert steps.advance(state, problem, model, sums, 1.0) is model
    assert state.outputs[0].phase is NewtonPhase.EVALUATE
    sums[:2] = 0.0, 9.0
    assert steps.advance(state, problem, model, sums, 1.0) is model
    assert state.outputs[0].phase is NewtonPhase.LOOK


def a_step(direction, *, D=3):
    """A state behind a step that was found, and sums of three tasks at its end."""
    state, model, problem = a_run()
    (output,) = state.outputs
    output.value, output.direction, output.reach = 5.0, np.array(direction), 1.0
    output.slope = -2.0 * output.direction[1]
    sums = np.zeros(state.sums_size(problem))
    found = Evaluation.of(state, output, problem, sums[HEAD:])
    sums[1], found.step[:] = 10.0, 3.0 * output.step
    return state, model, problem, sums, found


def test_a_weight_that_cancels_is_0_after_the_mean_of_all_steps():
    """Whatever rounding leaves of the mean; others have it, and a step of zeros or NaN is the last one."""
    state, model, problem, sums, found = a_step([0.1 * (1 + 1e-15), -0.5, 0.0])
    model[:2], state.outputs[0].slope = -0.1, 0.0
    model[1], found.scalars[Sum.ROUND], found.step[-1] = 1.0, 1.0, 0.0
    np.testing.assert_array_equal(steps.advance(state, problem, model, sums, 3.0)[:2], [0.0, 0.5])
    for change in (0.0, np.nan):
        state, model, problem, sums, _ = a_step([0.0, change, 0.0])
        assert np.array_equal(steps.advance(state, problem, model, sums, 3.0), model)
        assert state.outputs[0].phase is NewtonPhase.REST


def test_a_step_that_is_too_long_is_shortened_and_the_model_damped():
    """To where a cubic is least, a tenth of the way at least; where no part is good, another direction is next."""
    state, model, problem, sums, found = a_step([0.0, 1.0, 0.0])
    found.scalars[Sum.ROUND] = 13.5
    assert np.array_equal(steps.advance(state, problem, model, sums, 3.0), model)
    (output,) = state.outputs
    assert output.phase is NewtonPhase.EVALUATE
    np.testing.assert_allclose(output.direction, [0.0, 0.1, 0.0])
    found.step[:], found.scalars[Sum.ROUND] = 3.0 * output.step, 4.0
    steps.advance(state, problem, model, sums, 3.0)
    assert output.damping == steps.FIRST_DAMPING
    for damping, phase in ((0.0, NewtonPhase.EVALUATE), (1.0, NewtonPhase.REST)):
        state, model, problem, sums, found = a_step([0.0, 1.0, 0.0])
        (output,) = state.outputs
        found.scalars[Sum.ROUND], output.damping, output.reach = np.inf, damping, 2e-6
        with np.errstate(invalid="ignore"):
            steps.advance(state, problem, model, sums, 3.0)
        assert output.phase is phase
        assert output.damping > damping
        assert not output.direction.any()


def test_a_direction_from_columns_is_of_a_task_that_is_alone():
    """One that came to have company sums up products instead."""
    for num_alone, phase in ((1.0, NewtonPhase.EVALUATE), (0.0, NewtonPhase.PRODUCTS)):
        state, model, problem = a_run(is_whole=False)
        (output,) = state.outputs
        state.block_columns, output.phase, output.residual = 0, NewtonPhase.COLUMNS, np.array([0.0, 2.0, 0.0])
        sums = np.zeros(state.sums_size(problem))
        sums[1], sums[2], sums[HEAD + 1] = 10.0, num_alone, 0.5
        steps.advance(state, problem, model, sums, 1.0)
        assert output.phase is phase
        assert output.direction.any() == (num_alone == 1.0)


def test_certificates_that_are_refused_without_progress_end_the_job():
    """Where rounding is all that is left, and not before; with tol=0 the job uses its iterations."""
    trainer = L1Trainer(tol=1e-12)
    X, signs, _ = rows_of()
    source = ArraySource(X[:, :-1] + 1e6, (signs > 0).astype(np.int32), num_classes=2, max_tasks=2, chunk_bytes=1024)
    outcome = InProcess(num_tasks=2).run(Job(trainer=trainer, source=source, max_iterations=500))
    assert outcome.reason == STUCK
    assert 20 < len(outcome.history) < 200
    assert 1e-12 < trainer.relative_gap(outcome.model, outcome.certificate) < 1e-3
    endless = dataclasses.replace(trainer, tol=0.0)
    assert len(InProcess().run(Job(trainer=endless, source=source, max_iterations=200)).history) == 200


@pytest.mark.parametrize("loss", LOSSES)
def test_columns_and_a_working_set_lead_to_the_same_objective(monkeypatch, loss):
    """Whichever is the less work: with no work for columns, with as much as they like, and as counted."""
    rng = np.random.default_rng(4)
    X = sparse.csr_matrix((np.ones(4000), rng.zipf(1.3, 4000) % 5000, np.arange(0, 4001, 10)), shape=(400, 5000))
    y = (np.asarray(X[:, 1:6].sum(axis=1)).ravel() + rng.normal(size=400) > 4).astype(np.int32)
    outcomes, counted = [], Columns.work_of_products
    for work in (lambda *_: 0.0, lambda *_: np.inf, counted):
        monkeypatch.setattr(Columns, "work_of_products", work)
        trainer = L1Trainer(loss=SmoothLoss(loss), C=0.5, tol=1e-8)
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
