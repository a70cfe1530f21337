"""Give a member of a job notice: it hands over its chunks and leaves, and another one takes its place.

To have one member less, use `chicle scale`. `chicle status` lists the names of the members.
"""

import argparse
from pathlib import Path

from torchx_components.job_board import drain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle drain` takes."""
    parser.add_argument("job", type=Path, help="folder of the job, its --out")
    parser.add_argument("node", help="name of the member")


def run(arguments: argparse.Namespace) -> int:
    """Tell the anchor; returns the exit code."""
    drain(arguments.job, arguments.node)
    print(f"the anchor of {arguments.job} is told: {arguments.node} gets notice")
    return 0
