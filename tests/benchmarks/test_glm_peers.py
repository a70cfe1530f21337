"""Every library minimises the same function as ours, once its parameters are translated."""

import importlib.util

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.datasets import DataSet
from benchmarks.fits import coef_of, timed_fit
from benchmarks.glm_peers import known_peers
from benchmarks.ours import fit_ours
from benchmarks.peers import Peer
from benchmarks.problems import LOSSES, Problem, dual, primal
from benchmarks.references import by_newton, by_ours

MANY_ITERATIONS = 3000
SNAP_ML_HINGE = 2e-3
"""Snap ML stands still that far above the best objective now and then, however many iterations it may take."""


def blobs(num_classes: int, *, sparse: bool = False) -> DataSet:
    """A hundred and fifty rows with well-conditioned columns, in classes that overlap."""
    rng = np.random.default_rng(7)
    y = np.arange(150) % num_classes
    X = rng.standard_normal((150, 5)) + rng.standard_normal((num_classes, 5))[y]
    return DataSet(f"blobs-{num_classes}", "blobs", sp.csr_matrix(X) if sparse else X, y.astype(np.int64))


PAIRS = [
    pytest.param(peer, module, loss, id=f"{peer.name}-{loss}")
    for peer, module in known_peers()
    for loss in LOSSES
    if peer.suits(Problem(blobs(2), loss, 1.0))
]


@pytest.mark.parametrize(("num_classes", "C"), [(2, 0.05), (3, 1.0)])
@pytest.mark.parametrize(("peer", "module", "loss"), PAIRS)
def test_a_peer_minimises_the_same_objective(peer: Peer, module: str, loss: str, C: float, num_classes: int) -> None:
    """The best objective of a peer is the best possible one to 1e-4, and not below it."""
    problem = Problem(blobs(num_classes), loss, C)
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{peer.name} is not installed (the extra bench brings it)")
    best = by_newton(problem, 1e-9, 30.0)
    model = peer.make(problem, MANY_ITERATIONS)
    timed_fit(model, problem.data)
    coef = coef_of(model, problem.data)
    assert coef.shape == (len(best.upper), 5)
    excess = (primal(problem, coef) - best.lower) / best.upper
    assert np.all(excess > -1e-9), "a peer cannot be better than the best possible"
    assert np.all(excess < (SNAP_ML_HINGE if (peer.name, loss) == ("Snap ML", "hinge") else 1e-4))


@pytest.mark.parametrize(("num_classes", "sparse"), [(2, False), (3, True)])
@pytest.mark.parametrize("loss", LOSSES)
def test_ours_and_newton_find_the_same_interval(loss: str, num_classes: int, sparse: bool) -> None:
    """Two solvers that share no code certify intervals that overlap."""
    problem = Problem(blobs(num_classes, sparse=sparse), loss, 0.3)
    ours, newton = by_ours(problem, 1e-8, 30.0), by_newton(problem, 1e-8, 30.0)
    assert ours.width <= 1.1e-8
    assert newton.width <= 1e-8
    assert np.all(ours.lower <= newton.upper * (1 + 1e-12))
    assert np.all(newton.lower <= ours.upper * (1 + 1e-12))


@pytest.mark.parametrize("loss", LOSSES)
def test_ours_reports_the_objectives_that_the_benchmark_computes(loss: str) -> None:
    """`objective_` and `dual_objective_` are those of `problems`, which were written apart from the product."""
    problem = Problem(blobs(2), loss, 0.3)
    model = fit_ours(problem, 1e-6, store_duals=True).model
    np.testing.assert_allclose(primal(problem, model.coef_), model.objective_, rtol=1e-12)
    np.testing.assert_allclose(dual(problem, model.duals_), model.dual_objective_, rtol=1e-9)


def test_the_duals_of_another_loss_are_put_back_into_their_bounds() -> None:
    """A dual variable above C counts as C, so that what comes out is a bound whatever went in."""
    problem = Problem(blobs(2), "hinge", 0.3)
    best = by_newton(problem, 1e-9, 30.0)
    wild = np.random.default_rng(0).uniform(-1, 2, (150, 1))
    assert dual(problem, wild)[0] < best.upper[0]
