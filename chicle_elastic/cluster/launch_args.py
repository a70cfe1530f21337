"""The command line of the launcher: torchrun's options, parsed by torchrun's own parser, and ours beside them."""

import argparse
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch.distributed.run import get_args_parser, parse_min_max_nnodes

from chicle_elastic.cluster.store_host import parse_endpoint
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.checkpoint_settings import CheckpointSettings
from chicle_elastic.settings import Settings

PROGRAM = "python -m chicle_elastic.launch"
BACKEND = "chicle"
DEFAULT_RUN_ID = "chicle"
DEFAULT_RESTARTS = 3
DEFAULT_GRACE_S = 25.0
"""Kubernetes and Slurm kill 30 s after the notice; five of them are left to end in order."""
# SIGTERM and SIGUSR1 are the notice and belong to the agent; torch must not turn them into an exception.
SIGNALS_OF_TORCH = "SIGINT,SIGHUP,SIGQUIT"
DEFAULT_PATIENCE_S = 600.0
"""That of torchrun's rendezvous (join_timeout)."""
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
NO_SCRIPT = "-"
"""Stands in the place of the script, which torchrun's parser insists on, when only the store is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What the agent of a node needs to know beyond what torch hands on.

    Attributes:
        node: Name of this node, unique in the job.
        secret_file: Where the job secret lies. A path and not the secret: options are printed and logged.
        grace_s: Seconds between a notice and the moment when the node has to be gone.
        patience_s: Seconds for which the job may have fewer nodes than it needs before this one gives up.
        memory_bytes: Memory for chunks; None for what the control group or the machine allows.
        log_dir: Folder for event files and the logs of the task; None for none.
        checkpoint: Where and when the job is saved; None for what the job says.
        wants_resume: Go on from the newest checkpoint.
        start_nodes: Nodes that the job waits for at its start; None for the minimum.
    """

    node: NodeId
    secret_file: Path
    grace_s: float = DEFAULT_GRACE_S
    patience_s: float = DEFAULT_PATIENCE_S
    memory_bytes: int | None = None
    log_dir: Path | None = None
    checkpoint: CheckpointSettings | None = None
    wants_resume: bool = False
    start_nodes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCommand:
    """Only the store is wanted (`--store-only`).

    Attributes:
        endpoint: Where it listens, "host:port".
        secret_file: Made when it does not exist.
    """

    endpoint: str
    secret_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """A node is wanted.

    Attributes:
        options: For the agent.
        torchrun: For torchrun, checked and completed.
    """

    options: NodeOptions
    torchrun: argparse.Namespace


def parser() -> argparse.ArgumentParser:
    """torchrun's parser with our options added and defaults that fit."""
    parser = get_args_parser()
    parser.prog = PROGRAM
    parser.description = "Run one node of an elastic Chicle job: an agent, and the uni-task that it looks after."
    group = parser.add_argument_group("Chicle")
    group.add_argument("--name", help="name of this node, unique in the job; default: host name and process id")
    group.add_argument(
        "--secret-file",
        type=Path,
        help="file of mode 0600 with the job secret; default: CHICLE_SECRET_FILE. It is made when it does not exist "
        "and the store is on this host",
    )
    group.add_argument(
        "--grace",
        type=seconds,
        default=DEFAULT_GRACE_S,
        metavar="SECONDS",
        help="time from a notice (SIGTERM, SIGUSR1) until the node has to be gone; default: %(default)s",
    )
    group.add_argument(
        "--patience",
        type=seconds,
        default=DEFAULT_PATIENCE_S,
        metavar="SECONDS",
        help="time for which there may be fewer nodes than MIN of --nnodes before this one gives up; default: "
        "%(default)s",
    )
    group.add_argument(
        "--memory",
        type=size_bytes,
        metavar="BYTES",
        help="memory for chunks, e.g. 8G; default: what the control group or the machine allows",
    )
    group.add_argument(
        "--checkpoint",
        type=Path,
        metavar="FOLDER",
        help="save the job there now and then, on storage that all nodes share; default: what the script says",
    )
    group.add_argument(
        "--checkpoint-every",
        type=pace,
        default=Pace(),
        metavar="N|SECONDSs",
        help="how often: 100 for every 100 iterations, 30s for every 30 seconds; default: every minute",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="go on from the newest checkpoint that is whole, with any number of nodes; begin if there is none yet",
    )
    group.add_argument(
        "--start-nodes",
        type=int,
        metavar="N",
        help="nodes that the job waits for at its start, from MIN to MAX of --nnodes; default: MIN",
    )
    group.add_argument(
        "--store-only",
        action="store_true",
        help="run no node but the rendezvous store, at --rdzv-endpoint, until a signal ends it; takes no script",
    )
    if parser.get_default("max_restarts") == 0:  # unless PET_MAX_RESTARTS says otherwise
        parser.set_defaults(max_restarts=DEFAULT_RESTARTS)
    return parser


def parse(argv: Sequence[str], *, environ: Mapping[str, str] | None = None) -> StoreCommand | AgentCommand:
    """Parse and check a command line.

    Args:
        argv: Without the name of the program.
        environ: For the defaults of our options; by default that of this process. torchrun's options take theirs
            (PET_...) from that of the process.

    Raises:
        UsageError: Options that cannot work; the message says what to write instead.
        SystemExit: Unknown options, a missing script, or --help, by argparse.
    """
    arguments = None
    if "--store-only" in argv:
        arguments = parser().parse_args([*argv, NO_SCRIPT])
    if arguments is None or not arguments.store_only:  # it was an argument of the script
        arguments = parser().parse_args(argv)
    secret_file = arguments.secret_file or Settings.from_environment(environ).secret_file
    if secret_file is None:
        raise UsageError(
            "no job secret: say --secret-file PATH or set CHICLE_SECRET_FILE; every process of the job needs a file "
            f"with the same content, and `{PROGRAM} --store-only --secret-file PATH ...` makes one"
        )
    if not arguments.rdzv_endpoint:
        raise UsageError(
            f"no rendezvous store: say --rdzv-endpoint HOST:PORT; `{PROGRAM} --store-only --rdzv-endpoint HOST:PORT` "
            "runs one, and it belongs on a host that stays to the end of the job"
        )
    parse_endpoint(arguments.rdzv_endpoint)
    if arguments.store_only:
        if arguments.training_script != NO_SCRIPT:
            raise UsageError(
                f"--store-only runs no script, but {arguments.training_script!r} was given; leave one of them out"
            )
        return StoreCommand(endpoint=arguments.rdzv_endpoint, secret_file=secret_file)
    _check_torchrun(arguments)
    node = arguments.name or f"{socket.gethostname()}-{os.getpid()}"
    if not NODE_NAME.fullmatch(node):
        raise UsageError(
            f"--name {node!r} is no name of a node; use letters, digits, dots, dashes and underscores, 128 at most"
        )
    arguments.rdzv_backend = BACKEND
    arguments.rdzv_id = DEFAULT_RUN_ID if arguments.rdzv_id == "none" else arguments.rdzv_id
    arguments.signals_to_handle = SIGNALS_OF_TORCH
    options = NodeOptions(
        node=NodeId(node),
        secret_file=secret_file.absolute(),
        grace_s=arguments.grace,
        patience_s=arguments.patience,
        memory_bytes=arguments.memory,
        log_dir=None if arguments.log_dir is None else Path(arguments.log_dir).absolute(),
        checkpoint=_checkpoint(arguments),
        wants_resume=arguments.resume,
        start_nodes=arguments.start_nodes,
    )
    return AgentCommand(options=options, torchrun=arguments)


class Pace(NamedTuple):
    """How often a job is saved.

    Attributes:
        iterations: After so many; 0 for no such rule.
        seconds: When so many have passed; 0 for no such rule.
    """

    iterations: int = 0
    seconds: float = 0.0


def pace(text: str) -> Pace:
    """A number of iterations, or of seconds with an s behind it; for argparse."""
    if text.endswith("s"):
        return Pace(seconds=seconds(text.removesuffix("s")))
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no pace; write 100 for every 100 iterations, 30s for 30 seconds")
    return Pace(iterations=int(text))


def seconds(text: str) -> float:
    """A number of seconds > 0; for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds > 0")
    return value


def size_bytes(text: str) -> int:
    """A number of bytes > 0, with K, M, G or T (powers of 1024, also as KiB or KB) behind it; for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), flags=re.IGNORECASE)
    value = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or 512M, or 8G")
    return value


def _checkpoint(arguments: argparse.Namespace) -> CheckpointSettings | None:
    if arguments.checkpoint is None:
        if arguments.checkpoint_every != Pace():
            raise UsageError("--checkpoint-every says how often, and not where: say --checkpoint FOLDER as well")
        return None
    return CheckpointSettings(
        folder=str(arguments.checkpoint.absolute()),
        every_iterations=arguments.checkpoint_every.iterations,
        every_s=arguments.checkpoint_every.seconds,
    )


def _check_torchrun(arguments: argparse.Namespace) -> None:
    """Refuse what torchrun can do and Chicle cannot."""
    if arguments.nproc_per_node != "1":
        raise UsageError(
            f"--nproc-per-node {arguments.nproc_per_node}: a node runs exactly one task, which uses all its cores; "
            "leave the option out, and start more nodes for more tasks"
        )
    if arguments.rdzv_backend not in ("static", BACKEND):  # torchrun's default is "static"
        raise UsageError(
            f"--rdzv-backend {arguments.rdzv_backend}: the launcher has its own rendezvous; leave the option out"
        )
    if arguments.standalone:
        raise UsageError(
            "--standalone puts the rendezvous store into a node, which may leave; run the store beside the nodes: "
            f"{PROGRAM} --store-only --rdzv-endpoint 127.0.0.1:29400"
        )
    try:
        low, high = parse_min_max_nnodes(arguments.nnodes)
    except (ValueError, RuntimeError):
        low, high = 0, 0
    if not 1 <= low <= high:
        raise UsageError(f"--nnodes {arguments.nnodes} is neither N nor MIN:MAX with 1 <= MIN <= MAX; write 2:8, say")
    if arguments.start_nodes is not None and not low <= arguments.start_nodes <= high:
        raise UsageError(f"--start-nodes {arguments.start_nodes} is not within --nnodes {arguments.nnodes}")
