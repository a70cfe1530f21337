"""Speed of ChicleCNNClassifier's steps against its peers, in one run, with gates.

    python -m benchmarks.cnn [--quick] [--repeats N] [--only speed,ddp,share,own] [--json FILE]

Speed: epochs over the same samples by the same network (the default one), 8 samples a step, one thread, alternated:
ours (the engine over uint8 chunks, as `fit` runs it, tasks and merges included) against a loop over a DataLoader, a
tight loop over slices, and skorch's `partial_fit`. Processor time, which is wall time less what the neighbours of a
shared machine took; the ratio is the median over the repeats of neighbours in time.

Own: modules of four kinds, whole fits of two epochs with 64 samples a step, in the same way on one core: against a
plain loop, skorch with its defaults, and the steps of a loop over one batch.

DDP: two processes, 8 samples a step each, wall time per sample: ours on a local cluster with 16 local steps against
DistributedDataParallel over gloo, which synchronises every step. The starts are not counted.

Share: two tasks with chunks 3 : 1; the time of an iteration follows them.

Exit code 1 when a gate is missed.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.bars import Bar, Row
from benchmarks.cnn_ddp import ddp_seconds, local_cluster_seconds
from benchmarks.own_modules import BATCH as OWN_BATCH
from benchmarks.own_modules import CASES, EPOCHS, sides_of
from benchmarks.report import Report, names_of, parser
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.runtime.training.uni_task import LocalContext, Mailboxes, UniTask
from chicle_elastic.solvers.base import Budget
from chicle_elastic.solvers.engines.paper_cnn import PaperCNN
from chicle_elastic.solvers.local_sgd import LocalSGDTrainer
from chicle_elastic.solvers.network import PAPER_CNN, Network

BATCH = 8
SHAPES = {"3x32x32": (3, 32, 32), "1x28x28": (1, 28, 28)}
BARS = {"3x32x32": 1.15, "1x28x28": 1.4}
"""Least speed against the DataLoader loop."""
OWN_BAR = 1 / 1.1
DDP_BAR = 3.0
RATE, MOMENTUM = 5e-4, 0.9


def images(shape: tuple[int, ...], count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random bytes of that shape, and ten classes."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.integers(0, 10, count)


def module(shape: tuple[int, ...]) -> nn.Module:
    """The network that all sides train."""
    torch.manual_seed(0)
    channels, height, width = shape
    return PaperCNN(channels, height, width, 10)


def network(shape: tuple[int, ...], kind: Any = PAPER_CNN) -> Network:
    """The same, described; given as a class it is a module like any other, without kernels of ours."""
    settings = dict(zip(("channels", "height", "width", "num_classes"), (*shape, 10), strict=True))
    return Network(module=kind, settings=settings, input_shape=shape, num_classes=10)


def our_epoch(X: np.ndarray, y: np.ndarray, kind: Any = PAPER_CNN) -> Callable[[], float]:
    """A job of one epoch in process, merges included; returns its processor time from the first iteration's end on.

    What a job does before its first step is done once per fit, and a fit has many epochs.
    """
    shape = X.shape[1:]
    trainer = LocalSGDTrainer(network=network(shape, kind), max_epochs=1)
    source = ArraySource(X, y)

    def run() -> float:
        marks: list[tuple[float, int]] = []

        def note(record: IterationRecord) -> None:
            marks.append((time.process_time(), record.samples))

        InProcess().run(Job(trainer=trainer, source=source, max_iterations=10**6, tell=note))
        count = sum(samples for _, samples in marks[1:])
        return (marks[-1][0] - marks[0][0]) / count * len(y)

    return run


def loader_epoch(X: np.ndarray, y: np.ndarray) -> Callable[[], None]:
    """The loop of the tutorials: a DataLoader over a TensorDataset of float32 images, and loss.item()."""
    from torch.utils.data import DataLoader, TensorDataset

    net = module(X.shape[1:])
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
    data = TensorDataset(torch.from_numpy(X).float().mul_(2 / 255).sub_(1), torch.from_numpy(y))

    def run() -> None:
        total = 0.0
        for batch, codes in DataLoader(data, batch_size=BATCH, shuffle=True):
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(batch), codes)
            loss.backward()
            optimizer.step()
            total += loss.item()

    return run


def tight_epoch(X: np.ndarray, y: np.ndarray) -> Callable[[], None]:
    """The least Python there can be around torch.optim: slices of float32 images."""
    net = module(X.shape[1:])
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
    rows, codes = torch.from_numpy(X).float().mul_(2 / 255).sub_(1), torch.from_numpy(y)

    def run() -> None:
        for start in range(0, len(codes), BATCH):
            optimizer.zero_grad()
            span = slice(start, start + BATCH)
            functional.cross_entropy(net(rows[span]), codes[span]).backward()
            optimizer.step()

    return run


def skorch_epoch(X: np.ndarray, y: np.ndarray) -> Callable[[], None] | None:
    """skorch's partial_fit, without its printing and validation; None where it is not installed."""
    try:
        from skorch import NeuralNetClassifier
    except ImportError:
        return None
    channels, height, width = X.shape[1:]
    net = NeuralNetClassifier(
        PaperCNN,
        module__channels=channels,
        module__height=height,
        module__width=width,
        module__num_classes=10,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        optimizer__momentum=MOMENTUM,
        lr=RATE,
        batch_size=BATCH,
        max_epochs=1,
        train_split=None,
        iterator_train__shuffle=True,
        verbose=0,
    ).initialize()
    rows = (X.astype(np.float32) * (2 / 255)) - 1

    def run() -> None:
        net.partial_fit(rows, y)

    return run


def timed(sides: dict[str, Callable[[], Any]], repeats: int, count: int) -> dict[str, list[float]]:
    """Return the processor time of each side per sample, in turns; a side that returns seconds has timed itself."""
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for repeat in range(repeats + 1):
        for side, run in sides.items():
            start = time.process_time()
            own = run()
            spent = time.process_time() - start if own is None else own
            if repeat:  # the first of each warms up
                seconds[side].append(spent / count)
    return seconds


def own(arguments: argparse.Namespace) -> Iterator[Row]:
    """Fit modules of a user's own by each side, on one core: a second thread would wait for what runs beside it."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for kind, (_, most) in CASES.items():
        count = most // 8 if arguments.quick else most
        seconds = timed(sides_of(kind, count), arguments.repeats, count * EPOCHS)
        mine = statistics.median(seconds["ours"]) * 1e6
        for side in list(seconds)[1:]:
            theirs = statistics.median(seconds[side]) * 1e6
            ratio = statistics.median(b / a for a, b in zip(seconds["ours"], seconds[side], strict=True))
            bar = Bar(OWN_BAR) if side == "a plain loop" else None
            what = f"{kind.__name__}, {OWN_BATCH} a step, times as fast as {side}"
            yield Row("own", what, None, f"{mine:.0f} us/sample", f"{theirs:.0f} us/sample", ratio, bar)


def speed(arguments: argparse.Namespace) -> Iterator[Row]:
    """Ours against all peers, on both shapes."""
    count = 512 if arguments.quick else 2048
    for name, shape in SHAPES.items():
        X, y = images(shape, count)
        sides: dict[str, Callable[[], float | None]] = {
            "ours": our_epoch(X, y),
            "DataLoader": loader_epoch(X, y),
            "tight": tight_epoch(X, y),
        }
        sides["our engine for any module"] = our_epoch(X, y, PaperCNN)
        peer = skorch_epoch(X, y)
        if peer is not None:
            sides["skorch"] = peer
        seconds = timed(sides, arguments.repeats, count)
        ours = statistics.median(seconds["ours"]) * 1e6
        for side in list(sides)[1:]:
            theirs = statistics.median(seconds[side]) * 1e6
            ratio = statistics.median(b / a for a, b in zip(seconds["ours"], seconds[side], strict=True))
            bar = Bar(BARS[name]) if side == "DataLoader" else None
            what = f"{name}, {BATCH} a step, times as fast as {side}"
            yield Row("speed", what, None, f"{ours:.0f} us/sample", f"{theirs:.0f} us/sample", ratio, bar)


def ddp(arguments: argparse.Namespace) -> Iterator[Row]:
    """Two processes of ours against two of DistributedDataParallel, alternated."""
    count = 2048 if arguments.quick else 8192
    for name, shape in SHAPES.items():
        X, y = images(shape, count)
        pairs = [
            (local_cluster_seconds(X, y, local_steps=16), ddp_seconds(shape, steps=count // (2 * BATCH)))
            for _ in range(max(1, arguments.repeats // 3))
        ]
        ours, theirs = (statistics.median(side) / count * 1e6 for side in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        what = f"{name}, 2 processes, 16 local steps, times as fast as DDP"
        yield Row("ddp", what, None, f"{ours:.0f} us/sample", f"{theirs:.0f} us/sample", ratio, Bar(DDP_BAR))


def share(arguments: argparse.Namespace) -> Iterator[Row]:
    """Two tasks with chunks 3 : 1 of the same data, then 1 : 1: their times in one iteration."""
    X, y = images(SHAPES["1x28x28"], 1024)
    trainer = LocalSGDTrainer(network=network(SHAPES["1x28x28"]), local_steps=16, max_epochs=1)
    source = ArraySource(X, y, max_tasks=2, chunk_bytes=32 * (784 + 12))
    model = trainer.init(source.schema, np.random.default_rng(0))
    for counts in ((24, 8), (16, 16)):
        tasks, first = [], 0
        for count in counts:
            boxes = Mailboxes()
            context = LocalContext(f"task-{first}", np.random.default_rng(0), boxes)
            task = UniTask(NodeId(context.name), trainer, context, MonotonicClock())
            for number in range(first, first + count):
                task.hold(source.load(ChunkId(number), trainer.state(source.schema)))
            first += count
            task.attach(list(task.held), [])
            tasks.append(task)
        times = []
        for iteration in range(1, 4 + arguments.repeats):
            budget = Budget(clock=MonotonicClock(), num_tasks=2, iteration=iteration)
            spans = []
            for task in tasks:
                for chunk in task.chunks:
                    chunk.state[...] = 0  # the same work again
                start = time.process_time()
                task.recover(model)
                task.solve(model, budget)
                spans.append(time.process_time() - start)
            times.append(spans[0] / spans[1])
        found, expected = statistics.median(times[3:]), counts[0] / counts[1]
        what = f"two tasks with {counts[0]} and {counts[1]} chunks: ratio of their times over that of their chunks"
        yield Row("share", what, None, f"{found:.2f}", f"{expected:.2f}", found / expected)


PARTS = {"speed": speed, "ddp": ddp, "share": share, "own": own}


def main() -> int:
    """Measure, print a table row by row, and one line of JSON."""
    line = parser(__doc__)
    line.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    line.add_argument("--repeats", type=int, help="timed epochs of each side (default 9; 2 when quick)")
    arguments = line.parse_args()
    arguments.repeats = arguments.repeats or (2 if arguments.quick else 9)
    torch.set_num_threads(1)
    report = Report(arguments, packages=["torch", "skorch"], repeats=arguments.repeats)
    for part in names_of(arguments.only, PARTS, "--only"):
        report.add(PARTS[part](arguments))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
