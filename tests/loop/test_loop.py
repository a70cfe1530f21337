"""A loop in one process: what it hands out, what a step does, and what it refuses."""

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset

import chicle_elastic.torch as elastic
from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.chunks.convert_inputs import ReadOptions
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.torch.checkpoints import LoopCheckpoints
from chicle_elastic.torch.checks import digest_of
from chicle_elastic.torch.schedule import Position
from chicle_elastic.torch.state import TrainingState


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of several threads differ in their last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def network() -> nn.Module:
    """A network with state in its buffers, always of the same values."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()


def tensors(num_samples: int = 90) -> tuple[Tensor, Tensor]:
    """Inputs and classes, always the same."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(num_samples, 6, generator=generator, dtype=torch.float64)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, dataset: Any, **options: Any) -> list[float]:
    """Losses of two epochs."""
    with elastic.loop(model, optimizer, dataset, batch_size=20, seed=1, **options) as loop:
        found = [loop.step(functional.cross_entropy(model(batch.x), batch.y)) for batch in loop.epochs(2)]
    return [loss for loss in found if loss is not None]


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any = None, norm: float | None = None) -> Any:
    """What a plain loop over the same batches comes to: its losses."""
    x, y = tensors()
    losses = []
    for epoch in range(2):
        for numbers in torch.from_numpy(np.random.default_rng([1, epoch]).permutation(90)).split(20):
            loss = functional.cross_entropy(model(x[numbers]), y[numbers])
            optimizer.zero_grad()
            loss.backward()
            if norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), norm)
            optimizer.step()
            losses.append(loss.item())
        if scheduler is not None:
            scheduler.step()
    return losses


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_one_process_does_what_a_plain_loop_does(name: str) -> None:
    """The same batches, losses and parameters, to the bit."""
    ours, theirs = network(), network()
    losses = train(ours, getattr(torch.optim, name)(ours.parameters(), lr=0.01), tensors())
    assert losses == plain(theirs, getattr(torch.optim, name)(theirs.parameters(), lr=0.01))
    for one, other in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_sparse_gradients_train_as_dense_ones() -> None:
    """Embeddings come to the same table, to the bit."""
    x, y = tensors()
    tables = []
    for is_sparse in (False, True):
        torch.manual_seed(3)
        model = nn.Embedding(2, 3, sparse=is_sparse)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), ((x[:, 0] > 0).long(), y))
        tables.append(model.weight)
    assert torch.equal(*tables)


def test_schedule_and_clipping_are_those_of_a_plain_loop() -> None:
    """The scheduler steps once per epoch."""
    ours, theirs = network(), network()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9) for model in (ours, theirs)]
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1) for optimizer in optimizers]
    losses = train(ours, optimizers[0], tensors(), scheduler=schedulers[0], max_grad_norm=0.1)
    assert losses == plain(theirs, optimizers[1], schedulers[1], 0.1)
    assert optimizers[0].param_groups[0]["lr"] == pytest.approx(0.005)


def test_a_schedule_by_steps_counts_local_steps() -> None:
    """Five of them in an epoch, in two rounds."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(model, optimizer, tensors(), scheduler=scheduler, scheduler_every="step", local_steps=3)
    assert optimizer.param_groups[0]["lr"] == 0.5**10


def test_gradients_of_parts_add_up_to_those_of_the_batch() -> None:
    """Accumulation: each part counts by its samples."""
    model = nn.Linear(6, 3).double()
    other = copy.deepcopy(model)
    x, y = tensors()
    with elastic.loop(model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), batch_size=20) as loop:
        for batch in loop.epochs(1):
            for part in batch.parts(3):
                loop.backward(functional.cross_entropy(model(part.x), part.y), part)
            assert loop.step() is not None
    with elastic.loop(other, torch.optim.SGD(other.parameters(), lr=0.1), (x, y), batch_size=20) as loop:
        for batch in loop.epochs(1):
            loop.step(functional.cross_entropy(other(batch.x), batch.y))
    assert torch.allclose(model.weight, other.weight, rtol=1e-12)


def test_autocast_and_a_scaler_train() -> None:
    """The scaler's step is skipped where gradients overflow, and its scale halves."""
    model = nn.Linear(6, 3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
    x, y = tensors()
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with elastic.loop(model, optimizer, (x.float(), y), batch_size=90, scaler=scaler) as loop:
        for batch in loop.epochs(1):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = 1e3 * functional.cross_entropy(model(batch.x), batch.y)
            loop.step(loss)
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() == 2.0**125


class Numbers(Dataset[Any]):
    """A map-style data set that can grow."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((6,), float(index)), index % 3


class Halves(TensorDataset):
    """Rows that it halves, one at a time."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        assert isinstance(index, int)
        return self.tensors[0][index] / 2, self.tensors[1][index]


@pytest.mark.parametrize("kind", ["map", "arrays", "TensorDataset", "subclass", "tensor", "list"])
def test_data_sets_give_samples_by_number(kind: str) -> None:
    """Of each kind, in the order of the data without a shuffle."""
    x = np.repeat(np.arange(10.0, dtype=np.float32)[:, None], 6, axis=1)
    y = np.arange(10) % 3
    sets = {
        "map": Numbers(10),
        "arrays": (x, y),
        "TensorDataset": TensorDataset(torch.from_numpy(x), torch.from_numpy(y)),
        "subclass": Halves(torch.from_numpy(2 * x), torch.from_numpy(y)),
        "tensor": torch.from_numpy(x),
        "list": [Numbers(10)[index] for index in range(10)],
    }
    model = nn.Linear(6, 3)
    seen: list[float] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with elastic.loop(model, optimizer, sets[kind], batch_size=4, shuffle=False) as loop:
        for batch in loop.epochs(1):
            seen += batch.x[:, 0].tolist()
            assert (batch.y is None) == (kind == "tensor")
            assert batch.y is None or batch.y.tolist() == (batch.numbers % 3).tolist()
            loop.step(model(batch.x).sum())
    assert seen == list(map(float, range(10)))


def test_rows_of_a_chunk_folder_are_samples(tmp_path: Path) -> None:
    """By path; each row once, with its class."""
    x, y = tensors()
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", y.numpy())
    options = ConvertOptions(chunk_bytes=1024, read=ReadOptions(targets=tmp_path / "y.npy"))
    folder = convert([tmp_path / "x.npy"], tmp_path / "chunks", options)
    assert folder.num_chunks > 1
    model = nn.Linear(6, 3).double()
    seen = []
    with elastic.loop(model, torch.optim.SGD(model.parameters(), lr=0.0), str(folder.path), batch_size=20) as loop:
        for batch in loop.epochs(1):
            loop.step(functional.cross_entropy(model(batch.x), batch.y))
            seen += [(*row, int(target)) for row, target in zip(batch.x.tolist(), batch.y, strict=True)]
    assert sorted(seen) == sorted((*row, int(target)) for row, target in zip(x.tolist(), y, strict=True))


class Stream(IterableDataset[Any]):
    """A data set whose samples have no numbers."""

    def __iter__(self) -> Iterator[Any]:
        return iter(range(3))


def plain_optimizer() -> torch.optim.Optimizer:
    """Of a parameter of its own."""
    return torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dataset": Stream()}, "map-style data set"),
        ({"dataset": iter([1])}, "map-style data set"),
        ({"dataset": (torch.zeros(3), torch.zeros(4))}, r"\[3, 4\] samples"),
        ({"dataset": torch.zeros(0)}, "no samples"),
        ({"batch_size": None}, "batch_size_per_node"),
        ({"batch_size": 0}, "batch_size_per_node"),
        ({"batch_size_per_node": 3}, "batch_size_per_node"),
        ({"scheduler_every": "day"}, "'day'"),
        ({"local_steps": 0}, "local_steps=0"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1, dtype=torch.complex64))], lr=0.1)}, "view_as_real"),
        ({"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(plain_optimizer())}, "ReduceLROnPlateau"),
        ({"local_steps": 2, "scaler": torch.amp.GradScaler("cpu")}, "scaler"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(2, 5))], lr=0.1)}, r"shape \(2, 5\) that is not"),
    ],
)
def test_what_cannot_work_is_refused(change: dict[str, Any], words: str) -> None:
    """With what to do instead."""
    model = nn.Linear(6, 3)
    options: dict[str, Any] = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "dataset": torch.zeros(4, 6),
        "batch_size": 2,
    }
    with pytest.raises(UsageError, match=words):
        elastic.loop(**(options | change))


def run(body: Any, dataset: Any, *, model: nn.Module | None = None, optimizer: Any = None) -> None:
    """A loop with this body."""
    model = model or nn.Linear(6, 3)
    with elastic.loop(model, optimizer or torch.optim.SGD(model.parameters(), lr=0.1), dataset, batch_size=4) as loop:
        for batch in loop.epochs(2):
            x = batch.x[0] if isinstance(batch.x, list) else batch.x
            if body(loop, model(x).sum()) == "break":
                break


def add_group(loop: elastic.Loop, loss: Tensor) -> None:
    """A body that gives its optimizer other parameters."""
    loop.step(loss)
    loop._optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})


def grow(loop: elastic.Loop, loss: Tensor) -> None:
    """A body that makes its data set longer."""
    loop.step(loss)
    loop._samples._dataset.length += 1


def catch(loop: elastic.Loop, loss: Tensor) -> None:
    """A body that catches an exception of its step: the state may be half of it, and the others wait for this one."""
    loop._optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    with contextlib.suppress(ZeroDivisionError):
        loop.step(loss)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda loop, loss: None, r"local did not do loop\.step to its end"),
        (lambda loop, loss: loop.step(loss) and loop.step(), "once, step"),
        (lambda loop, loss: loop.step(loss) and "break", r"loop\.stop"),
        (add_group, "had 2 parameters and has 3"),
        (grow, "had 10 samples and has 11 now"),
        (catch, r"local did not do loop\.step to its end"),
    ],
)
def test_a_body_that_does_not_step_once_is_found(body: Any, words: str) -> None:
    """At the next batch, and not as a hang of others."""
    with pytest.raises(UsageError, match=words):
        run(body, Numbers(10))


def test_a_loop_whose_samples_fail_has_not_ended() -> None:
    """Also where the script catches the error: it would save a half-trained model as whole."""
    model, samples = nn.Linear(6, 3), Subset(TensorDataset(torch.zeros(8, 6)), [9] * 8)
    loop = elastic.loop(model, torch.optim.SGD(model.parameters(), lr=0.1), samples, batch_size=2)
    with pytest.raises(IndexError):
        next(loop.epochs(1))
    with pytest.raises(UsageError, match="left before its end"):
        loop.__exit__(None, None, None)


@pytest.mark.parametrize("is_left", [False, True])
def test_a_loop_that_is_stopped_may_be_left_by_break(is_left: bool) -> None:
    """`stop` ends it in order, with or without `break` behind it."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with elastic.loop(model, optimizer, torch.zeros(8, 6), batch_size=2) as loop:
        for batch in loop.epochs(5):
            loop.stop()
            assert loop.all_reduce(torch.ones(2)).tolist() == [1, 1]
            loop.step(model(batch.x).sum())
            if is_left:
                break
    assert loop.position == Position(offset=2, step=1)
    with pytest.raises(UsageError, match="in the body"):
        loop.step()


def test_local_steps_of_one_process_are_those_of_its_optimizer() -> None:
    """An average of one, and an outer step with momentum."""
    ours, theirs = network(), network()
    train(ours, torch.optim.Adam(ours.parameters(), lr=0.01), tensors(), local_steps=3)
    plain(theirs, torch.optim.Adam(theirs.parameters(), lr=0.01))
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
    outer = network()
    train(outer, torch.optim.Adam(outer.parameters(), lr=0.01), tensors(), local_steps=3, outer_momentum=0.9)
    assert not torch.allclose(next(outer.parameters()), next(ours.parameters()), rtol=1e-3)


def test_an_average_costs_one_model_and_leaves_optimizers_their_own_state() -> None:
    """With Adam as well; the parameters are alike after it, and who joins has the state of one member."""
    loops = []
    for seed in range(2):
        torch.manual_seed(9)
        model = nn.Linear(6, 3)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        loops.append(elastic.loop(model, optimizer, torch.zeros(8, 6), batch_size=4, local_steps=2, outer_momentum=0.5))
        loops[-1]._sum.begin()
        torch.manual_seed(seed)
        model(torch.rand(2, 6)).square().sum().backward()
        loops[-1]._sum.end_batch()
    total = sum(loop._sum.fill(0.5, is_first=not rank) for rank, loop in enumerate(loops))
    for loop in loops:
        loop._sum.buffer[:] = total
        loop._sum.commit(loop._outer_step())
    assert len(total) == 6 * 3 + 3 + 2, "and a mark for each tensor"
    (one, two), moments = (list(loop._sum.parameters) for loop in loops), []
    assert all(torch.equal(p, q) for p, q in zip(one, two, strict=True))
    for loop, parameter in zip(loops, (one[0], two[0]), strict=True):
        moments.append(loop._optimizer.state[parameter]["exp_avg"])
        moved = (each._state.outer.state[each._sum.parameters[0]]["momentum_buffer"] for each in (loop, loops[0]))
        assert torch.equal(*moved)
        assert not loop._state.is_alike
    assert not torch.equal(*moments)
    for loop in loops:
        loop._sum.undo()
        assert not loop._optimizer.state


@pytest.mark.parametrize(
    ("members", "name", "expected"),
    [
        (1, "Adam", 0.0),
        (4, "AdamW", 0.5),
        (16, "Adam", 0.75),
        (4, "SGD", 0.0),
    ],
)
def test_averages_have_momentum_where_steps_have_a_length_of_their_own(
    members: int, name: str, expected: float
) -> None:
    """So that K averaged steps, each of a K-th of the samples, go as far as one of all samples."""
    model = nn.Linear(6, 3)
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    loop: Any = elastic.loop(model, optimizer, torch.zeros(8, 6), batch_size=4, local_steps=16)
    loop._seat.workers = range(members)
    group = loop._outer_step().param_groups[0]
    assert (group["lr"], group["momentum"]) == (1.0, expected)


def trained_state(name: str, *, momentum: float = 0.0) -> TrainingState:
    """The state of a training with an optimizer, a scheduler and a scaler, after some steps."""
    model = network()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=50, cycle_momentum=False)
    options: dict[str, Any] = {"local_steps": 2, "outer_momentum": momentum} if momentum else {}
    if not momentum:
        options = {"scaler": torch.amp.GradScaler("cpu", init_scale=8.0)}
    x, y = tensors()
    with elastic.loop(
        model, optimizer, (x, y), batch_size=20, scheduler=scheduler, scheduler_every="step", **options
    ) as loop:
        for batch in loop.epochs(1):
            loop.step(functional.cross_entropy(model(batch.x), batch.y))
    return loop._state


def saved(folder: Path, state: TrainingState, *, step: int = 0) -> LoopCheckpoints:
    """A checkpoint of a state, which gets this step, is in a folder."""
    state.position = Position(step=step) if step else state.position
    checkpoints = LoopCheckpoints(CheckpointSettings(folder=str(folder), resume=True), state, "n0")
    checkpoints.committed(is_last=True)
    checkpoints.close()
    return checkpoints


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "Adadelta", "Rprop"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_state_travels_to_the_bit(name: str, momentum: float, tmp_path: Path) -> None:
    """By a file and back: model, buffers, optimizer, scheduler, scaler, outer momentum, position."""
    state = trained_state(name, momentum=momentum)
    text, sent = state.describe()
    saved(tmp_path, state)
    torch.manual_seed(99)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)).double()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=50, cycle_momentum=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0, enabled=not momentum)
    other = TrainingState(model, optimizer, scheduler, scaler)
    checkpoints = LoopCheckpoints(CheckpointSettings(folder=str(tmp_path), resume=True), other, "n1")
    assert checkpoints.newest() == state.position.step
    assert checkpoints.restore(checkpoints.newest())
    again, received = other.describe()
    assert again == text
    assert len(sent) == len(received)
    assert all(torch.equal(one, two) for one, two in zip(sent.values(), received.values(), strict=True))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_script_saves_and_loads_its_own_files_of_dcp(tmp_path: Path) -> None:
    """Between two steps, without a process group; model and optimizer to the bit, and the loop goes on from them."""
    names, folder, (x, y), kept = ("model", "optimizer"), tmp_path / "saved", tensors(), list[Tensor]()
    for is_loaded in (False, True):
        model = network()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        if is_loaded:
            state = dict(zip(names, get_state_dict(model, optimizer), strict=True))
            dcp.load(state, checkpoint_id=folder, no_dist=True)
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            found = TrainingState(model, optimizer, None, None).describe()[1].values()
            assert all(torch.equal(one, two) for one, two in zip(found, kept, strict=True))
        with elastic.loop(model, optimizer, (x, y), batch_size=45) as loop:
            for batch in loop.epochs(1):
                loop.step(functional.cross_entropy(model(batch.x), batch.y))
                if not is_loaded and loop.position.step == 1:
                    state = dict(zip(names, get_state_dict(model, optimizer), strict=True))
                    dcp.save(state, checkpoint_id=folder, no_dist=True)
                    kept = [tensor.clone() for tensor in loop._state.describe()[1].values()]
        assert {float(each["step"]) for each in optimizer.state.values()} == {3.0 if is_loaded else 2.0}


def test_a_state_of_another_model_is_refused(tmp_path: Path) -> None:
    """As is a file that is cut off, or none; the newest two stay."""
    state = trained_state("SGD")
    for step in (3, 4, 5):
        checkpoints = saved(tmp_path, state, step=step)
    files = sorted(tmp_path.glob("*/loop.safetensors"))
    assert [path.parent.name[:9] for path in files] == ["000000004", "000000005"]
    model = nn.Linear(2, 2)
    other = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1), None, None)
    with pytest.raises(DataError, match=r"weight is .* in this model, and None in the state"):
        LoopCheckpoints(CheckpointSettings(folder=str(tmp_path)), other, "n1").restore(5)
    files[1].write_bytes(files[1].read_bytes()[:-9])
    with pytest.raises(DataError, match="damaged; remove"):
        checkpoints.restore(5)
    assert not checkpoints.restore(7)


def test_a_state_that_is_no_number_is_refused() -> None:
    """It could reach other nodes only as a pickle."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["maker"] = object()
    with pytest.raises(UsageError, match=r"\['maker'\].* is of object"):
        TrainingState(model, optimizer, None, None).describe()
    with pytest.raises(UsageError, match=r"\['maker'\].* is of object"):
        train(model, optimizer, (torch.zeros(40, 2), torch.zeros(40).long()))
    assert not optimizer.state, "before the first step"
    late = torch.optim.SGD(model.parameters(), lr=np.float32(0.1))  # type: ignore[arg-type]
    late.register_step_post_hook(lambda *_: late.state[model.weight].update(maker=object()))
    steps = []

    def body(loop: elastic.Loop, loss: Tensor) -> None:
        steps.append(loop.position.step)
        loop.step(loss)

    with pytest.raises(UsageError, match=r"\['maker'\].* is of object"):
        run(body, torch.zeros(40, 2), model=model, optimizer=late)
    assert steps == [0], "with the first state of the optimizer"


@pytest.mark.parametrize("local_steps", [1, 2])
def test_a_member_without_samples_leaves_infinite_buffers_as_they_are(local_steps: int) -> None:
    """A mask of -inf stays one: no times infinity is not a number."""
    model = nn.Linear(2, 2)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    loop = elastic.loop(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(8, 2), batch_size=4, local_steps=local_steps
    )
    loop._sum.begin()
    assert not np.isnan(loop._sum.fill(0.0, is_first=False)).any()


def test_nodes_of_other_options_have_another_digest() -> None:
    """Members that clip, scale or average otherwise would drift apart."""
    changes: list[dict[str, Any]] = [
        {},
        {"max_grad_norm": 1.0},
        {"reduction": "sum"},
        {"rate_of_nodes": lambda num: num**0.5},
        {"outer_rate": 0.5},
        {"outer_momentum": 0.5},
        {"scheduler_every": "step"},
        {"scaler": torch.amp.GradScaler("cpu")},
    ]
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    changes.append({"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)})
    loops = [elastic.loop(model, optimizer, torch.zeros(8, 6), batch_size=4, **change) for change in changes]
    digests = {digest_of(model, optimizer, loop._plan, loop._options) for loop in loops}
    assert len(digests) == len(changes)


def test_a_checkpoint_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The training goes on, and the next one is tried again."""
    state, folder = trained_state("SGD"), tmp_path / "saved"
    folder.touch()
    checkpoints = LoopCheckpoints(CheckpointSettings(folder=str(folder), every_iterations=1), state, "n0")
    for step in (1, 2, 3):
        state.position = Position(step=step)
        if step == 3:
            folder.unlink()
        checkpoints.committed(is_last=True)
    checkpoints.close()
    assert len(caplog.records) == 1
    assert checkpoints.newest() == 3


def test_checkpoints_have_complex_numbers_and_any_names(tmp_path: Path) -> None:
    """Complex ones of both sizes; names that the rest of the state could have."""
    number = [1 + 2j, 3 - 1j]
    values = [torch.tensor(number), torch.tensor(number, dtype=torch.complex128), torch.rand(2, dtype=torch.float64)]
    model = nn.ModuleDict({"state": nn.ParameterList([nn.Parameter(value.clone()) for value in values])})
    real = model["state"][2]
    state = TrainingState(model, torch.optim.SGD([real], lr=0.1, momentum=0.9), None, None)
    real.grad = torch.zeros_like(real)
    state.optimizer.step()
    state.outer.state[real]["momentum_buffer"] = torch.ones(2)
    checkpoints = saved(tmp_path, state, step=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert checkpoints.restore(1)
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), values, strict=True))


@pytest.mark.parametrize("local_steps", [1, 2])
def test_members_have_the_same_buffers_after_a_step(local_steps: int) -> None:
    """One of three has no samples: counters are those of one that has, and constants keep their bits."""
    models = [nn.BatchNorm1d(2) for _ in range(3)]
    constant, large = torch.rand(500), 2**40 + 12345
    loops = []
    for number, model in enumerate(models):
        model.register_buffer("constant", constant.clone())
        model.register_buffer("is_odd", torch.tensor([True, False]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loops.append(elastic.loop(model, optimizer, torch.zeros(8, 2), batch_size=4, local_steps=local_steps))
        model.num_batches_tracked.fill_(large)
        loops[-1]._sum.begin()
        if number:
            model(torch.rand(4, 2)).sum().backward()
    vectors = [loop._sum.fill([0.0, 0.7, 0.3][rank], is_first=rank == 1) for rank, loop in enumerate(loops)]
    total = vectors[0] + vectors[1] + vectors[2]
    for loop, vector in zip(loops, vectors, strict=True):
        vector[:] = total
        loop._sum.commit(loop._outer_step())
    for model in models:
        assert model.num_batches_tracked == large + 1
        assert torch.equal(model.running_mean, models[1].running_mean)
        assert model.is_odd.tolist() == [True, False]
        assert torch.equal(model.constant, constant)


def test_sums_lie_in_host_memory_whatever_the_default_device_is() -> None:
    """Sockets take them from there."""
    model = nn.Linear(2, 2)
    with torch.device("meta"):
        loop = elastic.loop(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.zeros(8, 2), batch_size=4)
    loop._sum.begin()
    assert loop._sum.fill(1.0, is_first=True).shape == (8,)
