"""The command line of the launcher: torchrun's options, parsed by torchrun's own parser, and Chicle's beside them.

Only the parser needs torch. A process that has none parses in a child (`launcher.parse_apart`); the agents of a local
cluster have no command line.
"""

import argparse
import json
import math
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from chicle_elastic.chunks.places import absolute_place, is_of_one_process
from chicle_elastic.cluster.net.cloud_notices import CLOUDS
from chicle_elastic.cluster.net.metrics_server import MetricsAddress
from chicle_elastic.cluster.rendezvous.own_address import AddressOptions
from chicle_elastic.cluster.rendezvous.store import parse_endpoint
from chicle_elastic.cluster.task_options import TaskOptions, from_torchrun
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.settings import Settings
from chicle_elastic.start_signals import LEAVE_OPTION
from chicle_elastic.transports.addresses import PortRange

PROGRAM = "python -m chicle_elastic.launch"
BACKEND = "chicle"
DEFAULT_RUN_ID = "chicle"
DEFAULT_RESTARTS = 3
DEFAULT_GRACE_S = 25.0  # Kubernetes and Slurm kill 30 s after the notice; that leaves `END_S`
END_S = 5.0  # what a node needs to end in order, when its chunks are handed over
DEFAULT_PATIENCE_S = 600.0  # the same as torchrun's rendezvous (join_timeout)
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
NO_SCRIPT = "-"  # stands for the script, which torchrun's parser insists on, with --store-only


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """Chicle's options of a node, beyond those that torch hands to the agent."""

    node: NodeId
    # file of the job secret; None for that of the environment. A path and not the secret: options are printed and
    # logged
    secret_file: Path | None
    # which addresses and ports to listen on, and which address to tell the other nodes
    address: AddressOptions = field(default=AddressOptions())
    # folder with the certificate of this node, its key and the CA of the job; None for links without TLS
    tls: Path | None = None
    has_tls_bulk: bool = False  # whether chunks go by TLS as well
    grace_s: float = DEFAULT_GRACE_S  # seconds between a notice and the moment when the node has to be gone
    notices: str | None = None  # cloud whose metadata server gives notices, one of `CLOUDS`; None for signals alone
    # the quorum timeout: seconds for which the job may have too few nodes before this one gives up
    patience_s: float = DEFAULT_PATIENCE_S
    memory_bytes: int | None = None  # memory for chunks; None for what the control group or the machine allows
    log_dir: Path | None = None  # folder for event files, recordings and the logs of the task; None for none
    metrics: MetricsAddress | None = None  # where the agent serves metrics for a scraper; None for nowhere
    checkpoint: CheckpointSettings | None = None  # where and when the job is saved; None for the settings of the `Job`
    wants_resume: bool = False  # resume from the newest checkpoint
    start_nodes: int | None = None  # nodes that the job waits for at its start; None for the minimum
    # how many nodes there will be: with all of them a job that cannot go on ends. None where it waits for another node
    all_nodes: int | None = None
    # begin the job anew if its leader gives no sign of life, although some agents may live
    may_begin_anew: bool = False
    leave_exit_code: int = 0  # exit code of a node that left on a notice
    has_json_log: bool = False  # whether the log on stderr has lines of JSON
    shows_status: bool = True  # whether the node says on stderr what it waits for


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCommand:
    """Run only the rendezvous store (`--store-only`)."""

    endpoint: str  # address to listen on, "host:port"
    secret_file: Path | None  # made when it does not exist; None for a secret of the environment
    # another address to listen on, and the one that is printed for the nodes
    address: AddressOptions = field(default=AddressOptions())


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """Run a node."""

    options: NodeOptions
    endpoint: str  # of the rendezvous store, "host:port"
    run_id: str
    min_nodes: int
    max_nodes: int
    max_restarts: int  # how often the agent may restart the task after crashes
    task: TaskOptions


def parser() -> argparse.ArgumentParser:
    """torchrun's parser with Chicle's options added and some defaults changed."""
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    parser.prog = PROGRAM
    parser.description = "Run one node of an elastic Chicle job: an agent, and the uni-task that it supervises."
    group = parser.add_argument_group("Chicle")
    group.add_argument("--name", help="name of this node, unique in the job; default: host name and process id")
    group.add_argument(
        "--secret-file",
        type=Path,
        help="file of mode 0600 with the job secret; default: CHICLE_SECRET (the secret itself), CHICLE_SECRET_FILE. "
        "If it does not exist and the store is on this host, the command creates it",
    )
    group.add_argument(
        "--host",
        metavar="ADDRESS",
        help="address that this node (or the store) listens on, 0.0.0.0 or :: for all; default: the one on the route "
        "to the store",
    )
    group.add_argument(
        "--advertise",
        metavar="ADDRESS",
        help="address that the other nodes are told; default: --local-addr, or the one that it listens on",
    )
    group.add_argument(
        "--interface", metavar="NAME", help="network interface, e.g. eth0, whose address it listens on and advertises"
    )
    group.add_argument(
        "--bulk-interface",
        metavar="NAME",
        help="network interface of this host, or one of its addresses, by which chunks, models and sums go; default: "
        "as all else",
    )
    group.add_argument(
        "--port-range",
        type=port_range,
        default=PortRange(),
        metavar="A-B",
        help="ports for all listeners of a node, e.g. 29410-29449, up to 6 per node; the same for all nodes of a job; "
        "default: any free ones",
    )
    group.add_argument(
        "--tls",
        type=Path,
        metavar="FOLDER",
        help="links between agents by mutual TLS 1.3: folder with tls.crt, tls.key and ca.crt, the CA of this job "
        "alone; the same option for all nodes",
    )
    group.add_argument(
        "--tls-bulk", action="store_true", help="with --tls: chunks between hosts by TLS as well, and no RDMA"
    )
    group.add_argument(
        "--grace",
        type=seconds,
        default=DEFAULT_GRACE_S,
        metavar="SECONDS",
        help="time from a notice (SIGTERM, SIGUSR1) until the node has to be gone; default: %(default)s",
    )
    group.add_argument(
        "--notices",
        choices=CLOUDS,
        help="take notices from the metadata server of this cloud as well, with the time that it leaves; auto finds "
        "out which one answers; default: signals alone",
    )
    group.add_argument(
        LEAVE_OPTION,
        type=exit_code,
        default=0,
        metavar="N",
        help="exit code of a node that left on a notice; a resource manager that starts failed nodes again starts one "
        "with 143 again; default: %(default)s",
    )
    group.add_argument(
        "--patience",
        type=seconds,
        default=DEFAULT_PATIENCE_S,
        metavar="SECONDS",
        help="quorum timeout: how long the job may have fewer nodes than MIN of --nnodes before this node gives up; "
        "default: %(default)s",
    )
    group.add_argument(
        "--memory",
        type=size_bytes,
        metavar="BYTES",
        help="memory for chunks, e.g. 8G; default: what the control group or the host has left",
    )
    group.add_argument(
        "--metrics",
        type=metrics_address,
        metavar="[HOST:]PORT",
        help="serve metrics of the job for Prometheus at http://HOST:PORT/metrics, HOST is 127.0.0.1 by default; "
        "default: none",
    )
    group.add_argument(
        "--json-log", action="store_true", help="write the log on stderr as lines of JSON, with job, node and round"
    )
    group.add_argument(
        "--checkpoint",
        metavar="FOLDER|URL",
        help="where periodic checkpoints go: a folder on storage that all nodes share, or a URL, e.g. "
        "s3://BUCKET/JOB; default: the checkpoint of the Job",
    )
    group.add_argument(
        "--checkpoint-every",
        type=checkpoint_interval,
        default=CheckpointInterval(),
        metavar="N|SECONDSs",
        help="how often to save: 100 for every 100 iterations, 30s for every 30 seconds; default: every minute",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="resume from the newest complete checkpoint, with any number of nodes; start anew if there is none",
    )
    group.add_argument(
        "--start-nodes",
        type=int,
        metavar="N",
        help="nodes that the job waits for at its start, from MIN to MAX of --nnodes; default: MIN",
    )
    group.add_argument(
        "--begin-anew",
        action="store_true",
        help="begin the job anew if its leader gives no sign of life; only if you know that no node of it is alive, "
        "which a node cannot find out by itself where the other hosts do not answer",
    )
    group.add_argument(
        "--store-only",
        action="store_true",
        help="run only the rendezvous store, at --rdzv-endpoint, until a signal ends it; takes no script",
    )
    if parser.get_default("max_restarts") == 0:  # unless PET_MAX_RESTARTS says otherwise
        parser.set_defaults(max_restarts=DEFAULT_RESTARTS)
    return parser


def parse(
    argv: Sequence[str], *, environ: Mapping[str, str] | None = None, process_id: int | None = None
) -> StoreCommand | AgentCommand:
    """Parse and check a command line. Raises UsageError with what to write instead when the options cannot work,
    SystemExit by argparse for unknown options, a missing script, or --help.

    Args:
        environ: Environment for the defaults of Chicle's options; by default that of this process. torchrun's options
            always take theirs (PET_...) from that of the process.
        process_id: That of the agent, for the name of its node; by default this process.
    """
    arguments = None
    if "--store-only" in argv:
        arguments = parser().parse_args([*argv, NO_SCRIPT])
    if arguments is None or not arguments.store_only:  # then --store-only was an argument of the script
        arguments = parser().parse_args(argv)
    settings = Settings.from_environment(environ)
    secret_file = arguments.secret_file or (None if settings.secret else settings.secret_file)
    if secret_file is None and settings.secret is None:
        raise UsageError(
            "no job secret: give --secret-file PATH or set CHICLE_SECRET_FILE or CHICLE_SECRET; every process of the "
            f"job needs the same secret, and `{PROGRAM} --store-only --secret-file PATH ...` creates one"
        )
    if not arguments.rdzv_endpoint:
        raise UsageError(
            f"no rendezvous store: give --rdzv-endpoint HOST:PORT; `{PROGRAM} --store-only --rdzv-endpoint HOST:PORT` "
            "runs one, and it belongs on a host that stays to the end of the job"
        )
    parse_endpoint(arguments.rdzv_endpoint)
    if arguments.store_only:
        if arguments.training_script != NO_SCRIPT:
            raise UsageError(
                f"--store-only runs no script, but {arguments.training_script!r} was given; leave one of them out"
            )
        return StoreCommand(
            endpoint=arguments.rdzv_endpoint, secret_file=secret_file, address=_address_options(arguments)
        )
    low, high = _check_torchrun(arguments)
    if arguments.tls_bulk and arguments.tls is None:
        raise UsageError("--tls-bulk needs the certificates of --tls FOLDER")
    address = _address_options(arguments)
    node = arguments.name or f"{socket.gethostname()}-{process_id or os.getpid()}"
    if not NODE_NAME.fullmatch(node):
        raise UsageError(
            f"--name {node!r} is not a valid node name; use letters, digits, dots, dashes and underscores, 128 at most"
        )
    arguments.rdzv_backend = BACKEND
    options = NodeOptions(
        node=NodeId(node),
        secret_file=None if secret_file is None else secret_file.absolute(),
        address=address,
        tls=None if arguments.tls is None else arguments.tls.absolute(),
        has_tls_bulk=arguments.tls_bulk,
        grace_s=arguments.grace,
        notices=arguments.notices,
        patience_s=arguments.patience,
        memory_bytes=arguments.memory,
        log_dir=None if arguments.log_dir is None else Path(arguments.log_dir).absolute(),
        metrics=arguments.metrics,
        has_json_log=arguments.json_log,
        checkpoint=_checkpoint(arguments),
        wants_resume=arguments.resume,
        may_begin_anew=arguments.begin_anew,
        start_nodes=arguments.start_nodes,
        leave_exit_code=arguments.leave_exit_code,
    )
    return AgentCommand(
        options=options,
        endpoint=arguments.rdzv_endpoint,
        run_id=DEFAULT_RUN_ID if arguments.rdzv_id == "none" else arguments.rdzv_id,
        min_nodes=low,
        max_nodes=high,
        max_restarts=arguments.max_restarts,
        task=from_torchrun(arguments),
    )


def to_json(command: StoreCommand | AgentCommand) -> str:
    """Write a command, in ASCII: arguments of a script need not be UTF-8."""
    return json.dumps((type(command).__name__, msgspec.to_builtins(command, enc_hook=str)))  # str is for paths


def from_json(text: str) -> StoreCommand | AgentCommand:
    """Read what `to_json` has written."""
    kinds: dict[str, type[StoreCommand] | type[AgentCommand]] = {
        kind.__name__: kind for kind in (StoreCommand, AgentCommand)
    }
    name, values = json.loads(text)
    return msgspec.convert(values, kinds[name], dec_hook=lambda kind, value: kind(value))


class CheckpointInterval(NamedTuple):
    """How often a job is saved."""

    iterations: int = 0  # after so many iterations; 0 for no such rule
    seconds: float = 0.0  # after so many seconds; 0 for no such rule


def checkpoint_interval(text: str) -> CheckpointInterval:
    """Parse a number of iterations, or of seconds with an s behind it; for argparse."""
    if text.endswith("s"):
        return CheckpointInterval(seconds=seconds(text.removesuffix("s")))
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not an interval; write 100 for iterations, 30s for seconds")
    return CheckpointInterval(iterations=int(text))


def port_range(text: str) -> PortRange:
    """Parse a range of ports, "29410-29449"; for argparse."""
    match = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text.strip())
    try:
        ports = PortRange(int(match[1]), int(match[2])) if match else PortRange()
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if ports.is_any:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of ports; write FIRST-LAST, e.g. 29410-29449")
    return ports


def metrics_address(text: str) -> MetricsAddress:
    """Parse where to serve metrics, "9464" or "0.0.0.0:9464"; for argparse."""
    try:
        return MetricsAddress.parse(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def seconds(text: str) -> float:
    """Parse a number of seconds > 0; for argparse."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds > 0")
    return value


def exit_code(text: str) -> int:
    """Parse an exit code, 0 to 255; for argparse."""
    if not text.isdecimal() or int(text) > 255:
        raise argparse.ArgumentTypeError(f"{text!r} is not an exit code, 0 to 255")
    return int(text)


def size_bytes(text: str) -> int:
    """Parse a number of bytes > 0, with K, M, G or T (powers of 1024, also as KiB or KB) behind it; for argparse."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), flags=re.IGNORECASE)
    value = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; write bytes, or 512M, or 8G")
    return value


def _address_options(arguments: argparse.Namespace) -> AddressOptions:
    local = arguments.local_addr
    if local is not None and (arguments.advertise or arguments.interface):
        raise UsageError(
            "--local-addr is torchrun's name of --advertise: leave it out beside --advertise or --interface"
        )
    return AddressOptions(
        host=arguments.host,
        advertise=arguments.advertise or local,
        interface=arguments.interface,
        bulk=arguments.bulk_interface,
        ports=arguments.port_range,
    )


def _checkpoint(arguments: argparse.Namespace) -> CheckpointSettings | None:
    if arguments.checkpoint is None:
        if arguments.checkpoint_every != CheckpointInterval():
            raise UsageError("--checkpoint-every says how often to save, not where: give --checkpoint FOLDER as well")
        return None
    if is_of_one_process(arguments.checkpoint):
        raise UsageError(
            f"--checkpoint {arguments.checkpoint}: each process has a place of its own there; name a URL that all "
            "nodes reach, such as s3://BUCKET/JOB, or a folder that they share"
        )
    return CheckpointSettings(
        folder=absolute_place(arguments.checkpoint),
        every_iterations=arguments.checkpoint_every.iterations,
        every_s=arguments.checkpoint_every.seconds,
    )


def _check_torchrun(arguments: argparse.Namespace) -> tuple[int, int]:
    """Refuse the options of torchrun that Chicle does not support. Returns the least and the greatest number of
    nodes."""
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
            "--standalone runs the rendezvous store in a node, which may leave; run the store beside the nodes: "
            f"{PROGRAM} --store-only --rdzv-endpoint 127.0.0.1:29400"
        )
    from torch.distributed.run import parse_min_max_nnodes

    try:
        low, high = parse_min_max_nnodes(arguments.nnodes)
    except (ValueError, RuntimeError):
        low, high = 0, 0
    if not 1 <= low <= high:
        raise UsageError(f"--nnodes {arguments.nnodes} is neither N nor MIN:MAX with 1 <= MIN <= MAX; write 2:8, say")
    if arguments.start_nodes is not None and not low <= arguments.start_nodes <= high:
        raise UsageError(f"--start-nodes {arguments.start_nodes} is not within --nnodes {arguments.nnodes}")
    return low, high
