"""Nodes on this host for chaos to strike: a rendezvous store here, and an agent with its task per node."""

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from chicle_elastic.cluster.agent.node_agent import DEBUG_STATE_SIGNAL
from chicle_elastic.cluster.consensus.term_store import TermStore
from chicle_elastic.cluster.net.peers import node_of
from chicle_elastic.cluster.options import DEFAULT_RUN_ID
from chicle_elastic.cluster.rendezvous.errors import StoreUnreachableError
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.transports.addresses import PortRange
from chicle_elastic.transports.secret import JobSecret
from tests.harness import faults
from tests.harness.faults import Fault
from tests.harness.forked import Forked, NodeEvents, start_fork_server
from tests.timeouts import comes

GRACE_S = 10.0
STANDING_S = 2.0
MAX_RESTARTS = 1000
FIRST_PORT, LAST_PORT = 20_000, 29_999
"""Ports for the store, below those that the kernel gives to connections: none of them takes the port of a killed store,
and no agent that dials it reaches itself."""


def be_struck(arguments: Sequence[str]) -> int:
    """Be `python -m tests.harness.faults` in a forked process; return the exit code."""
    from tests.harness import faults

    return faults.main(arguments)


class ChaosNode(NodeEvents):
    """One node."""

    def __init__(self, name: str, folder: Path, arguments: Sequence[str]) -> None:
        super().__init__(name, folder)  # no other node of the job ever has this name
        self.is_doomed = False  # it was killed or is under notice: it is not expected at the end
        self.was_killed = False  # its exit code means nothing
        self.wakes_s: float | None = None  # when it is to go on, on the monotonic clock; None while it is not stopped
        self._process = Forked(be_struck, arguments, output=folder / f"{name}.out")

    @property
    def is_running(self) -> bool:
        """Whether the agent has not ended."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Of the agent."""
        return self._process.poll()

    def output(self) -> str:
        """What agent and task have printed, the end of it."""
        return self._process.text()[-3000:]

    def send(self, number: signal.Signals, *, to_task: bool = False, to_agent: bool = True) -> None:
        """Send a signal to the processes of the node, the task first."""
        if to_task and self.task_pid and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.task_pid, number)
        if to_agent:
            self._process.send_signal(number)

    def kill(self) -> None:
        """The node is gone."""
        self.is_doomed = self.was_killed = True
        self.send(signal.SIGKILL, to_task=True)

    def close(self) -> None:
        """End whatever is left of it."""
        self._process.kill_all()
        self._process.close()


class ChaosNodes:
    """The nodes of one job. A context manager that ends them all.

    Args:
        folder: For everything; the evidence is in its `log`.
        work: "svm", "newton" or "count".
        min_ms: Shortest time of an iteration.
    """

    def __init__(self, folder: Path, *, work: str, min_ms: float, max_nodes: int) -> None:
        start_fork_server()
        self.log = folder / "log"
        self.log.mkdir(parents=True)
        self.nodes: list[ChaosNode] = []
        self.script, self.fired = folder / "faults.json", folder / "fired.jsonl"
        self._end_file = folder / "end"
        self._secret_file = folder / "job.secret"
        self._max_nodes = max_nodes
        secret = JobSecret.load_or_create(self._secret_file)
        first_port = FIRST_PORT + os.getpid() % (LAST_PORT - FIRST_PORT) // 2
        self._store: StoreServer | None = StoreServer(ports=PortRange(first_port, LAST_PORT))
        self._endpoint = self._store.endpoint
        connection = StoreConnection(self._endpoint).connect()
        self._terms: TermStore | None = TermStore(connection, run_id=DEFAULT_RUN_ID, secret=secret)
        self._last_lead = ""
        self._application = (
            *("--module", "tests.harness.chaos_app", "--out", str(self.log)),
            *("--end-file", str(self._end_file), "--work", work, "--min-ms", str(min_ms)),
        )

    @property
    def next_name(self) -> str:
        """Of the node that is started next."""
        return f"n{len(self.nodes)}"

    def start(self) -> ChaosNode:
        """Start another node."""
        name = self.next_name
        arguments = [
            *(str(self.script), str(self.fired)),
            *("--nnodes", f"1:{self._max_nodes}", "--name", name, "--max-restarts", str(MAX_RESTARTS)),
            *("--rdzv-endpoint", self._endpoint, "--secret-file", str(self._secret_file)),
            *("--log-dir", str(self.log), "--grace", str(GRACE_S), *self._application),
        ]
        node = ChaosNode(name, self.log, arguments)
        self.nodes.append(node)
        return node

    def running(self) -> list[ChaosNode]:
        """Nodes whose agent has not ended."""
        return [node for node in self.nodes if node.is_running]

    def lead(self) -> ChaosNode | None:
        """Who leads by the last term that was seen in the store, if that agent runs."""
        self._look()
        name = node_of(self._last_lead) if self._last_lead else ""
        return next((node for node in self.running() if node.name == name), None)

    @property
    def has_store(self) -> bool:
        """Whether the store runs, and knows the job."""
        return self._store is not None and self._look()

    def kill_store(self) -> None:
        """The store is gone, with everything that it held, and all connections to it break."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def start_store(self) -> None:
        """Start an empty store at the endpoint of the one before, unless there is one."""
        if self._store is None:
            self._store = StoreServer(self._endpoint)

    def _look(self) -> bool:
        """Whether there is a term in the store; remembers who leads it."""
        try:
            life = self._terms.look().lead if self._terms else ""
        except StoreUnreachableError:
            return False
        self._last_lead = life or self._last_lead
        return bool(life)

    def successor(self) -> list[ChaosNode]:
        """Who leads when the lead is gone: the first other member that runs, if there is one."""
        lead = self.lead()
        round = None if lead is None else lead.last("round")
        running = {node.name: node for node in self.running() if node is not lead}
        return [running[name] for name in (round["members"] if round else ()) if name in running][:1]

    def members(self) -> list[ChaosNode]:
        """Running nodes that have taken part in one of the last iterations, and are expected to go on."""
        newest = self.iteration()
        return [
            node
            for node in self.running()
            if not node.is_doomed
            and node.wakes_s is None
            and (last := node.last("iteration")) is not None
            and last["iteration"] >= newest - 20
            and ((expelled := node.last("expelled")) is None or expelled["time"] < last["time"])
        ]

    def iteration(self) -> int:
        """The last iteration that anybody has merged."""
        return max((node.iteration for node in self.nodes), default=0)

    def arm(self, armed: Sequence[Fault]) -> None:
        """These faults, and no others, strike from now on."""
        faults.write_script(self.script, armed)

    def ask_standing(self) -> None:
        """Let agents write down where they stand, and tasks what they are at, as evidence of a hang."""
        for node in self.running():
            node.send(DEBUG_STATE_SIGNAL, to_task=True)
        comes(lambda: all(node.last("standing") for node in self.running()), STANDING_S)

    def end_job(self) -> None:
        """The job ends at its next iteration."""
        self._end_file.touch()

    def __enter__(self) -> "ChaosNodes":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for node in self.nodes:
            node.close()
        self._terms = None  # its connection ends with it
        self.kill_store()
