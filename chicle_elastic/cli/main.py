"""`chicle COMMAND ...`: finds the command, imports its file only, and turns errors into messages and exit codes.

A command is a module with `add_arguments(parser)` and `run(arguments) -> exit code`. Exit codes:

    0    done
    1    the data, the disk or the machine did not allow it; the message on stderr says what and what to do
    2    usage: an argument or a combination of arguments that cannot work
    130  interrupted from the keyboard (128 + SIGINT); 143 for SIGTERM
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from chicle_elastic import __version__
from chicle_elastic.errors import ChicleError, UsageError
from chicle_elastic.surroundings import FOLDER_IS_GONE, is_folder_gone, prepare_command

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command."""

    module: str  # where it is
    summary: str


# By their names: the components are built on this package.
COMMANDS = {
    "attach": Command("torchx_components.commands.attach", "follow a job of a cluster until it is over"),
    "convert": Command("chicle_elastic.cli.convert", "turn a data file into a folder of chunks"),
    "dashboards": Command(
        "chicle_elastic.cli.dashboards", "write a dashboard for Grafana and alert rules for Prometheus"
    ),
    "doctor": Command("chicle_elastic.cli.doctor", "show what this node can do, and what to install for the rest"),
    "drain": Command("torchx_components.commands.drain", "have a member of a job hand over its chunks and leave"),
    "evaluate": Command("chicle_elastic.cli.evaluate", "run the paper's evaluation, on your own files"),
    "inspect": Command("chicle_elastic.cli.inspect", "show what a folder of chunks holds, and verify it"),
    "logs": Command("torchx_components.commands.logs", "print what the processes of a job have printed"),
    "replay": Command("chicle_elastic.cli.replay", "fold the recording of a job again, and compare what it ordered"),
    "run": Command("torchx_components.commands.run", "run a training script on nodes that may come and go"),
    "scale": Command("torchx_components.commands.scale", "have so many members in a job from now on"),
    "simulate": Command(
        "chicle_elastic.cli.simulate", "say how long a job would take on other nodes, or under other policies"
    ),
    "slurm": Command(
        "torchx_components.commands.slurm", "run a training script on nodes of Slurm, or on its idle ones"
    ),
    "status": Command("torchx_components.commands.status", "say how a job stands, and who its members are"),
    "submit": Command("torchx_components.commands.submit", "print or apply a job for Kubernetes"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `chicle` with `arguments` (by default those of the process) and return the exit code. Raises SystemExit for
    `--help`, `--version`, faults of usage that argparse finds, and SIGTERM."""
    prepare_command()
    try:
        return _run(sys.argv[1:] if arguments is None else list(arguments))
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except UsageError as error:
        return _fail(str(error), EXIT_USAGE)
    except ChicleError as error:
        return _fail(str(error), EXIT_FAILED)
    except BrokenPipeError:
        # The reader of our output left (`chicle inspect F | head`). Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
        return _fail(named, EXIT_FAILED)
    except MemoryError as error:
        return _fail(f"out of memory {error}".rstrip(), EXIT_FAILED)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in COMMANDS:
        return _run_without_command(arguments)
    name = arguments[0]
    command = importlib.import_module(COMMANDS[name].module)
    parser = argparse.ArgumentParser(
        prog=f"chicle {name}",
        description=command.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    code: int = command.run(parser.parse_args(arguments[1:]))
    sys.stdout.flush()
    return code


def _run_without_command(arguments: list[str]) -> int:
    width = max(map(len, COMMANDS))
    parser = argparse.ArgumentParser(
        prog="chicle",
        description="Elastic training that moves the data, not the tasks.",
        epilog="commands:\n"
        + "\n".join(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items())
        + "\n\n`chicle COMMAND --help` says more about each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"chicle {__version__}")
    parser.add_argument("command", choices=list(COMMANDS), metavar="COMMAND", help="what to do, see below")
    parser.parse_args(arguments)  # exits: there is no command to go on with
    raise AssertionError("unreachable: a known command is dispatched before")


def _fail(message: str, code: int) -> int:
    if code != EXIT_INTERRUPTED and is_folder_gone() and FOLDER_IS_GONE not in message:
        message += f"; {FOLDER_IS_GONE}"
    print(f"chicle: {message}", file=sys.stderr)
    return code
