"""A loop whose model lies on a CUDA device does what one of the host does: `make test-gpu`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import chicle_elastic.torch as elastic
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.torch.checkpoints import LoopCheckpoints
from chicle_elastic.torch.schedule import Position
from chicle_elastic.torch.state import TrainingState
from tests.loop.test_loop import network, saved, tensors, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason=f"torch {torch.__version__} sees no CUDA device here"),
]


def trained(device: str, local_steps: int) -> tuple[list[float], nn.Module]:
    """Losses and the model."""
    model, (x, y) = network().to(device), tensors()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return train(model, optimizer, (x.to(device), y.to(device)), local_steps=local_steps), model


@pytest.mark.parametrize("local_steps", [1, 3])
def test_a_loop_on_a_device_has_the_curve_of_the_host(local_steps: int) -> None:
    """Losses and buffers, but for rounding."""
    (ours, model), (theirs, reference) = trained("cuda", local_steps), trained("cpu", local_steps)
    assert ours == pytest.approx(theirs, rel=1e-9)
    for one, other in zip(model.state_dict().values(), reference.state_dict().values(), strict=True):
        assert one.is_cuda
        assert torch.allclose(one.cpu(), other, rtol=1e-6, atol=1e-9)


def test_a_state_of_a_device_is_resumed_on_the_host(tmp_path: Path) -> None:
    """And back, to the bit."""
    states = []
    for device in ("cuda", "cpu", "cuda"):
        model = network().to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        state = TrainingState(model, optimizer, None, None)
        states.append(state)
        if len(states) == 1:
            model(tensors()[0].to(device)).sum().backward()
            optimizer.step()
            state.position = Position(step=1)
        else:
            assert LoopCheckpoints(CheckpointSettings(folder=str(tmp_path)), state, "n1").restore(1)
        saved(tmp_path, state)
    heads, values = zip(*(state.describe() for state in states), strict=True)
    assert heads[0] == heads[1] == heads[2]
    for one, two, three in zip(*(each.values() for each in values), strict=True):
        assert one.is_cuda == three.is_cuda
        assert torch.equal(one.cpu(), two.cpu())
        assert torch.equal(one.cpu(), three.cpu())


@pytest.mark.parametrize("local_steps", [1, 2])
def test_members_on_a_device_add_up_as_on_the_host(local_steps: int) -> None:
    """Two that take turns: gradients, means and counters of batch norm, momentum of averages."""
    ends = [added_up(device, local_steps) for device in ("cuda", "cpu")]
    for one, other in zip(*ends, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-9)


def added_up(device: str, local_steps: int) -> list[Tensor]:
    """Models of two members after a sum, in host memory."""
    loops: list[Any] = []
    for rank in range(2):
        model, (x, y) = network().to(device), tensors()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        loop: Any = elastic.loop(model, optimizer, (x, y), batch_size=20, local_steps=local_steps, outer_momentum=0.5)
        loop._sum.begin()
        part = slice(10 * rank, 10 * rank + 10)
        functional.cross_entropy(model(x[part].to(device)), y[part].to(device)).backward()
        loop._sum.end_batch()
        loops.append(loop)
    total = sum(loop._sum.fill(0.5, is_first=not rank) for rank, loop in enumerate(loops))
    for loop in loops:
        loop._sum.buffer[:] = total
        loop._sum.commit(loop._outer_step())
    return [value.cpu() for loop in loops for value in loop._model.state_dict().values()]
