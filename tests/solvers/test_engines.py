"""The eager engine: flat buffers, what it refuses, and that looking for fast kernels changes nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.engines.eager import FLOPS_PER_THREAD, EagerEngine, device_of, threads_for
from chicle_elastic.solvers.engines.modules import build_module, flops_of
from chicle_elastic.solvers.engines.paper_cnn import PaperCNN
from chicle_elastic.solvers.engines.predict import filled_module, logits
from chicle_elastic.solvers.flat import FlatModule
from chicle_elastic.solvers.network import AS_THEY_ARE, GatheredSamples, Network, Scaling, square_for
from chicle_elastic.solvers.optimizers import CustomOptimizer
from tests.solvers import nets

CPU = torch.device("cpu")


class Forgetful(nets.Tiny):
    """Drops its gradients while it is used."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        self.zero_grad()
        return super().forward(images)


class Looking(nets.Tiny):
    """Adds a row of a table to its logits, whose gradient has the rows that were looked up."""

    def __init__(self, is_sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3, sparse=is_sparse)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return super().forward(images) + self.table(images.flatten(1).argmax(1) % 4)


class Renewing(nets.Tiny):
    """Sets another parameter in the place of one."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        if self.training:
            self.out.bias = nn.Parameter(self.out.bias.detach().clone())
        return super().forward(images)


class Growing(nets.Tiny):
    """Has a buffer that grows."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, images):
        """Logits."""
        self.seen = torch.cat([self.seen, torch.zeros(1)]) if self.training else self.seen
        return super().forward(images)


class Counting(nets.Tiny):
    """Sets another tensor in the place of a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, images):
        """Logits."""
        self.steps = self.steps + self.training
        return super().forward(images)


class Twofold(nets.Tiny):
    """Returns more than outputs in training."""

    def forward(self, images):
        """Logits, twice."""
        logits = super().forward(images)
        return (logits, logits) if self.training else logits


class Lazy(nn.Module):
    """Knows its shape once it has seen samples."""

    def __init__(self):
        super().__init__()
        self.out = nn.LazyLinear(3)

    def forward(self, images):
        """Logits."""
        return self.out(images.flatten(1))


def take(engine, given, batch_size=8, lr=0.1, is_spent=lambda: False):
    """Take steps over all samples."""
    return engine.run(given, batch_size=batch_size, lr=lr, momentum=0.9, seed=0, is_spent=is_spent)


def samples(count=8):
    """Some images."""
    X, y = nets.images(count)
    return GatheredSamples(rows=X.reshape(count, -1), targets=y, weights=None)


def state(engine):
    """Weights, buffers and momentum, copied."""
    return [part.copy() for part in engine.parts()]


def test_parameters_and_gradients_are_views_of_one_vector():
    """In the order of parameters(); tied parameters are there once, frozen ones have no gradient and stay."""
    torch.manual_seed(0)
    module = nets.Tiny()
    module.out.bias.requires_grad_(False)
    module.tied = module.conv
    expected = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    flat = FlatModule(module, CPU)
    torch.testing.assert_close(flat.w, expected)
    flat.drop_gradients()
    module(torch.rand(2, 1, 8, 8)).sum().backward()
    flat.gather()
    gradients = [torch.zeros(3) if each.grad is None else each.grad.reshape(-1) for each in module.parameters()]
    torch.testing.assert_close(flat.g, torch.cat(gradients), rtol=0, atol=0)
    assert flat.g.abs().sum() > 0
    assert flat.new_parameters() == []
    with torch.no_grad():
        flat.step(0.1, 0.9)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not torch.equal(flat.w, expected)
    torch.testing.assert_close(module.out.bias.detach(), expected[-3:])
    flat.w.zero_()
    assert not any(parameter.any() for parameter in module.parameters())


def test_buffers_make_a_round_trip_with_their_counters():
    """They are float32 in between; counters are whole again, and the nearest to an average of tasks."""
    flat = FlatModule(nets.Tiny(has_norm=True), CPU)
    values = torch.arange(flat.num_buffers) * 0.7
    flat.write_buffers(values)
    torch.testing.assert_close(flat.read_buffers()[:-1], values[:-1])
    assert flat.module.norm.num_batches_tracked == round(0.7 * (flat.num_buffers - 1))
    assert flat.module.norm.num_batches_tracked.dtype == torch.int64


@pytest.mark.parametrize("has_norm", [False, True])
@pytest.mark.parametrize("devices", ["cpu,cpu", "cpu, cpu,cpu"])
def test_steps_on_several_devices_are_those_of_one(devices: str, has_norm: bool):
    """Batches of ten, and a last one that has fewer samples than devices; weighted, and by another optimizer, too.

    With batch norm each device normalises its own part, so the model is another one; it learns all the same.
    """
    X, y = nets.images(81)
    weights = np.linspace(0.5, 2.0, 81).astype(np.float32)
    found, losses = [], []
    for device in ("cpu", devices):
        optimizer = CustomOptimizer(make=torch.optim.Adam, rate=0.01)
        engine = EagerEngine(nets.network(has_norm=has_norm), seed=0, device=device, optimizer=optimizer)
        for _ in range(3):
            samples = GatheredSamples(rows=X.reshape(81, -1), targets=y, weights=weights)
            done, loss = engine.run(samples, batch_size=10, lr=0.01, momentum=0.9, seed=1, is_spent=lambda: False)
            assert done == 81
        found.append(engine.initial()[0])
        losses.append(loss)
    if has_norm:
        assert losses[1] == pytest.approx(losses[0], rel=0.3)
    else:
        assert losses[1] == pytest.approx(losses[0], rel=1e-4)
        np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-5)


def test_threads_follow_from_counted_work_and_those_of_the_user_come_back():
    """Products of a step, forward and backward; a module that no counter can look into gets one thread."""
    assert flops_of(nets.Tiny(), (1, 8, 8)) == 3 * 2 * (4 * 9 * 36 + 36 * 3)
    assert flops_of(Forgetful(), (3, 8, 8)) == 0
    assert [threads_for(share * FLOPS_PER_THREAD, 4) for share in (0, 1.9, 2, 99)] == [1, 1, 2, 4]
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        engine = EagerEngine(nets.network(), seed=0, num_threads=2)
        take(engine, samples())
        state(engine)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kernels", ["native", "auto"])
def test_all_kernels_agree_but_for_rounding(kernels):
    """Some steps with each."""
    engine = EagerEngine(nets.network(), seed=0, kernels=kernels)
    reference = EagerEngine(nets.network(), seed=0, kernels="onednn")
    found = [take(e, samples(), batch_size=4) for e in (engine, reference)]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    np.testing.assert_allclose(state(engine)[0], state(reference)[0], atol=1e-5)


def test_a_run_ends_between_two_steps():
    """What was done until then is reported."""
    answers = iter([False, True])
    engine = EagerEngine(nets.network(), seed=0)
    done, loss = take(engine, samples(24), is_spent=lambda: next(answers))
    assert done == 8
    assert loss > 0


def test_one_sample_that_is_left_over_joins_the_batch_before_where_there_is_batch_norm():
    """Which cannot train on one."""
    flat_norm = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 3))
    engine = EagerEngine(nets.network(flat_norm), seed=0)
    assert take(engine, samples(9))[0] == 9
    assert state(engine)[1][-1] == 1, "one batch"


@pytest.mark.parametrize("kernels", ["onednn", "fused"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_values_are_scaled_on_their_way_into_the_network(kernels, dtype):
    """Steps, and predictions, equal those on values that were scaled before; whatever computes them."""
    network = nets.paper()
    scaling = Scaling(scale=0.02, shift=-1.5)
    rng = np.random.default_rng(0)
    rows, codes = rng.integers(0, 256, (24, 256)).astype(dtype), rng.integers(0, 3, 24)
    before = rows.astype(np.float32) * np.float32(0.02) + np.float32(-1.5)
    states = []
    for net, given in ((replace(network, scaling=scaling), rows), (replace(network, scaling=AS_THEY_ARE), before)):
        engine = EagerEngine(net, seed=0, kernels=kernels)
        scaled = GatheredSamples(rows=given, targets=codes, weights=None)
        take(engine, scaled, lr=0.01)
        states.append(state(engine))
    np.testing.assert_allclose(states[0][0], states[1][0], atol=1e-6)
    module = filled_module(network, *states[0][:2])
    said = [logits(module, given, (1, 16, 16), scaling=it) for given, it in ((rows, scaling), (before, AS_THEY_ARE))]
    np.testing.assert_allclose(*said, atol=1e-5)


def test_what_surrounds_small_samples_is_scaled_like_them():
    """Four values in the middle of 16 x 16 others, which have the value of the padding."""
    network = nets.paper()
    module = filled_module(network, *EagerEngine(network, seed=0).initial())
    small = np.float32([[3, 4, 5, 6]])
    whole = np.full((1, 16, 16), 5, np.float32)
    whole[0, 7:9, 7:9] = small.reshape(2, 2)
    scaling = Scaling(scale=0.5, shift=-2.5, padding=5.0)
    said = [logits(module, rows, (1, 16, 16), scaling=scaling) for rows in (small, whole.reshape(1, -1))]
    np.testing.assert_array_equal(*said)


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        (Growing, r"buffer 'seen' of Growing had the shape \(1,\), and has \(2,\)"),
        (Twofold, "gives tuple in training, for a batch of 8 samples"),
        (Renewing, r"Renewing has the parameters out\.bias since"),
    ],
)
def test_a_module_that_changes_in_training_is_refused(module, complaint):
    """With what has changed."""
    engine = EagerEngine(nets.network(module), seed=0)

    def steps():
        take(engine, samples())
        state(engine)

    with pytest.raises(UsageError, match=complaint):
        steps()


def test_gradients_are_taken_from_where_a_step_has_left_them():
    """Dropped on the way, or sparse."""
    pairs = [(nets.network(), nets.network(Forgetful))]
    pairs += [tuple(nets.network(Looking, is_sparse=is_sparse) for is_sparse in (False, True))]
    for pair in pairs:
        engines = [EagerEngine(network, seed=0) for network in pair]
        for engine in engines:
            take(engine, samples(24))
        for one, other in zip(*map(state, engines), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_buffer_that_is_replaced_is_part_of_the_model():
    """The one that the module has now is read, and set."""
    engine = EagerEngine(nets.network(Counting), seed=0)
    take(engine, samples(24))
    w, buffers, v = state(engine)
    assert buffers.tolist() == [3.0]
    engine.load(w, np.float32([7.0]), v)
    take(engine, samples())
    assert state(engine)[1].tolist() == [8.0]


def test_lazy_layers_get_their_shape_and_equal_weights_from_equal_seeds():
    """From a look at samples."""
    first, second = (EagerEngine(nets.network(Lazy), seed=0).initial()[0] for _ in range(2))
    assert len(first) == 3 * 65
    np.testing.assert_array_equal(first, second)


def test_the_papers_network_has_the_size_of_the_paper():
    """62,006 and 44,426 parameters; and the smallest image is 16 x 16."""
    sizes = [sum(p.numel() for p in PaperCNN(c, side, side, 10).parameters()) for c, side in ((3, 32), (1, 28))]
    assert sizes == [62_006, 44_426]
    assert PaperCNN(1, 16, 16, 2)(torch.zeros(1, 1, 16, 16)).shape == (1, 2)
    with pytest.raises(UsageError, match="16 x 16 and more"):
        PaperCNN(1, 15, 20, 2)
    assert [square_for(count) for count in (1, 256, 257, 784, 785)] == [16, 16, 17, 28, 29]


@pytest.mark.parametrize(
    ("net", "complaint"),
    [
        (nets.network(num_classes=2), r"gives \(2, 2\) .* need logits of shape \(2, 3\)"),
        (nets.network(wrong=1), r"cannot be made with .*wrong.*signature is Tiny\(num_classes"),
        (
            Network(module=nets.Tiny, input_shape=(3, 8, 8), num_classes=3),
            r"does not take samples of shape \(3, 8, 8\)",
        ),
        (nets.network("tests.solvers.nets:Missing"), "cannot be imported here"),
        (nets.network("no_such_module:X"), "cannot be imported here"),
        (nets.network(dict), "makes a dict, which is no torch"),
        (nets.network(nn.Identity), "gives"),
        (nets.network(lambda: nn.Sequential(nn.Flatten(), nn.MaxPool1d(21))), "no parameter that could be trained"),
    ],
)
def test_a_module_that_does_not_fit_is_refused(net, complaint):
    """With what it gives or takes, and what is needed."""
    with pytest.raises(UsageError, match=complaint):
        EagerEngine(net, seed=0)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        *((name, "'cuda:N'") for name in ("gpu", "meta", "xpu")),
        ("cuda:99", r"device='cuda:99' .* sees \d+ CUDA devices here; say device='cpu'"),
    ],
)
def test_devices_that_are_not_there_are_refused(name, complaint):
    """With those that there are, the version of torch and what to do."""
    with pytest.raises(UsageError, match=complaint):
        device_of(name)


def test_names_are_found_and_seeds_decide_the_first_weights():
    """A class by name; torch's own generator is left alone."""
    net = nets.network("tests.solvers.nets:Tiny")
    torch.manual_seed(0)
    first = torch.rand(1)
    torch.manual_seed(0)
    a, b, c = (build_module(net, seed).conv.weight for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(torch.rand(1), first)


@pytest.mark.parametrize("kernels", ["onednn", "fused"])
def test_a_change_is_what_is_copied_out_less_what_was_loaded(kernels):
    """With counters that are no whole numbers after an average; whatever computes the steps."""
    network = nets.paper() if kernels == "fused" else nets.network(has_norm=True)
    engine = EagerEngine(network, seed=0, kernels=kernels)
    layout, rng = engine.layout, np.random.default_rng(0)
    sizes = (layout.num_weights, layout.num_buffers, layout.num_weights)
    before = [rng.random(size, dtype=np.float32) / 10 + np.float32(0.2) for size in sizes]
    engine.load(*before, for_change=True)
    rows = rng.random((16, int(np.prod(network.input_shape))), dtype=np.float32)
    given = GatheredSamples(rows=rows, targets=rng.integers(0, 3, 16), weights=None)
    take(engine, given, lr=0.01)
    expected = np.concatenate([new - old for new, old in zip(state(engine), before, strict=True)])
    change = engine.change(np.float32([5, 6]), len(expected) + 3).numpy()
    assert expected.any()
    np.testing.assert_array_equal(change, np.concatenate([expected, np.float32([0, 5, 6])]))
