"""Two processes that train together: ours on a local cluster, and DistributedDataParallel over gloo."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import multiprocessing
from torch.nn import functional

from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.solvers.engines.paper_cnn import PaperCNN
from estimators import ChicleCNNClassifier

BATCH = 8
WARM_UP = 20


def local_cluster_seconds(X: np.ndarray, y: np.ndarray, *, local_steps: int) -> float:
    """Seconds of one epoch by two real agents and tasks: the best of the second and third of a fit, by its history."""
    with LocalCluster(2) as cluster:
        # "auto" would take these kernels too, in a fit of more steps.
        model = ChicleCNNClassifier(
            local_steps=local_steps, max_epochs=3, random_state=0, runtime=cluster, kernels="fused"
        ).fit(X, y)
    times = model.history_.column("time_s")
    ends = [index for index, record in enumerate(model.history_) if "epoch" in record.figures]
    spans = np.diff(times[ends])
    return float(min(spans))


def ddp_seconds(shape: tuple[int, ...], *, steps: int) -> float:
    """Seconds of `steps` steps by two processes, 8 samples each, with an all-reduce in each step; the best of two."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_ddp_process, args=(shape, steps, folder), nprocs=2)
        return min(float(text) for text in (Path(folder) / "seconds").read_text().split())


def _ddp_process(rank: int, shape: tuple[int, ...], steps: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    channels, height, width = shape
    net = torch.nn.parallel.DistributedDataParallel(PaperCNN(channels, height, width, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=5e-4, momentum=0.9)
    rows, codes = torch.rand(256, *shape), torch.randint(0, 10, (256,))
    spans = []
    for count in (WARM_UP, steps, steps):
        start = time.perf_counter()
        for step in range(count):
            at = step * BATCH % 256
            optimizer.zero_grad()
            functional.cross_entropy(net(rows[at : at + BATCH]), codes[at : at + BATCH]).backward()
            optimizer.step()
        spans.append(time.perf_counter() - start)
    if rank == 0:
        (Path(folder) / "seconds").write_text(" ".join(map(str, spans[1:])))
    torch.distributed.destroy_process_group()
