"""Newton's method while tasks come and go, are stopped, and go on from a checkpoint."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.clock import MonotonicClock
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.checkpoint import format as checkpoint
from chicle_elastic.runtime.checkpoint.format import JobIdentity
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.training.uni_task import LocalContext, Mailboxes, UniTask
from chicle_elastic.solvers.base import NO_PROGRESS, Budget, Summed
from chicle_elastic.solvers.linear import coordinates, local, methods, rows
from chicle_elastic.solvers.linear.local import LocalData
from chicle_elastic.solvers.linear.newton import parts
from chicle_elastic.solvers.linear.newton.state import NewtonPhase, NewtonState
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.solvers.linear_jobs import LOSSES, SMOOTH, assert_optimal, assert_true, is_newton_job, problem, recompute

pytestmark = pytest.mark.usefixtures("many_rows")

NARROW = {"rows": 320, "features": 9, "classes": 3}
WIDE = {"rows": 160, "features": methods.MOST_COLUMNS + 10, "density": 0.01}
SAMPLED = {"rows": 13_000, "features": 3}
"""Enough rows per column for second derivatives of a sample, and for another one after that."""
FOUR_ONE_FOUR = ((2, 1), (4, 4))


def trainer_of(loss, *, is_wide=False, num_threads=1):
    """To 1e-6; smooth losses on wide data are easier with less of them."""
    return LinearTrainer(loss=loss, tol=1e-6, C=0.02 if is_wide else 1.0, num_threads=num_threads)


@pytest.fixture
def always_threads(monkeypatch):
    """Threads are used however few the rows are, and these stay where they are."""
    monkeypatch.setattr(local, "MIN_VALUES_PER_THREAD", 1)
    monkeypatch.setattr(rows, "SMALL_VALUES", 0)


@pytest.mark.parametrize(
    ("loss", "shape"),
    [*((loss, NARROW) for loss in LOSSES), *((loss, shape) for shape in (WIDE, SAMPLED) for loss in SMOOTH)],
    ids=[*LOSSES, *(f"{shape} {loss}" for shape in ("wide", "sampled") for loss in SMOOTH)],
)
def test_tasks_that_come_and_go_cost_no_iterations(loss, shape):
    """Rows change hands with their duals, and margins are found again: at most a tenth more than four tasks need.

    Of the hinge a quarter: the duals of a step that was refused are those at its end.
    """
    data, trainer, changes = problem(**shape), trainer_of(loss, is_wide=shape is WIDE), ((1, 1), (2, 4), (3, 7), (4, 2))
    fixed = data.run(trainer, 4)
    elastic = data.run(trainer, InProcess(num_tasks=4, changes=changes))
    assert {1, 4, 7} <= {record.num_tasks for record in elastic.history}
    assert is_newton_job(elastic)
    assert_optimal(data, trainer, elastic)
    assert len(elastic.history) <= (1.25 if loss == "hinge" else 1.1) * len(fixed.history)
    assert np.abs(elastic.model - fixed.model).max() <= 1e-2 * np.abs(fixed.model).max()


@pytest.mark.parametrize("num_threads", [40])
@pytest.mark.parametrize(
    ("loss", "shape"),
    [*((loss, NARROW) for loss in LOSSES), *((loss, shape) for shape in (WIDE, SAMPLED) for loss in SMOOTH)],
    ids=[*LOSSES, *(f"{shape} {loss}" for shape in ("wide", "sampled") for loss in SMOOTH)],
)
def test_threads_come_to_the_same_but_for_rounding(loss, shape, num_threads, always_threads, monkeypatch):
    """While chunks come and go, fewer of them than threads among it; and twice to the same bits."""
    calls = []
    run_parts = LocalData.run_parts
    monkeypatch.setattr(
        LocalData,
        "run_parts",
        lambda self, run, parts, *rest: (calls.append(len(parts)), run_parts(self, run, parts, *rest))[1],
    )
    data, one = problem(**shape), trainer_of(loss, is_wide=shape is WIDE)
    runtime, many = InProcess(num_tasks=4, changes=FOUR_ONE_FOUR), dataclasses.replace(one, num_threads=num_threads)
    expected = data.run(one, runtime)
    assert set(calls) == {1}
    outcomes = [data.run(many, runtime) for _ in range(2)]
    assert max(calls) > 1
    assert is_newton_job(outcomes[0])
    assert_optimal(data, many, outcomes[0])
    assert len(outcomes[0].history) == len(expected.history)
    np.testing.assert_allclose(outcomes[0].model, expected.model, rtol=0, atol=1e-6 * np.abs(expected.model).max())
    np.testing.assert_array_equal(outcomes[0].model, outcomes[1].model)
    np.testing.assert_array_equal(outcomes[0].state, outcomes[1].state)


def test_threads_are_fewer_where_their_sums_would_take_more_memory_than_the_rows(always_threads, monkeypatch):
    """Second derivatives of three outputs beside a few rows."""
    monkeypatch.setattr(parts, "MAX_COPIED_VALUES", 0)
    monkeypatch.setattr(LocalData, "run_parts", lambda self, run, parts, stop=None: [run(part) for [part] in [parts]])
    data, trainer = problem(rows=48, features=9, classes=3), trainer_of("hinge", num_threads=2)
    assert_optimal(data, trainer, data.run(trainer, 4))


@pytest.mark.parametrize("loss", LOSSES)
def test_a_run_that_ends_amid_changes_says_the_truth(loss):
    """The last iteration is the first one of a newcomer, which knows no margins yet."""
    data, trainer = problem(**NARROW), dataclasses.replace(trainer_of(loss), tol=1e-12)
    outcome = data.run(trainer, InProcess(num_tasks=4, changes=((2, 2), (3, 5))), max_iterations=4)
    assert outcome.history[-1].num_tasks == 5
    assert_true(data, trainer, outcome)


def test_one_task_of_the_hinge_goes_on_with_newton_once_there_are_four(monkeypatch):
    """Coordinate descent until then, in short iterations; its duals are the centers to begin with."""
    monkeypatch.setattr(coordinates, "VALUES_PER_ITERATION", 0)
    data, trainer = problem(**NARROW), trainer_of("hinge")
    outcome = data.run(trainer, InProcess(num_tasks=1, changes=((1, 4),)))
    assert is_newton_job(outcome)
    assert_optimal(data, trainer, outcome)
    fixed = data.run(trainer, 4)
    assert len(outcome.history) <= 1.1 * len(fixed.history) + 2


@pytest.mark.parametrize("iteration", [1, 3, 5])
@pytest.mark.parametrize("loss", LOSSES)
def test_ctrl_c_leaves_a_model_with_a_true_gap(loss, iteration):
    """Between two passes, the way it comes to the driver."""

    def interrupt(record):
        if record.iteration == iteration:
            raise KeyboardInterrupt

    data, trainer = problem(**NARROW), dataclasses.replace(trainer_of(loss), tol=1e-12)
    outcome = data.run(trainer, 4, on_iteration=interrupt)
    assert outcome.is_interrupted
    assert len(outcome.history) == iteration
    assert_true_besides_history(data, trainer, outcome)


def assert_true_besides_history(data, trainer, outcome):
    """The iteration that was interrupted has no record of the certificate."""
    found = recompute(data, trainer, outcome.model, outcome.state)
    assert trainer.relative_gap(outcome.model, outcome.certificate) == pytest.approx(found.gap, rel=1e-9, abs=1e-11)


class CountingClock:
    """Tells how often it was looked at before."""

    def __init__(self):
        self._looks = itertools.count()

    def now(self):
        """As a number of seconds."""
        return float(next(self._looks))


class Tasks:
    """Tasks that a test drives itself, pass by pass."""

    def __init__(self, data, trainer, num_tasks):
        source, mailboxes = data.source(num_tasks), Mailboxes()
        spec = trainer.state(source.schema)
        self.trainer, self.schema = trainer, source.schema
        self.tasks = []
        for k in range(num_tasks):
            context = LocalContext(f"task-{k}", np.random.default_rng(k), mailboxes)
            task = UniTask(NodeId(context.name), trainer, context, MonotonicClock())
            for info in source.infos(spec)[k::num_tasks]:
                task.hold(source.load(info.id, spec))
            task.attach(list(task.held), [])
            self.tasks.append(task)
        self.model = trainer.init(self.schema, np.random.default_rng(0))
        self.progress = NO_PROGRESS
        self.iteration = 0

    def iterate(self, stopped=(), *, after=0):
        """One pass, in which some tasks are told to stop at their first look, or after some; their updates."""
        self.iteration += 1
        begun = self.trainer.begin(self.schema, self.model, self.progress, len(self.tasks))
        updates = []
        for k, task in enumerate(self.tasks):
            budget = Budget(
                clock=CountingClock() if k in stopped else MonotonicClock(),
                deadline_s=after if k in stopped else None,
                num_tasks=len(self.tasks),
                iteration=self.iteration,
                progress=begun,
                rank=k,
                num_ranks=len(self.tasks),
            )
            updates.append(task.solve(self.model, budget)[0])
        summed = Summed(
            delta=np.sum([update.delta for update in updates], axis=0),
            weight=sum(update.weight for update in updates),
            metrics={name: sum(update.metrics[name] for update in updates) for name in updates[0].metrics},
            num_tasks=len(self.tasks),
        )
        assert len(summed.delta) == self.trainer.update_size(self.model, begun)
        self.model, self.progress = self.trainer.advance(self.model, begun, summed)
        return updates

    @property
    def state(self):
        """Of all outputs."""
        return NewtonState.decode(self.progress)

    def duals(self):
        """By row id, of all tasks."""
        chunks = [chunk for task in self.tasks for chunk in task.held.values()]
        order = np.argsort(np.concatenate([chunk.row_ids for chunk in chunks]))
        return np.concatenate([chunk.state for chunk in chunks])[order]


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(
    ("loss", "shape"),
    [*((loss, NARROW) for loss in LOSSES), *((loss, shape) for shape in (WIDE, SAMPLED) for loss in SMOOTH)],
    ids=[*LOSSES, *(f"{shape} {loss}" for shape in ("wide", "sampled") for loss in SMOOTH)],
)
def test_a_pass_that_one_task_did_not_finish_is_made_again(loss, shape, num_threads, always_threads):
    """Whatever phase it is in: the others' sums count for nothing, and in the end all is as without it.

    Of two threads one had made its part.
    """
    data, trainer = problem(**shape), trainer_of(loss, is_wide=shape is WIDE, num_threads=num_threads)
    plain, stopped = Tasks(data, trainer, 3), Tasks(data, trainer, 3)
    for _ in range(12):
        plain.iterate()
        before = stopped.model.copy(), stopped.progress.copy()
        updates = stopped.iterate(stopped={stopped.iteration % 3}, after=num_threads - 1)
        assert [update.is_partial for update in updates].count(True) == 1
        assert sum(update.samples for update in updates) < len(data.y)
        assert np.array_equal(stopped.model, before[0])
        if len(before[1]):
            assert np.array_equal(stopped.progress, before[1])
        stopped.iterate()
        np.testing.assert_allclose(stopped.model, plain.model, rtol=0, atol=1e-12 * np.abs(plain.model).max())
        assert [output.phase for output in stopped.state.outputs] == [output.phase for output in plain.state.outputs]
        np.testing.assert_allclose(stopped.duals(), plain.duals(), rtol=0, atol=1e-9)
        if plain.state.is_at_rest:
            break


def saved(data, trainer, folder, num_tasks, max_iterations, *, resume):
    """A run that is saved after each iteration."""
    settings = CheckpointSettings(folder=str(folder), every_iterations=1, resume=resume, keep=100)
    return data.run(trainer, num_tasks, max_iterations=max_iterations, checkpoint=settings)


@pytest.mark.parametrize(
    ("loss", "shape"),
    [*((loss, NARROW) for loss in LOSSES), ("logistic", WIDE)],
    ids=["hinge", "squared_hinge", "logistic", "wide logistic"],
)
def test_a_run_that_goes_on_from_a_checkpoint_ends_as_one_that_was_never_stopped(tmp_path, loss, shape):
    """With the same number of iterations, also on other tasks: the progress is in the checkpoint.

    Sums of second derivatives in float32 differ by the order of the rows, and the last step with them.
    """
    data, trainer = problem(**shape), trainer_of(loss, is_wide=shape is WIDE)
    whole = data.run(trainer, 4)
    for stop in (2, 3):
        folder = tmp_path / str(stop)
        # A job that is to end is certified, which moves no output of one that would have gone on.
        saved(data, trainer, folder, 4, 100, resume=False)
        forget_after(folder, stop)
        resumed = saved(data, trainer, folder, 2, 400, resume=True)
        assert_optimal(data, trainer, resumed)
        assert len(resumed.history) == len(whole.history) > stop
        rounding = 1e-6 if loss in SMOOTH and shape is NARROW else 1e-9
        np.testing.assert_allclose(resumed.model, whole.model, rtol=0, atol=rounding * np.abs(whole.model).max())


def forget_after(folder: Path, iteration: int) -> Path:
    """Leave the checkpoint of an iteration as the last, as if all had died after it."""
    for path in checkpoint.attempts(folder):
        if checkpoint.iteration_of(path) > iteration:
            shutil.rmtree(path)
    [*_, last] = checkpoint.attempts(folder)
    assert checkpoint.iteration_of(last) == iteration
    return last


@pytest.mark.parametrize("loss", LOSSES)
def test_a_checkpoint_of_before_there_was_progress_is_read(tmp_path, loss):
    """Model and duals of coordinate descent, and no file of progress: Newton's method begins from there."""
    data, trainer = problem(**NARROW), trainer_of(loss)
    saved(data, trainer, tmp_path, 4, 100, resume=False)
    path = forget_after(tmp_path, 3)
    strip_progress(path, JobIdentity.of(trainer, data.source(4).schema, num_parameters=3 * 10))
    found = checkpoint.read(path, JobIdentity.of(trainer, data.source(4).schema, num_parameters=3 * 10))
    assert not NewtonState.is_of(found.progress)
    resumed = saved(data, trainer, tmp_path, 4, 400, resume=True)
    assert is_newton_job(resumed)
    assert [record.iteration for record in resumed.history] == list(range(1, len(resumed.history) + 1))
    assert_optimal(data, trainer, resumed)


def strip_progress(path: Path, identity: JobIdentity) -> None:
    """Take the file of progress out of a checkpoint, and out of its manifest."""
    manifest = json.loads((path / "manifest.json").read_text())
    files = {name: entry for name, entry in manifest["files"].items() if name != checkpoint.PROGRESS}
    assert len(files) == len(manifest["files"]) - 1
    (path / checkpoint.PROGRESS).unlink()
    checkpoint.write_manifest(path, iteration=manifest["iteration"], identity=identity, files=files)


def test_at_rest_with_a_smaller_tol_a_run_goes_on(tmp_path):
    """Outputs rest that were good enough for the first tol; the checkpoint serves another one."""
    data = problem(**NARROW)
    for loss in LOSSES:
        first = dataclasses.replace(trainer_of(loss), tol=1e-3)
        outcome = saved(data, first, tmp_path / loss, 4, 400, resume=False)
        state = NewtonState.decode(outcome.certificate.progress)
        assert {output.phase for output in state.outputs} == {NewtonPhase.REST}
        second = saved(data, trainer_of(loss), tmp_path / loss, 4, 400, resume=True)
        assert len(second.history) > len(outcome.history)
        assert_optimal(data, trainer_of(loss), second)


@pytest.mark.parametrize("counts", [(1, 2), (2, 1)])
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_pass_is_read_as_the_tasks_before_it_laid_it_out(counts, at):
    """Of many rows losses along a direction come with the pass of several tasks, and not with that of one."""
    data = problem(rows=4200, features=4)
    trainer, (first, then) = LinearTrainer(loss="hinge", tol=1e-6, algorithm="newton"), counts
    changed = data.run(trainer, InProcess(num_tasks=first, changes=((at, then),)))
    assert_optimal(data, trainer, changed)
    assert len(changed.history) <= 1.5 * len(data.run(trainer, 2).history)
