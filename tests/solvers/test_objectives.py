"""The losses, their duals and coordinate steps: NumPy reference against first principles, scalars against NumPy."""

import numpy as np
import pytest

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.kernels import losses
from chicle_elastic.solvers.linear.objectives import (
    Loss,
    dual_slopes,
    dual_values,
    duals_from_slopes,
    primal_losses,
    upper_bounds,
)
from tests.solvers.reference import coordinate_steps

LOSSES = list(Loss)


def random_samples(loss, num_samples=200, seed=0):
    """Margins, feasible duals, curvatures and upper bounds, some of them at the edges."""
    rng = np.random.default_rng(seed)
    upper = rng.choice([0.01, 1.0, 3.0, 100.0], size=num_samples)
    share = rng.choice([0.0, 0.3, 0.999, 1.0], size=num_samples)
    if loss is Loss.LOGISTIC:
        share = np.clip(share, 0.0, 1.0)
    return rng.normal(scale=3, size=num_samples), share * upper, rng.exponential(size=num_samples), upper


@pytest.mark.parametrize("loss", LOSSES)
def test_coordinate_step_beats_every_other_feasible_step(loss):
    """The step maximises the local dual over the box."""
    margins, alpha, curvature, upper = random_samples(loss)

    def gain(new):
        step = new - alpha
        return dual_values(loss, new, upper) - step * margins - 0.5 * curvature * step**2

    best = gain(coordinate_steps(loss, margins, alpha, curvature, upper))
    highest = min(loss.most_slope, 10) * upper
    for share in np.linspace(0, 1, 101):
        assert np.all(best >= gain(share * highest) - 1e-9 * (1 + np.abs(best)))


@pytest.mark.parametrize("loss", LOSSES)
def test_kernel_scalars_equal_the_reference(loss):
    """The scalar forms that the kernels inline give the values of the NumPy reference."""
    margins, alpha, curvature, upper = random_samples(loss)
    rows = list(zip(margins, alpha, curvature, upper, strict=True))
    np.testing.assert_allclose(
        [losses.primal_loss(losses.LOSSES[loss], m, c) for m, _, _, c in rows],
        primal_losses(loss, margins, upper),
        rtol=1e-12,
    )
    found = np.array([losses.step_and_values(losses.LOSSES[loss], m, a, q, c) for m, a, q, c in rows])
    expected = coordinate_steps(loss, margins, alpha, curvature, upper)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(found[:, 1], dual_values(loss, alpha, upper), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found[:, 2], dual_values(loss, found[:, 0], upper), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_sample_of_weight_zero_keeps_no_dual(loss):
    """C_i = 0 means that the sample is not there, whatever its margin."""
    assert losses.step_and_values(losses.LOSSES[loss], -5.0, 0.0, 1.0, 0.0) == (0.0, 0.0, 0.0)
    assert losses.primal_loss(losses.LOSSES[loss], -5.0, 0.0) == 0.0


def test_a_row_of_zeros_takes_its_bound_at_once():
    """Without curvature nothing holds the hinge dual back, and w does not change."""
    assert losses.step_and_values(losses.LOSSES[Loss.HINGE], 0.0, 0.0, 0.0, 2.5) == (2.5, 0.0, 2.5)


@pytest.mark.parametrize("margin", [-800.0, -30.0, 0.0, 30.0, 800.0])
@pytest.mark.parametrize("curvature", [0.0, 1e-8, 1.0, 1e8])
def test_logistic_step_survives_extreme_margins(margin, curvature):
    """No overflow, no NaN, and the result stays in the box."""
    alpha, old, new = losses.step_and_values(losses.LOSSES[Loss.LOGISTIC], margin, 0.5, curvature, 1.0)
    assert 0.0 <= alpha <= 1.0
    assert old == pytest.approx(np.log(2))
    assert new == pytest.approx(dual_values(Loss.LOGISTIC, np.array([alpha]), np.ones(1))[0], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_a_row_of_infinite_curvature_keeps_its_dual(alpha):
    """Its norm is beyond float32, and a step would be none or NaN."""
    for loss in LOSSES:
        following, old, new = losses.step_and_values(losses.LOSSES[loss], 2.0, alpha, np.inf, 1.0)
        assert following == alpha
        assert old == new == pytest.approx(dual_values(loss, np.array([alpha]), np.ones(1))[0], rel=1e-14)  # libm's log


def test_an_unknown_loss_is_named_with_the_known_ones():
    """The message lists what can be chosen."""
    with pytest.raises(UsageError, match=r"'huber'.*'hinge', 'squared_hinge', 'logistic'"):
        Loss.named("huber")


def test_upper_bounds_multiply_all_weights():
    """C_i = C * sample weight * class weight, where a weight that is not there is 1."""
    codes = np.array([0, 1, 1])
    weights = np.array([1.0, 2.0, 0.0])
    np.testing.assert_array_equal(upper_bounds(2.0, codes, None, None), [2, 2, 2])
    np.testing.assert_array_equal(upper_bounds(2.0, codes, weights, None), [2, 4, 0])
    np.testing.assert_array_equal(upper_bounds(2.0, codes, weights, (10.0, 0.5)), [20, 2, 0])


@pytest.mark.parametrize("loss", LOSSES)
def test_slopes_carry_duals_into_another_box(loss):
    """Duals come back from their slopes, scale with C, and are feasible for bounds of any kind, a loss change too."""
    _, alpha, _, upper = random_samples(loss)
    slopes = dual_slopes(alpha, upper)
    np.testing.assert_allclose(duals_from_slopes(loss, slopes, upper), alpha, rtol=1e-15)
    np.testing.assert_allclose(duals_from_slopes(loss, slopes, 7.0 * upper), 7.0 * alpha, rtol=1e-15)
    without_weight = np.where(np.arange(len(upper)) % 2, upper, 0.0)
    assert not dual_slopes(np.zeros_like(upper), without_weight)[::2].any()
    for other in LOSSES:
        carried = duals_from_slopes(other, 3.0 * slopes, without_weight)
        assert np.all(carried >= 0)
        assert not carried[::2].any()
        assert other is Loss.SQUARED_HINGE or np.all(carried <= other.most_slope * without_weight)
