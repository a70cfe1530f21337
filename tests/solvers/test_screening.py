"""How far w has moved since an iteration, which decides what rows need not be looked at."""

import numpy as np
import pytest

from chicle_elastic.solvers.linear.screening import COLUMNS_PER_BLOCK, NUM_STAMPS, Screening

OUTPUTS = 2


def walk(num_features: int, num_iterations: int) -> np.ndarray:
    """w at each iteration, shape (iterations, outputs, features + 1): steps that become shorter and turn back."""
    rng = np.random.default_rng(7)
    steps = rng.normal(size=(num_iterations, OUTPUTS, num_features + 1))
    return np.cumsum(steps / (1 + np.arange(num_iterations))[:, None, None], axis=0)


@pytest.mark.parametrize("num_features", [20, COLUMNS_PER_BLOCK])
def test_distances_are_never_too_small(num_features: int) -> None:
    """And that of the last step is exact; also where w has more than a block of columns."""
    num_iterations = 36
    past = walk(num_features, num_iterations)
    screening = Screening(OUTPUTS, num_features)
    screening.end_pass(0.0)
    for iteration in range(5, num_iterations):
        screening.begin_pass(past[iteration], iteration)
        distances = screening.caution * np.linalg.norm(past[iteration] - past[5 : iteration + 1], axis=2).T
        moved = screening.moved[:, 5 : iteration + 1]
        assert np.isfinite(moved).all()
        assert (moved >= distances * (1 - 1e-5)).all()
        np.testing.assert_allclose(moved[:, -2:], distances[:, -2:], rtol=1e-5)
        assert np.isinf(np.delete(screening.moved, np.s_[5 : iteration + 1], axis=1)).all(), "nobody was here then"


def test_stamps_begin_anew_after_as_many_iterations_as_they_tell_apart() -> None:
    """For every solver at the same iteration, whenever it began."""
    w = np.zeros((OUTPUTS, 4))
    screening = Screening(OUTPUTS, 3)
    assert not screening.begin_pass(w, 1), "nothing is known as long as it is off"
    screening.end_pass(0.0)
    starts = [iteration for iteration in range(100, 3 * NUM_STAMPS) if screening.begin_pass(w, iteration)]
    assert starts == [100, NUM_STAMPS, 2 * NUM_STAMPS]


@pytest.mark.parametrize("num_features", [20, COLUMNS_PER_BLOCK])
def test_nothing_is_known_of_iterations_without_a_pass(num_features: int) -> None:
    """A task without rows was not there; their stamps must not be taken for those of 256 iterations before."""
    past = walk(num_features, 3)
    screening = Screening(OUTPUTS, num_features)
    screening.end_pass(0.0)
    for iteration in range(1, NUM_STAMPS + 6):
        screening.begin_pass(past[0], iteration)
    screening.begin_pass(past[2], NUM_STAMPS + 60)
    known = np.flatnonzero(np.isfinite(screening.moved[0]))
    assert known.tolist() == [*range(6), 60]
