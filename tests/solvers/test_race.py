"""Turns of two methods: what is done in vain is bounded, whatever the traces of both are."""

import numpy as np
import pytest

from chicle_elastic.solvers.linear.coordinates import ITERATIONS_PER_TURN, Descent
from chicle_elastic.solvers.linear.race import AHEAD, Race
from estimators import ChicleSVM

STEP = 10.0
FLIGHTS = (0.899, 0.833, 0.76, 0.707, 0.6, 0.5, 0.4, 0.327, 0.26, 0.2, 0.16, 0.13, 0.1, 0.08, 0.07, 0.06)
"""Relative gaps of coordinate descent on flights one-hot, per pass."""


def run(traces, first_turn, first_share=1.0):
    """Race two methods whose gaps are `traces[i](step)`, to the first gap of 0; the steps of each, and who ended."""
    race, done = Race(first_turn, first_share=first_share), [0, 0]
    while True:
        own = race.running
        gap = traces[own](done[own])
        done[own] += 1
        race.add(STEP, gap)
        if gap == 0.0:
            return done, own


def ending(num_steps, gaps):
    """A trace with these gaps, again and again, that ends after so many steps."""
    return lambda step: 0.0 if step + 1 >= num_steps else gaps[step % len(gaps)]


def adversarial(rng):
    """Gaps that say nothing of the end: flat, falling, rising, jumping, tiny."""
    kind = rng.integers(5)
    if kind == 0:
        return [1.0]
    if kind == 1:
        return list(0.5 ** np.arange(1, 40))
    if kind == 2:
        return list(0.5 ** np.arange(40, 1, -1))
    if kind == 3:
        return list(10.0 ** rng.uniform(-12, 0, 50))
    return [1e-300, 1e300]


def test_both_do_at_most_three_times_the_work_of_the_one_that_ends():
    """And the first turn, and a step on top."""
    for seed in range(300):
        rng = np.random.default_rng(seed)
        first_turn = float(rng.choice([0.0, 4 * STEP, 1000.0]))
        lengths = 10.0 ** rng.uniform(0, 4, 2)
        traces = [ending(length, adversarial(rng)) for length in lengths]
        done, _ = run(traces, first_turn, float(rng.choice([0.1, 1.0])))
        best = STEP * np.ceil(lengths.min())
        assert STEP * sum(done) <= (1.0 + AHEAD) * best + first_turn + 2 * STEP, seed


def test_who_seems_faster_does_two_thirds_at_most():
    """The other is not given up: it may be the one that ends."""
    fast, slow = list(0.9 ** np.arange(1, 1000)), [1.0]
    done, winner = run([ending(10_000, slow), ending(900, fast)], 4 * STEP)
    assert winner == 1
    assert 0.5 * done[1] - 5 <= done[0] <= done[1]


def test_slow_passes_at_first_do_not_lose_the_race():
    """What flights one-hot do: passes that end after 60, against Newton steps that begin well and take thousands."""
    newton = list(np.geomspace(0.5, 0.01, 3000))
    done, winner = run([ending(60, (*FLIGHTS, *np.geomspace(0.05, 1e-3, 44))), ending(3000, newton)], 4 * STEP)
    assert winner == 0
    assert sum(done) <= 3 * 60 + 5


@pytest.mark.parametrize("seed", range(3))
def test_the_turn_of_newton_steps_comes_long_before_max_iter(seed):
    """Rows as smooth as images: each pass is short, and Newton steps cost as much as hundreds of passes."""
    rng = np.random.default_rng(0)
    X = np.cumsum(rng.normal(size=(4000, 500)), axis=1)
    X = 0.1 * np.abs(X) / np.abs(X).max()
    y = (X @ rng.normal(size=(500, 6)) + 0.05 * rng.normal(size=(4000, 6))).argmax(axis=1)
    model = ChicleSVM(C=100.0, random_state=seed, max_iter=2 * ITERATIONS_PER_TURN).fit(X.astype(np.float32), y)
    assert model.duality_gap_ <= model.tol


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_few_dense_rows_of_many_columns_have_newton_steps(loss):
    """Rows like images with more values than a matrix of second derivatives takes: products of rows do."""
    rng = np.random.default_rng(0)
    faces = np.cumsum(rng.normal(size=(40, 3000)), axis=1)
    faces /= np.abs(faces).max(axis=1, keepdims=True)
    X = np.clip(0.5 + 0.2 * rng.normal(size=(900, 40)) @ faces + 0.02 * rng.normal(size=(900, 3000)), 0, 1)
    y = (X @ rng.normal(size=(3000, 2)) / 50 + 0.3 * rng.normal(size=(900, 2))).argmax(axis=1)
    model = ChicleSVM(loss=loss, C=100.0, random_state=0, max_iter=3 * ITERATIONS_PER_TURN).fit(X, y)
    assert model.duality_gap_ <= model.tol


def test_passes_that_begin_with_duals_of_before_yield_early(monkeypatch):
    """More rows later: passes do as much as one Newton step, and a cold fit as many as 24 of them."""
    visits = []

    def noted(self, *args, **kwargs):
        before = self.visits
        found = descend(self, *args, **kwargs)
        visits.append(self.visits - before)
        return found

    descend = Descent.run_apart
    monkeypatch.setattr(Descent, "run_apart", noted)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 30))
    y = X @ rng.normal(size=30) + 3.0 * rng.normal(size=1500) > 0
    model = ChicleSVM(C=10.0, warm_start=True, random_state=0, n_threads=1).fit(X, y)
    cold = sum(visits)
    model.fit(X[:1360][::-1], y[:1360][::-1])  # other rows: it begins without duals
    visits.clear()
    model.fit(np.concatenate([X[:1360][::-1], X[1360:]]), np.concatenate([y[:1360][::-1], y[1360:]]))
    assert sum(visits) < 0.8 * cold
    assert model.duality_gap_ <= model.tol
