"""What the nodes of stock torchrun run in the elastic benchmark: a loop as lean as it can be.

Solve (sleep), one all-reduce of the size of a small model, take down the end of the iteration. At each change of the
membership torchrun kills this process and starts another one, which goes on from the checkpoint.
"""

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from elastic_laps import LapWriter  # type: ignore[import-not-found]  # started by its path: no package is imported

NUM_PARAMETERS = 33
CHECKPOINT_EVERY = 10
SILENT_S = 3.0


def main() -> None:
    """Train until this process is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("node")
    parser.add_argument("iteration_ms", type=float)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=30))
    # The others may take long to start; from now on, a task that is silent for as long as the rendezvous waits is dead.
    group = dist.new_group(timeout=timedelta(seconds=SILENT_S))
    laps = LapWriter(options.folder / f"{options.node}.laps")
    checkpoint = options.folder / "checkpoint.npy"
    model = torch.zeros(NUM_PARAMETERS, dtype=torch.float64)
    if dist.get_rank() == 0 and checkpoint.exists():
        model = torch.from_numpy(np.load(checkpoint))
    dist.broadcast(model, 0)
    iteration = 0
    while True:
        time.sleep(options.iteration_ms / 1e3)
        update = torch.ones_like(model)
        dist.all_reduce(update, group=group)
        model += update
        iteration += 1
        laps.ended(dist.get_world_size())
        if dist.get_rank() == 0 and iteration % CHECKPOINT_EVERY == 0:
            partial = checkpoint.with_suffix(".partial")
            with partial.open("wb") as file:
                np.save(file, model.numpy())
            os.replace(partial, checkpoint)


if __name__ == "__main__":
    main()
