"""`python -m chicle_elastic.launch`: run one node of an elastic job, or the rendezvous store beside the nodes.

    python -m chicle_elastic.launch --store-only --rdzv-endpoint 127.0.0.1:29400 --secret-file job.secret
    python -m chicle_elastic.launch --nnodes 2:8 --rdzv-endpoint 127.0.0.1:29400 --secret-file job.secret train.py ...

A node is torchrun's machinery with two parts exchanged: the rendezvous handler and the agent.

Exit codes: 0 the job is done, or the node left in order; 1 the task failed, or the cluster did; 2 the command line;
128 + N ended by signal N.
"""

import contextlib
import dataclasses
import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch.distributed.launcher.api as launcher
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
from torch.distributed.run import config_from_args

from chicle_elastic.cluster import torchrun_plugin
from chicle_elastic.cluster.launch_args import BACKEND, PROGRAM, AgentCommand, StoreCommand, parse
from chicle_elastic.cluster.rendezvous_errors import JobClosedError
from chicle_elastic.cluster.store_host import StoreHost, open_secret
from chicle_elastic.errors import ChicleError, UsageError
from chicle_elastic.transports.secret import JobSecret

EXIT_FAILED = 1
EXIT_USAGE = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""

    def run() -> None:
        command = parse(sys.argv[1:] if argv is None else argv)
        if isinstance(command, StoreCommand):
            serve_store(command)
        else:
            run_node(command)

    return exit_code_of(run)


def exit_code_of(run: Callable[[], None]) -> int:
    """Run a node or a store, say what went wrong, and return the exit code."""
    try:
        run()
    except (SignalException, KeyboardInterrupt) as error:
        number = error.sigval if isinstance(error, SignalException) else signal.SIGINT
        print(f"{PROGRAM}: ended by {number.name}", file=sys.stderr)
        return 128 + number
    except ChildFailedError as error:
        print(f"{PROGRAM}: the task failed\n{error.format_msg()}", file=sys.stderr)
        return EXIT_FAILED
    except ChicleError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        if isinstance(error, JobClosedError) and error.is_success:
            return 0  # to a resource manager, a node that was not needed any more has not failed
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    return 0


def serve_store(command: StoreCommand) -> None:
    """Serve the rendezvous store until SIGINT or SIGTERM.

    Prints one line, "rendezvous store at HOST:PORT", when it listens.

    Raises:
        UsageError: The address cannot be listened on, or the secret file cannot be used.
    """
    JobSecret.load_or_create(command.secret_file)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with StoreHost(command.endpoint) as host:
        print(f"rendezvous store at {host.endpoint}", flush=True)
        ended.wait()


def run_node(command: AgentCommand, *, make_agent: Callable[..., Any] | None = None) -> None:
    """Run the agent of this node, and its task, to the end.

    Args:
        command: What was asked for.
        make_agent: Makes the agent; by default it is an `ElasticAgent`.

    Raises:
        ChicleError: The cluster failed, or the secret or the store cannot be used.
        ChildFailedError: The task failed more often than it may.
    """
    arguments, options = command.torchrun, command.options
    open_secret(options.secret_file, endpoint=arguments.rdzv_endpoint)  # says what is wrong before anything starts
    from chicle_elastic.cluster.agent import ElasticAgent

    if arguments.redirects == arguments.tee == "0":
        arguments.log_dir = os.devnull  # or torch would make empty folders that stay; event files know their own
    config, entrypoint, entrypoint_arguments = config_from_args(arguments)
    if arguments.log_dir == os.devnull:
        config.logs_specs = NoLogFiles(log_dir=os.devnull)
    # torch logs these: a path and a name, nothing secret.
    config.rdzv_configs |= {"secret_file": str(options.secret_file), "node": options.node}
    # An installation from before the entry point existed finds the handler, too.
    rendezvous_handler_registry.register(BACKEND, torchrun_plugin.create)
    with agent_class(functools.partial(make_agent or ElasticAgent, options=options)):
        launcher.elastic_launch(config, entrypoint)(*entrypoint_arguments)


class NoLogFiles(DefaultLogsSpecs):
    """The task prints where the agent prints; a node that is killed leaves no file behind."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Torch's destinations without the two threads that would follow /dev/null."""
        return dataclasses.replace(super().reify(envs), tee_stdouts={}, tee_stderrs={})


@contextlib.contextmanager
def agent_class(make: Any) -> Iterator[None]:
    """Within this, torch's launcher makes its agent by `make`: the one seam that torchrun leaves for that."""
    original = launcher.LocalElasticAgent
    launcher.LocalElasticAgent = make  # type: ignore[misc]
    try:
        yield
    finally:
        launcher.LocalElasticAgent = original  # type: ignore[misc]


if __name__ == "__main__":
    code = main()
    gc.freeze()  # or Python looks through all that torch has imported, three times, for half a second
    sys.exit(code)
