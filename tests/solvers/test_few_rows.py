"""Few wide rows: when they are sent, and the steps that each task takes alone over those of all."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import DataSchema
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import Budget, StopFlag
from chicle_elastic.solvers.linear.losses import EpsilonInsensitive, Huber, Poisson, SquaredEpsilonInsensitive
from chicle_elastic.solvers.linear.methods import FEW_VALUES, MOST_ROWS
from chicle_elastic.solvers.linear.newton import conjugate, few_rows
from chicle_elastic.solvers.linear.newton.directions import RowProducts
from chicle_elastic.solvers.linear.newton.few_rows import solved
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState, OutputState, Problem
from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer
from chicle_elastic.solvers.linear.rows import NewtonRows
from tests.solvers.linear_jobs import Tasks

INTERCEPT = 2.0


class Counted(np.ndarray):
    """An array that counts its products with matrices."""

    products = 0

    def __matmul__(self, other):
        Counted.products += np.ndim(other) == 2
        return np.asarray(self) @ np.asarray(other)


def gathered(loss, *, num_rows=30, num_columns=80):
    """Everything that a task knows once all rows are sent: state, output, problem, X, and targets."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, num_columns)) * (rng.random((num_rows, num_columns)) < 0.5)
    X[:, -1] = INTERCEPT
    y, upper = rng.poisson(2.0, size=num_rows).astype(float), rng.uniform(0.5, 2.0, size=num_rows)
    rows = NewtonRows(scipy.sparse.csr_array(X)).csr()
    state = NewtonState(D=num_columns, block_columns=0, is_exact=False, num_rows=float(num_rows), outputs=[])
    state.few_rows, state.total, state.typical = num_rows, float(upper.sum()), 2.0
    state.lengths = np.diff(rows.indptr).astype(np.int64)
    state.gathered = np.concatenate([upper, y, rows.indices, rows.data])
    output = OutputState(phase=NewtonPhase.SOLVE, theta=2.0, is_wary=loss.has_corners)
    state.outputs.append(output)
    return state, output, Problem(loss=loss, tol=1e-8), X, y, upper


def budget(*, is_spent=False):
    """One that is spent, or not."""
    stop = StopFlag()
    if is_spent:
        stop.set()
    return Budget(clock=MonotonicClock(), num_tasks=1, iteration=1, stop=stop)


@pytest.mark.parametrize("loss", [EpsilonInsensitive(0.1), Huber(), Poisson()], ids=lambda loss: type(loss).__name__)
def test_what_a_task_finds_alone_is_the_optimum(loss):
    """w, the scale and the duals close the gap of the problem over all rows, from first principles."""
    state, output, problem, X, y, upper = gathered(loss)
    found = solved(state, output, problem, np.zeros(80), INTERCEPT, budget())
    w, (theta, gap, share_at_rest, _), duals = found[:80], found[80:84], found[84:]
    scores = X @ w - y if loss.is_of_residuals else X @ w
    targets = np.zeros_like(y) if loss.is_of_residuals else y
    primal = upper @ loss.values(scores, targets, 0.0 if loss.has_corners else theta) + 0.5 * w @ w
    lack = upper @ (loss.values(scores, targets, 0.0 if loss.has_corners else theta))
    lack -= upper @ loss.dual_values(duals, scores, targets)
    left = w - X.T @ (upper * duals)
    assert lack + 0.5 * left @ left <= 2e-8 * primal
    assert 0 <= gap <= 1e-8
    assert share_at_rest == 1.0
    assert output.phase is NewtonPhase.SOLVE  # the state of all tasks is as it was


def test_a_task_without_time_sends_what_one_step_has_found():
    """It lowers the objective, and a certificate tells how much is missing."""
    state, output, problem, X, y, upper = gathered(Poisson())
    whole, cut = (solved(state, output, problem, np.zeros(80), INTERCEPT, budget(is_spent=s)) for s in (False, True))
    objectives = [upper @ Poisson().values(X @ w, y, 1.0) + 0.5 * w @ w for w in (whole[:80], cut[:80], np.zeros(80))]
    assert objectives[0] < objectives[1] <= objectives[2]
    assert len(cut) == len(whole)
    assert whole[81] < cut[81]


def test_duals_of_rows_that_are_fitted_exactly_are_no_rounding():
    """The scale goes to 0 with the residuals, whose slopes are rounding of w by then; the penalty is small."""
    rng = np.random.default_rng(0)
    X, y = scipy.sparse.csr_array(rng.normal(size=(20, 3000))), rng.normal(size=20)
    trainer = RegressionTrainer(loss=Huber(), alpha=2e-6, penalises_intercept=False)
    for num_tasks in (1, 3):
        source = ArraySource(X, y, max_tasks=3, chunk_bytes=1 << 14, seed=0)
        outcome = InProcess(num_tasks=num_tasks).run(Job(trainer=trainer, source=source, max_iterations=30, seed=0))
        assert outcome.history[-1].figures["duality_gap"] <= 1e-3


def test_many_rows_of_few_values_are_a_matter_of_each_task_alone():
    """Targets of which most are equal: the scale goes to 0, and hundreds of products are no iterations."""
    rng = np.random.default_rng(0)
    columns = np.stack([rng.integers(0, 1500, 5000), 1500 + rng.integers(0, 900, 5000)], axis=1)
    X = scipy.sparse.csr_array((np.ones(10000), columns.ravel(), np.arange(0, 10001, 2)), shape=(5000, 2400))
    y = (X @ rng.normal(size=2400) + rng.normal(size=5000) > 2.5).astype(np.float64)
    counts = []
    for num_tasks in (1, 4):
        source = ArraySource(X, y, max_tasks=4, chunk_bytes=1 << 14, seed=0)
        trainer = RegressionTrainer(loss=Huber(), alpha=2e-4, penalises_intercept=False)
        outcome = InProcess(num_tasks=num_tasks).run(Job(trainer=trainer, source=source, max_iterations=60, seed=0))
        assert outcome.history[-1].figures["duality_gap"] <= 1e-3
        counts.append(len(outcome.history))
    assert max(counts) <= 3 * min(counts)


@pytest.mark.parametrize("num_tasks", [1, 3])
def test_exact_steps_follow_after_as_much_work_as_they_take_however_often_a_task_tells_others(num_tasks, monkeypatch):
    """Few values of rather many rows: products of these cost more than all passes that are made at a stretch."""
    monkeypatch.setattr(few_rows, "MOST_REPEATS", 20)
    rng = np.random.default_rng(0)
    X = scipy.sparse.random(300, 2500, density=0.0012, format="csr", random_state=0, data_rvs=rng.standard_normal)
    solvers, solver = [], RowProducts.solver
    monkeypatch.setattr(RowProducts, "solver", lambda *arguments: solvers.append(1) or solver(*arguments))
    trainer = RegressionTrainer(loss=Huber(), alpha=2e-4, penalises_intercept=False)
    source = ArraySource(X, rng.normal(size=300), max_tasks=3, chunk_bytes=1 << 12, seed=0)
    outcome = InProcess(num_tasks=num_tasks).run(Job(trainer=trainer, source=source, max_iterations=20, seed=0))
    assert solvers
    assert outcome.history[-1].figures["duality_gap"] <= 1e-3


def test_products_of_rows_are_kept_while_the_penalty_is_the_same():
    """Steps differ by the curvatures of rows, which are divided out of no product; with damping they are made anew."""
    rng = np.random.default_rng(0)
    X, ridge = rng.normal(size=(6, 20)), np.full(20, 0.5)
    products, matrix = RowProducts(X.view(Counted)), np.zeros((20, 20))
    Counted.products = 0
    for curvatures in (np.ones(6), np.array([0.0, 1.0, 2.0, 0.0, 5.0, 3.0])):
        matrix = np.diag(ridge) + (X.T * curvatures) @ X
        step, _ = products.solver(curvatures, ridge)(np.ones(20), np.zeros(6))
        np.testing.assert_allclose(step, np.linalg.solve(matrix, np.ones(20)))
    assert Counted.products <= 1
    matrix = matrix + np.eye(20)
    step, _ = products.solver(curvatures, ridge + 1.0)(np.ones(20), np.zeros(6))
    np.testing.assert_allclose(step, np.linalg.solve(matrix, np.ones(20)))


@pytest.mark.parametrize(("num_rows", "length"), [(10, 50), (400, 50), (400, 3000), (2000, 900)])
def test_rows_are_sent_once_passes_have_cost_as_much_as_sending_them(num_rows, length):
    """And not before, however many rows there are."""
    output = OutputState(phase=NewtonPhase.EVALUATE)
    state = NewtonState(D=3001, block_columns=0, is_exact=False, outputs=[output])
    state.few_rows, state.lengths = num_rows, np.full(num_rows, length)
    conjugate.count_pass(state)
    assert output.phase is NewtonPhase.EVALUATE  # only another product would cost more
    a_pass = state.work
    output.phase = NewtonPhase.MULTIPLY
    passes = 1
    while output.phase is NewtonPhase.MULTIPLY:
        conjugate.count_pass(state)
        passes += 1
    least = 2.0 * (num_rows * length + conjugate.ITERATION_VALUES)
    assert least <= passes * a_pass <= least + a_pass


@pytest.mark.parametrize(("num_rows", "length"), [(2000, 3000), (conjugate.FEW_VALUES // 2 + 1, 1)])
def test_rows_of_too_many_values_are_not_sent(num_rows, length):
    """However long conjugate gradients take. Each row has a target and a weight beside its values."""
    output = OutputState(phase=NewtonPhase.MULTIPLY)
    state = NewtonState(D=3001, block_columns=0, is_exact=False, work=1e30, outputs=[output])
    state.few_rows, state.lengths = num_rows, np.full(num_rows, length)
    conjugate.count_pass(state)
    assert (state.few_rows, output.phase) == (0, NewtonPhase.MULTIPLY)


@pytest.mark.parametrize("kind", ["dense", "csr"])
def test_lengths_of_more_rows_than_a_message_holds_are_not_asked(kind):
    """A look asks each row for its number of values, so there may be no more rows than can be sent."""
    most = MOST_ROWS if kind == "csr" else FEW_VALUES // 3002
    for num_rows, expected in ((most, most), (most + 1, 0)):
        schema = DataSchema(kind=kind, dtype="float64", num_rows=num_rows, num_features=3000, target_dtype="float64")
        trainer = RegressionTrainer(loss=Huber())
        state = NewtonState.look(trainer.begin(schema, trainer.init(schema, np.random.default_rng(0)), np.zeros(0), 3))
        assert state.few_rows == expected


def test_an_intercept_stays_where_no_row_is_curved():
    """All rows are within the tube: an exact step takes the weights to 0, and leaves the intercept where it is."""
    state, output, _, X, _, upper = gathered(SquaredEpsilonInsensitive(50.0))
    problem = Problem(loss=SquaredEpsilonInsensitive(50.0), tol=1e-8, has_free_intercept=True)
    w = np.append(np.full(79, 0.1), 500.0)
    passes = few_rows._OwnPasses(problem, scipy.sparse.csr_array(X), upper, np.full(30, 1000.0), INTERCEPT)
    step, *_ = passes.steps(output, w, problem.ridge(state), problem.ridge(state))
    np.testing.assert_allclose(step, np.append(-w[:79], 0.0))


def test_dense_rows_that_were_sent_are_dense_again(monkeypatch):
    """A product of the entries of all takes four times as long."""
    kinds, rows_of = [], few_rows.NewtonRows
    monkeypatch.setattr(few_rows, "NewtonRows", lambda rows: kinds.append(type(rows)) or rows_of(rows))
    for num_zeros in (0, 5):
        state, output, problem, X, _, _ = gathered(Huber())
        X = np.abs(X) + 0.5
        X[:, :num_zeros] = 0.0
        rows = scipy.sparse.csr_array(X)
        state.lengths = np.diff(rows.indptr).astype(np.int64)
        state.gathered = np.concatenate([state.gathered[:60], rows.indices, rows.data])
        solved(state, output, problem, np.zeros(80), INTERCEPT, budget())
    assert kinds == [np.ndarray, scipy.sparse.csr_array]


@pytest.mark.parametrize("happens", ["stops", "stops within", "leaves", "is lost"])
@pytest.mark.parametrize("phase", [NewtonPhase.GATHER, NewtonPhase.SOLVE])
@pytest.mark.parametrize("loss", [Huber(), EpsilonInsensitive(0.1)], ids=lambda loss: type(loss).__name__)
def test_a_task_may_stop_or_go_while_rows_are_sent_and_solved_for(loss, phase, happens):
    """The pass is made again or serves as far as it went, a state is read as it was written, and rows that are lost are
    missing in what is sent next."""
    rng = np.random.default_rng(0)
    X, y = scipy.sparse.random(200, 2500, density=0.004, format="csr", random_state=0), rng.normal(size=200)
    data = SimpleNamespace(source=lambda num_tasks: ArraySource(X, y, max_tasks=3, chunk_bytes=1 << 12, seed=0))
    trainer = RegressionTrainer(loss=loss, alpha=0.01)
    tasks, is_over = Tasks(data, trainer, 3), False
    while not (tasks.iteration and tasks.state.is_at_rest) and tasks.iteration < 20:
        is_now = bool(tasks.iteration) and tasks.state.outputs[0].phase is phase and not is_over
        is_over = is_over or is_now
        if is_now and happens in ("leaves", "is lost"):
            gone, first = tasks.tasks.pop(), tasks.tasks[0]
            if happens == "leaves":
                first.held |= gone.held
                first.attach(list(gone.held), [])
            tasks.progress = NewtonState.decode(tasks.progress.encode())
        stopped = {0, 1, 2} if is_now and happens.startswith("stops") else ()
        tasks.iterate(stopped, after=2 * (happens == "stops within"))
    assert is_over
    assert tasks.state.is_at_rest
    here = np.concatenate([chunk.row_ids for task in tasks.tasks for chunk in task.held.values()])
    assert (len(here) < 200) == (happens == "is lost")
    w, [output] = tasks.model, tasks.state.outputs
    residuals, duals = y[here] - X[here] @ w[:-1] - w[-1], output.duals[here]
    v = np.append(X[here].T @ duals, duals.sum())
    primal = loss.values(-residuals, 0.0 * residuals, loss.sharp(output.theta)).sum() + 0.005 * w @ w
    dual = duals @ y[here] - getattr(loss, "epsilon", 0.0) * np.abs(duals).sum() * loss.has_corners - v @ v / 0.02
    assert np.abs(duals).max() <= (1.0 if loss.has_corners else 2.0 * loss.epsilon)
    assert not loss.has_scale or duals @ duals <= 4.0 * len(here) * (1.0 + 1e-6)
    assert 0.0 <= primal - dual <= 1e-3 * primal
