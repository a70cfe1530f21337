"""Tell the anchor of a job how many members there shall be from now on, whatever the job has asked for.

More are started as soon as there is a place for them; of fewer, the newest hand over their chunks and leave.
"""

import argparse
from pathlib import Path

from torchx_components.job_board import scale


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle scale` takes."""
    parser.add_argument("job", type=Path, help="folder of the job, its --out")
    parser.add_argument("nodes", type=int, help="how many, at least 1")


def run(arguments: argparse.Namespace) -> int:
    """Tell the anchor; returns the exit code."""
    scale(arguments.job, arguments.nodes)
    print(f"the anchor of {arguments.job} is told: {arguments.nodes} members are wanted")
    return 0
