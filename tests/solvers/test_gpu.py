"""The eager engine on a CUDA device: the same steps as on the CPU. `make test-gpu`, on a machine that has one."""

import numpy as np
import pytest
import torch

from chicle_elastic.cluster.local.local_cluster import shared_cluster
from chicle_elastic.solvers.engines.eager import EagerEngine
from chicle_elastic.solvers.network import GatheredSamples, Network
from chicle_elastic.solvers.optimizers import CustomOptimizer, Optimizer
from estimators import ChicleCNNClassifier, ChicleRegressor
from tests.estimators.cnn_data import FAST, bars
from tests.solvers import nets

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason=f"torch {torch.__version__} sees no CUDA device here"),
]


@pytest.fixture(autouse=True, scope="module")
def card():
    """What CUDA keeps open from its first use on is no leak of the test that uses it first."""
    layer = torch.nn.Conv2d(1, 1, 3, device="cuda")
    layer(torch.ones(1, 1, 8, 8, device="cuda")).sum().backward()


@pytest.fixture(autouse=True)
def full_precision():
    """No TF32, so that both devices can be compared."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("has_norm", [False, True])
def test_steps_are_those_of_the_cpu(has_norm):
    """Weights, buffers and momentum after ten steps."""
    X, y = nets.images(80)
    given = GatheredSamples(rows=X.reshape(80, -1), targets=y, weights=np.linspace(0.5, 1.5, 80, dtype=np.float32))
    states = []
    for device in ("cpu", "cuda"):
        engine = EagerEngine(nets.network(has_norm=has_norm), seed=0, device=device)
        engine.run(given, batch_size=8, lr=0.01, momentum=0.9, seed=0, is_spent=lambda: False)
        states.append(np.concatenate(engine.parts()))
    np.testing.assert_allclose(states[1], states[0], rtol=1e-3, atol=1e-4)


def test_an_estimator_learns_on_the_device():
    """And its module comes back to the CPU."""
    X, y = bars()
    model = ChicleCNNClassifier(nets.Tiny, **FAST, device="cuda").fit(X, y)
    assert model.score(X, y) > 0.9
    assert next(model.module_.parameters()).device.type == "cpu"


def test_a_change_that_stays_on_the_device_is_the_one_that_is_copied_out():
    """To the bit; it is where the replica is."""
    X, y = nets.images(40)
    given = GatheredSamples(rows=X.reshape(40, -1), targets=y, weights=None)
    engine = EagerEngine(nets.network(has_norm=True), seed=0, device="cuda")
    layout = engine.layout
    sizes = (layout.num_weights, layout.num_buffers, layout.num_weights)
    before = [np.random.default_rng(0).random(size, dtype=np.float32) for size in sizes]
    engine.load(*before, for_change=True)
    engine.run(given, batch_size=8, lr=0.01, momentum=0.9, seed=0, is_spent=lambda: False)
    after = engine.parts()
    change = engine.change(np.float32([5, 6]), sum(sizes) + 3)
    assert change.device.type == "cuda"
    expected = np.concatenate([new - old for new, old in zip(after, before, strict=True)] + [np.float32([0, 5, 6])])
    np.testing.assert_array_equal(change.cpu().numpy(), expected)


def test_two_tasks_on_one_card_train_over_the_host():
    """A cluster of this machine; what they have learned is what two tasks on the CPU have, about."""
    X, y = bars()
    with shared_cluster(2):
        scores = []
        for device in ("cuda", "cpu"):
            model = ChicleCNNClassifier(nets.Tiny, **{**FAST, "max_epochs": 6}, device=device, n_workers=2)
            scores.append(model.fit(X, y).score(X, y))
    assert min(scores) > 0.9


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("optimizer", ["adam", torch.optim.NAdam])
def test_numbers_are_fitted_on_the_device(optimizer, precision):
    """Two per sample, with weights and clipping, by optimizers whose state lies there; about as on the CPU."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 6)).astype(np.float32)
    y = np.stack([X[:, 0] - X[:, 1], X[:, 2]], axis=1)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    given = {"optimizer": optimizer, "learning_rate": 0.01, "max_epochs": 30, "random_state": 0, "max_grad_norm": 5.0}
    models = [ChicleRegressor(module, **given, precision=precision, device=device) for device in ("cpu", "cuda")]
    scores = [model.fit(X, y, sample_weight=np.linspace(0.5, 1.5, 200)).score(X, y) for model in models]
    assert min(scores) > 0.9
    assert scores[1] == pytest.approx(scores[0], abs=0.02)


def test_a_module_is_compiled_for_the_device():
    """With the losses of the module as it is."""
    X, y = bars()
    given = {**FAST, "device": "cuda"}
    plain, model = (ChicleCNNClassifier(nets.Tiny, **given, compile=each).fit(X, y) for each in (False, True))
    assert model.loss_ == pytest.approx(plain.loss_, rel=0.02)


@pytest.mark.parametrize("optimizer", [Optimizer(), CustomOptimizer(make=torch.optim.Adam, rate=0.01)])
@pytest.mark.parametrize("columns", [1, 2])
def test_a_step_waits_for_no_device(columns, optimizer):
    """No operation of a step makes the host wait: torch raises where one does."""
    rng = np.random.default_rng(0)
    network = Network(
        module=torch.nn.Linear,
        settings={"in_features": 6, "out_features": columns},
        input_shape=(6,),
        num_classes=columns,
        target_shape=(columns,),
    )
    engine = EagerEngine(
        network,
        seed=0,
        device="cuda",
        optimizer=optimizer,
        loss=torch.nn.functional.mse_loss,
        max_grad_norm=1.0,
    )
    given = GatheredSamples(
        rows=rng.normal(size=(64, 6)).astype(np.float32),
        targets=rng.normal(size=(64, columns)).astype(np.float32),
        weights=None,
    )
    steps = iter(range(100))

    def is_spent():
        # The first step has begun, so copies to the device are over; at the end the losses are read.
        torch.cuda.set_sync_debug_mode("error" if next(steps) < 7 else "default")
        return False

    try:
        done, _ = engine.run(given, batch_size=8, lr=0.01, momentum=0.9, seed=0, is_spent=is_spent)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert done == 64
