"""Print what the processes of a job have printed, as far as its folder has it: on Slurm, each member has a file there.

The anchor prints where its scheduler says (slurm-NUMBER-*.out where it was submitted), and so do members that are
processes of its own host. Event files and recordings of the agents are in the
folder `nodes` beside.
"""

import argparse
from collections import deque
from pathlib import Path

from torchx_components.job_state import state_of

PATTERNS = ("*.out", "nodes/*.out", "anchor/**/combined.log")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle logs` takes."""
    parser.add_argument("job", type=Path, help="folder of the job, its --out")
    parser.add_argument("--lines", type=int, default=20, metavar="N", help="last lines of each; default: %(default)s")


def run(arguments: argparse.Namespace) -> int:
    """Print them; returns the exit code."""
    state_of(arguments.job)  # says it where this is no job
    files = sorted(path for pattern in PATTERNS for path in arguments.job.glob(pattern))
    for path in files:
        print(f"==> {path} <==")
        with path.open(errors="replace") as file:
            print("".join(deque(file, maxlen=max(1, arguments.lines))), end="")
    if not files:
        print(f"no process of this job writes to a file in {arguments.job}: see what the anchor has printed")
    return 0
