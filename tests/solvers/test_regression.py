"""Regression below the estimators: losses and their duals, what is made of sums, and the trainer."""

import numpy as np
import pytest
import scipy.sparse

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear import methods
from chicle_elastic.solvers.linear.losses import (
    EpsilonInsensitive,
    HingeLoss,
    Huber,
    Poisson,
    RegressionLoss,
    SmoothLoss,
    SquaredEpsilonInsensitive,
)
from chicle_elastic.solvers.linear.newton import conjugate, steps
from chicle_elastic.solvers.linear.newton.passes import NewtonPasses
from chicle_elastic.solvers.linear.newton.state import Evaluation, NewtonPhase, NewtonState, Problem
from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer
from chicle_elastic.solvers.linear.objectives import Loss
from chicle_elastic.solvers.linear.progress import HEAD
from chicle_elastic.solvers.linear.rows import NewtonRows

LOSSES = [
    *(kind(epsilon) for epsilon in (0.0, 0.4) for kind in (EpsilonInsensitive, SquaredEpsilonInsensitive)),
    *(Huber(epsilon) for epsilon in (1.0, 1.35)),
    Poisson(),
]
MARGINS = [HingeLoss(), *map(SmoothLoss, (Loss.SQUARED_HINGE, Loss.LOGISTIC, Loss.MODIFIED_HUBER))]
"""Those of classifiers, of targets of 1 and -1."""
THETA = 0.3


def samples(loss):
    """Scores, targets that the loss has, and weights with zeros among them."""
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.1, 2.0, size=200) * (rng.uniform(size=200) < 0.9)
    scores, counts = rng.normal(size=200), rng.poisson(1.5, size=200).astype(float)
    return scores, np.where(counts > 1, 1.0, -1.0) if loss in MARGINS else counts, weights


def problem(loss, **params):
    """As a trainer makes it."""
    return Problem(**{"loss": loss, "tol": 0.1, **params})


def test_all_losses_are_here():
    """What follows is asked of a new one, too."""
    ours = {kind.__name__ for kind in RegressionLoss.__subclasses__() if kind.__module__.startswith("chicle_elastic")}
    assert {type(loss).__name__ for loss in (*LOSSES, *MARGINS)} == ours


@pytest.mark.parametrize("loss", [*LOSSES, *MARGINS])
def test_slopes_and_curvatures_are_derivatives(loss):
    """By differences; those by a scale, too."""
    z, y, _ = samples(loss)
    step = 1e-6
    above, below = (loss.values(z + sign * step, y, THETA) for sign in (1, -1))
    np.testing.assert_allclose(-loss.slopes(z, y, THETA), (above - below) / (2 * step), atol=1e-5)
    above, below = (-loss.slopes(z + sign * step, y, THETA) for sign in (1, -1))
    differences, found = (above - below) / (2 * step), loss.curvatures(z, y, THETA)
    is_smooth = np.abs(found - loss.curvatures(z + 1e-4, y, THETA)) < 0.1  # and not beside a jump
    assert is_smooth.mean() > 0.8
    np.testing.assert_allclose(found[is_smooth], differences[is_smooth], atol=1e-4)
    if loss.has_scale:
        first, second, mixed = loss.by_scale(z, y, THETA)
        above, below = (loss.values(z, y, THETA + sign * step) for sign in (1, -1))
        np.testing.assert_allclose(first, (above - below) / (2 * step), atol=1e-5)
        above, below = (loss.by_scale(z, y, THETA + sign * step)[0] for sign in (1, -1))
        np.testing.assert_allclose(second[is_smooth], ((above - below) / (2 * step))[is_smooth], atol=1e-3)
        above, below = (-loss.slopes(z, y, THETA + sign * step) for sign in (1, -1))
        np.testing.assert_allclose(mixed[is_smooth], ((above - below) / (2 * step))[is_smooth], atol=1e-3)


@pytest.mark.parametrize("loss", [loss for loss in (*LOSSES, *MARGINS) if loss.has_corners])
def test_a_narrow_corner_is_nearly_sharp(loss):
    """And a round loss is nowhere above the sharp one."""
    z, y, _ = samples(loss)
    sharp = loss.values(z, y, 0.0)
    np.testing.assert_allclose(loss.values(z, y, 1e-9), sharp, atol=1e-8)
    missing = sharp - loss.values(z, y, THETA)
    if isinstance(loss, HingeLoss):  # which is rounded from above
        missing = -missing
    assert np.all((missing >= -1e-12) & (missing <= 1.0001 * THETA))


@pytest.mark.parametrize("theta", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("loss", [*LOSSES, *MARGINS])
def test_duals_of_any_model_are_feasible_and_below_every_objective(loss, theta):
    """Weak duality, on random models; of a smooth loss the slope is the best dual of its score."""
    z, y, weights = samples(loss)
    rng = np.random.default_rng(1)
    X = 0.3 * rng.normal(size=(len(y), 5))
    duals = loss.slopes(z, y, theta)
    if loss.has_scale:
        duals *= min(1.0, np.sqrt(4.0 * weights.sum() / (weights @ duals**2)))
    elif not loss.has_corners:
        np.testing.assert_allclose(loss.dual_values(duals, z, y), loss.values(z, y, theta), atol=1e-9)
    v = X.T @ (weights * duals)
    dual = weights @ (loss.dual_values(duals, z, y) + duals * z) - 0.5 * v @ v
    for w in rng.normal(size=(20, 5)) * np.geomspace(1e-3, 3, 20)[:, None]:
        for at in (0.1, 1.0, 3.0) if loss.has_scale else (0.0,):
            assert dual <= 0.5 * w @ w + weights @ loss.values(X @ w, y, at) + 1e-9


def test_rows_that_are_lost_or_come_back_start_the_steps_anew():
    """Gradient and objective would be those of other rows; interrupted tasks make the pass again."""
    what = problem(EpsilonInsensitive())
    state = fresh(what, 3, has_factor=True)
    [output] = state.outputs
    output.phase, state.num_rows = NewtonPhase.EVALUATE, 10.0
    model, sums = np.ones(3), np.zeros(state.sums_size(what))
    sums[0] = 1.0
    assert steps.advance(state, what, model, sums, 1.0) is model
    assert output.phase is NewtonPhase.EVALUATE
    sums[:2] = 0.0, 9.0
    assert steps.advance(state, what, model, sums, 1.0) is model
    assert output.phase is NewtonPhase.LOOK


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.has_corners])
def test_duals_other_than_the_slopes_make_a_loss_with_corners_more_curved(loss):
    """Slopes have the curvatures of the loss itself, and no dual makes it concave; the tube is left out."""
    z, y, _ = samples(loss)
    slopes = loss.slopes(z, y, THETA)
    of_slopes = loss.curvatures_beside(slopes, z, y, THETA)
    np.testing.assert_allclose(of_slopes, loss.curvatures(z, y, THETA))
    for duals in (np.zeros(len(y)), np.sign(slopes), -np.sign(slopes)):
        assert np.all(loss.curvatures_beside(duals, z, y, THETA) >= 0)
    is_outside = np.abs(y - z) > loss.epsilon
    assert np.all((loss.curvatures_beside(np.zeros(len(y)), z, y, THETA) >= of_slopes)[is_outside])


@pytest.mark.parametrize("loss", LOSSES)
def test_tasks_whose_steps_differ_in_their_last_digits_stay_together(loss):
    """As those of unlike processors do: all of them go on with the mean, the scale and the slope included."""
    rng = np.random.default_rng(0)
    X, y = np.column_stack([rng.normal(size=(60, 3)), np.ones(60)]), rng.poisson(2.0, size=60).astype(float)
    what = problem(loss, has_free_intercept=True, tol=1e-6)
    states, models = [fresh(what, 4, has_factor=True) for _ in range(2)], [np.zeros(4), np.zeros(4)]
    tasks = [NewtonPasses(what, NewtonRows(X), np.ones(60), y[None], 1.0) for _ in range(2)]
    for _ in range(200):
        sums = sum(sums_of(what, *task, y, model) for *task, model in zip(tasks, states, models, strict=True))
        models = [steps.advance(state, what, w, sums.copy(), 2.0) for state, w in zip(states, models, strict=True)]
        np.testing.assert_array_equal(models[0], models[1])
        one, other = (state.outputs[0] for state in states)
        assert one.phase is other.phase
        assert one.theta == other.theta
        other.direction = other.direction * (1 + 1e-13)
        other.conjugate = other.conjugate * (1 + 1e-13)
        other.change, other.slope = other.change * (1 + 1e-13), other.slope * (1 + 1e-13)
    assert one.phase is NewtonPhase.REST


def fresh(what, D, *, has_factor, **fields):
    """As a trainer begins."""
    state = NewtonState(D=D, block_columns=D if has_factor else 0, is_exact=has_factor, outputs=[], **fields)
    return steps.start(state, what, np.zeros(D))


def sums_of(what, passes, state, y, model):
    """What a task adds up over its rows."""
    sums = np.zeros(state.sums_size(what))
    sums[1], part = len(y), sums[HEAD:]
    if state.outputs[0].phase is NewtonPhase.LOOK:
        part[:] = len(y), np.abs(y).sum(), y.sum(), y @ y
    else:
        passes.run(state, 0, model, part)
    return sums


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if not loss.is_parabola])
def test_of_a_direction_that_is_too_long_a_part_is_evaluated_next(loss):
    """Until one is short enough; where it has led nowhere w stays."""
    rng = np.random.default_rng(0)
    X, y = np.column_stack([rng.normal(size=(60, 3)), np.ones(60)]), rng.poisson(2.0, size=60).astype(float)
    what = problem(loss, tol=1e-9)
    passes = NewtonPasses(what, NewtonRows(X), np.ones(60), y[None], 1.0)
    state, w = fresh(what, 4, has_factor=True), np.zeros(4)
    [output] = state.outputs
    while not output.direction.any():
        w = steps.advance(state, what, w, sums_of(what, passes, state, y, w), 1.0)
    output.direction, output.slope, before = 40.0 * output.direction, 40.0 * output.slope, output.value
    while output.direction.any() and output.value == before:
        direction, reach = output.direction, output.reach
        there = steps.advance(state, what, w, sums_of(what, passes, state, y, w), 1.0)
        if output.value == before:
            np.testing.assert_array_equal(there, w)
            np.testing.assert_allclose(output.direction, output.reach / reach * direction)
            assert output.reach < reach
    assert output.value < before


@pytest.mark.parametrize("is_rough", [False, True])
def test_a_matrix_that_rounding_has_made_indefinite_is_no_error(is_rough):
    """The factor is then an estimate, and products do the rest."""
    what = problem(SquaredEpsilonInsensitive(), alpha=1e-9, tol=1e-9)
    state = fresh(what, 2, has_factor=True, is_rough=is_rough)
    [output] = state.outputs
    output.phase, state.num_rows = NewtonPhase.EVALUATE, 3.0
    sums = np.zeros(state.sums_size(what))
    sums[1], found = 3.0, Evaluation.of(state, output, what, sums[HEAD:])
    found.v[:], found.second[:] = 1.0, (1.0, 2.0, 1.0)  # eigenvalues 3 and -1
    steps.advance(state, what, np.zeros(2), sums, 1.0)
    assert output.phase is NewtonPhase.MULTIPLY
    assert output.conjugate @ output.residual > 0


def test_an_intercept_column_of_any_value_counts_where_all_weights_are_0():
    """Features that are 0 leave weights of 0, and the intercept alone."""
    y = np.random.default_rng(0).normal(5.0, 1.0, size=100)
    trainer = RegressionTrainer(loss=SquaredEpsilonInsensitive(), alpha=1.0, intercept_scaling=10.0, tol=1e-9)
    outcome = InProcess().run(Job(trainer=trainer, source=ArraySource(np.zeros((100, 2)), y), max_iterations=50))
    b = outcome.model[-1]
    assert b == pytest.approx(10.0 * y.sum() / (100.0 * len(y) + 0.5))
    assert outcome.certificate.metrics["loss/0"] == pytest.approx(((y - 10.0 * b) ** 2).sum())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_weights_that_float32_has_no_room_for(dtype):
    """Sums of second derivatives would be 0 in float32."""
    rng = np.random.default_rng(0)
    X, tiny = rng.normal(size=(60, 4)).astype(dtype), 1e-60
    y = X @ [1.0, 2.0, 3.0, 4.0] + 1.0 + rng.normal(size=60)
    trainer = RegressionTrainer(loss=SquaredEpsilonInsensitive(), alpha=2.0 * tiny, penalises_intercept=False, tol=1e-9)
    source = ArraySource(X, y, weights=np.full(60, tiny))
    outcome = InProcess().run(Job(trainer=trainer, source=source, max_iterations=50))
    assert outcome.history[-1].figures["duality_gap"] <= 1e-9
    assert len(outcome.history) <= 6


def test_a_certificate_before_the_means_are_known_proves_nothing():
    """It has a model from elsewhere, and has looked at the targets only."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)) + 3.0, rng.normal(size=60)
    trainer = RegressionTrainer(loss=SquaredEpsilonInsensitive(), penalises_intercept=False)
    job = Job(trainer=trainer, source=ArraySource(X, y), max_iterations=1, initial_model=np.ones(5))
    assert InProcess().run(job).history[-1].figures["dual_objective"] == 0.0


@pytest.mark.parametrize("loss", [EpsilonInsensitive(0.1), Huber(), Poisson()])
@pytest.mark.parametrize("has_factor", [True, False])
def test_several_passes_of_the_only_task_are_those_of_as_many_iterations(loss, has_factor, monkeypatch):
    """Bit for bit, the state included, without which they would part."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)), rng.poisson(2.0, size=60).astype(float)
    monkeypatch.setattr(methods, "MOST_COLUMNS", 5 if has_factor else 4)
    job = Job(trainer=RegressionTrainer(loss=loss, tol=1e-6), source=ArraySource(X, y), max_iterations=500)
    at_once = InProcess(num_tasks=1).run(job)
    monkeypatch.setattr(steps, "_passes_at_once", lambda state, what: 1)
    alone = InProcess(num_tasks=1).run(job)
    np.testing.assert_array_equal(at_once.model, alone.model)
    assert 1 < len(at_once.history) < len(alone.history)


@pytest.mark.parametrize("make_rows", [np.asarray, scipy.sparse.csr_matrix])
@pytest.mark.parametrize("loss", [EpsilonInsensitive(0.1), SquaredEpsilonInsensitive(0.1), Huber(), Poisson()])
def test_steps_over_few_wide_rows_are_exact(loss, make_rows, monkeypatch):
    """On any number of tasks, next to no penalty or not; rows of too many values are left to conjugate gradients."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)) @ rng.normal(size=(3, 2100)) + rng.normal(size=(40, 2100))
    X, y = make_rows(X / 50), np.abs(X[:, :20].sum(axis=1)) + 1.0
    for alpha in (1.0, 1e-4):
        trainer = RegressionTrainer(loss=loss, alpha=alpha, tol=1e-4, penalises_intercept=False)
        job = Job(trainer=trainer, source=ArraySource(X, y, max_tasks=3, chunk_bytes=20_000), max_iterations=90)
        alone, three = (InProcess(num_tasks=num_tasks).run(job) for num_tasks in (1, 3))
        assert len(alone.history) <= (30 if alpha == 1.0 or not isinstance(loss, SquaredEpsilonInsensitive) else 70)
        assert len(three.history) <= max(30, 1.5 * len(alone.history))
        assert max(alone.history[-1].figures["duality_gap"], three.history[-1].figures["duality_gap"]) <= 1e-4
    with monkeypatch.context() as patched:
        patched.setattr(conjugate, "FEW_VALUES", 0)
        long = InProcess().run(job)
    assert len(long.history) > len(alone.history)
    assert long.history[-1].figures["objective"] >= alone.history[-1].figures["dual_objective"]
