"""`python -m chicle_elastic.launch`: run one node of an elastic job, or the rendezvous store beside the nodes.

    python -m chicle_elastic.launch --store-only --rdzv-endpoint 127.0.0.1:29400 --secret-file job.secret
    python -m chicle_elastic.launch --nnodes 2:8 --rdzv-endpoint 127.0.0.1:29400 --secret-file job.secret train.py ...

A node is torchrun's command line, its rendezvous and its launcher of processes, around an agent of Chicle's.

Exit codes: 0 the job is done; that of `--leave-exit-code` (default 0) the node left on a notice; 1 the task or the
cluster failed; 2 wrong command line; 3 the job was done before the node came, so nothing has run here (0 where a
resource manager starts nodes: an anchor, or with `--leave-exit-code`); 128 + N ended by signal N.
"""

import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import config_from_args

from chicle_elastic.cluster.agent.node_agent import EXIT_FAILED, exit_code_of_error
from chicle_elastic.cluster.options import PROGRAM, SIGNALS_OF_TORCH, AgentCommand, StoreCommand, parse
from chicle_elastic.cluster.rendezvous.errors import JobClosedError
from chicle_elastic.cluster.rendezvous.own_address import interface_address
from chicle_elastic.cluster.rendezvous.store import StoreServer, format_endpoint, open_secret, parse_endpoint
from chicle_elastic.errors import ChicleError
from chicle_elastic.settings import environment_with
from chicle_elastic.transports.addresses import is_all_hosts
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tls import TlsIdentity

EXIT_LATE = 3


def main(argv: Sequence[str] | None = None, *, make_agent: Callable[..., Any] | None = None) -> int:
    """Run the command line; returns the exit code. `make_agent` as of `run_node`."""

    def run() -> int:
        command = parse(sys.argv[1:] if argv is None else argv)
        if isinstance(command, StoreCommand):
            serve_store(command)
            return 0
        try:
            return run_node(command, make_agent=make_agent)
        except JobClosedError as error:
            is_managed = make_agent is not None or command.options.leave_exit_code
            if is_managed or not error.is_late:
                raise
            print(f"{PROGRAM}: {error}", file=sys.stderr)
            return EXIT_LATE  # a person may have meant another job

    return exit_code_of(run)


def exit_code_of(run: Callable[[], int]) -> int:
    """Run a node or a store, print an error, and return the exit code."""
    try:
        return run()
    except (SignalException, KeyboardInterrupt) as error:
        number = error.sigval if isinstance(error, SignalException) else signal.SIGINT
        print(f"{PROGRAM}: ended by {number.name}", file=sys.stderr)
        return 128 + number
    except ChildFailedError as error:
        print(f"{PROGRAM}: the task failed\n{error.format_msg()}", file=sys.stderr)
        return EXIT_FAILED
    except ChicleError as error:
        return exit_code_of_error(error)


def serve_store(command: StoreCommand) -> None:
    """Serve the rendezvous store until SIGINT or SIGTERM. Prints one line, "rendezvous store at HOST:PORT", when it
    listens. Raises UsageError when the address cannot be listened on, or the secret file cannot be used."""
    if command.secret_file is None:
        open_secret(None, endpoint=command.endpoint)
    else:
        JobSecret.load_or_create(command.secret_file)
    wanted = command.address
    bind = wanted.host if wanted.interface is None else interface_address(wanted.interface)
    ports = None if wanted.ports.is_any else wanted.ports
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with StoreServer(command.endpoint, bind=bind, ports=ports) as host:
        _, port = parse_endpoint(host.endpoint)
        told = format_endpoint(wanted.advertise, port) if wanted.advertise else host.endpoint
        print(f"rendezvous store at {told}", flush=True)
        name, _ = parse_endpoint(command.endpoint)
        if is_all_hosts(host.listens) and not is_all_hosts(name):
            print(f"{PROGRAM}: the store listens on all addresses of this host ({host.listens})", file=sys.stderr)
        ended.wait()


def run_node(command: AgentCommand, *, make_agent: Callable[..., Any] | None = None) -> int:
    """Run the agent of this node, and its task, to the end. Returns the exit code: that of `--leave-exit-code` if the
    node left on a notice, else 0. Raises ChicleError when the cluster failed, or the secret or the store cannot be
    used, ChildFailedError when the task failed more often than it may."""
    arguments, options = command.torchrun, command.options
    if options.tls is not None:
        TlsIdentity(options.tls)  # an error shows before any process starts
    from chicle_elastic.cluster.agent.elastic_agent import ElasticAgent

    if arguments.redirects == arguments.tee == "0":
        arguments.log_dir = os.devnull  # else torch would leave empty folders behind; event files have their own option
    config, entrypoint, entrypoint_arguments = config_from_args(arguments)
    if arguments.log_dir == os.devnull:
        config.logs_specs = NoLogFiles(log_dir=os.devnull)
    agent = (make_agent or ElasticAgent)(config, entrypoint, entrypoint_arguments, options=options)
    with environment_with("TORCHELASTIC_SIGNALS_TO_HANDLE", SIGNALS_OF_TORCH):
        result = agent.run()
    if result.is_failed():
        words = (word for word in entrypoint_arguments if not str(word).startswith("-"))
        program = getattr(entrypoint, "__name__", str(entrypoint))
        raise ChildFailedError(next(words, program) if program == sys.executable else program, result.failures)
    return options.leave_exit_code if agent.has_left else 0


class NoLogFiles(DefaultLogsSpecs):
    """The task prints to the agent's stdout and stderr; a node that is killed leaves no file behind."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Torch's destinations without the two threads that would follow /dev/null."""
        return dataclasses.replace(super().reify(envs), tee_stdouts={}, tee_stderrs={})
