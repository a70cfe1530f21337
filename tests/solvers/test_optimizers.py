"""Steps of the optimizers are those of torch.optim, and their state is averaged like weights."""

import copy
import functools
import math
from typing import Any

import numpy as np
import pytest

from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.solvers.engines.loss import Loss
from chicle_elastic.solvers.engines.torch_optimizer import is_elementwise
from chicle_elastic.solvers.flat import FlatModule
from chicle_elastic.solvers.local_sgd import optimizer_of
from chicle_elastic.solvers.optimizers import CustomOptimizer
from estimators import ChicleCNNClassifier, cnn_defaults
from tests.estimators.cnn_data import bars, digits, paper, tiny
from tests.solvers import nets

torch = pytest.importorskip("torch", reason="needs torch")


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_steps_of_a_name_are_those_of_torch(name: str, weight_decay: float) -> None:
    """Ten of them, with a rate that changes; a frozen parameter does not decay."""
    torch.manual_seed(0)
    theirs = nets.Tiny()
    theirs.conv.bias.requires_grad_(False)
    make, given = cnn_defaults.optimizer_of(tiny(optimizer=name, weight_decay=weight_decay))
    trainer = nets.trainer(optimizer=make, optimizer_settings=given, weight_decay=weight_decay)
    flat = FlatModule(copy.deepcopy(theirs), torch.device("cpu"), optimizer_of(trainer))
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    settings = {"momentum": 0.9} if name == "sgd" else {"betas": (0.9, 0.999)}
    reference = kinds[name](theirs.parameters(), lr=0.01, weight_decay=weight_decay, **settings)
    for number in range(10):
        lr = 0.01 / (1 + number)
        reference.param_groups[0]["lr"] = lr
        for parameter, ours in zip(theirs.parameters(), flat.module.parameters(), strict=True):
            if parameter.requires_grad:
                parameter.grad = torch.randn_like(parameter)
                ours.grad = parameter.grad.clone()
        reference.step()
        with torch.no_grad():
            flat.step(lr, 0.9)
    torch.testing.assert_close(flat.w, torch.nn.utils.parameters_to_vector(theirs.parameters()), rtol=1e-5, atol=1e-6)


def test_sparse_gradients_are_clipped_as_dense_ones() -> None:
    """torch has no norm of them."""
    ends = []
    for is_sparse in (False, True):
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Embedding(5, 2, sparse=is_sparse), torch.nn.Linear(2, 1))
        flat = FlatModule(module, torch.device("cpu"))
        module(torch.tensor([1, 3])).sum().backward()
        with torch.no_grad():
            flat.step(0.1, 0.9, max_grad_norm=0.5)
        ends.append(flat.w.clone())
    torch.testing.assert_close(*ends)


def test_a_class_of_torch_is_as_good_as_its_name(tmp_path: Any) -> None:
    """And is saved as such; the state goes along, so that `partial_fit` goes on."""
    X, y = bars()
    named, given = tiny(optimizer="adamw").fit(X, y), tiny(optimizer=torch.optim.AdamW).fit(X, y)
    np.testing.assert_array_equal(named.predict_proba(X), given.predict_proba(X))
    given.save(tmp_path / "net.npz")
    loaded = ChicleCNNClassifier.load(tmp_path / "net.npz")
    assert loaded.optimizer == "adamw"
    np.testing.assert_array_equal(loaded.partial_fit(X, y).predict_proba(X), given.partial_fit(X, y).predict_proba(X))
    given.set_params(optimizer="sgd").partial_fit(X, y)  # the state of another one is none


CLASSES = "ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax NAdam RAdam RMSprop Rprop SGD"


@pytest.mark.parametrize("name", CLASSES.split())
def test_any_optimizer_of_torch_takes_its_own_steps_with_a_state_that_moves(name: str) -> None:
    """Also after the state has gone through the vector of a model; with groups that a function has made."""
    kind = getattr(torch.optim, name)

    def make(module: Any) -> Any:
        return kind([{"params": [module[1].weight], "lr": 0.02}, {"params": [module[1].bias], "lr": 0.01}])

    torch.manual_seed(0)
    ours = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3))
    theirs = copy.deepcopy(ours)
    flat = FlatModule(ours, torch.device("cpu"), CustomOptimizer(make=make, rate=1.0))
    reference = make(theirs)
    assert flat.custom is not None
    assert flat.custom.rate == 0.02
    with torch.no_grad():
        flat.write_state(flat.read_state().clone())  # before the first step it says that there was none
    for number in range(6):
        batch = torch.randn(5, 6)
        for module in (ours, theirs):
            module(batch).square().mean().backward()
        for group, rate in zip(reference.param_groups, (0.02, 0.01), strict=True):
            group["lr"] = rate / (1 + number)
        reference.step()
        reference.zero_grad()
        with torch.no_grad():
            flat.step(0.02 / (1 + number), 0.9)
            flat.write_state(flat.read_state().clone())
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", CLASSES.split())
def test_a_class_takes_the_steps_that_it_takes_over_parameters(name: str) -> None:
    """Also where it gets all of them as one vector, as most do; frozen parameters stay as they are."""
    kind = getattr(torch.optim, name)
    assert is_elementwise(CustomOptimizer(make=kind, rate=0.02)) == (name != "Adafactor")
    for is_frozen in (False, True):
        torch.manual_seed(0)
        ours = nets.Tiny()
        ours.conv.bias.requires_grad_(not is_frozen)
        theirs = copy.deepcopy(ours)
        flat = FlatModule(ours, torch.device("cpu"), CustomOptimizer(make=kind, rate=0.02))
        reference = kind([each for each in theirs.parameters() if each.requires_grad], lr=0.02)
        for _ in range(4):
            batch = torch.randn(5, 1, 8, 8)
            for module in (ours, theirs):
                module(batch).square().mean().backward()
            reference.step()
            reference.zero_grad()
            with torch.no_grad():
                flat.step(0.02, 0.9)
                flat.write_state(flat.read_state().clone())
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


class Normed(torch.optim.SGD):
    """Takes steps of one length in each parameter."""

    def step(self, closure: Any = None) -> Any:
        """Take it."""
        for parameter in self.param_groups[0]["params"]:
            parameter.grad.div_(parameter.grad.norm())
        return super().step(closure)


def test_a_class_that_looks_at_a_whole_parameter_gets_each() -> None:
    """Found by trying, at any learning rate."""
    assert not is_elementwise(CustomOptimizer(make=Normed, rate=1e-12))
    assert not is_elementwise(CustomOptimizer(make=torch.optim.LBFGS, rate=0.1))
    assert is_elementwise(CustomOptimizer(make=Weights, settings={"momentum": 0.9}, rate=1e-12))


def test_sums_of_squares_that_an_average_has_rounded_below_zero_give_no_nan() -> None:
    """A state is clamped where it is never negative; momentum keeps its sign."""
    module = torch.nn.Linear(4, 1)
    flat = FlatModule(module, torch.device("cpu"), CustomOptimizer(make=torch.optim.Adam, rate=0.1))
    flat.g.fill_(1.0)
    with torch.no_grad():
        flat.step(0.1, 0.9)
        state = flat.read_state().clone()
        state[1:] -= 0.5
        flat.write_state(state)
        read = flat.read_state()
    assert (read < 0).sum() == 5, "the five of the momentum"
    module.weight.grad, module.bias.grad = torch.ones(1, 4), torch.ones(1)
    with torch.no_grad():
        flat.step(0.1, 0.9)
    assert torch.isfinite(flat.w).all()


@pytest.mark.parametrize("optimizer", [torch.optim.NAdam, "torch.optim:NAdam"])
def test_a_state_follows_tasks_that_come_and_go(tmp_path: Any, optimizer: Any) -> None:
    """And a file, from which `partial_fit` goes on."""
    X, y = bars()
    runtime = InProcess(num_tasks=4, changes=((2, 2), (4, 4)))
    given = {"optimizer": optimizer, "optimizer__betas": (0.8, 0.99), "learning_rate": 0.01, "local_steps": 4}
    model = tiny(**given, runtime=runtime).fit(X, y)
    assert {record.num_tasks for record in model.history_} == {2, 4}
    assert model.score(X, y) > 0.9
    model.save(tmp_path / "net.npz")
    loaded = ChicleCNNClassifier.load(tmp_path / "net.npz")
    assert tuple(loaded.get_params()["optimizer__betas"]) == (0.8, 0.99)
    model.set_params(runtime=None)
    np.testing.assert_array_equal(loaded.partial_fit(X, y).predict_proba(X), model.partial_fit(X, y).predict_proba(X))


def in_torch(X: Any, y: Any, *, batches: Any, schedule: Any, loss: Any, clip: float, epochs: int) -> list[float]:
    """Return the mean loss of each epoch of a plain loop over these batches."""
    torch.manual_seed(0)
    net = nets.Tiny()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler, losses = schedule(optimizer), []
    for epoch in range(epochs):
        total = 0.0
        for batch in batches[epoch]:
            found = loss(net(X[batch]), y[batch])
            optimizer.zero_grad()
            found.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            total += found.item() * len(batch)
        scheduler.step()
        losses.append(total / len(y))
    return losses


def test_a_fit_is_a_plain_loop_with_loss_clipping_optimizer_and_scheduler() -> None:
    """The same losses of all epochs, for the same order of samples."""
    X, y = bars(160)
    codes = np.unique(y, return_inverse=True)[1]
    torch.manual_seed(0)
    module = nets.Tiny()
    schedule = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    given: dict[str, Any] = {"optimizer": torch.optim.AdamW, "optimizer__eps": 1e-8, "learning_rate": 0.01}
    model = tiny(
        module=module,
        **given,
        optimizer__weight_decay=0.01,
        schedule=schedule,
        loss=torch.nn.CrossEntropyLoss(label_smoothing=0.1),
        max_grad_norm=0.5,
        local_steps=1,
        max_epochs=3,
        augment=lambda images, generator: seen.append(images.clone()) or images,
    )
    seen: list[Any] = []
    model.fit(X, y)
    scaled = torch.from_numpy(X).float() * (2 / 255) - 1
    rows = {row.numpy().tobytes(): number for number, row in enumerate(scaled)}
    places = [[rows[image.numpy().tobytes()] for image in batch] for batch in seen[1:]]  # after the look at the first
    assert len(rows) == len(X)
    batches = [places[epoch * 10 : (epoch + 1) * 10] for epoch in range(3)]
    assert all(sorted(np.concatenate(epoch).tolist()) == list(range(160)) for epoch in batches), (
        "each sample once an epoch"
    )
    theirs = in_torch(
        scaled,
        torch.from_numpy(codes),
        batches=batches,
        schedule=schedule,
        loss=torch.nn.CrossEntropyLoss(label_smoothing=0.1),
        clip=0.5,
        epochs=3,
    )
    ours = [record.figures["epoch_loss"] for record in model.history_ if "epoch_loss" in record.figures]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


def test_a_scheduler_may_step_with_each_step() -> None:
    """A policy of one cycle, read at the beginning of each iteration, whatever the number of tasks."""
    cycle = {"schedule": torch.optim.lr_scheduler.OneCycleLR, "schedule__max_lr": 0.05, "schedule_each": "step"}
    model = tiny(**cycle, schedule__total_steps=45, local_steps=1).fit(*bars())
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=45)
    rates = []
    for _ in range(45):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(rates) < 45:
            scheduler.step()
    np.testing.assert_allclose([record.figures["learning_rate"] for record in model.history_], rates)


def test_a_loss_has_weights() -> None:
    """As the cross-entropy has them; of a function and of a module."""
    X, y = bars()
    weights = np.where(y == "left", 3.0, 1.0)
    usual = tiny().fit(X, y, sample_weight=weights).predict_proba(X)
    for loss in (torch.nn.CrossEntropyLoss(), torch.nn.functional.cross_entropy):
        found = tiny(loss=loss).fit(X, y, sample_weight=weights).predict_proba(X)
        np.testing.assert_allclose(found, usual, atol=1e-6)


def test_fused_kernels_are_for_the_usual_step() -> None:
    """Other optimizers, losses and clipping are refused with them."""
    for params in ({"optimizer": "adam"}, {"max_grad_norm": 1.0}, {"loss": torch.nn.CrossEntropyLoss()}):
        with pytest.raises(UsageError, match="with other steps, loss or precision"):
            paper(kernels="fused", **params).fit(*digits(50))


def test_the_rate_falls_along_a_cosine() -> None:
    """Over the part that `decay` says."""
    given: dict[str, Any] = {"learning_rate": 0.01, "decay": 0.5, "lr_scaling": "none"}
    cosine = nets.trainer(**given, schedule="cosine")
    rates = [cosine.scaled_rate(1, progress) for progress in (0.0, 0.5, 0.875, 1.0)]
    np.testing.assert_allclose(rates, [0.01, 0.01, 0.005 * (1 - 0.5**0.5), 0.0], atol=1e-12)


def test_a_job_may_be_resumed_with_more_epochs_where_no_scheduler_counts_them() -> None:
    """Its identity says all but when to stop: of lists, numbers and modules what they are."""
    scheduler: dict[str, Any] = {
        "schedule": torch.optim.lr_scheduler.ExponentialLR,
        "schedule_settings": {"gamma": 0.5},
    }
    for settings, is_same in (({"schedule": "cosine"}, True), (scheduler, False)):
        short, long = (nets.trainer(max_epochs=n, schedule_steps=n, **settings).identity() for n in (2, 4))
        assert (short == long) == is_same
    told = nets.trainer(optimizer_settings={"betas": [0.5, np.float32(0.25)], "n": np.int64(3), "inf": math.inf})
    assert told.identity()["optimizer_settings"] == {"betas": [0.5, 0.25], "n": 3, "inf": "inf"}
    cross_entropy = torch.nn.CrossEntropyLoss  # whose text does not show all of its settings
    losses = [*(torch.nn.Softmax(dim=each) for each in (0, 1)), cross_entropy(), cross_entropy(label_smoothing=0.3)]
    assert len({nets.trainer(loss=loss).identity()["loss"] for loss in losses}) == 4


def test_a_state_that_begins_at_zero_may_have_a_sign() -> None:
    """Averages of weights that are made as zeros, say; a model gives them back as they were."""
    module = torch.nn.Linear(4, 1)
    torch.nn.init.zeros_(module.weight)
    flat = FlatModule(module, torch.device("cpu"), CustomOptimizer(make=Weights, rate=0.1))
    with torch.no_grad():
        flat.g.fill_(1.0)
        flat.step(0.1, 0.9)
        flat.step(0.1, 0.9)
        kept = flat.read_state().clone()
        flat.write_state(kept)
        torch.testing.assert_close(flat.read_state(), kept)
    assert (kept < 0).sum() >= 4


class Weights(torch.optim.SGD):
    """Remembers the weights before its last step."""

    def step(self, closure: Any = None) -> Any:
        """Take it."""
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["before"] = parameter.detach().clone()
        return super().step(closure)


def test_each_loss_is_looked_at() -> None:
    """Also one which has another shape after it was tried; a module is copied to the device."""
    outputs, codes = torch.zeros(4, 3, requires_grad=True), torch.zeros(4, dtype=torch.int64)
    shapes = iter([(), (4,)])
    loss = Loss(lambda outputs, codes: outputs.sum().expand(next(shapes)), torch.device("cpu"))
    loss(outputs, codes, None)
    with pytest.raises(UsageError, match=r"returned \(4,\) .*one number"):
        loss(outputs, codes, None)
    given = torch.nn.CrossEntropyLoss(weight=torch.ones(3))
    on_meta = Loss(given, torch.device("meta"))
    assert on_meta(outputs.to("meta"), codes.to("meta"), None).device.type == "meta"
    assert given.weight.device.type == "cpu"
