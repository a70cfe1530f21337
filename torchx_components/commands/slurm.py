"""Run a training script on nodes of Slurm, from a host where sbatch is: `chicle slurm --backfill --max 16 train.py`.

The nodes are tasks of a job array, which this command submits and ends; it trains nothing, and stays until the script
is over. With --backfill they are whole nodes of a partition that others preempt: it takes what is idle, gives nodes
back as soon as they are wanted, and goes on with fewer, or with none until some are idle again.
"""

import argparse

from chicle_elastic.errors import UsageError
from torchx_components.commands import run as script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle slurm` takes."""
    parser.add_argument("--max", type=int, required=True, metavar="N", help="nodes at most; one is enough to train")
    parser.add_argument("--backfill", action="store_true", help="idle nodes only, which others take back")
    parser.add_argument("--partition", help="of the nodes; default: with --backfill the lowest one, else Slurm's own")
    parser.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="of sbatch, for the nodes")
    parser.add_argument("--host", help="address of this host, for the nodes; default: where packets leave it")
    script.add_script_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the script to its end; returns the exit code. Raises UsageError when it is no Python file, or Slurm has no
    such partition, PeerLostError when there is no Slurm here."""
    if arguments.max < 1:
        raise UsageError(f"--max {arguments.max}: write how many nodes there may be at most, e.g. 16")
    if any(option.startswith(("--partition", "-p")) for option in arguments.sbatch):
        raise UsageError("--sbatch=--partition=NAME: write --partition NAME, which is looked at before it is used")
    arguments.nodes = f"1:{arguments.max}"
    options = ["--members", "slurm", *(f"--sbatch={option}" for option in arguments.sbatch)]
    options += ["--backfill"] if arguments.backfill else []
    options += ["--partition", arguments.partition] if arguments.partition else []
    options += ["--host", arguments.host] if arguments.host else []
    return script.run(arguments, options)
