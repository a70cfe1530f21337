"""Run a training script on nodes of this host, or on Slurm in a job of it: `chicle run -j 4 train.py`.

`chicle scale`, `drain`, `status` and `logs` take the folder of the run (--out) while it runs.
"""

import argparse
from collections.abc import Sequence

from chicle_elastic.cli.signals import orderly_end
from chicle_elastic.errors import UsageError
from torchx_components import anchor
from torchx_components.node import is_script


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle run` takes."""
    parser.add_argument("-j", "--nodes", default="1", help="MIN:MAX nodes, or N; default: 1")
    add_script_arguments(parser)


def add_script_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the script, its arguments and its folders."""
    parser.add_argument("--out", default="chicle-run", help="folder for logs and event files; default: %(default)s")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="save the training there every minute, and at its end")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint, if there is one")
    parser.add_argument("script", help="Python file with a loop of chicle_elastic.torch")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")


def run(arguments: argparse.Namespace, options: Sequence[str] = ()) -> int:
    """Be the anchor of a script until it is over; returns the exit code. Raises UsageError when it is no Python file.
    `options`: further ones of the anchor."""
    if not is_script(arguments.script):
        raise UsageError(f"{arguments.script!r} is no Python file, NAME.py")
    command = ["-j", arguments.nodes, "--out", arguments.out, *options]
    command += ["--checkpoint", arguments.checkpoint] if arguments.checkpoint else []
    command += ["--resume"] if arguments.resume else []
    with orderly_end():
        return anchor.start(anchor.parser().parse_args([*command, arguments.script, *arguments.arguments]))
