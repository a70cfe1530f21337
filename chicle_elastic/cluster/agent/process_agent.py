"""The agent of a node that was started by its command line: its task is a process that it starts.

The agent imports no torch: a node that waits has a third of the memory. A task that needs torch imports it.
"""

import contextlib
import functools
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from chicle_elastic.cgroups import MemoryKills
from chicle_elastic.cluster.agent.node import TASK_END_S
from chicle_elastic.cluster.agent.node_agent import NodeAgent
from chicle_elastic.cluster.agent.task_end import TaskEnd
from chicle_elastic.cluster.agent.task_output import TaskOutput
from chicle_elastic.cluster.net.worker_lanes import Lane
from chicle_elastic.cluster.options import NodeOptions
from chicle_elastic.cluster.rendezvous.job_entry import JobEntry
from chicle_elastic.cluster.task_options import TaskOptions
from chicle_elastic.disk_watch import asking
from chicle_elastic.settings import environment_of_task

logger = logging.getLogger(__name__)

POLL_S = 0.2  # how often to look whether the task has ended where no descriptor says so


class ProcessAgent(NodeAgent):
    """Runs a node whose task is a process in a session of its own. Raises UsageError when its log files cannot be."""

    def __init__(self, *, entry: JobEntry, options: NodeOptions, task_options: TaskOptions, restarts: int) -> None:
        super().__init__(entry=entry, options=options, command=task_options.command, restarts=restarts)
        self._role, self._max_restarts = task_options.role, restarts
        self._output = TaskOutput(task_options, entry.run_id)
        self._process: subprocess.Popen[bytes] | None = None
        self._watched = contextlib.ExitStack()

    def start_task(
        self, *, started: Callable[[int], object], ended: Callable[[], object], is_restart: bool = False
    ) -> None:
        """Have the task started by a worker thread, which may wait for a disk, before and independently of any round;
        no task may be running."""
        self.restarts_left -= is_restart
        self.memory_kills = MemoryKills()

        def then(future: "Future[int]") -> None:
            pid = future.result()
            started(pid)
            self._watch_end(pid, ended)

        self._loop.work(self.spawn_task, then, lane=Lane.DISK)

    def spawn_task(self) -> int:
        """Start a process; a subclass that overrides this overrides `task_exit` and `signal_task` as well. Returns its
        process id. Raises UsageError when the program or a folder for its output is not there."""
        environment = environment_of_task(self.task_environment())
        with self._output.open(environment) as (stdout, stderr), asking(self._command[0]):
            # A session of its own: Ctrl-C in the terminal of the agent ends the task by way of the agent.
            self._process = subprocess.Popen(
                self._command, env=environment, stdout=stdout, stderr=stderr, start_new_session=True
            )
        return self._process.pid

    def task_environment(self) -> Mapping[str, str]:
        """Return environment variables of the task on top of those of this process: torchrun's for a node with one
        task, the address of the agent, and the maximum number of nodes; no secret of the job."""
        entry = self._entry
        environment = {
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "ROLE_NAME": self._role,
            "TORCHELASTIC_RESTART_COUNT": str(self._max_restarts - self.restarts_left),
            "TORCHELASTIC_MAX_RESTARTS": str(self._max_restarts),
            "TORCHELASTIC_RUN_ID": entry.run_id,
            "CHICLE_CONTROL": self._control,
            "CHICLE_MAX_NODES": str(entry.max_nodes),
        }
        return environment | {"CHICLE_SECRET": ""} if self._options.secret_file is None else environment

    def script_end(self) -> TaskEnd | None:
        """Return how the task ended; waits for its script without a limit, until a signal ends the agent."""
        ended = self.task_exit(TASK_END_S)
        if ended is None and self._process is not None:
            logger.warning("the job is over; %s waits for what its script does after it", self._options.node)
            while ended is None:
                ended = self.task_exit(TASK_END_S)
        return ended

    def task_exit(self, timeout_s: float = 0.0) -> TaskEnd | None:
        """Return how the task ended, or None when it still runs after `timeout_s` seconds, or none was started."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout_s)
            self._output.end()
            return TaskEnd(code, self._process.pid, self._output.error_file)
        return None

    def signal_task(self, number: signal.Signals) -> None:
        """Send a signal to the task and its processes; to nobody when none runs."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, number)  # its session: it has not been waited for, so the id is its

    def stop_task(self) -> None:
        """End the task, and print what it has still written."""
        super().stop_task()
        self._watched.close()
        self._output.close()

    def _watch_end(self, pid: int, ended: Callable[[], object]) -> None:
        try:
            fd = os.pidfd_open(pid)
        except OSError:  # it has ended, or Linux is older than 5.3
            self._look_for_end(ended)
        else:
            self._watched.callback(os.close, fd)
            self._watched.callback(self._loop.forget, fd)
            self._loop.watch(fd, functools.partial(self._look_for_end, ended))

    def _look_for_end(self, ended: Callable[[], object]) -> None:
        self._watched.close()
        if self.task_exit() is None:
            self._loop.later(POLL_S, functools.partial(self._look_for_end, ended))
        else:
            ended()
