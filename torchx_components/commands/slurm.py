"""Run a training script on nodes of Slurm, from a host where sbatch is: `chicle slurm --backfill --max 16 train.py`.

The nodes are tasks of a job array, which this command submits and ends; it trains nothing, and stays until the script
is over. With --backfill they are whole nodes of a partition that others preempt: it takes what is idle, gives nodes
back as soon as they are wanted, and goes on with fewer, or with none until some are idle again.
"""

import argparse
import tempfile
from pathlib import Path

from chicle_elastic.errors import UsageError
from torchx_components.commands import run as script
from torchx_components.slurm import run_program

WHOLE_NODES = ("--exclusive", "--mem=0")
GIVEN_BACK = {"REQUEUE", "CANCEL"}  # a suspended member would keep its memory, and the others would wait for it


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
    sbatch, partition, arguments.nodes = arguments.sbatch, arguments.partition, f"1:{arguments.max}"
    if any(option.startswith(("--partition", "-p")) for option in sbatch):
        raise UsageError("--sbatch=--partition=NAME: write --partition NAME, which is looked at before it is used")
    if arguments.backfill and arguments.checkpoint and not arguments.resume:
        raise UsageError("--backfill with --checkpoint needs --resume: later nodes go on there")
    if arguments.backfill:
        sbatch = [*WHOLE_NODES, *sbatch]
        if not any(option.startswith(("--qos", "-q")) for option in sbatch):
            partition = preempted_partition(partition)
            print(f"chicle slurm: idle nodes of partition {partition}", flush=True)
    options = ["--members", "slurm", *(f"--sbatch={option}" for option in sbatch)]
    options += [f"--sbatch=--partition={partition}"] if partition else []
    options += ["--host", arguments.host] if arguments.host else []
    if not arguments.backfill or arguments.checkpoint:
        return script.run(arguments, options)
    # All nodes may be wanted at once; those that come later go on from here.
    out = Path(arguments.out).absolute()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".state-", dir=out, ignore_cleanup_errors=True) as state:
        return script.run(arguments, [*options, "--checkpoint", state, "--resume"])


def preempted_partition(asked: str | None) -> str:
    """Return a partition whose jobs those of another one preempt: the one that was asked for, else the one of the
    lowest tier. Raises UsageError when Slurm has no such partition."""
    shown = run_program("scontrol", "--oneliner", "show", "partition").splitlines()
    partitions = {
        fields["PartitionName"]: fields
        for fields in (dict(word.partition("=")[::2] for word in line.split()) for line in shown)
    }
    if asked is not None and asked not in partitions:
        raise UsageError(f"Slurm has no partition {asked}; it has {', '.join(partitions)}")
    tiers = {name: int(fields["PriorityTier"]) for name, fields in partitions.items()}
    preempted = [
        name
        for name in sorted(partitions, key=tiers.__getitem__)
        if GIVEN_BACK & {*partitions[name]["PreemptMode"].split(",")} and tiers[name] < max(tiers.values())
    ]
    if asked is None and preempted:
        return preempted[0]
    if asked in preempted:
        return asked
    raise UsageError(
        f"no partition preempts jobs of {asked or 'another one'} on this Slurm, and --backfill would keep nodes that "
        f"others wait for; those of {', '.join(preempted) or 'none'} are preempted, or name a preempted QOS, "
        "--sbatch=--qos=NAME"
    )
