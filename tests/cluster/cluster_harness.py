"""Real agents and tasks on this host: started by the launcher, watched through their event files.

Agents are forked from a process that has everything imported, and run the launcher there: seconds per agent otherwise.
Tasks are started by their agents, like anywhere.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from chicle_elastic.cluster.consensus.term_store import TermStore
from chicle_elastic.cluster.net.event_file import EventTail
from chicle_elastic.cluster.options import DEFAULT_RUN_ID
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.cluster.rendezvous.store_connection import StoreConnection
from chicle_elastic.transports.secret import JobSecret
from tests.runtime.cluster_task.cluster_driver import CONTEXT
from tests.timeouts import timeout_s

POLL_S = 0.005
SCRIPT = Path(__file__).with_name("train_svm.py")
ROOT = Path(__file__).parents[2]

Event = dict[str, Any]


def run_launcher(
    arguments: list[str], output: str, environ: dict[str, str], before: Callable[[], object] | None
) -> None:
    """Body of the process of an agent: `python -m chicle_elastic.launch`."""
    with open(output, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.update(environ)
    tempfile.tempdir = None  # the process that this one was forked from may have looked
    os.chdir(ROOT)
    from chicle_elastic.cluster import launcher

    if before is not None:
        before()
    sys.exit(launcher.main(arguments))


class LauncherProcess:
    """A forked process with the launcher in it; the methods are those of `subprocess.Popen`."""

    def __init__(
        self, arguments: list[str], output: Path, environ: dict[str, str], before: Callable[[], object] | None
    ) -> None:
        everything = (arguments, str(output), environ, before)
        self._process = CONTEXT.Process(target=run_launcher, args=everything, daemon=False)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self._exit_code: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self._exit_code is None:
            self._exit_code = self._process.exitcode
        return self._exit_code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, as soon as there is one."""
        if self.poll() is None:
            self._process.join(timeout)
        code = self.poll()
        assert code is not None, f"the agent still runs after {timeout} s"
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def kill_all(self) -> None:
        """SIGKILL for it and its task, which may be stopped: a stopped task does not see that its agent is gone."""
        if self.poll() is None:
            self.send_signal(signal.SIGSTOP)  # it starts no other task meanwhile
            tasks = [
                int(pid)
                for path in Path(f"/proc/{self.pid}/task").glob("*/children")
                for pid in path.read_text().split()
            ]
            for pid in (*tasks, self.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Give its descriptors back, after its end."""
        self.wait()
        self._process.close()


class AgentProcess:
    """One node: the process of its agent, and what it has written down."""

    def __init__(self, name: str, process: LauncherProcess, folder: Path, *, output: Path) -> None:
        self.name = name
        self.process = process
        self._tail = EventTail(folder, name)
        self._output = output
        self._events: list[Event] = []

    def events(self, kind: str | None = None) -> list[Event]:
        """Everything that it has written so far."""
        self._events += self._tail.read()
        return [event for event in self._events if kind in (None, event["kind"])]

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
            self._events += self._tail.read()
            for event in self._events[after:]:
                if event["kind"] == kind and is_it(event):
                    return event
            if has_ended and len(self._events) == after:
                break
            after = len(self._events)
            time.sleep(POLL_S)
        kinds = [event["kind"] for event in self.events()][-20:]
        raise AssertionError(f"{self.name} never wrote {kind!r}; its last events: {kinds}\n{self.output()[-3000:]}")

    def wait_for_members(self, count: int) -> Event:
        """The first iteration from now on that so many nodes took part in."""
        return self.wait_for("iteration", lambda event: len(event["seconds"]) == count, after=len(self.events()))

    def wait_for_end(self) -> int:
        """Its exit code."""
        return self.process.wait(timeout=timeout_s(60))

    @property
    def task_pid(self) -> int:
        """Of the task that became hot last."""
        return int(self.events("hot")[-1]["pid"])

    def signal(self, number: int) -> None:
        """Send a signal to the agent."""
        self.process.send_signal(number)

    def kill_all(self) -> None:
        """SIGKILL for the agent and its task: the node is gone."""
        for pid in (self.process.pid, self.task_pid):
            os.kill(pid, signal.SIGKILL)

    def output(self) -> str:
        """What agent and task have printed."""
        return self._output.read_text() if self._output.exists() else ""


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
        self._store: StoreServer | None = None
        if endpoint is None:
            self._store = StoreServer()
            endpoint = self._store.endpoint
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
        environ = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **self._environ}
        key = f"{name}+" if name in self.agents else name
        output = self.folder / f"{key}.out"
        process = LauncherProcess(arguments, output, environ, before)
        self.agents[key] = AgentProcess(name, process, self.folder, output=output)
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
        if self._store is not None:
            self._store.close()


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
