"""`python -m chicle_elastic.launch`: run one node of an elastic job, or the rendezvous store beside the nodes.

    python -m chicle_elastic.launch --store-only --rdzv-endpoint 127.0.0.1:29400 --secret-file job.secret
    python -m chicle_elastic.launch --nnodes 2:8 --rdzv-endpoint 127.0.0.1:29400 --secret-file job.secret train.py ...

Exit codes: 0 the job is done; that of `--leave-exit-code` (default 0) the node left on a notice; 1 the task or the
cluster failed; 2 wrong command line; 3 the job was done before the node came, so nothing has run here (0 where a
resource manager starts nodes: an anchor, or with `--leave-exit-code`); 128 + N ended by signal N.
"""

import functools
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from chicle_elastic.cluster.agent.node_agent import EXIT_FAILED, NodeAgent, exit_code_of_error, signals_call
from chicle_elastic.cluster.agent.process_agent import ProcessAgent
from chicle_elastic.cluster.options import PROGRAM, AgentCommand, StoreCommand, parse
from chicle_elastic.cluster.rendezvous.errors import JobClosedError
from chicle_elastic.cluster.rendezvous.job_entry import JobEntry
from chicle_elastic.cluster.rendezvous.own_address import interface_address
from chicle_elastic.cluster.rendezvous.store import StoreServer, format_endpoint, open_secret, parse_endpoint
from chicle_elastic.errors import ChicleError
from chicle_elastic.transports.addresses import is_all_hosts
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tls import TlsIdentity

EXIT_LATE = 3
INTERRUPTS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # end a node at once; others are a notice (`node_agent`)


def main(argv: Sequence[str] | None = None, *, make_agent: Callable[..., NodeAgent] | None = None) -> int:
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
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        print(f"{PROGRAM}: ended by {number.name}", file=sys.stderr)
        return 128 + number
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


def run_node(command: AgentCommand, *, make_agent: Callable[..., NodeAgent] | None = None) -> int:
    """Run the agent of this node, and its task, to the end. Raises ChicleError when the cluster failed, or the secret
    or the store cannot be used.

    Args:
        make_agent: Makes the agent, by default a `ProcessAgent`, from arguments of `NodeAgent`.

    Returns:
        The exit code: that of `--leave-exit-code` if the node left on a notice, 1 if its task failed more often than it
        may, else 0.
    """
    options = command.options
    if options.tls is not None:
        TlsIdentity(options.tls)  # an error shows before any process starts
    with signals_call({number: functools.partial(_interrupt, number) for number in INTERRUPTS}):
        entry = JobEntry.open(
            command.endpoint,
            run_id=command.run_id,
            node=options.node,
            secret_file=options.secret_file,
            min_nodes=command.min_nodes,
            max_nodes=command.max_nodes,
        )
        agent = (make_agent or ProcessAgent)(
            entry=entry, options=options, command=command.task, restarts=command.max_restarts
        )
        ended = agent.run_node()
    if ended is not None:
        guess = ", perhaps for memory: the kernel's log says so (dmesg)" if ended.code == -signal.SIGKILL else ""
        print(f"{PROGRAM}: the task failed: {ended}{agent.memory_kills.words or guess}", file=sys.stderr)
        return EXIT_FAILED
    return options.leave_exit_code if agent.has_left else 0


def _interrupt(number: signal.Signals) -> None:
    raise KeyboardInterrupt(number)
