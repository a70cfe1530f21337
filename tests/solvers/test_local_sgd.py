"""Local SGD: equal to plain SGD where it has to be, each sample once an epoch, whatever the tasks do."""

import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from chicle_elastic.clock import MonotonicClock
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.policies.base import Policy
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.runtime.training.uni_task import LocalContext, Mailboxes, UniTask
from chicle_elastic.solvers.base import Budget, StopFlag
from chicle_elastic.solvers.engines.modules import build_module
from chicle_elastic.solvers.local_sgd import OuterStep
from chicle_elastic.solvers.model_vector import PLACE, Place
from chicle_elastic.solvers.network import Network, Scaling
from chicle_elastic.testing.solver_contract import check_solver_contract
from chicle_elastic.values import Decision, SetParameter
from tests.solvers import nets


def run(trainer, source, runtime=None, **job):
    """The outcome of a job."""
    job = {"max_iterations": 10_000, "seed": trainer.seed, "keep_state": True} | job
    return (runtime or InProcess()).run(Job(trainer=trainer, source=source, **job))


def place_of(model):
    """Where a model's training is."""
    return Place.of(model[-PLACE:])


def tensor(rows, trainer):
    """Samples as a module takes them; bytes go from -1 to 1."""
    values = torch.from_numpy(rows).float() * (2 / 255) - 1 if rows.dtype == np.uint8 else torch.from_numpy(rows)
    return values.view(-1, *trainer.network.input_shape)


def plain_losses(trainer, X, y, stamps, lr):
    """Losses of plain SGD with momentum in PyTorch, where iteration i takes the samples stamped i as one batch."""
    module = build_module(trainer.network, trainer.seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=lr, momentum=trainer.momentum)
    losses = []
    for iteration in range(1, stamps.max() + 1):
        rows = np.flatnonzero(stamps == iteration)
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(tensor(X[rows], trainer)), torch.from_numpy(y[rows]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return np.array(losses)


@pytest.mark.parametrize(("num_rows", "num_tasks"), [(480, 1), (477, 1), (480, 2)])
def test_tasks_of_one_step_equal_plain_pytorch_with_a_batch_of_all(num_rows, num_tasks):
    """Mini-batch SGD, step by step, each sample once in the epoch; a last batch is divided by its true size."""
    X, y = nets.images(num_rows)
    trainer = nets.trainer(local_steps=1, max_epochs=1)
    outcome = run(trainer, nets.source(num_rows), InProcess(num_tasks=num_tasks))
    stamps = outcome.state[:, 0, 0]
    counts = np.bincount(stamps)
    batch = 8 * num_tasks
    assert counts[0] == 0
    assert counts[1:-1].tolist() == [batch] * (num_rows // batch - (num_rows % batch == 0))
    expected = plain_losses(trainer, X, y, stamps, trainer.learning_rate * num_tasks**0.5)
    np.testing.assert_allclose(outcome.history.column("loss"), expected, rtol=1e-4)


@pytest.mark.parametrize("num_rows", [480, 477, 21])
@pytest.mark.parametrize("changes", [(), ((2, 4), (5, 1), (7, 3))])
def test_an_epoch_uses_each_sample_once_while_tasks_come_and_go(num_rows, changes):
    """Counted where rows are read, and seen in the marks; chunks move in the middle of an epoch."""
    trainer = nets.trainer(max_epochs=1, local_steps=2)
    outcome = run(trainer, nets.source(num_rows, chunk_rows=8), InProcess(num_tasks=2, changes=changes))
    assert outcome.history.column("samples").sum() == num_rows
    assert (outcome.state > 0).all()
    assert outcome.history[-1].figures["epoch"] == 1
    assert place_of(outcome.model).epoch == 2
    if changes and num_rows > 100:
        assert set(outcome.history.column("num_tasks")) >= {1, 2, 4}


def test_all_tasks_end_an_epoch_in_the_same_iteration():
    """The share is proportional to the samples, to one sample; 20 chunks on 3 tasks are never even."""
    outcome = run(nets.trainer(max_epochs=2), nets.source(), InProcess(num_tasks=3))
    samples = outcome.history.column("samples")
    per_epoch = -(-480 // (3 * 8 * 4))
    assert len(samples) <= 2 * (per_epoch + 1)
    ends = [record.iteration for record in outcome.history if "epoch" in record.figures]
    assert [int(samples[: ends[0]].sum()), int(samples.sum())] == [480, 960]


def test_the_learning_rate_follows_the_number_of_tasks():
    """sqrt(K), from the very next iteration; linear and none where that is asked for."""
    runtime = InProcess(num_tasks=4, changes=((2, 1),))
    for scaling, factor in (("sqrt", 2.0), ("linear", 4.0), ("none", 1.0)):
        trainer = nets.trainer(lr_scaling=scaling)
        rates = run(trainer, nets.source(), runtime).history.column("learning_rate") / trainer.learning_rate
        np.testing.assert_allclose(rates[:3], [factor, factor, 1.0])


def test_the_learning_rate_falls_to_zero_at_the_end():
    """In a line over the last quarter of the samples, also when a task joins in the meantime."""
    trainer = nets.trainer(decay=0.25, max_epochs=4, lr_scaling="none")
    history = run(trainer, nets.source(), InProcess(num_tasks=2, changes=((28, 3),))).history
    done = np.cumsum(history.column("samples")) - history.column("samples")
    assert set(history.column("num_tasks")) == {2, 3}
    expected = np.minimum(1.0, (1 - done / 1920) / 0.25)
    np.testing.assert_allclose(history.column("learning_rate") / trainer.learning_rate, expected, atol=1e-6)
    assert expected[-1] < 0.2


def models_of(trainer, runtime, **job):
    """Model after each iteration."""
    models = []
    run(trainer, nets.source(), runtime, on_model=lambda _, model: bool(models.append(np.array(model))), **job)
    return models


def test_the_outer_momentum_follows_the_number_of_tasks():
    """None for one task, DiLoCo's for 16 and more; a number holds for any number of tasks."""
    auto = nets.trainer(local_steps=1000)
    assert auto.outer_step(1) == OuterStep(rate=1.0, momentum=0.0)
    momenta = [auto.outer_step(count).momentum for count in (2, 4, 8, 16, 1000)]
    np.testing.assert_allclose(momenta, [0.57, 0.73, 0.84, 0.9, 0.9], atol=0.006)
    assert {auto.outer_step(count).rate for count in (2, 16)} == {0.7}
    fixed = nets.trainer(outer_momentum=0.5, outer_learning_rate=0.6)
    assert fixed.outer_step(1) == fixed.outer_step(16, 0.0) == OuterStep(rate=0.6, momentum=0.5)
    assert auto.outer_step(16, 0.0) == OuterStep()


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.8, 0.9, 0.95, 0.975])
def test_the_outer_step_grows_with_the_local_steps_as_far_as_it_is_stable(momentum):
    """Mini-batch SGD has none, nor room for it; long iterations have all; no number of steps has a cliff to the next.

    As much as two iterations forget of the momentum, at most. Iterations of w, v and u converge on quadratics with
    learning rates up to two thirds of the largest stable one.
    """
    trainers = [nets.trainer(local_steps=count, momentum=momentum) for count in range(1, 65)]
    steps = [trainer.outer_step(16) for trainer in trainers]
    assert steps[0] == OuterStep()
    assert nets.trainer(local_steps=1000, momentum=momentum).outer_step(16) == OuterStep.of_tasks(16)
    shares = np.array([step.momentum for step in steps]) / OuterStep.of_tasks(16).momentum
    forgotten = 1.0 - momentum ** (2.0 * np.arange(64))
    assert (shares <= forgotten + 1e-9).all()
    np.testing.assert_allclose(shares[momentum ** np.arange(64) < 0.5], forgotten[momentum ** np.arange(64) < 0.5])
    assert [trainer.has_outer_momentum for trainer in trainers] == [step.momentum > 0 for step in steps]
    assert not trainers[0].layout(trainers[0].engine().layout).has_outer
    growth = np.diff([step.momentum for step in steps])
    assert (growth >= 0).all()
    assert growth.max() <= 3.0 * (1.0 - momentum)
    rates = np.geomspace(1e-2 * (1 - momentum) ** 2, 4 / 3 * (1 + momentum), 200)  # times the curvature
    one = np.moveaxis(np.array([[1 - rates, np.full(200, -momentum)], [rates, np.full(200, momentum)]]), 2, 0)
    for trainer, step in zip(trainers[1:], steps[1:], strict=True):
        of_steps = np.linalg.matrix_power(one, trainer.local_steps)  # of w and v
        change = np.zeros((200, 1, 3))
        change[:, 0, :2] = of_steps[:, 0] - [1.0, 0.0]
        u = change + np.array([0.0, 0.0, step.momentum])
        v = np.pad(of_steps[:, 1:], ((0, 0), (0, 0), (0, 1)))
        w = np.array([1.0, 0.0, 0.0]) + step.rate * (change + step.momentum * u)
        assert np.abs(np.linalg.eigvals(np.concatenate([w, v, u], axis=1))).max() <= 1.0, trainer.local_steps
    assert nets.trainer(local_steps=1, outer_momentum=0.5).has_outer_momentum


MEMORY = {"local_steps": 4, "momentum": 0.75}
"""As many steps as the momentum remembers, so that there is an outer one."""


def test_one_task_is_plain_sgd_with_momentum_whatever_the_outer_momentum_says():
    """The default gives the weights of one task to the bit, and remembers nothing."""
    plain, auto = (
        run(nets.trainer(**MEMORY, **settings), nets.source()).model for settings in ({"outer_momentum": 0.0}, {})
    )
    layout = nets.trainer(**MEMORY).layout(nets.trainer().engine().layout)
    assert layout.has_outer
    np.testing.assert_array_equal(auto[: layout.num_averaged], plain[: layout.num_averaged])
    assert not layout.outer(auto).any()
    assert (place_of(auto).tasks, place_of(plain).tasks) == (1, 1)


@pytest.mark.parametrize("decay", [0.0, 1.0])
def test_an_average_moves_the_model_by_nesterovs_rule(decay):
    """u <- beta u + d, then w changes by rate (d + beta u), for the average d of two tasks; v is as ever. Where the
    learning rate falls, beta falls to 0 and the rate of the averages rises to 1."""
    bench, plain = (
        Bench(nets.trainer(**MEMORY, **settings, decay=decay), nets.source(), (10, 10))
        for settings in ({}, {"outer_momentum": 0.0})
    )
    layout, u = bench.trainer.layout(bench.trainer.engine().layout), 0.0
    for iteration in range(1, 4):
        before = bench.model
        left = 1.0 - decay * (iteration - 1) * 2 * 4 * 8 / (3 * 480)
        whole = bench.trainer.outer_step(2)
        step = OuterStep(rate=1.0 - left * (1.0 - whole.rate), momentum=left * whole.momentum)
        plain.model = np.concatenate([before[: layout.num_averaged], before[-PLACE:]])
        updates = bench.solve(iteration)
        plain.merge(
            [replace(it, delta=np.concatenate([it.delta[: layout.num_averaged], it.delta[-PLACE:]])) for it in updates]
        )
        bench.merge(updates)
        d = plain.model[: layout.num_weights] - layout.w(before)
        u = step.momentum * u + d
        np.testing.assert_allclose(layout.outer(bench.model), u, atol=1e-6)
        expected = layout.w(before) + step.rate * (d + step.momentum * u)
        np.testing.assert_allclose(layout.w(bench.model), expected, atol=1e-6)
        np.testing.assert_array_equal(layout.v(bench.model), layout.v(plain.model))
    assert place_of(bench.model).tasks == 2


def test_outer_momentum_lives_through_changes_of_the_number_of_tasks():
    """From 4 tasks to 2 it goes on, in one task's iterations it is zero, and with three it begins anew."""
    trainer = nets.trainer(local_steps=2, momentum=0.5)
    models = models_of(trainer, InProcess(num_tasks=4, changes=((3, 2), (5, 1), (8, 3))), max_iterations=10)
    layout = trainer.layout(trainer.engine().layout)
    assert [place_of(model).tasks for model in models] == [4] * 3 + [2] * 2 + [1] * 3 + [3] * 2
    assert [bool(layout.outer(model).any()) for model in models] == [True] * 5 + [False] * 3 + [True] * 2
    # The first iteration of two tasks keeps what four have gathered: u(4) - beta(2) u(3) is one change d only.
    d = layout.outer(models[3]) - trainer.outer_step(2).momentum * layout.outer(models[2])
    moved = layout.w(models[3]) - layout.w(models[2])
    step = trainer.outer_step(2)
    np.testing.assert_allclose(moved, step.rate * (d + step.momentum * layout.outer(models[3])), atol=1e-6)
    # After one task u is nothing but the first change of three.
    step = trainer.outer_step(3)
    moved = layout.w(models[8]) - layout.w(models[7])
    np.testing.assert_allclose(moved, step.rate * (1 + step.momentum) * layout.outer(models[8]), atol=1e-6)


def test_it_learns_and_equal_seeds_give_equal_models():
    """To the bit, with dropout and batch norm; another seed gives another model."""
    trainer = nets.trainer(nets.network(has_norm=True, dropout=0.2), seed=5)
    models = [run(trainer, nets.source(), InProcess(num_tasks=2)).model for _ in range(2)]
    np.testing.assert_array_equal(models[0], models[1])
    outcome = run(nets.trainer(nets.network(has_norm=True, dropout=0.2), seed=6), nets.source())
    assert not np.array_equal(outcome.model, models[0])
    assert outcome.history[-1].figures["epoch_loss"] < 0.5 < outcome.history[0].figures["loss"]


def test_buffers_are_averaged_with_the_rest():
    """Running statistics of two tasks are between those of each, and the counter of batches goes on."""
    trainer = nets.trainer(nets.network(has_norm=True), max_epochs=1, local_steps=1)
    outcome = run(trainer, nets.source(), InProcess(num_tasks=2), max_iterations=1)
    layout = trainer.layout(trainer.engine().layout)
    mean, variance, count = np.split(layout.buffers(outcome.model), [4, 8])
    assert count == [1.0]
    assert (variance > 0).all()
    assert np.abs(mean).max() > 0


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.5}, {"outer_momentum": 0.9}, {"local_steps": 1}])
def test_the_contract_of_chunks_holds(settings):
    """Chunks move to other memory at every boundary, old memory is poisoned, and work may be interrupted."""
    source = nets.source()
    trainer = nets.trainer(**settings)
    chunks = [source.load(ChunkId(i), trainer.state(source.schema)) for i in range(source.num_chunks)]
    check_solver_contract(trainer, source.schema, chunks, num_tasks=3)


class Bench:
    """Tasks that are driven by hand."""

    def __init__(self, trainer, source, num_chunks):
        self.trainer, self.clock = trainer, MonotonicClock()
        self.model = trainer.init(source.schema, np.random.default_rng(0))
        self.tasks = []
        spec, first = trainer.state(source.schema), 0
        for count in num_chunks:
            name = f"task-{len(self.tasks)}"
            boxes = Mailboxes()
            task = UniTask(NodeId(name), trainer, LocalContext(name, np.random.default_rng(0), boxes), self.clock)
            for chunk in range(first, first + count):
                task.hold(source.load(ChunkId(chunk), spec))
            first += count
            task.attach(list(task.held), [])
            self.tasks.append(task)

    def solve(self, iteration, *, stop=None, num_tasks=None, is_complete=True):
        """One update per task."""
        num_tasks, given = num_tasks or len(self.tasks), {"stop": stop or StopFlag(), "is_complete": is_complete}
        budget = Budget(clock=self.clock, num_tasks=num_tasks, iteration=iteration, **given)
        return [task.solve(self.model, budget)[0] for task in self.tasks]

    def merge(self, updates):
        """The merged model."""
        total = sum(update.weight * update.delta for update in updates)
        self.model = self.trainer.merge(self.model, total, sum(update.weight for update in updates))


def test_a_task_may_have_no_sample_to_take_and_still_keeps_the_epoch_open():
    """A share below one sample is carried on until it is one."""
    bench = Bench(nets.trainer(local_steps=1, batch_size=1), nets.source(480), (19, 1))
    shares = []
    for iteration in range(1, 241):
        updates = bench.solve(iteration)
        shares.append([update.samples for update in updates])
        assert place_of(bench.model).epoch == 1
        bench.merge(updates)
    assert np.sum(shares, axis=0).tolist() == [456, 24]
    assert {share for _, share in shares} == {0, 1}
    assert place_of(bench.model).epoch == 2


def test_an_epoch_goes_on_until_missing_chunks_are_back():
    """They have samples that this epoch has not used, however few the others have left."""
    bench = Bench(nets.trainer(local_steps=1, batch_size=240), nets.source(480), (10, 10))
    lost = bench.tasks.pop()
    for iteration in (1, 2, 3):
        updates = bench.solve(iteration, is_complete=False)
        bench.merge(updates)
        assert place_of(bench.model).epoch == 1
    assert not sum(update.samples for update in updates)
    bench.tasks.append(lost)
    bench.merge(bench.solve(4))
    assert (place_of(bench.model).epoch, place_of(bench.model).samples) == (2, 0)


def test_marks_of_an_iteration_that_was_never_merged_are_forgotten():
    """After a crash the next attempt takes the same samples again, and none is lost for the epoch."""
    bench = Bench(nets.trainer(), nets.source(), (10, 10))
    bench.merge(bench.solve(1))
    bench.solve(2)  # the sum never came
    for task in bench.tasks:
        assert not task.recover(bench.model).any()
    used = [int((chunk.state > 0).sum()) for task in bench.tasks for chunk in task.chunks]
    assert sum(used) == 2 * 8 * 4
    iteration = 2
    while place_of(bench.model).epoch == 1:
        bench.merge(bench.solve(iteration))
        iteration += 1
    assert all((chunk.state > 0).all() for task in bench.tasks for chunk in task.chunks)


def test_a_lost_chunk_that_was_restored_is_used_again_in_its_epoch():
    """Its samples are replayed, and the epoch waits for them."""
    source = nets.source()
    bench = Bench(nets.trainer(local_steps=16), source, (10, 10))
    bench.merge(bench.solve(1))
    task = bench.tasks[1]
    lost = ChunkId(10)
    task.attach([], [lost])
    task.free(lost)
    task.hold(source.load(lost, bench.trainer.state(source.schema)))
    task.attach([lost], [])
    iteration, samples = 2, 0
    while place_of(bench.model).epoch == 1:
        updates = bench.solve(iteration)
        samples += sum(update.samples for update in updates)
        bench.merge(updates)
        iteration += 1
    assert 480 - 2 * 8 * 16 < samples <= 480 - 2 * 8 * 16 + 24


def test_an_interrupted_iteration_leaves_the_model_and_uses_nothing():
    """Everybody was told to stop: the iteration counts, and nothing else changes, the outer momentum neither."""
    bench = Bench(nets.trainer(**MEMORY), nets.source(), (10, 10))
    bench.merge(bench.solve(1))
    stop, before = StopFlag(), bench.model.copy()
    stop.set()
    bench.merge(bench.solve(2, stop=stop))
    np.testing.assert_array_equal(bench.model[:-PLACE], before[:-PLACE])
    assert place_of(bench.model).merged == 2


def test_weights_are_factors_of_the_loss_relative_to_their_mean():
    """Twice the weight of all samples changes nothing; weights of 0 leave their samples out."""
    plain = run(nets.trainer(max_epochs=1), nets.source())
    weights = np.full(480, 4.0)
    heavy = run(nets.trainer(max_epochs=1, mean_weight=4.0), nets.source(weights=weights))
    np.testing.assert_allclose(heavy.model, plain.model, atol=1e-5, equal_nan=True)
    y = nets.images()[1]
    only = run(nets.trainer(class_weights=(0.0, 1.0, 1.0), mean_weight=float((y > 0).mean())), nets.source())
    layout = nets.trainer().engine().layout
    bias = layout.w(only.model)[-3:] - layout.w(nets.trainer().init(nets.source().schema, None))[-3:]
    assert bias[0] < 0 < bias[1:].max()


def test_a_loss_that_is_no_number_ends_the_training_with_iteration_and_learning_rate():
    """Not with a model of NaNs after the last epoch."""
    outcome = run(nets.trainer(learning_rate=1e9), nets.source(), InProcess(num_tasks=4))
    assert len(outcome.history) < 5
    assert f"iteration {len(outcome.history)} at a learning rate of 2e+09" in outcome.reason


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 0},
        {"local_steps": 0},
        {"learning_rate": 0.0},
        {"momentum": 1.0},
        {"lr_scaling": "cubic"},
        {"mean_weight": 0.0},
        {"outer_momentum": 1.0},
        {"decay": 1.5},
    ],
)
def test_settings_that_cannot_be_are_refused(settings):
    """With all values."""
    with pytest.raises(UsageError, match=next(iter(settings))):
        nets.trainer(**settings)


def test_a_network_for_other_data_is_refused():
    """Another number of classes, and more features than it takes."""
    source = nets.source()
    with pytest.raises(UsageError, match="5 classes, and the data has 3"):
        nets.trainer(Network(module=nets.Tiny, input_shape=(1, 8, 8), num_classes=5)).init(source.schema, None)
    with pytest.raises(UsageError, match="64 features"):
        nets.trainer(Network(module=nets.Tiny, input_shape=(1, 7, 7), num_classes=3)).init(source.schema, None)


def test_a_network_is_told_to_other_tasks_with_its_scaling():
    """A pickle makes the same trainer; scales that cannot be are refused."""
    scaling = Scaling(scale=0.25, shift=-3.0, padding=12.0)
    trainer = nets.trainer(replace(nets.network("tests.solvers.nets:Tiny"), scaling=scaling))
    assert pickle.loads(pickle.dumps(trainer)) == trainer
    assert trainer.identity()["network"]["scaling"] == {"scale": 0.25, "shift": -3.0, "padding": 12.0}
    for values in ({"scale": 0.0}, {"shift": float("nan")}):
        with pytest.raises(UsageError, match="cannot be scaled by"):
            Scaling(**values)


@dataclass(frozen=True, kw_only=True)
class Setting(Policy):
    """Sets a parameter in each iteration to the next of some values."""

    parameter: str
    values: tuple[float, ...]

    def decide(self, observations):
        """Return the next value."""
        assert self.parameter in observations.parameters
        value = self.values[min(observations.iteration, len(self.values)) - 1]
        return Decision(actions=(SetParameter(self.parameter, value),), reason="-")


def test_a_policy_sets_the_learning_rate_of_later_iterations():
    """As if another trainer had gone on from there, so the samples are the same."""
    trainer = nets.trainer(max_epochs=2, learning_rate=0.004, lr_scaling="none")
    policy = Setting(parameter="learning_rate", values=(0.002, 0.001))
    history = run(trainer, nets.source(), InProcess(num_tasks=2), policies=(policy,)).history
    assert [record.figures["learning_rate"] for record in history][:4] == [0.004, 0.002, 0.001, 0.001]
    assert history[1].events == ("Setting sets learning_rate to 0.002: -",)


@pytest.mark.parametrize(("steps", "expected"), [(2.0, 2), (7.4, 7), (0.2, 1)])
def test_a_policy_sets_the_local_steps_of_later_iterations(steps, expected):
    """Each of the two tasks takes so many batches, and an epoch still uses each sample once."""
    trainer = nets.trainer(max_epochs=2, local_steps=4)
    policies = (Setting(parameter="local_steps", values=(steps,)),)
    history = run(trainer, nets.source(), InProcess(num_tasks=2), policies=policies).history
    rows = np.diff([0.0, *history.column("epochs")]) * nets.source().schema.num_rows
    assert round(rows[0]) == 2 * 4 * trainer.batch_size
    assert round(rows[1]) == 2 * expected * trainer.batch_size
    assert history.column("epochs")[-1] == pytest.approx(2)
