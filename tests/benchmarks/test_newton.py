"""The solver of the references: its interval holds, whichever way it solves for a step."""

import time

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks import newton
from benchmarks.newton import Newton
from benchmarks.problems import LOSSES


def rows_times_signs(*, sparse: bool) -> tuple[np.ndarray, object]:
    """Two hundred rows with ten columns of very different size."""
    rng = np.random.default_rng(1)
    A = rng.standard_normal((200, 10)) * np.geomspace(0.1, 10, 10) + 0.2
    return A, sp.csr_matrix(A) if sparse else A


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("way", ["columns", "rows", "conjugate gradients"])
def test_an_interval_is_as_narrow_as_asked(way: str, loss: str, sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All three ways to solve for a step certify 1e-7, and no model close to the best one is below the interval."""
    if way != "columns":
        monkeypatch.setattr(newton, "MOST_COLUMNS", 0)
    if way == "conjugate gradients":
        monkeypatch.setattr(newton, "MOST_CURVED_ROWS", 0)
    dense, A = rows_times_signs(sparse=sparse)
    solver = Newton(A, loss, 0.5, time.process_time() + 30, np.zeros(10))
    solver.solve(1e-7)
    assert abs(solver.upper - solver.lower) <= 1e-7 * solver.upper
    rng = np.random.default_rng(2)
    for _ in range(50):
        w = solver.w * (1 + 0.01 * rng.standard_normal(10))
        losses = newton.losses_of(loss, dense @ w)
        assert 0.5 * w @ w + 0.5 * losses.sum() >= solver.lower * (1 - 1e-12)


def test_time_that_is_up_leaves_a_wide_interval() -> None:
    """The bounds hold after no more than a look at the first model."""
    _, A = rows_times_signs(sparse=False)
    solver = Newton(A, "logistic", 0.5, time.process_time() - 1, np.zeros(10))
    solver.solve(1e-9)
    assert solver.upper == pytest.approx(0.5 * 200 * np.log(2))
    assert solver.lower < solver.upper
