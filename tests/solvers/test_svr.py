"""Support vector regression below the estimator: losses and their duals, progress as a vector, and the trainer."""

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.svr import steps
from chicle_elastic.solvers.linear.svr.losses import Insensitive
from chicle_elastic.solvers.linear.svr.state import SvrPhase, SvrState
from chicle_elastic.solvers.linear.svr.trainer import SvrTrainer

LOSSES = [Insensitive(epsilon=epsilon, is_squared=is_squared) for epsilon in (0.0, 0.4) for is_squared in (False, True)]
WIDTH = 0.3


def samples():
    """Residuals on both sides, weights with zeros among them, and targets."""
    rng = np.random.default_rng(0)
    upper = rng.uniform(0.1, 2.0, size=200) * (rng.uniform(size=200) < 0.9)
    return 2.0 * rng.normal(size=200), upper, rng.normal(size=200)


@pytest.mark.parametrize("loss", LOSSES)
def test_duals_and_curvatures_are_derivatives_of_the_round_loss(loss):
    """By differences."""
    residuals, upper, _ = samples()
    step = 1e-6
    above, below = (loss.losses(residuals + sign * step, upper, WIDTH) for sign in (1, -1))
    np.testing.assert_allclose(loss.duals(residuals, upper, WIDTH), (above - below) / (2 * step), atol=1e-6)
    above, below = (loss.duals(residuals + sign * step, upper, WIDTH) for sign in (1, -1))
    excess = np.abs(residuals) - loss.epsilon
    is_smooth = (np.abs(excess) > 1e-5) & (np.abs(excess - WIDTH) > 1e-5)
    found = loss.curvatures(residuals, upper, WIDTH)
    np.testing.assert_allclose(found[is_smooth], ((above - below) / (2 * step))[is_smooth], atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_narrow_corner_is_nearly_sharp(loss):
    """And a round loss is nowhere above the sharp one."""
    residuals, upper, _ = samples()
    sharp = loss.losses(residuals, upper)
    np.testing.assert_allclose(loss.losses(residuals, upper, 1e-9), sharp, atol=1e-8)
    missing = sharp - loss.losses(residuals, upper, WIDTH)
    assert np.all((missing >= -1e-12) & (missing <= 1.0001 * WIDTH * upper))


@pytest.mark.parametrize("width", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_duals_of_any_model_are_feasible_and_below_every_objective(loss, width):
    """Weak duality, on random models."""
    residuals, upper, y = samples()
    rng = np.random.default_rng(1)
    X = rng.normal(size=(len(y), 5))
    duals = loss.duals(residuals, upper, width)
    assert loss.is_squared or np.all(np.abs(duals) <= upper)
    part = X.T @ duals
    dual = loss.dual_values(duals, y, upper).sum() - 0.5 * part @ part
    for w in rng.normal(size=(20, 5)) * np.geomspace(1e-3, 3, 20)[:, None]:
        assert dual <= 0.5 * w @ w + loss.losses(y - X @ w, upper).sum() + 1e-12


def test_rows_that_are_lost_or_come_back_start_the_steps_anew():
    """Gradient and objective would be those of other rows; interrupted tasks make the pass again."""
    state = SvrState.fresh(3, has_factor=True)
    state.phase, state.num_rows = SvrPhase.EVALUATE, 10.0
    model, sums = np.ones(3), np.zeros(state.sums_size)
    sums[0] = 1.0
    assert steps.advance(state, model, sums, 1.0, tol=0.1, is_squared=False) is model
    assert state.phase is SvrPhase.EVALUATE
    sums[:2] = 0.0, 9.0
    assert steps.advance(state, model, sums, 1.0, tol=0.1, is_squared=False) is model
    assert state.phase is SvrPhase.LOOK


def test_a_direction_that_is_too_long_is_looked_at_more_closely():
    """Then the corners become narrower, or the squared loss rests: rounding is all that is left."""
    for is_squared, then in ((False, SvrPhase.EVALUATE), (True, SvrPhase.REST)):
        state = SvrState.fresh(2, has_factor=True)
        state.phase, state.num_rows, state.value = SvrPhase.SEARCH, 5.0, 0.0
        model, sums = np.zeros(2), np.concatenate([[0.0, 5.0], np.ones(state.sums_size - 4), [1.0, 0.0]])
        reaches = []
        while state.phase is SvrPhase.SEARCH:
            model = steps.advance(state, model, sums, 1.0, tol=0.1, is_squared=is_squared)
            reaches.append(state.reach)
        assert len(reaches) == 3
        assert not model.any()
        assert state.phase is then


def test_parameters_and_data_that_cannot_be_are_refused():
    """By the trainer, too, which scripts use without an estimator."""
    for params in ({"C": 0.0}, {"C": np.nan}, {"epsilon": -1.0}, {"tol": -1.0}):
        with pytest.raises(UsageError, match="needs C > 0, epsilon >= 0 and tol >= 0"):
            SvrTrainer(**params)
    with pytest.raises(UsageError, match="there is no loss 'hinge'; choose one of 'epsilon_insensitive'"):
        SvrTrainer(loss="hinge")
    labels = ArraySource(np.ones((4, 2)), np.array([0, 1, 0, 1]))
    with pytest.raises(UsageError, match="a regression needs real targets"):
        InProcess(num_tasks=1).run(Job(trainer=SvrTrainer(), source=labels, max_iterations=3))
