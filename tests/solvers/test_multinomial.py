"""Multinomial regression below the estimator: bounds, rows, preconditioner, state, steps, and disturbed jobs."""

import dataclasses
import subprocess
import sys
import tracemalloc
import weakref
from typing import ClassVar

import numpy as np
import pytest
from scipy import sparse
from scipy.special import entr, logsumexp, softmax
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.agreement import solve_positive
from chicle_elastic.solvers.linear.multinomial import objective
from chicle_elastic.solvers.linear.multinomial.problem import (
    SoftmaxProblem,
    block_weights,
    factored,
    joint_block,
    mean_weights,
    preconditioned,
)
from chicle_elastic.solvers.linear.newton import conjugate, steps
from chicle_elastic.solvers.linear.newton.state import Block, NewtonState, OutputState, Sum
from chicle_elastic.solvers.linear.newton.trainer import MultinomialTrainer, first_state
from chicle_elastic.solvers.linear.rows import NewtonRows


def small(*, K=4, n=40, d=3, seed=0):
    """Rows, class codes, C_i and a model."""
    rng = np.random.default_rng(seed)
    X, model = rng.normal(size=(n, d)) + 1.0, rng.normal(size=(K, d + 1))
    return X, rng.integers(0, K, size=n), rng.uniform(0.0, 2.0, size=n), model - model.mean(axis=0)


def digits(n=300):
    """Some of them, with ten classes."""
    X, y = load_digits(return_X_y=True)
    return X[:n] / 16, y[:n]


def hessian(X, p, upper, *, has_intercept=True):
    """Second derivatives of P written out, classes one after the other, shape (K D, K D)."""
    rows = np.column_stack([X, np.full(len(X), float(has_intercept))])
    K, D = len(p), rows.shape[1]
    whole = np.zeros((K * D, K * D))
    for x, p_i, C in zip(rows, p.T, upper, strict=True):
        whole += C * np.kron(np.diag(p_i) - np.outer(p_i, p_i), np.outer(x, x))
    return whole + np.kron(np.eye(K), np.diag([1.0] * (D - 1) + [0.0]))


# The objective.


def test_sums_over_a_softmax_are_those_of_scipy():
    """Loss, entropy, slopes and second derivatives of the intercepts; also where scores are far apart."""
    X, codes, upper, model = small()
    for factor in (1.0, 1e3):
        scores = factor * (model[:, :-1] @ X.T + model[:, -1:])
        found = objective.Softmax.of(scores, codes, upper)
        p = softmax(scores, axis=0)
        np.testing.assert_allclose(found.probabilities, p, rtol=1e-12)
        losses = logsumexp(scores, axis=0) - scores[codes, np.arange(len(codes))]
        assert found.loss == pytest.approx(upper @ losses, rel=1e-12)
        assert found.entropy == pytest.approx(upper @ entr(p).sum(axis=0), rel=1e-9, abs=1e-12)
        expected = sum(C * (np.diag(q) - np.outer(q, q)) for C, q in zip(upper, p.T, strict=True))
        np.testing.assert_allclose(found.intercept_curvatures(), expected, atol=1e-12)
        targets = np.eye(len(p))[:, codes]
        np.testing.assert_allclose(found.slopes(codes, upper), upper * (p - targets), atol=1e-12)


@pytest.mark.parametrize("has_intercept", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_the_dual_objective_is_that_of_feasible_probabilities_and_below_every_objective(seed, has_intercept):
    """At any model: P as SciPy finds it, and D not above the D of the mixture, which adds up as it has to."""
    X, codes, upper, model = small(seed=seed)
    if not has_intercept:
        model[:, -1] = 0.0
    scores = model[:, :-1] @ X.T + model[:, -1:]
    targets, p = np.eye(len(model))[:, codes], softmax(scores, axis=0)
    slopes = upper * (p - targets)
    totals = targets @ upper
    primal, dual = objective.primal_and_dual(
        model,
        np.column_stack([slopes @ X, slopes.sum(axis=1)]),
        loss=objective.Softmax.of(scores, codes, upper).loss,
        entropy=float(upper @ entr(p).sum(axis=0)),
        linear=np.column_stack([(upper * targets) @ X, totals]),
        has_intercept=has_intercept,
    )
    losses = logsumexp(scores, axis=0) - scores[codes, np.arange(len(codes))]
    assert primal == pytest.approx(0.5 * (model[:, :-1] ** 2).sum() + upper @ losses, rel=1e-12)
    if has_intercept:
        share, common = objective.mixture(slopes.sum(axis=1), totals)
        assert 0.0 < share < 1.0
        assert common.min() >= 0.0
        p = (1.0 - share) * p + share * common[:, None]
        np.testing.assert_allclose(p @ upper, totals, rtol=1e-12)
    value = upper @ entr(p).sum(axis=0) - 0.5 * (((upper * (targets - p)) @ X) ** 2).sum()
    assert dual <= value + 1e-9
    assert has_intercept or dual == pytest.approx(value, rel=1e-12)
    params = {"solver": "newton-cholesky", "tol": 1e-10, "max_iter": 200, "fit_intercept": has_intercept}
    peer = LogisticRegression(C=1.0, **params).fit(X, codes, sample_weight=upper)
    best = peer.coef_ @ X.T + peer.intercept_[:, None]
    least = 0.5 * (peer.coef_**2).sum() + objective.Softmax.of(best, codes, upper).loss
    assert dual <= least * (1 + 1e-12) <= primal


def test_a_class_without_weight_is_left_out_of_scores_and_of_the_mixture():
    """Its probability is 0, and its intercept has no gradient."""
    scores = np.array([[1.0, -400.0], [0.5, 800.0], [objective.LEFT_OUT] * 2])
    found = objective.Softmax.of(scores, np.array([0, 1]), np.array([1.0, 2.0]))
    np.testing.assert_array_equal(found.probabilities[2], [0.0, 0.0])
    assert np.isfinite([found.loss, found.entropy]).all()
    _, common = objective.mixture(np.array([0.5, -0.5, 0.0]), np.array([1.0, 2.0, 0.0]))
    assert common[2] == 0.0
    assert common.sum() == pytest.approx(1.0)


def test_a_small_system_is_solved_in_a_fixed_order():
    """As LAPACK does it, and without an exception where there is no solution."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(7, 9))
    matrix, right = root @ root.T, rng.normal(size=7)
    np.testing.assert_allclose(solve_positive(matrix, right), np.linalg.solve(matrix, right), rtol=1e-9)
    assert not np.isfinite(solve_positive(np.zeros((2, 2)), np.ones(2))).all()


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_scores_of_intercepts_alone_need_no_product(form):
    """They are those of a product, wherever the intercept column lies; without any weight they are 0."""
    rng = np.random.default_rng(0)
    matrix = np.column_stack([rng.normal(size=(7, 3)), np.full(7, 2.0)])
    rows, intercepts = NewtonRows(form(matrix)), np.column_stack([np.zeros((2, 3)), [1.5, -1.0]])
    for vectors in (np.zeros((2, 4)), intercepts, rng.normal(size=(2, 4))):
        found = rows.curved(vectors, lambda _, scores: scores + 1.0)
        np.testing.assert_allclose(found, (vectors @ matrix.T + 1.0) @ matrix, atol=1e-12)


# The preconditioner.


def solved(packed, r, shares=1.0):
    """What the preconditioner that these second derivatives make does to r, whose sum over classes is 0."""
    K, D = r.shape
    ridge = np.tile([1.0] * (D - 1) + [0.0], (K, 1))
    return preconditioned(r, *factored(packed, np.zeros(0), ridge, np.broadcast_to(shares, K)))


def test_one_block_is_exact_where_all_classes_are_equally_likely():
    """So the first step is solved for by a single block, scaled; the sum over classes is 0."""
    X, _, upper, _ = small(n=60)
    K, D = 4, 4
    rows = np.column_stack([X, np.ones(len(X))])
    packed = ((rows.T * upper) @ rows)[np.tril_indices(D)]
    p = np.full((K, len(X)), 1.0 / K)
    scale = block_weights(p, np.ones(len(X)))[0, 0]
    r = np.random.default_rng(2).normal(size=(K, D))
    r -= r.mean(axis=0)
    found = solved(scale * packed, r)
    np.testing.assert_allclose(hessian(X, p, upper) @ found.ravel(), r.ravel(), atol=1e-9)
    np.testing.assert_allclose(found.sum(axis=0), 0.0, atol=1e-12)


@pytest.mark.parametrize(("K", "count"), [(2, 2), (2, 1), (3, 3), (3, 1), (5, 5)])
@pytest.mark.parametrize("D", [2, 3, 5])
def test_factors_of_rough_sums_take_half_of_the_room(K, count, D):
    """One for each class or one for all, also where their values do not come in pairs."""
    rng = np.random.default_rng(K)
    rows = rng.normal(size=(count, 20, D))
    blocks = np.concatenate([(part.T @ part)[np.tril_indices(D)] for part in rows])
    ridge = np.tile([1.0] * (D - 1) + [0.0], (K, 1))
    exact, rough = (factored(blocks, np.zeros(0), ridge, np.ones(K), is_rough=is_rough) for is_rough in (False, True))
    assert len(exact[1]) == 1 + len(blocks)
    assert len(rough[1]) == 1 + (len(blocks) + 1) // 2
    r = rng.normal(size=(K, D))
    found, expected = preconditioned(r, *rough), preconditioned(r, *exact)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert not np.array_equal(found, expected)


@pytest.mark.parametrize("C", [1.0, 100.0])
def test_a_fit_takes_no_more_memory_than_a_few_blocks(C):
    """Those of a pass, of a step and of one state, whose products of steps are no larger than a block."""
    rng, (n, d, K) = np.random.default_rng(0), (700, 640, 40)
    y = rng.integers(0, K, n)
    X = 2.0 * rng.normal(size=(n, d)) + 1.5 * rng.normal(size=(K, d))[y]
    source = ArraySource((X / np.linalg.norm(X, axis=1, keepdims=True)).astype(np.float16), y)
    job = Job(trainer=MultinomialTrainer(C=C), source=source, max_iterations=200)
    InProcess().run(job)  # which loads kernels
    tracemalloc.start()
    try:
        outcome = InProcess().run(job)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert outcome.certificate is not None
    assert peak_bytes < 6 * 8 * (d + 1) * (d + 2) // 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watched(MultinomialTrainer):
    """Finds out whether the progress before a step is still held when the step is judged."""

    before: ClassVar[list[weakref.ref]] = []
    are_held: ClassVar[list[bool]] = []

    def advance(self, model, progress, summed):
        """Remember the progress."""
        self.before.append(weakref.ref(NewtonState.look(progress).outputs[0].direction))
        return MultinomialTrainer.advance(self, model, progress, summed)

    def figures(self, model, report):
        """Look whether it is there."""
        self.are_held.append(self.before[-1]() is not None)
        return MultinomialTrainer.figures(self, model, report)


def test_no_state_before_a_step_is_held_after_it():
    """It may be as large as all second derivatives, and a certificate takes as long as a pass."""
    X, y = digits()
    InProcess().run(Job(trainer=Watched(), source=ArraySource(X, y), max_iterations=50))
    assert len(Watched.are_held) > 3
    assert not any(Watched.are_held)


@pytest.mark.parametrize("has_intercept", [True, False])
def test_a_step_of_a_joint_block_solves_for_all_weights(has_intercept):
    """The block has all second derivatives, and classes without weight stay where they are."""
    X, _, upper, model = small()
    rows = np.column_stack([X, np.full(len(X), float(has_intercept))])
    problem = SoftmaxProblem(tol=1e-3, has_free_intercept=has_intercept, num_classes=4)
    state, output = NewtonState(D=16, block_columns=16, num_classes=4, outputs=[]), OutputState(linear=np.ones(16))
    p = softmax(model @ rows.T, axis=0)
    packed = joint_block(rows, p, upper)
    whole = hessian(X, p, upper, has_intercept=has_intercept)
    losses = whole - np.kron(np.eye(4), np.diag([1.0, 1.0, 1.0, 0.0]))
    np.testing.assert_allclose(packed, losses[np.tril_indices(16)], atol=1e-9)
    r = np.random.default_rng(2).normal(size=(4, 4))
    r[:, -1] *= has_intercept
    r -= r.mean(axis=0)
    solve, _ = problem.solver(state, output, packed, problem.ridge(state), is_rough=False)
    np.testing.assert_allclose(whole @ solve(r.ravel() + np.tile(np.arange(4.0), 4)), r.ravel(), atol=1e-9)
    q = softmax(np.where([[True], [True], [False], [True]], model[:, :-1] @ X.T, objective.LEFT_OUT), axis=0)
    if has_intercept:
        output.linear = np.repeat([1.0, 1.0, 0.0, 1.0], 4)
        solve, _ = problem.solver(state, output, joint_block(rows, q, upper), problem.ridge(state), is_rough=False)
        found = solve(r.ravel()).reshape(4, 4)
        assert not found[2].any()
        assert np.isfinite(found).all()


def test_blocks_without_a_factor_have_their_diagonal():
    """Columns that are equal, a class without curvature, and second derivatives that are no numbers."""
    for packed in (np.ones(6), np.zeros(6), np.full(6, np.inf)):
        with np.errstate(invalid="ignore"):
            assert np.isfinite(solved(packed, np.array([[1.0, 2.0, 3.0], [-1.0, -2.0, -3.0]]))).all()


# Steps.


def state_of(shape, dtype=np.float64):
    """The first state of data of n rows, d features and K classes, and what is minimised."""
    n, d, K = shape
    source = ArraySource(np.zeros((K, d), dtype=dtype), np.arange(K, dtype=np.int32), num_classes=K)
    state = first_state(dataclasses.replace(source.schema, num_rows=n), K)
    return state, SoftmaxProblem(tol=1e-3, has_free_intercept=True, num_classes=K)


@pytest.mark.parametrize(
    ("shape", "num_blocks", "is_joint", "has_all_rows"),
    [
        ((150, 4, 3), 3, True, True),
        ((1797, 64, 10), 10, False, False),
        ((60_000, 784, 10), 10, False, False),
        ((5_000, 784, 100), 1, False, True),
        ((500, 3000, 3), 0, False, True),
        ((1_000_000, 20, 3), 3, False, False),
    ],
)
def test_sizes_decide_how_second_derivatives_are_summed_up(shape, num_blocks, is_joint, has_all_rows):
    """Blocks of all columns while they fit into a message, all weights at once on little data, some rows on much."""
    state, problem = state_of(shape, np.float32)
    assert (problem.num_blocks(state), state.is_exact, state.row_step == 1) == (num_blocks, is_joint, has_all_rows)
    assert state.is_exact or state.is_rough
    steps.start(state, problem, np.zeros(state.D))
    assert problem.look_size(state, state.outputs[0]) <= 1 << 22
    assert sum(problem.sizes(state, state.outputs[0])) <= 1 << 22


@pytest.mark.parametrize(
    ("shape", "num_blocks"),
    [((5_000, 784, 10), 1), ((60_000, 64, 10), 10), ((5_000, 784, 100), 1), ((500, 3000, 3), 0)],
)
def test_a_warm_start_begins_with_the_mean_of_blocks_that_take_long(shape, num_blocks):
    """It keeps that until products have taken as long as a block of each class, which the next evaluation then has."""
    state, problem = state_of(shape)
    w, K = np.arange(float(state.D)), problem.num_classes
    [output] = steps.start(state, problem, w).outputs
    linear = np.zeros((K, state.D // K))
    linear[:, -1] = 1.0
    problem.looked(state, output, w, linear.ravel())
    assert problem.sizes(state, output)[0] == num_blocks * problem.block_size(state)
    most, output.factor, output.direction = state.D // K // 8, np.ones(1), np.ones(state.D)
    for num_products in (most - 1, 2 * state.kept_products):
        output.num_products, output.residual, output.conjugate = num_products, np.zeros(state.D), np.zeros(state.D)
        conjugate.multiplied(state, output, problem, w, np.zeros(2 * state.D), 1.0)
        is_spared = num_products < most and problem.num_blocks(state, output) < problem.num_blocks(state)
        assert (output.block is Block.KEPT) == is_spared
    assert problem.sizes(state, output)[0] == problem.num_blocks(state) * problem.block_size(state)


@pytest.mark.parametrize("kind", ["joint", "blocks", "mean", "diagonals"])
def test_a_look_at_the_data_says_all_of_a_model_of_zeros(kind, monkeypatch):
    """Loss, gradient and second derivatives are those that an evaluation there would sum up."""
    X, codes, upper, _ = small()
    K, D, rows = 4, 4, np.column_stack([X, np.ones(len(X))])
    state, problem = state_of((40, 3, 4))
    state.is_exact = kind == "joint"
    if kind in ("mean", "diagonals"):
        monkeypatch.setattr(SoftmaxProblem, "num_blocks", lambda *_: kind == "mean")
    steps.start(state, problem, np.zeros(K * D))
    targets, square = upper * np.eye(K)[:, codes], (rows.T * upper) @ rows
    block = square.diagonal() if kind == "diagonals" else square[np.tril_indices(D)]
    sums = np.concatenate([(targets @ rows).ravel(), block])
    w, found = problem.looked(state, state.outputs[0], np.zeros(K * D), sums)
    W = w.reshape(K, D)
    softmax_there = objective.Softmax.of(W[:, :-1] @ X.T + W[:, -1:], codes, upper)
    loss, entropy = softmax_there.loss, softmax_there.entropy
    assert found.scalars[[Sum.ROUND, Sum.LOSS, Sum.DUALS]] == pytest.approx([loss, loss, entropy])
    np.testing.assert_allclose(found.v.reshape(K, D), -softmax_there.slopes(codes, upper) @ rows, atol=1e-9)
    np.testing.assert_allclose(found.beside.reshape(K, K), softmax_there.intercept_curvatures(), atol=1e-9)
    if kind == "joint":
        expected = joint_block(rows, softmax_there.probabilities, upper)
    else:  # one in place of all
        weights = block_weights(softmax_there.probabilities, upper)
        np.testing.assert_allclose(mean_weights(softmax_there.probabilities, upper)[0], weights.mean(axis=0))
        expected = weights.sum(axis=1).mean() / upper.sum() * block
    np.testing.assert_allclose(found.diagonal if kind == "diagonals" else found.second, expected, atol=1e-9)


# Jobs.


def job(X, y, *, num_tasks=4, C=1.0, tol=1e-6, has_intercept=True, chunk_bytes=20_000, weights=None, **fields):
    """To its end."""
    trainer = MultinomialTrainer(C=C, tol=tol, has_intercept=has_intercept)
    source = ArraySource(
        X,
        y.astype(np.int32),
        weights=weights,
        num_classes=int(y.max()) + 1,
        max_tasks=num_tasks,
        chunk_bytes=chunk_bytes,
    )
    return Job(trainer=trainer, source=source, **{"max_iterations": 400, "seed": 3, **fields})


def least(X, y, C, weights=None, *, has_intercept=True):
    """The least objective, by scikit-learn."""
    X = X.toarray() if sparse.issparse(X) else X.astype(np.float64)
    params = {"solver": "newton-cg", "tol": 1e-6, "max_iter": 500, "fit_intercept": has_intercept}
    peer = LogisticRegression(C=C, **params).fit(X, y, sample_weight=weights)
    upper = C * (np.ones(len(y)) if weights is None else weights)
    scores = peer.coef_ @ X.T + peer.intercept_[:, None]
    return 0.5 * (peer.coef_**2).sum() + objective.Softmax.of(scores, y, upper).loss


def test_float32_rows_come_to_more_digits_than_float32_has():
    """Certificates are exact, and what they refuse is repaired."""
    X, y = digits()
    X = np.repeat(X, 2, axis=0).astype(np.float32)
    outcome = InProcess(num_tasks=2).run(job(X, np.repeat(y, 2), tol=1e-11, num_tasks=2))
    assert outcome.history[-1].figures["duality_gap"] <= 1e-11


@pytest.mark.parametrize("tol", [1e-3, 1e-4, 1e-6])
@pytest.mark.parametrize("C", [0.01, 100.0])
def test_float32_rows_take_about_as_many_passes_as_float64(tol, C):
    """Evaluations in float32 only where rounding does not show beside tol; at 1e-6 they take a fifth more passes."""
    X, y = digits()
    rough, exact = (
        InProcess(num_tasks=1).run(job(rows, y, C=C, tol=tol)) for rows in (X.astype(np.float32), X.astype(np.float64))
    )
    assert len(rough.history) <= 1.1 * len(exact.history) + 1
    assert rough.history[-1].figures["duality_gap"] <= tol


def test_a_model_to_begin_with_is_taken_up_and_centred():
    """From the solution nothing is left to be done; what all classes have in common goes, as the penalty has it."""
    X, y = digits()
    cold = InProcess(num_tasks=1).run(job(X, y))
    shifted = cold.model.reshape(10, -1) + np.random.default_rng(0).normal(size=65)
    warm = InProcess(num_tasks=1).run(dataclasses.replace(job(X, y), initial_model=shifted.ravel()))
    assert len(warm.history) == 2
    np.testing.assert_allclose(warm.model, cold.model, atol=1e-3 * np.abs(cold.model).max())


def test_without_intercepts_there_are_none():
    """And a class without weight is one like all others."""
    X, y = load_iris(return_X_y=True)
    weights = np.where(y == 1, 0.0, 1.0)
    outcome = InProcess(num_tasks=2).run(job(X, y, has_intercept=False, weights=weights, num_tasks=2))
    assert not outcome.model.reshape(3, 5)[:, -1].any()
    assert outcome.model.reshape(3, 5)[1].any()
    figures = outcome.history[-1].figures
    assert figures["duality_gap"] <= 1e-6
    assert figures["objective"] == pytest.approx(least(X, y, 1.0, weights, has_intercept=False), rel=2e-6)


def test_no_compiler_is_loaded():
    """A first fit is NumPy and SciPy alone, of dense rows and of sparse ones, and of regressions by Newton's method."""
    script = """
import sys
import numpy as np
from scipy import sparse
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.newton.trainer import MultinomialTrainer
from estimators import ChicleHuber, ChicleLogisticRegression, ChiclePoisson
rng = np.random.default_rng(0)
X, y = rng.normal(size=(600, 40)), rng.integers(0, 12, 600).astype(np.int32)
for rows in (X, sparse.csr_matrix(X)):
    InProcess().run(Job(trainer=MultinomialTrainer(), source=ArraySource(rows, y, num_classes=12), max_iterations=50))
    for model in (ChicleHuber(alpha=100.0), ChicleLogisticRegression(), ChiclePoisson(alpha=100.0)):
        model.fit(rows, y)
assert not {"numba", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
