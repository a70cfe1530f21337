"""Conjugate gradients: what a run learns from the last one, and how exact it is. Pure: no rows."""

from types import SimpleNamespace

import numpy as np
import pytest

from chicle_elastic.solvers.linear.newton import conjugate, pairs
from chicle_elastic.solvers.linear.newton.plan import NewtonPlan
from chicle_elastic.solvers.linear.newton.preconditioner import factorise
from chicle_elastic.solvers.linear.newton.state import Block, NewtonPhase, OutputState
from chicle_elastic.solvers.linear.objectives import Loss


def products_of_a_run(plan, output, H, block):
    """Products until the direction is known, and what it leaves of the Newton equations."""
    conjugate.begin(plan, 0.9, output, block)
    gradient = output.gradient
    while output.phase is NewtonPhase.MULTIPLY:
        group = SimpleNamespace(direction=output.p[None], product=(H @ output.p - output.p)[None])
        conjugate.multiplied(plan, output, group, 0)
    return output.num_products, np.linalg.norm(H @ output.direction + gradient) / np.linalg.norm(gradient)


def test_a_run_learns_from_the_products_of_the_last_one():
    """Few eigenvalues are far from 1: the first run meets them, and the next one knows them."""
    rng, size = np.random.default_rng(3), 60
    vectors = np.linalg.qr(rng.normal(size=(size, size)))[0]
    H = vectors @ np.diag(np.concatenate([10.0 ** np.arange(1, 6), np.ones(size - 5)])) @ vectors.T
    plan = NewtonPlan(loss=Loss.LOGISTIC, tol=1e-12, num_outputs=1, D=size, block_columns=size, is_cheap=False)
    output = OutputState(gap=1e-4, value=1.0, block=Block.KEPT)
    block = factorise(np.zeros(0), np.zeros(size), np.zeros(0, dtype=np.int64))
    counts = []
    for _ in range(2):
        output.gradient = rng.normal(size=size)
        count, left = products_of_a_run(plan, output, H, block)
        counts.append(count)
        assert left <= 2 * conjugate.LEAST_ETA
    assert len(output.pairs) // (2 * size) == min(counts[1], pairs.MOST_PAIRS)
    assert counts[1] <= counts[0] - 3


@pytest.mark.parametrize(
    ("gap", "tol", "left"),
    [
        (1.0, 1e-3, conjugate.MOST_ETA**2),  # an exact step would not do
        (0.04, 1e-6, 0.04),
        (1e-6, 1e-13, conjugate.LEAST_ETA**2),
        (1e-2, 1e-3, conjugate.LANDING * 0.1),  # the last one, if it leaves that much
        (1e-3, 0.9e-3, conjugate.MOST_ETA**2),
    ],
)
def test_a_run_is_as_exact_as_it_has_to_be(gap, tol, left):
    """As its step may be exact, or as the goal needs it."""
    plan = NewtonPlan(loss=Loss.LOGISTIC, tol=tol, num_outputs=1, D=3, block_columns=3, is_cheap=False)
    output = OutputState(gap=gap, value=1.0, gradient=np.arange(1.0, 4.0))
    conjugate.begin(plan, 1.0, output, factorise(np.zeros(0), np.ones(3), np.zeros(0, dtype=np.int64)))
    assert output.goal == pytest.approx(left * np.square(np.arange(1.0, 4.0)).sum() / 2.0)


@pytest.mark.parametrize(("most_values", "kept"), [(1 << 20, pairs.MOST_PAIRS), (6 * 10, 3), (2 * 10, 1), (10, 0)])
def test_pairs_of_wide_data_are_fewer(most_values, kept, monkeypatch):
    """They are part of the progress; the newest stay."""
    monkeypatch.setattr(pairs, "MOST_VALUES", most_values)
    found, D = np.zeros(0), 10
    for number in range(1, 9):
        found = pairs.appended(found, np.full(D, float(number)), np.full(D, 2.0 * number))
    assert found.reshape(-1, 2, D)[:, 0, 0].tolist() == [float(number) for number in range(9 - kept, 9)]
    assert len(found) == kept * 2 * D
