"""Several fits in one job: each is as good as by itself, on any number of tasks, and while these come and go."""

import dataclasses
import functools

import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import NO_PROGRESS, Action, Report
from chicle_elastic.solvers.linear import local, methods, rows
from chicle_elastic.solvers.linear.newton.trainer import MultinomialTrainer
from chicle_elastic.solvers.linear.path import PathState, PathTrainer, results_of
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.linear.working_set.steps import WorkingSetPhase, WorkingSetState

LOSSES = ("hinge", "squared_hinge", "logistic", "softmax")
CS = (0.01, 0.1, 3.0)
TOL = 1e-4
FOLDS = 3


def problem(num_rows=240, num_features=6, num_classes=2, seed=0):
    """Overlapping classes, and the fold of each row."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(num_rows, num_features)) @ rng.normal(size=(num_features, num_features))
    scores = X @ rng.normal(size=(num_features, num_classes)) + 2.0 * rng.normal(size=(num_rows, num_classes))
    return X, scores.argmax(axis=1).astype(np.int32), np.arange(num_rows) % FOLDS


def stages(loss, num_classes=2, Cs=CS, folds=range(FOLDS), **params):
    """One per fold and C: codes are fold * classes + class, and a fold is left out by factors of 0."""
    codes = range(FOLDS * num_classes)
    kind = MultinomialTrainer if loss == "softmax" else functools.partial(LinearTrainer, loss=loss)
    return tuple(
        kind(
            C=C,
            tol=TOL,
            class_weights=tuple(float(code // num_classes != fold) for code in codes),
            code_classes=tuple(code % num_classes for code in codes),
            **params,
        )
        for fold in folds
        for C in Cs
    )


def run(trainers, X, y, folds, *, runtime=None, max_iterations=2000, num_classes=2, job=None):
    """The model and gap of every stage, and the outcome."""
    runtime = runtime or InProcess()
    codes = (folds * num_classes + y).astype(np.int32)
    path = PathTrainer(stages=trainers, max_iterations=(max_iterations,) * len(trainers))
    source = ArraySource(X, codes, num_classes=FOLDS * num_classes, max_tasks=runtime.most_tasks(), chunk_bytes=2000)
    outcome = runtime.run(Job(trainer=path, source=source, max_iterations=10**6, **(job or {})))
    found = results_of(outcome.certificate.progress)
    models = [result.model for result in found] + [outcome.model]
    gaps = [result.gap for result in found] + [path.relative_gap(outcome.model, outcome.certificate)]
    return models, gaps, outcome


def objective(trainer, X, y, model, num_classes=2):
    """P of each output over the rows with these labels, from first principles."""
    rows = np.column_stack([X.toarray() if sparse.issparse(X) else X, np.ones(X.shape[0])])
    if trainer.has_one_softmax:
        W = model.reshape(num_classes, -1)
        losses = logsumexp(rows @ W.T, axis=1) - (rows * W[y]).sum(axis=1)
        return np.array([0.5 * (W[:, :-1] ** 2).sum() + trainer.C * losses.sum()])
    found = []
    for k, w in enumerate(model.reshape(-1, rows.shape[1])):
        margins = np.where(y == (1 if num_classes == 2 else k), 1.0, -1.0) * (rows @ w)
        slack = np.maximum(0.0, 1.0 - margins)
        losses = {"hinge": slack, "squared_hinge": slack**2, "logistic": np.logaddexp(0.0, -margins)}[trainer.loss]
        found.append(0.5 * w @ w + trainer.C * losses.sum())
    return np.array(found)


def assert_each_is_optimal(trainers, models, gaps, X, y, folds, num_classes=2):
    """Every stage is within its tol of the fit of its rows alone."""
    assert len(models) == len(trainers)
    assert max(gaps) <= TOL
    for number, (trainer, model) in enumerate(zip(trainers, models, strict=True)):
        is_in = folds != number // (len(trainers) // FOLDS)
        part, labels = X[is_in], y[is_in]
        alone = dataclasses.replace(trainer, class_weights=None, code_classes=None, tol=1e-7)
        source = ArraySource(part, labels, num_classes=num_classes)
        best = InProcess().run(Job(trainer=alone, source=source, max_iterations=5000)).model
        expected = objective(trainer, part, labels, best, num_classes)
        np.testing.assert_allclose(objective(trainer, part, labels, model, num_classes), expected, rtol=2 * TOL)


@pytest.mark.parametrize("num_tasks", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_each_stage_is_as_good_as_by_itself(loss, num_tasks):
    """Three folds, each along three values of C, in one job."""
    X, y, folds = problem()
    trainers = stages(loss)
    models, gaps, _ = run(trainers, X, y, folds, runtime=InProcess(num_tasks=num_tasks))
    assert_each_is_optimal(trainers, models, gaps, X, y, folds)


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_may_be_sparse_and_wide_and_classes_more_than_two(loss):
    """More columns than rows, so that coordinates descend; three outputs."""
    X, y, folds = problem(num_rows=60, num_features=90, num_classes=3)
    X[np.abs(X) < 1.0] = 0.0
    trainers = stages(loss, num_classes=3, Cs=(1e-4, 1e-2))
    models, gaps, _ = run(trainers, sparse.csr_matrix(X), y, folds, num_classes=3)
    assert_each_is_optimal(trainers, models, gaps, sparse.csr_matrix(X), y, folds, num_classes=3)


@pytest.mark.parametrize("loss", LOSSES)
def test_tasks_may_come_and_go_between_and_within_stages(loss):
    """A membership change after nearly every iteration of the first stages."""
    X, y, folds = problem()
    changes = tuple((iteration, 1 + iteration * 2 % 3) for iteration in range(1, 30))
    trainers = stages(loss)
    models, gaps, outcome = run(trainers, X, y, folds, runtime=InProcess(num_tasks=2, changes=changes))
    assert_each_is_optimal(trainers, models, gaps, X, y, folds)
    assert set(outcome.history.column("num_tasks").tolist()) == {1, 2, 3}


def run_of_two_stages(loss, runtime=None):
    """From C = 1 to 1.1 little is left to do: hardly more iterations than by itself. The outcome."""
    X, y, folds = problem()
    together = run(stages(loss, Cs=(1.0, 1.1), folds=[0]), X, y, folds, runtime=runtime)[2]
    alone = run(stages(loss, Cs=(1.1,), folds=[0]), X, y, folds, runtime=runtime)[2]
    second = sum(record.figures["stage"] == 1 for record in together.history)
    assert 0 < second <= len(alone.history) + 2  # a certificate may just miss tol
    return together


@pytest.mark.parametrize("loss", LOSSES)
def test_a_larger_C_goes_on_and_takes_hardly_more_iterations_than_by_itself(loss):
    """With the duals, and what is known of second derivatives."""
    run_of_two_stages(loss)


def test_a_softmax_goes_on_as_it_came_from_the_stage_before(monkeypatch):
    """In steps of log C, which takes fewer iterations than from the last model; not after a C that is the same."""
    X, y, folds = problem(num_rows=900, num_features=40, num_classes=9)
    trainers = stages("softmax", num_classes=9, Cs=(0.01, 0.1, 1.0, 10.0), folds=[0])
    path = PathTrainer(stages=(trainers[0], *trainers[::2], trainers[2]), max_iterations=(9,) * 4)
    np.testing.assert_array_equal(path._foreseen(2, np.ones(3), np.zeros(3)), np.ones(3))
    np.testing.assert_allclose(
        PathTrainer(stages=trainers, max_iterations=(9,) * 4)._foreseen(1, np.ones(2), np.zeros(2)), 2.0
    )
    found = run(trainers, X, y, folds, num_classes=9)
    monkeypatch.setattr(PathTrainer, "_foreseen", lambda self, stage, model, before: model)
    without = run(trainers, X, y, folds, num_classes=9)
    assert len(found[2].history) < 0.9 * len(without[2].history)
    for trainer, one, other in zip(trainers, found[0], without[0], strict=True):
        values = [objective(trainer, X[folds > 0], y[folds > 0], model, 9) for model in (one, other)]
        np.testing.assert_allclose(*values, rtol=2 * TOL)


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
def test_a_stage_goes_on_from_w_where_conjugate_gradients_found_it(loss, monkeypatch):
    """Its duals belong to that w, and have another w of their own."""
    monkeypatch.setattr(methods, "CHEAP_PRODUCTS", 0)
    monkeypatch.setattr(methods, "FEW_COLUMNS", 0)
    outcome = run_of_two_stages(loss, InProcess(num_tasks=2))
    assert not PathState.of(outcome.certificate.progress).is_fresh


@pytest.mark.parametrize("loss", ["squared_hinge", "logistic"])
def test_coordinates_descend_from_the_duals_of_a_stage_of_newtons_method(loss, monkeypatch):
    """Wide rows: two tasks end their stages by conjugate gradients, and the one that is left by coordinate descent."""
    monkeypatch.setattr(methods, "MOST_COLUMNS", 4)
    X, y, folds = problem(num_features=12)
    trainers = stages(loss, Cs=(0.01, 0.1, 1.0))
    two = run(trainers, X, y, folds, runtime=InProcess(num_tasks=2))[2]
    [last] = [number for number, record in enumerate(two.history) if record.figures["stage"] == 4][-1:]
    for iteration in (last, last + 1, last + 3):  # the end of a stage, and the beginning of one that goes on
        runtime = InProcess(num_tasks=2, changes=((iteration, 1),))
        models, gaps, outcome = run(trainers, X, y, folds, runtime=runtime)
        assert_each_is_optimal(trainers, models, gaps, X, y, folds)
        assert set(outcome.history.column("num_tasks").tolist()) == {1, 2}


@pytest.mark.parametrize("loss", ["hinge", "softmax"])
def test_rows_that_are_left_out_are_not_looked_at(loss):
    """Whatever their values are, the models are the same but for rounding."""
    X, y, folds = problem()
    trainers = stages(loss, folds=[1], Cs=(0.01, 0.02))
    here = run(trainers, X, y, folds)[0]
    X[folds == 1] *= -100.0
    for one, other in zip(here, run(trainers, X, y, folds)[0], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_a_fold_may_leave_out_all_rows_of_a_task():
    """Chunks in the order of the folds, one per task."""
    X, y, fold = problem(num_rows=128, num_classes=3)
    trainers = stages("softmax", num_classes=3)
    source = ArraySource(
        X, (np.sort(fold) * 3 + y).astype(np.int32), num_classes=9, max_tasks=8, chunk_bytes=2000, shuffle=False
    )
    trainer = PathTrainer(stages=trainers, max_iterations=(500,) * len(trainers))
    outcome = InProcess(num_tasks=8).run(Job(trainer=trainer, source=source, max_iterations=10**6))
    assert outcome.certificate is not None


@pytest.mark.usefixtures("many_rows")
def test_after_a_stage_whose_w_is_not_that_of_its_duals_the_next_begins_with_theirs():
    """Newton's method on two tasks is cut off; then one task descends along coordinates, which needs w = w(alpha)."""
    X, y, folds = problem(num_features=6)
    trainers = stages("hinge", folds=[0], Cs=(0.5, 1.0))
    runtime = InProcess(num_tasks=2, changes=((3, 1),))
    codes = (folds * 2 + y).astype(np.int32)
    path = PathTrainer(stages=trainers, max_iterations=(3, 2000))
    source = ArraySource(X, codes, num_classes=6, max_tasks=2, chunk_bytes=2000)
    outcome = runtime.run(Job(trainer=path, source=source, max_iterations=10**6))
    assert results_of(outcome.certificate.progress)[0].gap > TOL
    assert not PathState.of(outcome.certificate.progress).is_fresh
    assert path.relative_gap(outcome.model, outcome.certificate) <= TOL
    assert outcome.history.column("num_tasks").tolist()[3:] == [1] * (len(outcome.history) - 3)


def test_a_model_is_rebuilt_as_0_where_duals_are_about_to_become_0():
    """A loss in the first iteration of a fresh stage leaves duals of two stages behind, which solvers write anew."""
    path = PathTrainer(stages=stages("hinge"), max_iterations=(9,) * 9)
    fresh = PathState(stage=3, is_first=True, is_fresh=True, inner=NO_PROGRESS)
    contribution = np.array([1.0, 2.0])
    assert not path.rebuild(np.ones(2), contribution, fresh.encode()).any()
    for state in (dataclasses.replace(fresh, is_first=False), dataclasses.replace(fresh, is_fresh=False)):
        np.testing.assert_array_equal(path.rebuild(np.ones(2), contribution, state.encode()), contribution)


def test_an_interrupted_stage_has_no_model_of_another():
    """The best certificate so far may be that of a stage before, which minimises something else."""

    def interrupt(record):
        if record.figures["stage"] == 1:
            raise KeyboardInterrupt
        return False

    X, y, folds = problem(num_classes=3)
    trainers = stages("softmax", Cs=(1e-4, 100.0), folds=[0], num_classes=3)
    _, gaps, outcome = run(trainers, X, y, folds, num_classes=3, job={"on_iteration": interrupt})
    assert outcome.is_interrupted
    assert gaps[0] <= TOL
    assert PathState.of(outcome.certificate.progress).stage == 1


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_threads_of_a_softmax_come_to_the_same_but_for_rounding(kind, monkeypatch):
    """Each has a part of the rows, of which some do not count; and twice to the same bits."""
    monkeypatch.setattr(local, "MOST_CACHED_VALUES", 2)
    monkeypatch.setattr(rows, "SMALL_VALUES", 0)
    X, y, folds = problem(num_rows=600, num_features=12, num_classes=3)
    trainers = stages("softmax", Cs=(0.01, 1.0), folds=[1], num_classes=3)
    several = tuple(dataclasses.replace(each, num_threads=3) for each in trainers)
    (one, _, _), (found, gaps, _), (again, _, _) = (
        run(each, kind(X), y, folds, num_classes=3) for each in (trainers, several, several)
    )
    assert max(gaps) <= TOL
    for a, b, c in zip(one, found, again, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-7 * np.abs(a).max())
        assert not np.array_equal(a, b)
        np.testing.assert_array_equal(b, c)


def test_an_iteration_in_which_one_task_solves_for_rows_reads_none_in_a_stage_as_by_itself():
    """Else the rows that were read would be said to be too few."""
    stage = LinearTrainer(loss="hinge")
    path = PathTrainer(stages=(stage,), max_iterations=(9,))
    for phase, reads in ((WorkingSetPhase.SOLVE, False), (WorkingSetPhase.SELECT, True)):
        inner = WorkingSetState(phase=phase, num_outputs=1, D=3, num_rows=4).encode()
        assert stage.reads_all(inner) == path.reads_all(PathState(inner=inner).encode()) == reads


def test_a_certificate_without_all_rows_ends_no_stage():
    """Also not when the iterations of the stage are used."""
    path = PathTrainer(stages=stages("hinge"), max_iterations=(1,) * 9)
    metrics = {"loss/0": 0.0, "gap/0": 0.0, "dual/0": 0.0}
    report = Report(
        iteration=1, epochs=1.0, samples=1, num_tasks=1, metrics=metrics, is_certificate=True, max_iterations=9,
        is_complete=False,
    )  # fmt: skip
    model = np.zeros(7)
    assert path.verdict(model, report).action is Action.GO_ON
    assert path.certified(model, NO_PROGRESS, report)[1] is NO_PROGRESS
    complete = dataclasses.replace(report, is_complete=True)
    assert PathState.of(path.certified(model, NO_PROGRESS, complete)[1]).stage == 1


@pytest.mark.parametrize("most", [(), (1,), (1, 0)])
def test_a_path_without_stages_or_iterations_is_refused(most):
    """With both numbers."""
    with pytest.raises(UsageError, match="max_iterations"):
        PathTrainer(stages=stages("hinge", Cs=(0.1, 0.2), folds=[0])[: 2 if most else 0], max_iterations=most)


def test_only_a_larger_C_goes_on():
    """Another loss, intercept, fold or a smaller C begins afresh."""
    first = stages("hinge", Cs=(0.1,), folds=[0])[0]
    others = [dataclasses.replace(first, C=0.2)]
    others += [dataclasses.replace(first, **change) for change in ({"C": 0.05}, {"loss": "logistic", "C": 1.0})]
    others += [dataclasses.replace(first, C=1.0, intercept_scaling=2.0), *stages("hinge", Cs=(1.0,), folds=[1])]
    found = [PathTrainer(stages=(first, other), max_iterations=(9, 9)).can_go_on(1) for other in others]
    assert found == [True, False, False, False, False]
