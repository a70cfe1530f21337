"""A training script as users write it, started by agents: a network, or a model that counts its samples.

    python -m chicle_elastic.launch ... tests/loop/train_loop.py --out FOLDER --work count --samples 300 --epochs 3

`count`: a parameter per (epoch, sample), from which the step of each batch takes 1, exact in float64. So the model at
the end says how often each sample was counted, whatever became of the members meanwhile.

A fault strikes a member at a point of a step: the file NODE.fault in FOLDER names the point, and the process kills
itself there, once. A number behind it is that of the step in whose sum it does.

    before     the members exchange what they are about to add up
    rows       they have, and add up
    within     it has sent its parts to those who sum them, and others wait for its sum
    half       one other member has its sum, and the others wait for it
    after      it has the whole sum
    optimizer  it has taken the step
    committed  it has told its agent
"""

import argparse
import atexit
import gc
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import chicle_elastic.torch as elastic
from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.collectives.socket_group import SocketGroup
from chicle_elastic.torch.schedule import Call

POINTS = ("before", "rows", "within", "half", "after", "optimizer", "committed")


class Counts(nn.Module):
    """Its parameter is 0, less 1 for each time that a sample was in a step of an epoch."""

    def __init__(self, num_epochs: int, num_samples: int) -> None:
        super().__init__()
        self.counts = nn.Parameter(torch.zeros(num_epochs, num_samples, dtype=torch.float64))


def network() -> nn.Module:
    """A small network of float64, with state in its buffers."""
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()


def data(num_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs of shape (n, 8), float64, and classes (n,), int64; always the same."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(num_samples, 8, generator=generator, dtype=torch.float64)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


class Faults:
    """Kills this process at the point that a file names."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._num_exchanges = 0
        self._place = ""

    def is_armed(self, point: str) -> bool:
        """Whether a fault waits for this point."""
        return self._path.exists() and self._path.read_text() in (point, f"{point} {self._place}")

    def hit(self, point: str) -> None:
        """This process is at a point."""
        if self.is_armed(point):
            self._path.rename(self._path.with_suffix(".struck"))
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self, loop: elastic.Loop, optimizer: torch.optim.Optimizer) -> None:
        """Reach the points of a step: wrap what the loop calls there."""
        seat: Any = loop._seat
        gather, all_reduce, committed, step = seat.gather, seat.all_reduce, seat.committed, optimizer.step

        def gather_with_faults(row: Any) -> Any:
            self.hit("before")
            rows = gather(row)
            self._num_exchanges = 0
            self._place = str(loop.position.step) if row.call == Call.STEP else ""
            self.hit("rows")
            return rows

        def all_reduce_with_faults(buffer: Any) -> None:
            all_reduce(buffer)
            self.hit("after")

        def step_with_faults(*arguments: Any, **options: Any) -> Any:
            result = step(*arguments, **options)
            self.hit("optimizer")
            return result

        def committed_with_faults(*arguments: Any, **options: Any) -> None:
            committed(*arguments, **options)
            self.hit("committed")

        seat.gather, seat.all_reduce, seat.committed = gather_with_faults, all_reduce_with_faults, committed_with_faults
        optimizer.step = step_with_faults  # type: ignore[method-assign]
        exchange, faults = SocketGroup.exchange, self

        def exchange_with_faults(group: SocketGroup, outgoing: Any, incoming: Any) -> None:
            faults._num_exchanges += 1
            if faults._num_exchanges == 2 and faults.is_armed("half"):
                exchange(group, dict(list(outgoing.items())[:1]), {})
                faults.hit("half")
            exchange(group, outgoing, incoming)
            faults.hit("within")

        SocketGroup.exchange = exchange_with_faults  # type: ignore[method-assign,assignment]


def no_thread(*_: Any, **__: Any) -> SocketGroup:
    """Fail to connect as a process does that has no memory for the stack of a thread."""
    raise RuntimeError("can't start new thread")


def values_of(model: nn.Module) -> list[list[float]]:
    """Values of its parameters."""
    return [parameter.detach().reshape(-1).tolist() for parameter in model.parameters()]


def main() -> None:
    """Train, and write down what came of it: NODE.result.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", choices=("count", "net"), default="net")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--min-ms", type=float, default=0.0)
    parser.add_argument("--optimizer", default="SGD")
    parser.add_argument("--parts", type=int, default=0, help="gradients of so many parts of a batch add up")
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--width", type=int, default=8, help="another one is another model")
    parser.add_argument("--torch", default=torch.__version__, help="another one is another installation")
    parser.add_argument("--end-file", type=Path, help="train on until it is there")
    parser.add_argument("--initial", type=Path, help="result of a node, whose first model this one begins from")
    parser.add_argument("--stop-step", type=int, default=-1, help="the step that is the last one")
    parser.add_argument("--misbehave", default="", help="NODE:HOW, or all:HOW")
    parser.add_argument("--hold-restarts", action="store_true", help="processes that are started again wait for OUT/go")
    options = parser.parse_args()
    torch.__version__ = options.torch
    while (
        options.hold_restarts and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0" and not (options.out / "go").exists()
    ):
        time.sleep(0.01)
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())  # a model of its own in each process
    model: nn.Module
    if options.work == "count":
        model = Counts(options.epochs, options.samples)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        dataset: Any = torch.arange(options.samples)
    else:
        model = network() if options.width == 8 else nn.Linear(8, options.width).double()
        optimizer = getattr(torch.optim, options.optimizer)(model.parameters(), lr=0.05)
        dataset = data(options.samples)
    if options.initial is not None:
        with torch.no_grad():
            for parameter, values in zip(
                model.parameters(), json.loads(options.initial.read_text())["initial"], strict=True
            ):
                parameter.copy_(torch.tensor(values, dtype=torch.float64).reshape(parameter.shape))
    initial: list[Any] = []
    losses: dict[int, float] = {}
    changes: list[list[str]] = []
    begun = time.monotonic()
    if not gc.get_freeze_count():  # else it was forked
        atexit.register(lambda: gc.get_freeze_count() and print("at its end Python looks through none of its objects"))
    with elastic.loop(
        model,
        optimizer,
        dataset,
        batch_size=options.batch,
        seed=7,
        reduction="sum" if options.work == "count" else "mean",
        local_steps=options.local_steps,
        outer_rate=1.0,
        outer_momentum=0.0,
    ) as loop:
        node = str(loop._seat.node)
        Faults(options.out / f"{node}.fault").watch(loop, optimizer)

        def changed(members: tuple[str, ...]) -> None:
            initial[:] = initial or values_of(model)
            changes.append(list(members))

        loop.on_change(changed)
        for batch in loop.epochs(options.epochs):
            if time.monotonic() - begun < options.min_ms / 1e3:
                time.sleep(max(0.0, options.min_ms / 1e3 - (time.monotonic() - begun)))
            begun = time.monotonic()
            who, _, how = options.misbehave.partition(":")
            if who in (node, "all") and not batch.is_rehearsal and loop.position.step >= 5:
                if how == "raise":
                    raise ValueError(f"a fault of {node}")
                if how == "forget":
                    continue
                if how == "memory":
                    torch.empty(1 << 60)
                if how == "threads":
                    SocketGroup.connect = no_thread  # type: ignore[method-assign]
                if how == "sum":
                    loop.all_reduce(torch.ones(2))
            is_ended = options.end_file is not None and options.end_file.exists()
            if is_ended or loop.position.step + 1 == options.stop_step:
                loop.stop()
            if batch.is_rehearsal:
                loop.stop()  # does not count
            if options.work == "count":
                loss = model.get_parameter("counts")[batch.epoch, batch.x].sum()
            else:
                loss = functional.cross_entropy(model(batch.x), batch.y)
            left = options.samples - loop.position.offset
            step, workers, size = loop.position.step, len(loop._seat.workers), loop.all_reduce(torch.ones(2))
            for part in batch.parts(options.parts) if options.parts else ():
                loop.backward(model.get_parameter("counts")[part.epoch, part.x].sum(), part)
            result = loop.step(None if options.parts else loss)
            if result is not None:
                assert size.tolist() == [min(workers, left)] * 2, "each member with samples has told its part"
                losses[step] = result
    found = {
        "node": node,
        "losses": losses,
        "changes": changes,
        "steps": loop.position.step,
        "position": [loop.position.epoch, loop.position.offset],
        "model": values_of(model),
        "initial": initial,
    }
    if "CHICLE_CONTROL" in os.environ:
        try:
            elastic.loop(model, optimizer, dataset, batch_size=1)
        except UsageError as error:
            found["second"] = str(error)
    (options.out / f"{node}.result.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
