"""Nodes of the spot benchmark: each an agent and a task, processes that can be told and killed like machines.

Both are forked from a process that has everything imported. Half a minute stands for an hour here, so a start of 4 s
would stand for one of 8 minutes; and four at once take 12 s on two cores. A forked start takes about a second.

    python -m benchmarks.spot
      └ fork server of multiprocessing, with torch and Chicle imported
          └ agent: the launcher's `run_node`; before it has a thread, it forks
              └ task: waits for the environment that its agent gives tasks, then runs `train`
"""

import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paced import PacedCocoa
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.agent.process_agent import ProcessAgent
from chicle_elastic.cluster.agent.task_end import TaskEnd
from chicle_elastic.cluster.launcher import exit_code_of, run_node
from chicle_elastic.cluster.net.event_file import EventTail
from chicle_elastic.cluster.options import AgentCommand, parse
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from chicle_elastic.runtime.training.job import Job

NUM_ROWS, NUM_FEATURES = 20_000, 28
POLL_S = 0.002
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    [
        "benchmarks.spot_nodes",
        "benchmarks.spot_trace",
        "benchmarks.report",
        "chicle_elastic.resources.schedule",
        "chicle_elastic.runtime.in_process",
        "chicle_elastic.runtime.cluster_task.task",
        "chicle_elastic.solvers.linear.solver",
        "torch.distributed.run",
    ]
)


def problem(max_tasks: int) -> tuple[PacedCocoa, ArraySource]:
    """The trainer, without pace, and the data."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((NUM_ROWS, NUM_FEATURES))
    y = (X[:, 0] + rng.standard_normal(NUM_ROWS) > 0).astype(np.int32)
    return PacedCocoa(C=100 / NUM_ROWS, tol=0.0), ArraySource(X, y, max_tasks=max_tasks)


def train(folder: Path, iteration_s: float, num_iterations: int) -> None:
    """What a task runs: a job as a script has it; the tasks that stay to the end write down what came of it."""
    runtime = cluster_runtime()
    plain, source = problem(runtime.most_tasks())
    trainer = PacedCocoa(C=plain.C, tol=plain.tol, iteration_s=iteration_s)
    outcome = runtime.run(Job(trainer=trainer, source=source, max_iterations=num_iterations))
    assert outcome.certificate is not None
    figures = trainer.figures(outcome.model, outcome.certificate)
    result = {"time": time.time(), "iterations": outcome.history[-1].iteration, **figures}
    (folder / f"{os.getpid()}.result.json").write_text(json.dumps(result))


class SpotAgent(ProcessAgent):
    """An agent whose task was forked ahead.

    Args:
        task: Process id of that task.
        to_task: Descriptor from which it reads its environment.
    """

    def __init__(self, *args: Any, task: int, to_task: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pid, self._to_task, self._code = task, to_task, None

    _code: int | None

    def spawn_task(self) -> int:
        """Give the task its environment."""
        os.write(self._to_task, json.dumps(dict(self.task_environment())).encode())
        os.close(self._to_task)
        return self._pid

    def task_exit(self, timeout_s: float = 0.0) -> TaskEnd | None:
        """How the task ended, or None when it still runs after `timeout_s` seconds."""
        end_s = time.monotonic() + timeout_s
        while self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= end_s:
                return None
            else:
                time.sleep(POLL_S)
        return TaskEnd(self._code)

    def signal_task(self, number: signal.Signals) -> None:
        """Send the task a signal, if it runs."""
        if self.task_exit() is None:
            os.kill(self._pid, number)


def run_machine(arguments: Sequence[str], output: str, work: Callable[[], None]) -> None:
    """Body of the process of an agent."""
    with open(output, "a", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    from_agent, to_task = os.pipe()
    task = os.fork()  # now: this process has one thread
    if task == 0:
        os.close(to_task)
        _be_task(from_agent, work)
    os.close(from_agent)
    command = parse([*arguments, "-"])
    assert isinstance(command, AgentCommand)
    make_agent = partial(SpotAgent, task=task, to_task=to_task)
    os._exit(exit_code_of(lambda: run_node(command, make_agent=make_agent)))


def _be_task(from_agent: int, work: Callable[[], None]) -> None:
    """Never returns."""
    code = 1
    try:
        with os.fdopen(from_agent) as file:
            text = file.read()
        if text:  # else the agent has ended before
            os.environ.update(json.loads(text))
            work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


class Machine:
    """A machine: its agent and its task.

    Args:
        name: Of the node; never used twice.
        arguments: Of the launcher.
        folder: For its files; that of its event file.
        work: What its task runs.

    Attributes:
        came_s: When it came, seconds since 1970.
        gone_s: When it was taken, or has ended with the job; None before.
        noticed_s: When it was told; None if it was not.
    """

    def __init__(self, name: str, arguments: Sequence[str], folder: Path, work: Callable[[], None]) -> None:
        self.name = name
        self.came_s = time.time()
        self.gone_s: float | None = None
        self.noticed_s: float | None = None
        self._output = folder / f"{name}.out"
        self._tail = EventTail(folder, name)
        self._events: list[dict[str, Any]] = []
        self._process = PROCESSES.Process(target=run_machine, args=(arguments, str(self._output), work))
        self._process.start()

    def notice(self) -> None:
        """It will be taken soon: SIGTERM to its agent."""
        self.noticed_s = time.time()
        self._kill(self._process.pid, signal.SIGTERM)

    def take(self) -> None:
        """It is gone: SIGKILL to whatever is left of it."""
        if self.gone_s is None:
            self.gone_s = time.time()
        hot = [event["pid"] for event in self.events() if event["kind"] == "hot"]
        if self._process.is_alive():
            self._kill(self._process.pid, signal.SIGKILL)
            for pid in hot[-1:]:
                self._kill(pid, signal.SIGKILL)
        self._process.join()

    @property
    def exit_code(self) -> int | None:
        """Of its agent; None while it runs."""
        return self._process.exitcode

    def events(self) -> list[dict[str, Any]]:
        """All lines of its event file."""
        self._events += self._tail.read()
        return self._events

    def output(self) -> str:
        """The last that it has printed."""
        return self._output.read_text(errors="replace")[-3000:] if self._output.exists() else ""

    def _kill(self, pid: int | None, number: signal.Signals) -> None:
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
