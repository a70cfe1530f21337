"""`python -m chicle_elastic.launch`: run one node of an elastic job, or the rendezvous store beside the nodes.

    python -m chicle_elastic.launch --store-only --rdzv-endpoint 127.0.0.1:29400 --secret-file job.secret
    python -m chicle_elastic.launch --nnodes 2:8 --rdzv-endpoint 127.0.0.1:29400 --secret-file job.secret train.py ...

A node has torchrun's command line, parsed by torchrun's own parser in a child process: the agent itself has no torch in
memory. It starts its task with torchrun's log files and error files.

Exit codes: 0 the job is done; that of `--leave-exit-code` (default 0) the node left on a notice; 1 the task or the
cluster failed; 2 wrong command line; 3 the job was done before the node came, so nothing has run here (0 where a
resource manager starts nodes: an anchor, or with `--leave-exit-code`); 128 + N ended by signal N.
"""

import functools
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn

from chicle_elastic.cluster.agent.node_agent import (
    EXIT_FAILED,
    NodeAgent,
    exit_code_of_error,
    interrupt,
    signals_call,
)
from chicle_elastic.cluster.agent.process_agent import ProcessAgent
from chicle_elastic.cluster.agent.task_end import exit_words
from chicle_elastic.cluster.options import PROGRAM, AgentCommand, StoreCommand, from_json, parse, to_json
from chicle_elastic.cluster.rendezvous.errors import JobClosedError
from chicle_elastic.cluster.rendezvous.job_entry import JobEntry
from chicle_elastic.cluster.rendezvous.own_address import interface_address
from chicle_elastic.cluster.rendezvous.store import StoreServer, format_endpoint, open_secret, parse_endpoint
from chicle_elastic.errors import ChicleError
from chicle_elastic.monitoring.stderr_queue import stderr_queue
from chicle_elastic.start_signals import die_with
from chicle_elastic.transports.addresses import is_all_hosts
from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tls import TlsIdentity

EXIT_LATE = 3
INTERRUPTS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)  # end a node at once; others are a notice (`node_agent`)
NOHUP = (signal.SIGHUP, signal.SIG_IGN)  # how `nohup` starts a command: it outlives its terminal


def main(argv: Sequence[str] | None = None, *, make_agent: Callable[..., NodeAgent] | None = None) -> int:
    """Run the command line; returns the exit code. `make_agent` as of `run_node`."""

    def run() -> int:
        _heed_children()
        command = parse_apart(sys.argv[1:] if argv is None else argv)
        with stderr_queue():
            return exit_code_of(functools.partial(_run_command, command, make_agent))

    return exit_code_of(run)


def _run_command(command: StoreCommand | AgentCommand, make_agent: Callable[..., NodeAgent] | None) -> int:
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


def parse_apart(argv: Sequence[str]) -> StoreCommand | AgentCommand:
    """Parse a command line in a child process, which ends with the torch of torchrun's parser in it; here in a process
    that has torch already. Raises SystemExit when the child has printed an error or help, ChicleError when it died."""
    if "torch" in sys.modules:
        return parse(argv)
    sys.stdout.flush()  # or the child prints the same text again
    reader, writer = os.pipe()
    agent = os.getpid()
    child = os.fork()
    if child == 0:
        die_with(agent)
        os.close(reader)
        _tell_parsed(argv, agent, writer)
    os.close(writer)
    with open(reader, encoding="ascii") as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise ChicleError(f"the process that parses the command line ended with {exit_words(code)}; start again")
    if code or not text:
        raise SystemExit(code)
    return from_json(text)


def _tell_parsed(argv: Sequence[str], agent: int, writer: int) -> NoReturn:
    """Be the child process: write the parsed command line as JSON, and end without any clean-up."""
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):  # the agent itself says that it was ended
        signal.signal(number, signal.SIG_DFL)
    gc.disable()  # all that torch imports goes in a moment
    code = EXIT_FAILED

    def run() -> int:
        command = parse(argv, process_id=agent)
        with open(writer, "w", encoding="ascii") as pipe:
            pipe.write(to_json(command))
        return 0

    try:
        with stderr_queue():
            code = exit_code_of(run)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else EXIT_FAILED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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
    ends = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # a handler would not end a wait that begins just after the signal
    with StoreServer(command.endpoint, bind=bind, ports=ports) as host:
        _, port = parse_endpoint(host.endpoint)
        told = format_endpoint(wanted.advertise, port) if wanted.advertise else host.endpoint
        print(f"rendezvous store at {told}", flush=True)
        name, _ = parse_endpoint(command.endpoint)
        if is_all_hosts(host.listens) and not is_all_hosts(name):
            print(f"{PROGRAM}: the store listens on all addresses of this host ({host.listens})", file=sys.stderr)
        signal.sigwait(ends)


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
    interrupts = [number for number in INTERRUPTS if (number, signal.getsignal(number)) != NOHUP]
    with signals_call({number: functools.partial(interrupt, number) for number in interrupts}):
        entry = JobEntry.open(
            command.endpoint,
            run_id=command.run_id,
            node=options.node,
            secret_file=options.secret_file,
            min_nodes=command.min_nodes,
            max_nodes=command.max_nodes,
        )
        agent = (make_agent or ProcessAgent)(
            entry=entry, options=options, task_options=command.task, restarts=command.max_restarts
        )
        ended = agent.run_node()
    if ended is not None:
        guess = ", perhaps for memory: the kernel's log says so (dmesg)" if ended.code == -signal.SIGKILL else ""
        words = f"{command.task.title}: {ended}{agent.memory_kills.words or guess}"
        print(f"{PROGRAM}: the task failed: {words}", file=sys.stderr)
        return EXIT_FAILED
    return options.leave_exit_code if agent.has_left else 0


def _heed_children() -> None:
    """Undo an ignored SIGCHLD, which the program that started this one may have left behind. The kernel keeps no exit
    codes with it, and a task that failed would count as a success."""
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
