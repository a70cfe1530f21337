"""The in-process runtime: a job through the real scheduler, while tasks join and leave."""

import dataclasses
import gc
import tracemalloc
import weakref
from dataclasses import dataclass, replace

import numpy as np
import pytest

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import StateSpec
from chicle_elastic.errors import CapacityError, ContractError, UsageError
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.runtime import in_process
from chicle_elastic.runtime.in_process import InProcess, held_source
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.scheduling.effects import Log
from chicle_elastic.scheduling.replaying import Replay
from chicle_elastic.solvers.base import Action, Solver, Trainer, Update, Verdict
from chicle_elastic.solvers.linear import losses, methods
from chicle_elastic.solvers.linear.newton import passes
from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.testing.virtual_clock import VirtualClock
from chicle_elastic.values import Decision, MoveChunks
from examples.ridge import RidgeTrainer
from tests.cluster.local.local_trainers import Double, TunedCocoa
from tests.estimators.problems import write

ELASTIC = InProcess(num_tasks=2, changes=((2, 5), (4, 3), (6, 1), (8, 4)))


def regression(num_rows=203):
    """Rows, and targets that carry the row number, so that any row can be recognised."""
    X = np.random.default_rng(0).normal(size=(num_rows, 3))
    return X, np.arange(num_rows, dtype=np.float64)


class CountingSolver(Solver):
    """Adds 1 to the state of every sample that it visits, and checks that state and samples stay together."""

    def solve(self, model, budget):
        samples = 0
        for chunk in self.chunks.values():
            block = chunk.read()
            first_visit = block.state[:, 0, 0] == 0
            block.state[first_visit, 0, 1] = block.row_ids[first_visit]
            assert (block.state[:, 0, 1] == block.row_ids).all()
            assert (block.targets == block.row_ids).all()
            block.state[:, 0, 0] += 1
            samples += len(block.targets)
        return Update(delta=np.ones_like(model), samples=samples, weight=samples, metrics={"rows": samples})


@dataclass(frozen=True, kw_only=True)
class CountingTrainer(Trainer):
    """Counts; its model is the number of merged iterations."""

    solver_class: type[Solver] = CountingSolver

    def init(self, schema, rng):
        return np.zeros(1)

    def state(self, schema):
        return StateSpec(outputs=1, width=2)

    def metric_names(self, schema):
        return ("rows",)

    def solver(self, ctx):
        return self.solver_class(ctx)

    def merge(self, model, weighted_sum, total_weight):
        return model + weighted_sum / total_weight


def run(runtime, trainer=None, max_iterations=10, **changes):
    """Run a counting job."""
    X, y = regression()
    source = ArraySource(X, y, max_tasks=runtime.most_tasks(), seed=3)
    job = Job(trainer=trainer or CountingTrainer(), source=source, max_iterations=max_iterations, **changes)
    return runtime.run(job)


@pytest.mark.parametrize("runtime", [InProcess(), InProcess(num_tasks=4), ELASTIC])
def test_each_sample_is_processed_once_per_iteration_whoever_owns_it(runtime):
    """The state, which travels with the samples, counts exactly the merged iterations."""
    outcome = run(runtime, keep_state=True)
    assert outcome.model == pytest.approx(10)
    assert (outcome.state[:, 0, 0] == 10).all()
    assert (outcome.state[:, 0, 1] == np.arange(203)).all()
    assert outcome.history.column("samples").tolist() == [203] * 10
    assert outcome.history.column("rows").tolist() == [203.0] * 10


def test_tasks_join_and_leave_after_the_iterations_that_were_asked_for():
    """The history shows who held how many chunks: each within one chunk of its share."""
    outcome = run(ELASTIC)
    num_chunks = sum(outcome.history[0].num_chunks.values())
    assert num_chunks >= 16 * ELASTIC.most_tasks()
    assert outcome.history.column("num_tasks").tolist() == [2, 2, 5, 5, 3, 3, 1, 1, 4, 4]
    for record in outcome.history:
        held = list(record.num_chunks.values())
        assert len(held) == record.num_tasks
        assert sum(held) == num_chunks
        assert all(abs(count - num_chunks / len(held)) <= 1 for count in held)
    assert any("under notice: task-" in line for line in outcome.history[4].events)


@pytest.mark.parametrize("runtime", [InProcess(), ELASTIC])
def test_a_job_gives_its_memory_back_without_garbage_collection(runtime):
    """No cycle holds the data: the next fit needs the memory before the collector comes by."""
    X, y = regression()
    source = ArraySource(X, y, max_tasks=runtime.most_tasks())
    data = weakref.ref(source)
    gc.disable()
    try:
        runtime.run(Job(trainer=CountingTrainer(), source=source, max_iterations=10))
        del source
        assert data() is None
    finally:
        gc.enable()


class ParallelismSolver(CountingSolver):
    """Reports the level of data parallelism that it was told."""

    def solve(self, model, budget):
        update = super().solve(model, budget)
        return dataclasses.replace(update, metrics={"rows": budget.num_tasks * update.samples})


@dataclass(frozen=True, kw_only=True)
class CarefulTrainer(CountingTrainer):
    """Wants steps as careful as those of 16 tasks, whatever the number of tasks."""

    def parallelism(self, num_tasks):
        return max(16, num_tasks)


def test_updates_are_as_careful_as_the_number_of_tasks_asks_unless_the_trainer_wants_more():
    """The number of tasks by default."""
    lowest = run(ELASTIC, CountingTrainer(solver_class=ParallelismSolver))
    assert (lowest.history.column("rows") / 203).tolist() == [2, 2, 5, 5, 3, 3, 1, 1, 4, 4]
    fixed = run(ELASTIC, CarefulTrainer(solver_class=ParallelismSolver))
    assert (fixed.history.column("rows") / 203).tolist() == [16] * 10


def test_an_own_algorithm_gives_the_same_model_with_any_number_of_tasks():
    """Averaging by samples makes the ridge example independent of the placement."""
    models = [run(runtime, RidgeTrainer()).model for runtime in (InProcess(), ELASTIC)]
    np.testing.assert_allclose(models[0], models[1], rtol=1e-10)


def test_a_callback_ends_the_job_and_the_result_is_certified():
    """The model that comes back is the one that was certified."""
    X, y = regression()
    source = ArraySource(X, (y > np.median(y)).astype(np.int32), num_classes=2)
    job = Job(
        trainer=LinearTrainer(tol=0.0),
        source=source,
        max_iterations=50,
        on_iteration=lambda record: record.iteration == 3,
    )
    outcome = InProcess().run(job)
    assert (len(outcome.history), outcome.reason) == (3, "ended by a callback")
    assert outcome.certificate.iteration == 3


def test_ctrl_c_in_a_fit_of_long_iterations_gives_the_last_merged_model(monkeypatch):
    """Without the passes that a certificate takes; and before the first iteration has ended there is no model."""
    X, y = regression()
    source = ArraySource(X, (y > np.median(y)).astype(np.int32), num_classes=2)
    monkeypatch.setattr(in_process, "CERTIFY_WITHIN_S", -1.0)

    @dataclass(frozen=True, kw_only=True)
    class Interrupting(LinearTrainer):
        at: int = 4

        def solver(self, ctx):
            solver = LinearTrainer.solver(self, ctx)
            solve = solver.solve

            def interrupted(model, budget):
                if budget.iteration == self.at:
                    raise KeyboardInterrupt
                return solve(model, budget)

            solver.solve = interrupted
            return solver

    def job(at, **fields):
        return Job(
            trainer=Interrupting(tol=0.0, at=at, loss="logistic"), source=source, **{"max_iterations": 50, **fields}
        )

    outcome = InProcess().run(job(2))
    assert outcome.is_interrupted
    assert outcome.certificate is None
    np.testing.assert_array_equal(outcome.model, InProcess().run(job(99, max_iterations=1)).model)
    assert [record.iteration for record in outcome.history] == [1]
    with pytest.raises(KeyboardInterrupt):
        InProcess().run(job(1))


class ChattySolver(CountingSolver):
    """Says hello to everyone in the first iteration and keeps what it hears."""

    heard = []  # noqa: RUF012 - shared on purpose

    def solve(self, model, budget):
        while (message := self.ctx.receive()) is not None:
            self.heard.append((self.ctx.name, message.sender, message.payload))
        if budget.iteration == 1:
            self.ctx.send("*", {"hello": [1, 2.5, None]})
        return super().solve(model, budget)


@dataclass(frozen=True, kw_only=True)
class ChattyTrainer(CountingTrainer):
    """Answers each message that reaches it."""

    def converse(self, ctx):
        while (message := ctx.receive()) is not None:
            ctx.send(message.sender, "welcome")


def test_messages_travel_between_tasks_and_trainer():
    """A task hears the other tasks and the answer of the trainer; nobody hears itself."""
    ChattySolver.heard.clear()
    run(InProcess(num_tasks=2), ChattyTrainer(solver_class=ChattySolver), max_iterations=3)
    hello = {"hello": [1, 2.5, None]}
    assert ("task-1", "task-0", hello) in ChattySolver.heard
    assert ("task-0", "task-1", hello) in ChattySolver.heard
    assert {(who, "trainer", "welcome") for who in ("task-0", "task-1")} <= set_of(ChattySolver.heard)


def set_of(messages):
    """The messages that can be in a set."""
    return {message for message in messages if isinstance(message[2], str)}


class PicklingSolver(CountingSolver):
    """Sends what could only travel pickled."""

    def solve(self, model, budget):
        self.ctx.send("trainer", np.zeros(3))
        return super().solve(model, budget)


def test_a_message_that_is_not_json_is_refused():
    """What works in one process must work on a cluster, where nothing is pickled."""
    with pytest.raises(UsageError, match=r"not ndarray; convert arrays with \.tolist"):
        run(InProcess(), CountingTrainer(solver_class=PicklingSolver))


class SkippingSolver(CountingSolver):
    """Forgets a chunk."""

    def solve(self, model, budget):
        self.chunks.pop(max(self.chunks), None) if budget.iteration == 2 else None
        return super().solve(model, budget)


class TalkativeSolver(CountingSolver):
    """Reports a sum that its trainer does not know of."""

    def solve(self, model, budget):
        return replace(super().solve(model, budget), metrics={"loss": 1.0})


@dataclass(frozen=True, kw_only=True)
class SilentTrainer(CountingTrainer):
    """Forgets to return its verdict."""

    def verdict(self, model, report):
        Verdict(action=Action.GO_ON)


@dataclass(frozen=True, kw_only=True)
class CertifyingTrainer(CountingTrainer):
    """Asks for a certificate of a solver that has no `evaluate`."""

    def verdict(self, model, report):
        return Verdict(action=Action.STOP if report.is_certificate else Action.CERTIFY)


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        (CountingTrainer(solver_class=SkippingSolver), r"task-\d"),
        (
            CountingTrainer(solver_class=TalkativeSolver),
            r"metrics 'loss', .* name them in CountingTrainer\.metric_names\(schema\)",
        ),
        (SilentTrainer(), r"SilentTrainer\.verdict returned None; it returns Verdict"),
        (CertifyingTrainer(), r"a certificate needs 'rows' at the fixed model, and CountingSolver has no evaluate"),
    ],
)
def test_a_breach_of_the_contract_ends_the_job_by_name(trainer, said):
    """The real runtime checks what the contract checker checks; the message names task or class, and what it lacks."""
    with pytest.raises(ContractError, match=said):
        run(InProcess(num_tasks=2), trainer)


def test_time_is_that_of_the_clock_that_was_given():
    """A virtual clock that stands still gives durations of zero."""
    X, y = regression()
    job = Job(trainer=CountingTrainer(), source=ArraySource(X, y), max_iterations=2)
    outcome = InProcess().run(job, clock=VirtualClock(5.0))
    assert outcome.history.column("time_s").tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "arguments",
    [{"num_tasks": 0}, {"num_tasks": 1.5}, {"num_tasks": True}, {"changes": ((1, 0),)}, {"changes": ((0, 2),)}],
)
def test_nonsense_numbers_of_tasks_are_refused(arguments):
    """The message shows what was given."""
    with pytest.raises(UsageError, match="InProcess needs num_tasks >= 1"):
        InProcess(**arguments)


def test_data_that_the_memory_cannot_hold_is_refused_before_it_is_loaded(tmp_path):
    """Both figures are in the message; views of the caller's memory take none, and are not refused."""
    (tmp_path / "meminfo").write_text("MemAvailable:       12 kB\n")
    X, y = regression(2000)
    shuffled = ArraySource(X, y, shuffle=True)
    with pytest.raises(CapacityError, match=r"keeps of their rows need 0\.\d MiB of memory, but MemAvailable"):
        held_source(shuffled, CountingTrainer(), 1, proc=tmp_path)
    views = ArraySource(X, y, shuffle=False)
    assert held_source(views, CountingTrainer(), 1, proc=tmp_path) is views


def test_memory_has_to_have_room_for_what_the_method_keeps(tmp_path, monkeypatch):
    """Else rows stay in their files; and if that does not do, the figure for it is in the message, too."""
    monkeypatch.setattr(passes, "COMPILER_BYTES", 0)
    X, y = np.random.default_rng(0).normal(size=(20_000, 4)).astype(np.float32), np.arange(20_000) % 2
    folder, trainer = write(tmp_path / "data", X, y, classes=(0, 1)), LinearTrainer(loss="logistic")

    def held(mib: float) -> ChunkFolder:
        (tmp_path / "meminfo").write_text(f"MemAvailable: {int(mib * 1024)} kB\n")
        return held_source(folder, trainer, 1, proc=tmp_path)

    rows_mib = folder.size_bytes / 2**20
    least = trainer.kept_bytes(folder.schema, 1) / 2**20
    assert not held(rows_mib + least + 1).is_shared
    monkeypatch.setattr(methods, "MOST_BLOCK_VALUES", 1 << 10)
    assert held(rows_mib + 0.5).is_shared  # which is enough for rows and state
    with pytest.raises(CapacityError, match=r"need \d\.\d MiB of memory \(0\.\d MiB with rows left in their files\)"):
        held(0.1)


@pytest.mark.parametrize(
    "trainer",
    [
        *(LinearTrainer(loss=loss) for loss in ("hinge", "squared_hinge", "logistic")),
        LinearTrainer(loss="hinge", algorithm="newton"),
        RegressionTrainer(),
        RegressionTrainer(loss=losses.Huber()),
    ],
    ids=lambda trainer: f"{trainer.name} {trainer.loss}",
)
def test_memory_that_is_counted_is_what_a_job_takes(trainer):
    """No less, and not twice as much; kernels are compiled before."""
    rng, num_rows = np.random.default_rng(0), 50_000
    X = rng.normal(size=(num_rows, 8)).astype(np.float32)
    scores = X @ rng.normal(size=8) + 2 * rng.normal(size=num_rows)
    y = (scores > 0).astype(int) if trainer.is_of_classes else scores
    for begin in (lambda: None, tracemalloc.start):
        source = ArraySource(X, y)
        begin()
        InProcess().run(Job(trainer=trainer, source=source, max_iterations=60))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    counted_bytes = trainer.kept_bytes(source.schema, 1) + trainer.state(source.schema).size_bytes(num_rows)
    assert peak_bytes <= counted_bytes <= 2 * peak_bytes


def test_a_job_goes_on_from_its_checkpoint_with_another_number_of_tasks(tmp_path):
    """State, model, history and iteration are those of the checkpoint, whoever holds which sample now."""
    X, y = regression()
    settings = CheckpointSettings(folder=str(tmp_path / "job"), every_iterations=4)

    def train(num_tasks, max_iterations, *, resume):
        job = Job(
            trainer=CountingTrainer(),
            source=ArraySource(X, y, max_tasks=num_tasks),
            max_iterations=max_iterations,
            keep_state=True,
            checkpoint=dataclasses.replace(settings, resume=resume),
        )
        return InProcess(num_tasks=num_tasks).run(job)

    first = train(3, 9, resume=False)
    second = train(2, 10, resume=True)
    third = train(5, 13, resume=True)
    assert [record.iteration for record in third.history] == list(range(1, 14))
    assert third.history[:9] == first.history[:]
    assert third.history[:10] == second.history[:]
    times = third.history.column("time_s")
    assert sorted(times) == list(times)
    assert third.model == pytest.approx(13.0)
    assert (third.state[:, 0, 0] == 13).all()
    assert (third.state[:, 0, 1] == np.arange(len(y))).all()


def test_a_job_that_begins_leaves_the_checkpoints_of_an_earlier_run_alone(tmp_path):
    """They might be all that is left of it."""
    X, y = regression()
    job = Job(
        trainer=CountingTrainer(),
        source=ArraySource(X, y, max_tasks=1),
        max_iterations=2,
        checkpoint=CheckpointSettings(folder=str(tmp_path / "job"), every_iterations=1),
    )
    InProcess().run(job)
    with pytest.raises(UsageError, match="up to iteration 2; give --resume"):
        InProcess().run(job)


def test_a_checkpoint_serves_another_tolerance_and_not_another_c(tmp_path):
    """Duals that are feasible for one C certify nothing for another."""
    X, _ = regression(num_rows=60)
    codes = (X[:, 0] > 0).astype(np.int32)

    def train(trainer):
        job = Job(
            trainer=trainer,
            source=ArraySource(X, codes, max_tasks=1),
            max_iterations=50,
            checkpoint=CheckpointSettings(folder=str(tmp_path / "job"), every_iterations=1, resume=True),
        )
        return InProcess().run(job)

    first = train(LinearTrainer(C=1.0, tol=0.3))
    second = train(LinearTrainer(C=1.0, tol=1e-5))
    assert second.history[: len(first.history)] == first.history[:]
    assert "1.00e-05" in second.reason
    with pytest.raises(UsageError, match=r"'C': 1\.0.*'C': 2\.0"):
        train(LinearTrainer(C=2.0))


class PacedSolver(CountingSolver):
    """Counts; task-0 takes twice as long for a sample, on a clock that only solvers move."""

    clock: VirtualClock

    def solve(self, model, budget):
        update = super().solve(model, budget)
        self.clock.advance(update.samples * (2.0 if self.ctx.name == "task-0" else 1.0))
        return update


def paced_job(clock, **options):
    """A job on two tasks, the first of which is slow."""
    X, y = regression(640)
    solver_class = type("Paced", (PacedSolver,), {"clock": clock})
    source = ArraySource(X, y, max_tasks=2)
    return Job(trainer=CountingTrainer(solver_class=solver_class), source=source, max_iterations=30, **options)


def test_policies_that_the_job_names_are_asked_in_one_process_too():
    """Chunks go to the fast task; every sample is still counted once in each iteration."""
    clock = VirtualClock()
    job = paced_job(clock, policies=(Rebalance(),), keep_state=True)
    outcome = InProcess(num_tasks=2).run(job, clock=clock)
    first, last = outcome.history[0].num_chunks, outcome.history[-1].num_chunks
    assert first["task-0"] == first["task-1"]
    assert 1.7 < last["task-1"] / last["task-0"] < 2.4
    assert (outcome.state[:, 0, 0] == 30).all()
    assert any("Rebalance moves" in line for record in outcome.history for line in record.events)


def test_without_policies_tasks_of_one_process_keep_their_chunks():
    """Their times say nothing of nodes, and the same seed gives the same fit."""
    clock = VirtualClock()
    outcome = InProcess(num_tasks=2).run(paced_job(clock), clock=clock)
    assert outcome.history[0].num_chunks == outcome.history[-1].num_chunks


class Restless(Rebalance):
    """Moves a chunk at every second boundary, and raises after the sixth iteration."""

    __slots__ = ()

    def decide(self, observations):
        if observations.iteration > 6:
            raise LookupError("no idea any more")
        first, *_, last = sorted(observations.num_chunks)
        if first == last or observations.iteration % 2 == 0:
            return None
        return Decision(actions=(MoveChunks(first, last, 1),), reason="it can")


def test_a_job_is_recorded_and_folds_to_the_same_effects(tmp_path):
    """With joins, notices, and a policy whose code the recording does not have."""
    source = ArraySource(*regression(), max_tasks=5)
    job = Job(trainer=CountingTrainer(), source=source, max_iterations=10, policies=[Restless()])
    plain = ELASTIC.run(job)
    recorded = dataclasses.replace(ELASTIC, log_dir=tmp_path).run(job)
    assert [record.num_chunks for record in recorded.history] == [record.num_chunks for record in plain.history]
    [path] = tmp_path.iterdir()
    steps = list(Replay(path))
    assert [step.difference for step in steps if step.difference] == []
    said = [effect.text for step in steps for effect in step.effects if isinstance(effect, Log)]
    assert any("Restless moves 1 of 1 chunk: it can" in text for text in said)
    assert any("policy Restless is disabled: it raised LookupError" in text for text in said)
    assert steps[-1].line.event.iteration == 10


def test_a_log_folder_that_cannot_be_written_is_an_error_of_usage(tmp_path):
    """Before anything is loaded."""
    (tmp_path / "file").touch()
    job = Job(trainer=CountingTrainer(), source=ArraySource(*regression(), max_tasks=1), max_iterations=1)
    with pytest.raises(UsageError, match="no recording can be written to the log folder"):
        InProcess(log_dir=tmp_path / "file").run(job)


@pytest.mark.parametrize("has_policies", [True, False])
def test_a_job_goes_on_with_the_parameters_that_policies_had_set(tmp_path, has_policies):
    """Unless it has no policies any more; a deadline is left out."""

    def train(max_iterations, policies, *, resume):
        X, y = regression()
        job = Job(
            trainer=TunedCocoa(C=0.1, tol=0.0),
            source=ArraySource(X, (y > 100).astype(np.int32), max_tasks=2),
            max_iterations=max_iterations,
            policies=policies,
            checkpoint=CheckpointSettings(folder=str(tmp_path / "job"), every_iterations=1, resume=resume),
        )
        return InProcess(num_tasks=2).run(job)

    first = train(6, (Double(after=3),), resume=False)
    assert first.history.column("parameters.echo")[-1] == 2.0
    second = train(8, (Double(after=99),) if has_policies else (), resume=True)
    values = [record.figures.get("parameters.echo") for record in second.history[6:]]
    assert values == [2.0 if has_policies else None] * 2
    lines = [line for line in second.history[6].events if line == "echo is 2, as a policy had set it"]
    assert len(lines) == has_policies
