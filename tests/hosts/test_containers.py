"""A node as the first process of a container, where the kernel ignores signals that a process has no handler for."""

import signal
import sys
from pathlib import Path

import pytest

from chicle_elastic.cluster.net.event_file import read_events
from tests.harness.forked import has_loaded
from tests.hosts.host import Host
from tests.hosts.host_process import ProgramProcess
from tests.hosts.job import Job
from tests.hosts.lab import Lab
from tests.timeouts import comes

pytestmark = pytest.mark.hosts

START_S = 30.0
END_S = 12.0
"""Less than the grace period of usual resource managers, after which a container is killed."""
INIT = 'trap "kill -TERM \\$!" TERM; "$@" & wait; wait $!'
"""What docker --init and tini do, in the shell: pass SIGTERM on, and end like the child."""


def start(job: Job, host: Host, *init: str) -> ProgramProcess:
    """Start a node in a container, without the head start of forked agents."""
    command = [*init, sys.executable, "-m", "chicle_elastic.launch", *job.arguments(host.name)]
    process = host.start(command, job.log / f"{host.name}.out", environ={}, is_container=True)
    assert comes(lambda: process.pid is not None, START_S)
    return process


def test_a_container_gets_sigterm_while_its_node_imports_torch(lab: Lab) -> None:
    """Some 0.5 s after its start, for the options: the node ends long before a resource manager would kill it."""
    job = Job(lab)
    process = start(job, *lab.boot("n1"))
    assert comes(lambda: has_loaded(process.pid or 0, "libtorch_cpu"), START_S), process.text()
    end_by_sigterm(process)


def test_a_container_gets_sigterm_while_its_task_starts(lab: Lab) -> None:
    """Some 2 s after its start: the agent runs, and its task imports torch."""
    job = Job(lab)
    process = start(job, *lab.boot("n1"))
    assert comes(lambda: any(event["kind"] == "started" for event in read_events(job.log)), START_S)
    end_by_sigterm(process)


def end_by_sigterm(process: ProgramProcess) -> None:
    """Send SIGTERM; the node ends in order, or by the signal."""
    process.send_signal(signal.SIGTERM)
    code = process.wait(END_S)
    assert code in (0, 128 + signal.SIGTERM, -signal.SIGTERM), f"exit code {code}: {process.text()}"


def test_a_container_with_an_init_gets_sigterm_before_python_runs(lab: Lab) -> None:
    """50 ms after its start a node has no handler yet; it is not process 1, so the signal ends it."""
    job = Job(lab)
    process = start(job, *lab.boot("n1"), "sh", "-c", INIT, "sh")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    assert comes(lambda: bool(children.read_text()), START_S)
    job.hold(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(END_S) in (0, 128 + signal.SIGTERM), process.text()  # 0 if Python was quick and handled it
