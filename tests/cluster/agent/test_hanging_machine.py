"""Real agents on a machine that hangs in part: a console that nobody reads, and a disk that gives no answer."""

import contextlib
import os
import signal
from functools import partial
from pathlib import Path

from chicle_elastic import disk_watch
from tests.cluster.cluster_harness import LocalAgents, paced_script
from tests.mounts import hanging
from tests.timeouts import comes


def fill_stderr(path: Path) -> None:
    """Make stderr a pipe that is full."""
    sender = os.open(path, os.O_WRONLY)
    os.set_blocking(sender, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(sender, bytes(1)):
            pass
    os.set_blocking(sender, True)
    os.dup2(sender, 2)


def test_an_agent_whose_stderr_nobody_reads_stays_in_the_job(tmp_path: Path) -> None:
    """It has status lines and warnings to print, and ends although nobody has read a byte."""
    os.mkfifo(tmp_path / "pipe")
    receiver = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with LocalAgents(tmp_path, script=paced_script(tmp_path), options=("-r", "2")) as cluster:
        other = cluster.start("n0")
        deaf = cluster.start("n1", before=partial(fill_stderr, tmp_path / "pipe"))
        other.wait_for_members(2)
        os.kill(deaf.task_pid, signal.SIGKILL)
        deaf.wait_for("task_died")
        other.wait_for_members(2)
        deaf.signal(signal.SIGTERM)
        assert deaf.wait_for_end() == 0
        deaf.assert_none("expelled")
    os.close(receiver)


def tell_soon() -> None:
    """Let the process tell of a disk before it has hung for long."""
    disk_watch.HANGS_S = 0.1


def test_an_agent_whose_disk_hangs_says_so_and_heeds_a_notice(tmp_path: Path) -> None:
    """The disk with the log files of its task, which is to be started again."""
    with LocalAgents(tmp_path, script=paced_script(tmp_path), options=("-r", "3")) as cluster:
        agent = cluster.start("n0", before=tell_soon)
        agent.wait_for("iteration")
        [attempt] = tmp_path.glob("*/attempt_0")
        with hanging(attempt.parent):
            os.kill(agent.task_pid, signal.SIGKILL)
            assert comes(lambda: f"the disk of {tmp_path} hangs or is slow" in agent.output())
            agent.signal(signal.SIGTERM)
            assert agent.wait_for_end() == 0, agent.output()
