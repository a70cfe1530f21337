"""Local SGD: equal to plain SGD where it has to be, each sample once an epoch, whatever the tasks do."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import NO_STATE
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.job import Job
from chicle_elastic.runtime.task import LocalContext, Mailboxes, UniTask
from chicle_elastic.solvers.base import Budget, StopFlag
from chicle_elastic.solvers.engines.modules import build_module
from chicle_elastic.solvers.model_vector import PLACE, Place
from chicle_elastic.solvers.network import PAPER_CNN, Network
from chicle_elastic.testing.solver_contract import check_solver_contract
from tests.solvers import nets

FASHION = Path(__file__).parents[2] / "../shared/data/fashion-mnist"


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


def fashion(name):
    """A file of Fashion-MNIST as an array."""
    content = gzip.decompress((FASHION / f"{name}.gz").read_bytes())
    shape = np.frombuffer(content, ">i4", content[3], 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * content[3]).reshape(shape)


@pytest.mark.skipif(not FASHION.exists(), reason="needs ../shared/data/fashion-mnist")
@pytest.mark.parametrize(("kernels", "num_steps"), [("fused", 500), ("onednn", 100)])
def test_two_tasks_of_one_step_equal_plain_pytorch_with_the_double_batch(kernels, num_steps):
    """mSGD, K = 2, against torch with 16 samples a step: within 1e-4 in each of 500 steps on Fashion-MNIST."""
    X = fashion("train-images-idx3-ubyte")[:12_000, None]
    y = fashion("train-labels-idx1-ubyte")[:12_000].astype(np.int64)
    net = Network(
        module=PAPER_CNN,
        settings={"channels": 1, "height": 28, "width": 28, "num_classes": 10},
        input_shape=(1, 28, 28),
        num_classes=10,
    )
    trainer = nets.trainer(net, local_steps=1, learning_rate=5e-4, kernels=kernels)
    source = ArraySource(X, y, max_tasks=2, chunk_bytes=240 * (784 + 12))
    outcome = run(trainer, source, InProcess(num_tasks=2), max_iterations=num_steps)
    stamps = outcome.state[:, 0, 0]
    assert np.bincount(stamps)[1:].tolist() == [16] * num_steps
    expected = plain_losses(trainer, X, y, stamps, 5e-4 * 2**0.5)
    np.testing.assert_allclose(outcome.history.column("loss"), expected, rtol=1e-4)


def test_one_task_equals_plain_pytorch_step_by_step():
    """One step an iteration on 8 of 480 samples, each used once in the epoch."""
    X, y = nets.images()
    trainer = nets.trainer(local_steps=1, max_epochs=1)
    outcome = run(trainer, nets.source())
    stamps = outcome.state[:, 0, 0]
    assert np.bincount(stamps).tolist() == [0] + [8] * 60
    expected = plain_losses(trainer, X, y, stamps, trainer.learning_rate)
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


@pytest.mark.parametrize("settings", [{}, {"outer_momentum": 0.9}, {"local_steps": 1}])
def test_the_contract_of_chunks_holds(settings):
    """Chunks move to other memory at every boundary, old memory is poisoned, and work may be interrupted."""
    source = nets.source()
    trainer = nets.trainer(**settings)
    chunks = [source.load(ChunkId(i), trainer.state(source.schema)) for i in range(source.num_chunks)]
    check_solver_contract(trainer, source.schema, chunks, num_tasks=3)


def test_outer_momentum_learns():
    """An option beyond the paper: with many tasks it needs fewer epochs than plain averaging."""
    losses = [
        run(nets.trainer(outer_momentum=beta, learning_rate=0.003), nets.source(), InProcess(num_tasks=4))
        .history[-1]
        .figures["epoch_loss"]
        for beta in (0.0, 0.9)
    ]
    assert losses[1] < losses[0]


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

    def solve(self, iteration, *, stop=None, num_tasks=None):
        """One update per task."""
        budget = Budget(
            clock=self.clock, num_tasks=num_tasks or len(self.tasks), iteration=iteration, stop=stop or StopFlag()
        )
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


def test_the_last_batch_is_divided_by_its_true_size():
    """13 samples are a step of 8 and one of 5, as torch would take them."""
    X, y = nets.images(13)
    trainer = nets.trainer(max_epochs=1)
    source = nets.source(13, chunk_rows=8)
    assert source.num_chunks == 2
    bench = Bench(trainer, source, (2,))
    (update,) = bench.solve(1)
    chunks = [source.load(ChunkId(number), NO_STATE) for number in range(2)]
    keys = [np.random.default_rng([trainer.seed, 1, chunk.id]).random(chunk.num_rows) for chunk in chunks]
    rows = np.concatenate([chunk.row_ids for chunk in chunks])[np.concatenate(keys).argsort()]
    module = build_module(trainer.network, trainer.seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=trainer.learning_rate, momentum=trainer.momentum)
    for part in (rows[:8], rows[8:]):
        optimizer.zero_grad()
        functional.cross_entropy(module(tensor(X[part], trainer)), torch.from_numpy(y[part])).backward()
        optimizer.step()
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()]).numpy()
    np.testing.assert_allclose(bench.model[: len(expected)] + update.delta[: len(expected)], expected, atol=1e-6)


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
    """Everybody was told to stop: the iteration counts, and nothing else changes."""
    bench = Bench(nets.trainer(), nets.source(), (10, 10))
    stop = StopFlag()
    stop.set()
    before = bench.model.copy()
    bench.merge(bench.solve(1, stop=stop))
    np.testing.assert_array_equal(bench.model[:-PLACE], before[:-PLACE])
    assert place_of(bench.model).merged == 1


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
