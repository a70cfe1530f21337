"""`python -m torchx_components.node`: one node of a run; waits for the anchor, then it is `chicle_elastic.launch`.

SIGTERM and SIGUSR1 are the notice that this node will be taken away, as ever.
"""

import sys

from chicle_elastic.start_signals import LEAVE_OPTION, install, of_node
from chicle_elastic.surroundings import prepare_command, require_folder

if __name__ == "__main__":  # before anything that takes long
    prepare_command()
    require_folder("python -m torchx_components.node")
    install("python -m torchx_components.node", of_node(sys.argv[1:]))

import argparse
import gc
import re
import socket
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from chicle_elastic.cluster.rendezvous.store import parse_endpoint
from chicle_elastic.errors import ChicleError, PeerLostError, UsageError
from torchx_components.meeting import SECRET_NAME, MeetingPlace

FIT = "estimators.fit_task"
PASSED_ON = ("--checkpoint", "--checkpoint-every", "--metrics", "--notices", "--patience")
POLL_S = 0.5
ANCHOR_S = 600.0  # how long the scheduler may take to start the anchor, and that to prepare the data


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m torchx_components.node", description=__doc__)
    parser.add_argument("--run", type=Path, help="folder of the run, where the anchor says where it is")
    parser.add_argument("--store", metavar="HOST:PORT", help="of the anchor, where there is no folder of the run")
    parser.add_argument("--secret-file", type=Path, help="of the job secret, with --store")
    parser.add_argument("--data", help="chunk folder, with --store; a script has none")
    parser.add_argument("--nnodes", required=True, help="MIN:MAX")
    parser.add_argument("--name", required=True, help="name of this node, unique in the run")
    parser.add_argument("--grace", default="25", help="seconds from a notice to leaving at once")
    parser.add_argument(
        LEAVE_OPTION, default="0", help="exit code of a node that left on a notice; default: %(default)s"
    )
    add_passed_on(parser)
    parser.add_argument("--log-dir", required=True, help="folder for event files")
    parser.add_argument(
        "module",
        help="what the task runs, by python -m; it gets --train and the arguments behind it. Or a script, NAME.py, "
        "without --train",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(argv)
    try:
        if arguments.run is not None:
            place = MeetingPlace.wait_for(arguments.run, ANCHOR_S)
            store, data, secret_file = place.store, place.data, arguments.run / SECRET_NAME
        elif arguments.store and arguments.secret_file and (arguments.data or is_script(arguments.module)):
            store, data, secret_file = arguments.store, arguments.data or "", arguments.secret_file
            wait_for_store(store, ANCHOR_S)
        else:
            parser.error("give --run, or --store, --secret-file and --data")
    except ChicleError as error:
        print(f"node {arguments.name}: {error}", file=sys.stderr)
        return 1
    return launch(arguments, store, data, secret_file)


def launch(arguments: argparse.Namespace, store: str, data: str, secret_file: Path) -> int:
    """Be a node of the run; returns the exit code."""
    from chicle_elastic.cluster import launcher
    from chicle_elastic.cluster.agent.store_resources import StoreManagedAgent

    gc.freeze()  # or Python looks through all that was imported, while the event loop waits and at the end
    return launcher.main(
        [
            *("--nnodes", arguments.nnodes, "--name", arguments.name, "--grace", arguments.grace),
            *("--rdzv-endpoint", store, "--secret-file", str(secret_file)),
            *(LEAVE_OPTION, arguments.leave_exit_code),
            *passed_on(arguments),
            *("--log-dir", arguments.log_dir),
            *([arguments.module] if is_script(arguments.module) else ["-m", arguments.module, "--train", data]),
            *arguments.arguments,
        ],
        make_agent=StoreManagedAgent,
    )


def is_script(module: str) -> bool:
    """Say whether tasks run a file, and not a module."""
    return module.endswith(".py")


def add_passed_on(parser: argparse.ArgumentParser) -> None:
    """Declare the options that reach the launcher of a node as they are."""
    for option in PASSED_ON:
        parser.add_argument(option, help="of the nodes, as of python -m chicle_elastic.launch")
    parser.add_argument("--resume", action="store_true", help="of the nodes: go on from the newest checkpoint")


def passed_on(arguments: argparse.Namespace) -> list[str]:
    """Return the options of `add_passed_on` that were given, as words of a command line."""
    given = {option: getattr(arguments, option.removeprefix("--").replace("-", "_")) for option in PASSED_ON}
    words = [word for option, value in given.items() if value is not None for word in (option, value)]
    return [*words, *(["--resume"] if arguments.resume else [])]


def parse_nodes(text: str) -> tuple[int, int]:
    """Return the fewest and the most nodes of "2:3" or "3", or TorchX's own "2:3x1" and "3x1". Raises UsageError when
    the text is none of these, or says several processes per node."""
    match = re.fullmatch(r"(?:(\d+):)?(\d+)(?:x1)?", text)
    least, most = (int(match[1] or match[2]), int(match[2])) if match else (0, 0)
    if not 1 <= least <= most:
        raise UsageError(
            f"-j {text}: write MIN:MAX or N, e.g. 2:3; a node runs one task, which uses all its processors"
        )
    return least, most


def check_task(task: Sequence[str], train: str, out: str) -> None:
    """Refuse options of an estimator that cannot be, where a job is submitted and not on every node later.

    Args:
        task: Module of the tasks and its arguments.
    """
    if task[0] == FIT:
        # By its name, as nodes run it: this package does not build on estimators.
        import_module(FIT).parse(["--train", train, "--out", out, *task[1:]])


def wait_for_store(endpoint: str, timeout_s: float) -> None:
    """Until something listens there: the anchor may start after its members. Raises PeerLostError when nothing does."""
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            with socket.create_connection(parse_endpoint(endpoint), timeout=5.0):
                return
        except OSError as error:
            if time.monotonic() > end_s:
                raise PeerLostError(
                    f"the anchor's store at {endpoint} cannot be reached within {timeout_s:g} s ({error}); look at the "
                    "log of the anchor"
                ) from error
            time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main())
