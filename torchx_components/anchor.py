"""`python -m torchx_components.anchor`: stays to the end of a run, whose nodes all come and go.

    python -m torchx_components.anchor -j 1:4 --train a9a.svm --out model estimators.fit_task --C 0.1
    python -m torchx_components.anchor -j 1:4 --members slurm --sbatch=--partition=spot --train ... --out ... MODULE ...

It prepares the data, serves the rendezvous store, and starts and ends members as the job's policies, or `chicle
scale OUT N`, ask for. It trains nothing, and needs a place that is not taken away. Members are tasks of a job array
where it runs in a job of Slurm itself, else processes of this host. `--out` is a folder that all nodes see; how the job
stands is in OUT/job.json (`chicle status OUT`).

Exit code 0 when the job is over; 1 when a task failed, or it cannot go on; 143 at SIGTERM. Members are ended in any
case.
"""

import signal
import sys

from chicle_elastic.start_signals import install
from chicle_elastic.surroundings import prepare_command, require_folder

if __name__ == "__main__":  # before anything that takes long
    prepare_command()
    require_folder("python -m torchx_components.anchor")
    install(
        "python -m torchx_components.anchor",
        {number: 128 + number for number in (signal.SIGTERM, signal.SIGINT)},
    )

import argparse
import contextlib
import os
import shlex
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.chunks.convert_inputs import Report
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.places import absolute_place, is_url
from chicle_elastic.cli.convert import details
from chicle_elastic.cli.inspect import summary
from chicle_elastic.cli.signals import orderly_end
from chicle_elastic.cluster.net.event_file import read_events
from chicle_elastic.cluster.rendezvous.resource_board import ResourceBoard
from chicle_elastic.cluster.rendezvous.secret_watch import SecretWatch
from chicle_elastic.cluster.rendezvous.store import StoreServer, format_endpoint
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import ChicleError, DataError, UsageError
from chicle_elastic.settings import Settings
from chicle_elastic.transports.secret import JobSecret
from torchx_components.job_state import JobState, StateWriter, kept_folder
from torchx_components.kubernetes import KubernetesApi, KubernetesNodes
from torchx_components.kubernetes_manifest import STORE_PORT
from torchx_components.local_nodes import LocalNodes
from torchx_components.meeting import SECRET_NAME, MeetingPlace
from torchx_components.node import add_passed_on, check_task, is_script, parse_nodes, passed_on
from torchx_components.serving import Members, serve
from torchx_components.slurm import SlurmNodes, partitions, preempted_partition
from torchx_components.submission import FIT_TASK

SCHEDULERS = ("auto", "local", "slurm", "kubernetes")
WHOLE_NODES = ("--exclusive", "--mem=0")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = parser().parse_args(argv)
    try:
        with orderly_end():
            return start(arguments)
    except (ChicleError, OSError) as error:
        print(f"anchor: {error}", file=sys.stderr)
        return 1


def start(arguments: argparse.Namespace) -> int:
    """Serve a run under its scheduler; returns the exit code. Raises ChicleError and OSError as `run` does."""
    scheduler = arguments.members
    if scheduler == "auto":
        scheduler = Settings.from_environment().scheduler or "local"
    if scheduler == "kubernetes":
        return run_in_kubernetes(arguments)
    if scheduler == "slurm":
        partition = member_partition(arguments)
        arguments.sbatch += [f"--partition={partition}"] if partition else []
        if arguments.backfill:
            print(f"anchor: idle nodes of {f'partition {partition}' if partition else 'the QOS'}", flush=True)
    elif arguments.backfill or arguments.partition:
        raise UsageError(f"--backfill and --partition are for nodes of Slurm, and those of this job are {scheduler}")
    with _kept_state(arguments) if arguments.backfill else contextlib.nullcontext():
        return run(arguments, scheduler)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m torchx_components.anchor", description=__doc__.split("\n\n")[0], allow_abbrev=False
    )
    parser.add_argument("-j", dest="nodes", required=True, help="MIN:MAX nodes, or N; with fewer than MIN it pauses")
    parser.add_argument("--train", help="data file, chunk folder, or URL of a chunk folder")
    parser.add_argument("--out", type=Path, help="folder that all nodes see; the task gets it as --out")
    parser.add_argument(
        "--members",
        choices=SCHEDULERS,
        default="auto",
        help="where nodes run: a job array of Slurm, pods of Kubernetes, or processes of this host; default: that of "
        "the scheduler which this process runs under",
    )
    parser.add_argument("--run-name", help="of the objects of a run on Kubernetes, which has no folder")
    parser.add_argument("--burst-jobs", type=int, default=0, metavar="N", help="of such a run, of one member each")
    parser.add_argument("--host", help="address of this host, for the nodes; default: where packets leave it")
    parser.add_argument("--grace", type=float, default=25.0, help="seconds of a notice; default: %(default)s")
    parser.add_argument("--begin", type=int, help="nodes to begin with; default: MAX")
    parser.add_argument("--python", default=sys.executable, help="interpreter on the nodes; default: %(default)s")
    parser.add_argument("--secret-file", type=Path, help="of the job secret; default: a new secret")
    parser.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="of sbatch, for the members")
    parser.add_argument(
        "--partition", help="of Slurm, for the members; default: Slurm's own, the lowest with --backfill"
    )
    parser.add_argument(
        "--backfill", action="store_true", help="whole idle nodes of Slurm only, which others take back"
    )
    add_passed_on(parser)
    parser.add_argument(
        "module",
        nargs="?",
        help="what the tasks run, by python -m; gets --train, --out and what follows it. Or a script, NAME.py, which "
        "gets what follows it, and reads data of its own",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def run(arguments: argparse.Namespace, scheduler: str) -> int:
    """Serve a run to its end; returns the exit code. Raises ChicleError when the data cannot be used, the host has no
    such address, another run has the folder, or the scheduler refuses the members, OSError when the folder cannot be
    written."""
    needed = ("out", "module") if is_script(arguments.module or "") else ("train", "out", "module")
    missing = [name for name in needed if getattr(arguments, name) is None]
    if missing:
        raise UsageError(f"{', '.join(missing)} missing; python -m torchx_components.anchor --help says what they are")
    check_task([arguments.module, *arguments.arguments], arguments.train, str(arguments.out))
    parse_nodes(arguments.nodes)  # judges them
    host = arguments.host or ("127.0.0.1" if scheduler == "local" else own_host())
    out = arguments.out.absolute()
    with kept_folder(out):
        return _run_in(out, arguments, scheduler, host)


def _run_in(out: Path, arguments: argparse.Namespace, scheduler: str, host: str) -> int:
    least, most = parse_nodes(arguments.nodes)
    folder = out / f".run-{os.getpid()}-{int(time.time())}"
    folder.mkdir()
    (out / "nodes").mkdir(exist_ok=True)
    begin = min(arguments.begin or most, most)
    state = StateWriter(out, JobState(phase="preparing", run=str(folder), host=socket.gethostname(), wanted=begin))
    try:
        secret = make_secret(folder / SECRET_NAME, arguments.secret_file)
        is_staged = arguments.module == FIT_TASK
        data = absolute_place(arguments.train) if arguments.train else ""
        data = data if is_staged or is_script(arguments.module) else prepare(arguments.train, folder, most)
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(StoreServer(f"{host}:0"))
            MeetingPlace(store=store.endpoint, data=data).write(folder)
            connection = StoreConnection(store.endpoint).connect()
            board = ResourceBoard(connection, secret=secret)
            stack.enter_context(SecretWatch(secret, folder / SECRET_NAME, connection, owner="the anchor"))
            members = make_members(scheduler, arguments, folder)
            stack.callback(members.close)
            members.begin()
            print(f"anchor: run folder {folder}; rendezvous store at {store.endpoint}", flush=True)
            state.change("running")
            return serve(members, board, least=least, state=state)
    except (ChicleError, OSError) as error:
        state.change("failed", str(error))
        raise
    except (SystemExit, KeyboardInterrupt):
        state.change("cancelled", "the anchor was told to end")
        raise
    finally:
        state.change("failed", "the anchor came upon an error of its own; its output says which")
        shutil.rmtree(folder, ignore_errors=True)


def run_in_kubernetes(arguments: argparse.Namespace) -> int:
    """The same in a pod; what members need to know is in their manifest. Raises ChicleError when the pod has no service
    account or no secret, or Kubernetes refuses it."""
    least, most = parse_nodes(arguments.nodes)
    server = Settings.from_environment().kubernetes
    if server is None or arguments.run_name is None or arguments.secret_file is None or arguments.host is None:
        raise UsageError(
            "--members kubernetes needs --run-name, --secret-file and --host, and runs in a pod; chicle submit "
            "kubernetes makes the manifest"
        )
    secret = JobSecret.load(arguments.secret_file)
    begin = max(least, min(arguments.begin or most, most))
    nodes = KubernetesNodes(
        KubernetesApi(server), arguments.run_name, least=least, most=most, begin=begin, singles=arguments.burst_jobs
    )
    state = JobState(phase="running", host=socket.gethostname(), wanted=begin)
    # An anchor that is moved or fails is no end: the Job starts another one.
    writer = None if arguments.out is None else StateWriter(arguments.out, state)
    with contextlib.ExitStack() as stack:
        endpoint = format_endpoint(arguments.host, STORE_PORT)
        stack.enter_context(StoreServer(endpoint, bind="0.0.0.0"))
        connection = StoreConnection(format_endpoint("127.0.0.1", STORE_PORT)).connect()
        stack.enter_context(SecretWatch(secret, arguments.secret_file, connection, owner="the anchor"))
        stack.callback(nodes.close)
        nodes.begin()
        print(f"anchor: rendezvous store at {endpoint}", flush=True)
        return serve(nodes, ResourceBoard(connection, secret=secret), least=least, state=writer)


def member_partition(arguments: argparse.Namespace) -> str | None:
    """Return the partition of Slurm for the members; None for Slurm's own, or where a preempted QOS is named. Raises
    UsageError when Slurm has no such partition, PeerLostError when there is no Slurm here."""
    asked: str | None = arguments.partition
    if arguments.backfill and arguments.checkpoint and not arguments.resume:
        raise UsageError("--backfill with --checkpoint needs --resume: later nodes go on there")
    if arguments.backfill and not any(option.startswith(("--qos", "-q")) for option in arguments.sbatch):
        return preempted_partition(asked)
    for name in asked.split(",") if asked else ():
        partitions(name)
    return asked


@contextlib.contextmanager
def _kept_state(arguments: argparse.Namespace) -> Iterator[None]:
    """Take whole nodes. All of them may be wanted at once; those that come later go on from a state that is kept."""
    arguments.sbatch[:0] = WHOLE_NODES
    if arguments.checkpoint or arguments.out is None:
        yield
        return
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".state-", dir=out, ignore_cleanup_errors=True) as state:
        arguments.checkpoint, arguments.resume = state, True
        yield


def make_members(scheduler: str, arguments: argparse.Namespace, folder: Path) -> Members:
    """Nodes of a scheduler, which have not begun."""
    most = parse_nodes(arguments.nodes)[1]
    begin = min(arguments.begin or most, most)
    command = node_command(arguments, folder)
    if scheduler == "slurm":
        script = folder / "member.sh"
        script.write_text(_member_script(command, arguments))
        options = ["--output", str(arguments.out.absolute() / "nodes" / "slurm-%A_%a.out"), "--job-name", "chicle"]
        options += ["--nodes=1", *arguments.sbatch]
        return SlurmNodes(script, begin=begin, most=most, grace_s=arguments.grace, options=options)
    task, nodes = task_command(arguments), arguments.out.absolute() / "nodes"
    return LocalNodes(
        lambda name: [*command, "--name", name, *task],
        begin=begin,
        most=most,
        grace_s=arguments.grace,
        has_joined=lambda name: (
            ("joined", name) in ((each["kind"], each.get("who")) for each in read_events(nodes, name))
        ),
    )


def node_command(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """The command line of a member, without its name and its task."""
    least, most = parse_nodes(arguments.nodes)
    command = [arguments.python, "-m", "torchx_components.node", "--run", str(folder), "--nnodes", f"{least}:{most}"]
    command += ["--grace", str(arguments.grace), "--log-dir", str(arguments.out.absolute() / "nodes")]
    return command + passed_on(arguments)


def task_command(arguments: argparse.Namespace) -> list[str]:
    """What the task of a member runs."""
    if is_script(arguments.module):
        return [os.path.abspath(arguments.module), *arguments.arguments]
    return [arguments.module, "--out", str(arguments.out.absolute()), *arguments.arguments]


def _member_script(command: Sequence[str], arguments: argparse.Namespace) -> str:
    name = '--name "job$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"'
    # `exec`: signals of Slurm for the batch script reach the agent itself.
    return f"#!/bin/bash\nexec {shlex.join(command)} {name} {shlex.join(task_command(arguments))}\n"


def make_secret(path: Path, given: Path | None) -> JobSecret:
    """The job secret, in a file of the run: a new one, or a copy of that of the user. Raises ChicleError when the file
    of the user holds none, or others may read it."""
    if given is not None:
        if not given.exists():
            raise UsageError(f"there is no --secret-file {given}; leave the option out for a new secret")
        JobSecret.load_or_create(given)  # judges it
        with open(path, "x", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(given.read_text())
    return JobSecret.load_or_create(path)


def prepare(train: str, run: Path, max_nodes: int) -> str:
    """Path or URL of the chunk folder to train on; a data file is converted once, for all nodes. Raises DataError when
    the file or the folder cannot be read, UsageError when the file needs an option of `chicle convert`."""
    place = absolute_place(train)
    if is_url(place) or Path(place).is_dir():
        ChunkFolder(place)  # what is wrong shows here, and not on every node
        return place
    report = Report(on_note=lambda note: print(f"anchor: {note}", file=sys.stderr))
    try:
        folder = convert([Path(place)], run / "data", ConvertOptions(max_tasks=max_nodes), report=report)
    except (DataError, UsageError) as error:
        if " --" not in str(error):
            raise
        advice = "these are options of chicle convert: convert the data first, and pass its folder to --train"
        raise type(error)(f"{error} ({advice})") from error
    print("\n".join([summary(folder), *details(folder, report)]), flush=True)
    return str(folder.path)


def own_host() -> str:
    """The address of this host that others are likely to reach: of the interface where packets leave it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # TEST-NET-1: nothing is sent
        return str(probe.getsockname()[0])
    return socket.gethostbyname(socket.gethostname())


if __name__ == "__main__":
    sys.exit(main())
