"""A job of the launcher on hosts of the lab: its store, its nodes, and the judge at its end.

What the tasks do is `tests/harness/chaos_app.py`: every sample is counted, or a linear model is certified, and
`cluster_truth` compares what all of them have written down.
"""

import itertools
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path

from chicle_elastic.cluster.agent.node_agent import DEBUG_STATE_SIGNAL
from chicle_elastic.cluster.consensus.term_store import TermStore
from chicle_elastic.cluster.net.peers import node_of
from chicle_elastic.cluster.options import DEFAULT_RUN_ID
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.transports.secret import JobSecret
from tests.harness.chaos_app import NUM_ROWS
from tests.harness.cluster_truth import Evidence, judge
from tests.harness.forked import NodeEvents, launch
from tests.hosts.host import Host
from tests.hosts.lab import Lab
from tests.timeouts import comes

STORE = "store"
"""Name of the host of the store."""
PORT = 29400
GRACE_S = 10.0
MAX_RESTARTS = 1000
MAX_NODES = 8
START_S = 60.0
STUCK_S = 20.0
"""After so long without an iteration a job hangs. Agents declare a silent peer dead after 2 s."""
END_S = 30.0
MAX_BROKEN = 50
"""Rounds that break while nodes come together: more than that many, and they never will."""


class Node(NodeEvents):
    """A node, on a host of its own.

    Attributes:
        host: Where it runs; it has the node's name.
        process: Its agent.
    """

    def __init__(self, host: Host, arguments: Sequence[str], log: Path) -> None:
        super().__init__(host.name, log)
        self.host = host
        self.process = host.fork(launch, arguments, {}, output=log / f"{self.name}.out")

    @property
    def is_running(self) -> bool:
        """Whether its agent has not ended."""
        return self.process.poll() is None

    def notice(self) -> None:
        """The node will be taken away: SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for the agent and its task; their host stays, and its kernel closes their connections."""
        self.host.kill_processes()


class Job:
    """One job. The lab ends its processes.

    Args:
        lab: Where its hosts are, or will be.
        work: "count" counts every sample; "svm" ends with a certificate.
        min_ms: Shortest time of an iteration.
        endpoint: Of the store, as nodes write it; by default the address of the host `STORE`, which is started.
        patience_s: The quorum timeout.
        more: Further options of every node.

    Attributes:
        lab: The lab.
        log: Folder of event files and outcomes.
        nodes: All that were started.
        endpoint: Of the store.
    """

    def __init__(
        self,
        lab: Lab,
        *,
        work: str = "count",
        min_ms: float = 20.0,
        endpoint: str = "",
        patience_s: float = 600.0,
        more: Sequence[str] = (),
    ) -> None:
        self.lab, self.work, self._more = lab, work, more
        self.log = lab.folder.parent / "log"
        self.log.mkdir()
        self.nodes: list[Node] = []
        self._end_file = lab.folder.parent / "end"
        self._secret_file = lab.folder.parent / "job.secret"
        self._min_ms, self._patience_s = min_ms, patience_s
        JobSecret.load_or_create(self._secret_file)
        (self.store_host,) = lab.boot(STORE)
        address = self.store_host.addresses[0]
        self._address = f"[{address}]:{PORT}" if ":" in address else f"{address}:{PORT}"
        self.endpoint = endpoint or self._address
        self.start_store()

    def start_store(self) -> None:
        """Start the store, or start it again."""
        output, line = self.log / "store.out", "rendezvous store at"
        heard = output.read_text().count(line) if output.exists() else 0  # before it starts, which is soon
        arguments = ["--store-only", "--rdzv-endpoint", self._address, "--secret-file", str(self._secret_file)]
        self._store = self.store_host.fork(launch, arguments, {}, output=output)
        assert comes(lambda: self._store.text().count(line) > heard, START_S), (
            f"the store does not listen: {self._store.text()}"
        )

    def kill_store(self) -> None:
        """SIGKILL for the store; its host stays."""
        self._store.send_signal(signal.SIGKILL)
        assert self._store.wait(END_S) == -signal.SIGKILL

    def arguments(self, name: str) -> list[str]:
        """The command line of a node, for the launcher."""
        return [
            *("--nnodes", f"1:{MAX_NODES}", "--name", name, "--max-restarts", str(MAX_RESTARTS)),
            *("--rdzv-endpoint", self.endpoint, "--secret-file", str(self._secret_file)),
            *("--log-dir", str(self.log), "--grace", str(GRACE_S), "--patience", str(self._patience_s), *self._more),
            *("--module", "tests.harness.chaos_app", "--out", str(self.log)),
            *("--end-file", str(self._end_file), "--work", self.work, "--min-ms", str(self._min_ms)),
        ]

    def start(self, host: Host) -> Node:
        """Start a node on a host."""
        node = Node(host, self.arguments(host.name), self.log)
        self.nodes.append(node)
        return node

    def start_members(self, *names: str) -> list[Node]:
        """Boot hosts and start a node on each; wait until all iterate. The node that leads comes first."""
        nodes = [self.start(host) for host in self.lab.boot(*names)]
        self.wait_for_members(nodes)
        leader = self.leader()
        return sorted(nodes, key=lambda node: node.name != leader)

    def leader(self) -> str:
        """Name of the node that leads, by the last term in the store."""

        def look() -> str:
            secret = JobSecret.load(self._secret_file)
            store = StoreConnection(self._address).connect()
            return TermStore(store, run_id=DEFAULT_RUN_ID, secret=secret).look().lead

        return node_of(self.store_host.inside(look))

    def running(self) -> list[Node]:
        """Nodes whose agent has not ended."""
        return [node for node in self.nodes if node.is_running]

    def iteration(self) -> int:
        """The last iteration that any node has merged."""
        return max((node.iteration for node in self.nodes), default=0)

    def wait_for_members(self, nodes: Iterable[Node], *, seconds: float = START_S) -> None:
        """Wait for an iteration from now on in which exactly these nodes take part, and no sample is missing."""
        nodes = list(nodes)
        names, before = {node.name for node in nodes}, self.iteration()
        num_broken = self._num_broken(nodes)

        def are_there() -> bool:
            assert self._num_broken(nodes) - num_broken <= MAX_BROKEN, self.describe(f"all rounds of {nodes} break")
            self.require_one_job()
            self.require_running(nodes)
            lasts = [node.last("iteration") for node in nodes]
            return all(
                last is not None
                and last["iteration"] > before
                and last["samples"].keys() == names
                and sum(last["samples"].values()) == NUM_ROWS
                for last in lasts
            )

        assert comes(are_there, seconds), self.describe(f"no iteration of all of {nodes} after {before}")

    def require_one_job(self) -> None:
        """No node has begun the job anew; the judge says so, too, but not before the nodes have met."""
        begun = {event["job"]: node.name for node in self.nodes for event in node.events("job")}
        assert len(begun) <= 1, self.describe(f"the job was begun {len(begun)} times, lately by {[*begun.values()]}")

    def require_running(self, nodes: Iterable[Node]) -> None:
        """None of these nodes has ended."""
        ended = [node for node in nodes if not node.is_running]
        assert not ended, self.describe(f"{ended} ended")

    @staticmethod
    def _num_broken(nodes: Iterable[Node]) -> int:
        return max((len(node.events("broken")) for node in nodes), default=0)

    def wait_for_progress(self, nodes: Iterable[Node], *, iterations: int = 20, seconds: float = STUCK_S) -> None:
        """Wait until each of these nodes has merged so many iterations more than any node now."""
        nodes = list(nodes)
        goal = self.iteration() + iterations

        def are_there() -> bool:
            self.require_running(nodes)
            return all(node.iteration >= goal for node in nodes)

        assert comes(are_there, seconds), self.describe(f"not all of {nodes} come to iteration {goal}")

    def wait_for_progress_of_any(self, *groups: Iterable[Node], iterations: int = 20) -> int:
        """Wait until all nodes of some group have made progress; returns the group's number."""
        goal = self.iteration() + iterations
        sides = [list(group) for group in groups]

        def done() -> list[int]:
            return [i for i, side in enumerate(sides) if all(node.iteration >= goal for node in side)]

        assert comes(lambda: bool(done()), STUCK_S), self.describe(f"none of {sides} comes to {goal}")
        return done()[0]

    def part(self, *groups: Iterable[Node], has_store: Sequence[bool]) -> None:
        """Cut the groups of nodes from each other, and from the store those that are not to have it."""
        names = [[node.name for node in group] for group in groups]
        self.lab.network.part(*([*group, STORE] if has else group for group, has in zip(names, has_store, strict=True)))

    def hold(self, seconds: float) -> None:
        """Let a fault last: the time is part of the scenario, and nothing is expected of it."""
        comes(lambda: False, seconds)

    def end(self, survivors: Iterable[Node]) -> Evidence:
        """End the job with these nodes as its members, judge it, and look for what it left on their hosts."""
        survivors = list(survivors)
        self.wait_for_members(survivors)
        self._end_file.touch()
        for node in survivors:
            assert node.process.wait(END_S) == 0, self.describe(f"{node} does not end in order")
        evidence = Evidence.read(self.log)
        findings = judge(evidence, self.work)
        assert findings == [], "\n".join(str(finding) for finding in findings[:40])
        assert len(evidence.outcomes) == len(survivors)
        left = [line for node in survivors for line in node.host.leftovers()]
        assert left == []
        return evidence

    def stalls(self) -> dict[str, float]:
        """The longest time between two iterations of each node, in seconds: to be printed, never asserted."""
        longest = {}
        for node in self.nodes:
            times = [event["time"] for event in node.events("iteration")]
            longest[node.name] = max((b - a for a, b in itertools.pairwise(times)), default=0.0)
        return longest

    def describe(self, what: str) -> str:
        """What went wrong, with what every node is at."""
        for node in self.running():
            node.process.send_signal(DEBUG_STATE_SIGNAL)
        comes(lambda: all(node.last("standing") for node in self.running()), 2.0)
        lines = [what, f"switch: {self.lab.network.counts()}"]
        for node in self.nodes:
            kinds = [f"{event['kind']}" for event in node.events() if event["kind"] not in ("iteration", "ledger")]
            lines += [
                f"--- {node}: exit code {node.process.poll()}, iteration {node.iteration}, last events {kinds[-12:]}",
                f"    standing {node.last('standing')}",
                *(f"    {line}" for line in node.process.text().splitlines()[-8:]),
            ]
        return "\n".join(lines)
