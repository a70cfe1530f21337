"""`python -m torchx_components.slurm_run`: an anchor whose nodes are members of a Slurm job array, which it submits.

    python -m torchx_components.slurm_run -j 1:4 --train a9a.svm --out model --partition spot -- \\
        estimators.fit_task --C 0.1

It prepares the data, serves the rendezvous store, submits the array (`slurm`), and starts or ends members as the
job's policies, or `python -m torchx_components.scale`, ask for. It trains nothing, and needs a place that is not taken
away: a login node, or a job of its own. `--out` is a folder that all nodes see.

Exit code 0 when the job is over; 1 when a task failed, or it cannot go on; 143 at SIGTERM. The array is cancelled in
any case.
"""

import signal
import sys

from chicle_elastic.start_signals import install

if __name__ == "__main__":  # before anything that takes long
    install(
        "python -m torchx_components.slurm_run",
        {number: 128 + number for number in (signal.SIGTERM, signal.SIGINT)},
    )

import argparse
import contextlib
import os
import selectors
import shlex
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from chicle_elastic.cli.signals import orderly_end
from chicle_elastic.cluster.rendezvous.resource_board import NodeOffer, ResourceBoard
from chicle_elastic.cluster.rendezvous.store import StoreServer, format_endpoint
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.errors import ChicleError, UsageError
from chicle_elastic.ids import NodeId
from chicle_elastic.resources.managed_nodes import ManagedNodes
from chicle_elastic.transports.secret import JobSecret
from torchx_components.anchor import prepare
from torchx_components.meeting import SECRET_NAME, MeetingPlace
from torchx_components.slurm import SlurmNodes

TURN_S = 0.5
END_S = 60.0
"""Members may take so long to end when the job is over."""
NODE_TEXT = "waits for the first node; squeue says where the array stands"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m torchx_components.slurm_run", description=__doc__.split("\n\n")[0])
    parser.add_argument("-j", dest="nodes", required=True, help="MIN:MAX nodes, or N; with fewer than MIN it pauses")
    parser.add_argument("--train", type=Path, required=True, help="data file or chunk folder")
    parser.add_argument("--out", type=Path, required=True, help="folder that all nodes see; the task gets it as --out")
    parser.add_argument(
        "--host", default=None, help="address of this host, for the nodes; default: where packets leave it"
    )
    parser.add_argument(
        "--grace", type=float, default=25.0, help="seconds from a notice to leaving; default: %(default)s"
    )
    parser.add_argument("--begin", type=int, default=None, help="nodes to begin with; default: MAX")
    parser.add_argument("--python", default=sys.executable, help="interpreter on the nodes; default: %(default)s")
    parser.add_argument("--partition", default=None, help="of the members")
    parser.add_argument("--sbatch", action="append", default=[], metavar="OPTION", help="further option of sbatch")
    parser.add_argument(
        "module", help="what the tasks run, by python -m; it gets --train, --out and the arguments behind it"
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    try:
        with orderly_end():
            return run(arguments)
    except (ChicleError, OSError) as error:
        print(f"slurm_run: {error}", file=sys.stderr)
        return 1


def run(arguments: argparse.Namespace) -> int:
    """Serve a run to its end; returns the exit code.

    Raises:
        ChicleError: The data cannot be used, the host has no such address, or Slurm refuses the array.
    """
    least, most = parse_nodes(arguments.nodes)
    out = arguments.out.absolute()
    folder = out / f".run-{os.getpid()}-{int(time.time())}"
    folder.mkdir(parents=True)
    try:
        secret = JobSecret.load_or_create(folder / SECRET_NAME)
        data = prepare(arguments.train.absolute(), folder, most)
        host = arguments.host or own_host()
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(StoreServer(f"{host}:0"))
            listener = stack.enter_context(socket.create_server((host, 0)))
            presence = format_endpoint(host, listener.getsockname()[1])
            MeetingPlace(store=store.endpoint, presence=presence, data=str(data)).write(folder)
            connection = StoreConnection(store.endpoint)
            connection.connect()
            board = ResourceBoard(connection, endpoint=store.endpoint, secret=secret)
            options = [*(["--partition", arguments.partition] if arguments.partition else []), *arguments.sbatch]
            options += ["--output", str(out / "nodes" / "slurm-%A_%a.out"), "--job-name", "chicle", "--nodes=1"]
            (out / "nodes").mkdir(exist_ok=True)
            script = folder / "member.sh"
            script.write_text(_script(arguments, folder, out, least, most))
            slurm = SlurmNodes(script, most=most, grace_s=arguments.grace, options=options)
            stack.callback(slurm.close)
            slurm.request(min(arguments.begin or most, most), "the beginning")
            slurm.begin()
            print(f"slurm_run: run folder {folder}; rendezvous store at {store.endpoint}", flush=True)
            return serve(slurm, board, listener)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def serve(slurm: SlurmNodes, board: ResourceBoard, listener: socket.socket) -> int:
    """Stand between the job and Slurm until the job is over; returns the exit code."""
    managed = ManagedNodes(slurm)
    began_s = time.monotonic()
    request = scale = offers = 0
    known: set[NodeId] = set()
    assigned: set[NodeId] = set()
    has_told = False
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for _ in selector.select(TURN_S):
                listener.accept()[0].close()  # who lives, Slurm says; thousands may come in time
            wanted = board.request()
            if wanted is not None and wanted.number > request:
                request = wanted.number
                print(f"slurm_run: the job wants {wanted.total} nodes: {wanted.reason}", flush=True)
                managed.request(wanted.total, wanted.reason)
            told = board.scale()
            if told is not None and told.number > scale:
                scale = told.number
                print(f"slurm_run: {told.total} nodes are wanted from outside", flush=True)
                managed.wanted = None
                slurm.request(told.total, "from outside")
                _let_go(slurm, told.total)
            members = slurm.members
            for node in known - members.keys():
                print(f"slurm_run: {node} is gone", flush=True)
                assigned.discard(node)
                managed.released(node)
            for node in members.keys() - known:
                print(f"slurm_run: {node} has {members[node].host}", flush=True)
            known = set(members)
            if not known and not has_told:
                has_told = True
                print(f"slurm_run: {NODE_TEXT}", flush=True)
            staying = [node for node in assigned if node in members and not members[node].is_noticed]
            news = managed.poll(time.monotonic() - began_s, staying)
            assigned.update(news.assigned)
            for revoked in news.revoked:
                slurm.notice(revoked.node)
            for line in news.lines:
                print(f"slurm_run: {line}", flush=True)
            if news.offer is not None or news.lines:
                offers += 1
                offer = news.offer
                text = "; ".join(news.lines)
                board.put_offer(NodeOffer(offers, None if offer is None else offer.available, None, text))
            finished = board.finished()
            if finished is not None:
                print(f"slurm_run: the job is over: {finished.reason}", flush=True)
                _wait_for_end(slurm)
                return int(finished.has_failed)
            if managed.fault is not None:
                return 1


def _let_go(slurm: SlurmNodes, total: int) -> None:
    """Give the newest members notice until as many stay as are wanted."""
    staying = [member for member in slurm.members.values() if not member.is_noticed]
    for member in sorted(staying, key=lambda member: member.since_s)[total:]:
        slurm.notice(member.name)


def _wait_for_end(slurm: SlurmNodes) -> None:
    """Members write the model and end by themselves."""
    end_s = time.monotonic() + END_S
    slurm.stop_starting()
    while slurm.members and time.monotonic() < end_s:
        time.sleep(TURN_S)


def _script(arguments: argparse.Namespace, folder: Path, out: Path, least: int, most: int) -> str:
    command = [
        *(arguments.python, "-m", "torchx_components.node", "--run", str(folder), "--nnodes", f"{least}:{most}"),
        *("--grace", str(arguments.grace), "--log-dir", str(out / "nodes")),
    ]
    task = [arguments.module, "--out", str(out), *arguments.arguments]
    name = '--name "job$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}"'
    # `exec`: signals of Slurm for the batch script reach the agent itself.
    return f"#!/bin/bash\nexec {shlex.join(command)} {name} {shlex.join(task)}\n"


def parse_nodes(text: str) -> tuple[int, int]:
    """Fewest and most nodes of "2:3" or "3".

    Raises:
        UsageError: It is neither.
    """
    least, _, most = text.partition(":")
    try:
        found = int(least), int(most or least)
    except ValueError:
        found = (0, 0)
    if not 1 <= found[0] <= found[1]:
        raise UsageError(f"-j {text} is not MIN:MAX with 1 <= MIN <= MAX, nor a number of nodes")
    return found


def own_host() -> str:
    """The address of this host that others are likely to reach: of the interface where packets leave it."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # TEST-NET-1: nothing is sent
        return str(probe.getsockname()[0])
    return socket.gethostbyname(socket.gethostname())


if __name__ == "__main__":
    sys.exit(main())
