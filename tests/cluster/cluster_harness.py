"""Real agents and tasks on this host: started by the launcher, watched through their event files."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from chicle_elastic.cluster.consensus.term_store import TermStore
from chicle_elastic.cluster.options import DEFAULT_RUN_ID
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.transports.secret import JobSecret
from tests.harness.forked import ROOT, Event, Forked, NodeEvents, launch
from tests.timeouts import timeout_s

__all__ = ["ROOT"]
POLL_S = 0.005
SCRIPT = Path(__file__).with_name("train_svm.py")
PACED = ROOT / "tests/harness/paced_app.py"


class AgentProcess(NodeEvents):
    """One node: the process of its agent, and what it has written down."""

    def __init__(self, name: str, process: Forked, folder: Path) -> None:
        super().__init__(name, folder)
        self.process = process
        self.signal, self.kill_all, self.output = process.send_signal, process.kill_all, process.text

    def assert_none(self, *kinds: str) -> None:
        """It has written no event of these kinds; else what it wrote since the one before is shown, reasons and all."""
        events = self.events()
        found = next((number for number, event in enumerate(events) if event["kind"] in kinds), None)
        if found is not None:
            told = [event for event in events[: found + 20] if event["kind"] not in ("ledger", "iteration")]
            raise AssertionError("\n".join(str(event)[:400] for event in told[-40:]))

    def wait_for(self, kind: str, is_it: Callable[[Event], bool] = lambda _: True, *, after: int = 0) -> Event:
        """The first such event behind the first `after` events of all kinds, as soon as it is there."""
        end = time.monotonic() + timeout_s(120)
        while time.monotonic() < end:
            has_ended = self.process.poll() is not None
            events = self.events()
            for event in events[after:]:
                if event["kind"] == kind and is_it(event):
                    return event
            if has_ended and len(events) == after:
                break
            after = len(events)
            time.sleep(POLL_S)
        kinds = [event["kind"] for event in self.events()][-20:]
        raise AssertionError(f"{self.name} never wrote {kind!r}; its last events: {kinds}\n{self.output()[-3000:]}")

    def wait_for_members(self, count: int) -> Event:
        """The first iteration from now on that so many nodes took part in."""
        return self.wait_for("iteration", lambda event: len(event["seconds"]) == count, after=len(self.events()))

    def wait_for_end(self) -> int | None:
        """Its exit code; None where it does not end."""
        return self.process.wait(60)


class LocalAgents:
    """A rendezvous store in this process, and agents beside it. A context manager that ends them all.

    Args:
        folder: For everything.
        nodes: torchrun's --nnodes.
        script: What tasks run, with its arguments.
        options: Further options of the launcher.
        has_log_dir: Whether nodes write event files, which most of this harness reads.
        temporary: Where nodes put temporary files; by default where the system wants them.
        endpoint: Of a store that the caller runs; by default there is one in this process.
        environ: Further variables of agents and tasks.
    """

    def __init__(
        self,
        folder: Path,
        *,
        nodes: str = "1:8",
        script: tuple[str, ...] = (str(SCRIPT),),
        options: tuple[str, ...] = (),
        has_log_dir: bool = True,
        temporary: Path | None = None,
        endpoint: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.agents: dict[str, AgentProcess] = {}
        self.end_file = folder / "end"
        self._nodes, self._script = nodes, script
        self._options = (*(("--log-dir", str(folder)) if has_log_dir else ()), *options)
        self._environ = {**(environ or {}), **({"TMPDIR": str(temporary)} if temporary else {})}
        self._secret_file = folder / "job.secret"
        JobSecret.load_or_create(self._secret_file)
        self.store: StoreServer | None = None
        if endpoint is None:
            self.store = StoreServer()
            endpoint = self.store.endpoint
        self.endpoint = endpoint

    def start(
        self,
        name: str,
        *,
        secret_file: Path | None = None,
        options: tuple[str, ...] = (),
        before: Callable[[], object] | None = None,
    ) -> AgentProcess:
        """Start a node; a second one of a name is called NAME+ here.

        Args:
            name: Of the node.
            secret_file: By default that of the job.
            options: For this node only.
            before: Called in the process of the agent, before everything else.
        """
        arguments = [
            *("--nnodes", self._nodes, "--name", name),
            *("--rdzv-endpoint", self.endpoint, "--secret-file", str(secret_file or self._secret_file)),
            *self._options,
            *options,
            *self._script,
        ]
        key = f"{name}+" if name in self.agents else name
        process = Forked(launch, arguments, self._environ, before, output=self.folder / f"{key}.out")
        self.agents[key] = AgentProcess(name, process, self.folder)
        return self.agents[key]

    def term_store(self) -> TermStore:
        """What agents have stored; over a connection of its own."""
        secret = JobSecret.load(self._secret_file)
        return TermStore(StoreConnection(self.endpoint).connect(), run_id=DEFAULT_RUN_ID, secret=secret)

    def results(self) -> Iterator[dict[str, Any]]:
        """What the tasks that stayed to the end have written down."""
        for path in self.folder.glob("*.result.json"):
            yield json.loads(path.read_text())

    def end(self) -> None:
        """Let the job end at its next iteration, and all agents with it."""
        self.end_file.touch()

    def __enter__(self) -> "LocalAgents":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self.agents.values():
            agent.process.kill_all()
            agent.process.close()
        if self.store is not None:
            self.store.close()


def start_all(cluster: LocalAgents, count: int) -> list[AgentProcess]:
    """Start n0, n1, ... and wait until all of them iterate; n0 leads."""
    first = cluster.start("n0")
    first.wait_for("iteration")
    agents = [first, *(cluster.start(f"n{number}") for number in range(1, count))]
    first.wait_for_members(count)
    return agents


def end_all(cluster: LocalAgents, agents: list[AgentProcess]) -> None:
    """End the job once no chunk is missing (there is no certificate otherwise), and compare the outcomes."""
    rows = max(sum(event["samples"].values()) for event in agents[0].events("iteration"))
    here = len(agents[0].events())
    agents[0].wait_for("iteration", lambda event: sum(event["samples"].values()) == rows, after=here)
    cluster.end()
    for agent in agents:
        assert agent.wait_for_end() == 0, agent.output()
    results = list(cluster.results())
    assert len(results) == len(agents)
    assert all(result == results[0] for result in results)
    assert results[0]["gap"] is not None, "the model at the end is certified"


def svm_script(folder: Path, *options: str) -> tuple[str, ...]:
    """The arguments of the training script of the tests."""
    return (str(SCRIPT), "--out", str(folder), "--end-file", str(folder / "end"), *options)


def paced_script(folder: Path, *options: str) -> tuple[str, ...]:
    """The arguments of the script that counts, 20 ms an iteration, until the job is ended."""
    until = ("--end-file", str(folder / "end"), "--iterations", "100000")
    return (str(PACED), "--out", str(folder), *until, "--no-policy", "--min-ms", "20", *options)
