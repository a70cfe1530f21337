"""The agent of a node that was started by its command line: its task is a process that it starts.

The agent imports no torch: a node that waits has a third of the memory. A task that needs torch imports it.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

from chicle_elastic.cgroups import MemoryKills
from chicle_elastic.cluster.agent.node_agent import NodeAgent
from chicle_elastic.cluster.agent.task_end import TaskEnd
from chicle_elastic.cluster.agent.task_output import TaskOutput
from chicle_elastic.cluster.options import NodeOptions
from chicle_elastic.cluster.rendezvous.job_entry import JobEntry
from chicle_elastic.cluster.task_options import TaskOptions
from chicle_elastic.settings import environment_of_task

LAST_S = 1.0  # how long a task whose channel is gone may take to end before the next one starts


class ProcessAgent(NodeAgent):
    """Runs a node whose task is a process in a session of its own. Raises UsageError when its log files cannot be."""

    def __init__(self, *, entry: JobEntry, options: NodeOptions, task_options: TaskOptions, restarts: int) -> None:
        super().__init__(entry=entry, options=options, command=task_options.command, restarts=restarts)
        self._role, self._max_restarts = task_options.role, restarts
        self._output = TaskOutput(task_options, entry.run_id)
        self._process: subprocess.Popen[bytes] | None = None

    def start_task(self, *, is_restart: bool = False) -> int:
        """Start the task, before and independently of any round; no task may be running. Returns its process id."""
        self.restarts_left -= is_restart
        self.memory_kills = MemoryKills()
        return self.spawn_task()

    def spawn_task(self) -> int:
        """Start a process; a subclass that overrides this overrides `task_exit` and `stop_task` as well. Returns its
        process id. Raises UsageError when the program or a folder for its output is not there."""
        environment = environment_of_task(self.task_environment())
        if self.task_exit(LAST_S) is None:  # the channel of the last task is gone: it ends, or it hangs
            self.stop_task(number=signal.SIGKILL, grace_s=LAST_S)
        with self._output.open(environment) as (stdout, stderr):
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

    def task_exit(self, timeout_s: float = 0.0) -> TaskEnd | None:
        """Return how the task ended, or None when it still runs after `timeout_s` seconds, or none was started."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout_s)
            self._output.end()
            return TaskEnd(code, self._process.pid, self._output.error_file)
        return None

    def stop_task(self, *, number: signal.Signals = signal.SIGTERM, grace_s: float = 5.0) -> None:
        """End the task and its processes with a signal, after the grace period by SIGKILL. Does nothing when none
        runs."""
        for number_now in (number, signal.SIGKILL):
            if self._process is not None and self._process.poll() is None:
                os.killpg(self._process.pid, number_now)  # its session: it has not been waited for, so the id is its
                self.task_exit(grace_s)
        self._output.end()
        self._process = None
