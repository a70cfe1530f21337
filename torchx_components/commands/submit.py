"""Print the manifest of a job for Kubernetes, or apply it: chicle submit kubernetes --name a9a -j 2:8 ...

`chicle submit kubernetes --help` lists the options. For Slurm and this host use torchx run, or python -m
torchx_components.anchor.
"""

import argparse

from torchx_components import submit_kubernetes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle submit` takes."""
    parser.add_argument("scheduler", choices=["kubernetes"], help="where to")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="of the scheduler; try --help")


def run(arguments: argparse.Namespace) -> int:
    """Print or apply it; returns the exit code."""
    return submit_kubernetes.main(arguments.arguments)
