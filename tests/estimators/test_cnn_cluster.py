"""ChicleCNNClassifier on a local cluster of real agents."""

import json
import os
import signal
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.errors import DivergedError, UsageError
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.engines.predict import filled_module, logits
from tests.cluster.local.test_local_cluster import Watcher, nothing, tasks_are
from tests.cluster.local.test_user_code import CELLS
from tests.cluster.notebooks import notebook
from tests.estimators.cnn_data import bars, digits, paper, tiny
from tests.estimators.test_augment import CELLS as AUGMENT_CELLS
from tests.solvers import nets
from tests.timeouts import timeout_s


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Folder of the agents' events."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def cluster(logs):
    """Two nodes, both there when a fit begins, that write down what their tasks read."""
    with LocalCluster((1, 2), start_nodes=2, log_dir=logs) as cluster:
        yield cluster


def used_rows(logs):
    """Rows used per (epoch, chunk), from the ledger of the agents."""
    pages = [json.loads(line) for path in logs.glob("*.events.jsonl") for line in path.read_text().splitlines()]
    return [page for page in pages if page["kind"] == "ledger"]


class Scale:
    """Callback: sets the number of nodes at the end of an epoch."""

    def __init__(self, cluster, at_epoch):
        self.cluster, self.at_epoch, self.epoch = cluster, at_epoch, 0

    def setup(self, estimator, context):
        pass

    def teardown(self, estimator, context):
        pass

    def on_fit_task_begin(self, estimator, context):
        pass

    def on_fit_task_end(self, estimator, context):
        if context.task_name == "epoch":
            self.epoch += 1
            if self.epoch in self.at_epoch:
                self.cluster.scale(self.at_epoch[self.epoch])


def test_the_ledger_shows_each_sample_once_per_epoch_while_a_node_leaves(cluster, logs):
    """Counted by the tasks where rows are read; the share of each follows its chunks."""
    X, y = bars(960)
    model = tiny(runtime=cluster, local_steps=2, max_epochs=4).set_callbacks(Scale(cluster, {2: 1})).fit(X, y)
    assert set(model.history_.column("num_tasks")) == {1, 2}
    assert model.score(X, y) > 0.9
    samples = np.cumsum(model.history_.column("samples"))
    ends = [index for index, record in enumerate(model.history_) if "epoch" in record.figures]
    assert samples[ends].tolist() == [960, 1920, 2880, 3840]
    last_iterations = [model.history_[index].iteration for index in ends]
    read = Counter()
    for page in used_rows(logs):
        epoch = int(np.searchsorted(last_iterations, page["after"][1]))
        for chunk, rows in zip(page["chunks"], page["rows"], strict=True):
            read[epoch, chunk] += rows
    by_epoch = [sorted(rows for (of, _), rows in read.items() if of == epoch) for epoch in range(4)]
    assert [sum(rows) for rows in by_epoch] == [960] * 4
    assert all(rows == by_epoch[0] for rows in by_epoch), "every chunk is used as often in each epoch"


def test_a_class_of_a_notebook_is_trained_by_the_agents(cluster):
    """With the functions and constants of its other cells; the fitted estimator has the class of the notebook."""
    X, y = bars()
    with notebook(*CELLS) as names:
        model = tiny(module=names["Mine"], module__extra=0, runtime=cluster, max_epochs=4).fit(X, y)
        assert type(model.module_) is names["Mine"]
        assert model.score(X, y) > 0.9
    assert model.history_.members


def test_a_warm_start_takes_the_model_along(cluster):
    """The tasks begin where the last fit ended."""
    X, y = bars()
    model = tiny(runtime=cluster, warm_start=True, max_epochs=2).fit(X, y)
    assert model.fit(X, y).history_[0].figures["loss"] < 0.5


def test_what_goes_wrong_in_a_task_is_told_as_in_process(cluster):
    """A loss that is no number."""
    X, y = bars()
    with pytest.raises(DivergedError, match=r"iteration \d+ at a learning rate"):
        tiny(learning_rate=1e12, runtime=cluster).fit(X, y)


def test_an_instance_and_a_class_of_a_function_are_trained_by_the_agents(cluster):
    """A copy of the instance, from the weights that it has; the class is found by no import."""
    X, y = bars()
    network = nets.Tiny()
    before = network.out.weight.detach().clone()
    model = tiny(module=network, runtime=cluster, max_epochs=4).fit(X, y)
    assert model.score(X, y) > 0.9
    assert torch.equal(network.out.weight, before)

    class Inner(nets.Tiny):
        pass

    model = tiny(module=Inner, runtime=cluster, max_epochs=4).fit(X, y)
    assert type(model.module_) is Inner
    assert model.score(X, y) > 0.9


@pytest.mark.filterwarnings("ignore:.*has hardly learned")
def test_a_function_of_a_notebook_augments_the_images_of_the_agents(cluster):
    """With what it uses of another cell; what it returns is checked there, too."""
    X, y = digits(240)
    with notebook(*AUGMENT_CELLS) as names:
        augmented = paper(augment=names["shift"], runtime=cluster, max_epochs=2).fit(X, y)
    plain = paper(runtime=cluster, max_epochs=2).fit(X, y)
    assert augmented.history_.members
    assert not np.allclose(augmented.predict_proba(X), plain.predict_proba(X))

    def late(images, generator, calls=[]):  # noqa: B006 - one list in each process
        calls.append(1)
        return images if len(calls) < 3 else images[:1]

    with pytest.raises(UsageError, match=r"node n\d: augment=.*late returned shape \(1, 1, 16, 16\)"):
        paper(augment=late, runtime=cluster).fit(X, y)


def groups_of(module):
    """Make Adam with two groups of parameters."""
    groups = [{"params": module.conv.parameters(), "lr": 0.004}, {"params": [*module.out.parameters()], "lr": 0.002}]
    return torch.optim.Adam([*groups, {"params": module.norm.parameters(), "lr": 0.004}])


def test_optimizer_scheduler_and_batch_norm_outlive_a_leave_a_join_and_a_kill(cluster):
    """Each sample once an epoch, but for those of a killed task; rate, state and statistics go on, and it learns."""
    cluster.scale(2)
    trainer = nets.trainer(
        nets.network(has_norm=True),
        optimizer=groups_of,
        schedule=torch.optim.lr_scheduler.ExponentialLR,
        schedule_settings={"gamma": 0.999},
        schedule_steps=2000,
        max_epochs=2000,
        learning_rate=0.004,
    )

    def kill():
        os.kill(cluster.members()[max(cluster.members())].pid, signal.SIGKILL)

    steps = [(tasks_are(2), partial(cluster.scale, 1)), (tasks_are(1), partial(cluster.scale, 2))]
    watcher = Watcher(*steps, (tasks_are(2), kill), (tasks_are(1), nothing), (tasks_are(2), nothing))
    watcher.end_s += timeout_s(200)  # nodes that join import torch
    outcome = cluster.run(Job(trainer=trainer, source=nets.source(960), max_iterations=10**6, on_iteration=watcher))
    records = list(outcome.history)
    samples = np.cumsum([record.samples for record in records])
    ends = [index for index, record in enumerate(records) if "epoch" in record.figures]
    used = np.diff([0, *samples[ends]])
    assert min(used) == 960, "none is left out"
    assert sum(used > 960) <= 1, "the epoch of the kill, whose samples are used again"
    epochs = np.searchsorted(ends, range(len(records)))
    rates = np.array([record.figures["learning_rate"] / record.num_tasks**0.5 for record in records])
    falls = rates / (0.004 * 0.999**epochs)
    is_replayed = np.append(used, 960)[epochs] > 960
    np.testing.assert_allclose(falls[~is_replayed], 1.0, rtol=1e-6)
    assert ((falls < 1.0001) & (falls > 0.9989)).all(), "samples that are used again count again, so it may be ahead"
    layout = trainer.layout(trainer.engine().layout)
    state, buffers = layout.v(outcome.model), layout.buffers(outcome.model)
    assert state[0] == 1.0, "the optimizer has begun"
    assert np.isfinite(outcome.model[layout.num_weights :][: len(state)]).all()
    steps_per_task = sum(record.samples / record.num_tasks / 8 for record in records)
    assert buffers[-1] == pytest.approx(steps_per_task, rel=0.1), "batches that batch norm has counted"
    X, y = nets.images(960)
    module = filled_module(trainer.network, layout.w(outcome.model), buffers)
    scaling = trainer.network.scaling_of(is_byte=True)
    assert (logits(module, X.reshape(960, -1), (1, 8, 8), scaling=scaling).argmax(axis=1) == y).mean() > 0.95
