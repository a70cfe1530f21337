"""Tasks that are forked from a process which has imported torch: seconds per task otherwise.

The agent of a test asks for its task over a Unix socket, a line of JSON, and reads its process id and, when it has
ended, its exit code. Nothing else of agent or task differs from the launcher's.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from chicle_elastic.cluster.agent.process_agent import ProcessAgent
from chicle_elastic.cluster.agent.task_end import TaskEnd

WARM = (
    "import torch, torch.utils.data, torch.optim, torch._dynamo\n"
    "import chicle_elastic.torch, tests.loop.train_loop\n"
    "from tests.loop.forked_tasks import serve\n"
    "import sys\n"
    "serve(sys.argv[1])"
)


class TaskServer:
    """The process that tasks are forked from. A context manager that ends it; its tasks end with their agents."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "tasks")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.address)
        listener.listen(64)
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", WARM, str(listener.fileno())]
        self._process = subprocess.Popen(command, env=environ, pass_fds=[listener.fileno()])
        listener.close()

    def __enter__(self) -> "TaskServer":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait()
        Path(self.address).unlink()


def serve(fd: str) -> None:
    """Fork tasks until the end of this process; tell who asked the process id of each, and how it ended."""
    listener = socket.socket(fileno=int(fd))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tasks: dict[int, tuple[int, socket.socket]] = {}
    while True:
        waiting: list[Any] = [listener, *tasks]
        for ready in select.select(waiting, [], [])[0]:
            if ready is listener:
                connection, _ = listener.accept()
                with connection.makefile("r") as lines:
                    order = json.loads(lines.readline())
                pid = os.fork()
                if not pid:
                    for inherited in (listener, connection, *(other for _, other in tasks.values())):
                        inherited.close()
                    _run(order)
                said, tasks[os.pidfd_open(pid)] = pid, (pid, connection)
            else:
                pid, connection = tasks.pop(ready)
                os.close(ready)
                said = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(f"{said}\n".encode())
            if ready is not listener:
                connection.close()


def _run(order: dict[str, Any]) -> None:
    """Body of the task."""
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.setsid()
    os.environ.update(order["environ"])
    code = 1
    try:
        from tests.loop import train_loop

        sys.argv = order["argv"]
        train_loop.main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class ForkedTask:
    """The task of an agent."""

    def __init__(self, address: str, order: dict[str, Any]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._socket.sendall((json.dumps(order) + "\n").encode())
        self._lines = self._socket.makefile("r")
        self.pid = int(self._lines.readline())
        self.exit_code: int | None = None

    def poll(self, timeout_s: float) -> int | None:
        """The exit code; None while it runs."""
        if self.exit_code is None and select.select([self._socket], [], [], timeout_s)[0]:
            self.exit_code = int(self._lines.readline() or -signal.SIGKILL)
        return self.exit_code

    def close(self) -> None:
        """Give the descriptors back."""
        self._lines.close()
        self._socket.close()


class AgentOfForkedTasks(ProcessAgent):
    """An agent whose task comes from a `TaskServer`, at the address that the environment of the agent names."""

    _task: ForkedTask | None = None

    def spawn_task(self) -> int:
        """Ask for the task."""
        output = os.readlink("/proc/self/fd/1")
        argv = self._command[2:]  # without python -u
        order = {"argv": list(argv), "environ": dict(self.task_environment()), "output": output}
        self._task = ForkedTask(os.environ["FORKED_TASKS"], order)
        return self._task.pid

    def task_exit(self, timeout_s: float = 0.0) -> TaskEnd | None:
        """How the task ended, or None when it still runs."""
        if self._task is None or (code := self._task.poll(timeout_s)) is None:
            return None
        return TaskEnd(code)

    def signal_task(self, number: signal.Signals) -> None:
        """Send the task a signal, if it runs."""
        if self._task is not None and self._task.poll(0.0) is None:
            os.kill(self._task.pid, number)

    def stop_task(self) -> None:
        """End the task."""
        super().stop_task()
        if self._task is not None:
            self._task.close()
            self._task = None


def fork_tasks() -> None:
    """Make the launcher of this process, an agent of the tests, fork its tasks."""
    from chicle_elastic.cluster import launcher

    launcher.ProcessAgent = AgentOfForkedTasks  # type: ignore[misc]
