"""
A training loop whose process is killed
=======================================

A loop of PyTorch on three nodes, started by ``chicle run``. In step 40 the process of one node kills itself, as the
operating system does when memory runs out. The other two do that step again with the same samples, the node comes back
with the state of its peers, and the loss goes on falling from where it was.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

SCRIPT = """
import json, os, pathlib, signal, sys, time
import torch
from torch import nn
from torch.nn import functional
import chicle_elastic.torch as elastic

folder = pathlib.Path(sys.argv[1])
torch.manual_seed(0)
x = torch.randn(6000, 20)
y = (x[:, :5].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

with elastic.loop(model, optimizer, (x, y), batch_size=120, seed=0) as loop:
    for batch in loop.epochs(8):
        loss = functional.cross_entropy(model(batch.x), batch.y)
        killed = folder / "killed"
        if loop.position.step == 40 and loop.rank == 1 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
        mean = loop.step(loss)
        if mean is not None and loop.rank == 0:
            with open(folder / "steps.jsonl", "a") as file:
                print(json.dumps([loop.position.step, mean, len(loop.members)]), file=file)
"""

folder = Path(tempfile.mkdtemp(prefix="chicle-loop-"))
script = folder / "train.py"
script.write_text(SCRIPT)
command = [sys.executable, "-m", "chicle_elastic", "run", "-j", "1:3", "--out", str(folder / "run")]
subprocess.run(
    [*command, str(script), str(folder)], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True
)
steps = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
print(f"{len(steps)} steps count, numbered from {steps[0][0]} to {steps[-1][0]} without a gap or a repetition")

# %%
# Loss and members by step:

numbers, losses, members = zip(*steps, strict=True)
figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(7, 4), height_ratios=(3, 1))
above.plot(numbers, losses)
above.set_ylabel("loss")
below.step(numbers, members, where="mid")
below.set_ylabel("nodes")
below.set_xlabel("step")
figure.tight_layout()
