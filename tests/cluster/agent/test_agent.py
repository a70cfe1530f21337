"""Real agents and tasks on this host: nodes join, leave, die and fall silent while a job trains."""

import functools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chicle_elastic.cluster.consensus.log import KEPT_ENTRIES
from chicle_elastic.cluster.launcher import EXIT_LATE
from chicle_elastic.scheduling.effects import FinishJob
from chicle_elastic.scheduling.replaying import Replay
from chicle_elastic.transports.secret import JobSecret
from tests.cluster.cluster_harness import AgentProcess, LocalAgents, end_all, start_all, svm_script
from tests.harness.forked import is_alive
from tests.timeouts import comes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalAgents]:
    """Agents whose iterations take 20 ms, and whose job goes on until `end()`."""
    script = svm_script(tmp_path, "--min-ms", "20", "--tol", "0")
    with LocalAgents(tmp_path, script=script, options=("--grace", "5")) as agents:
        yield agents


def stalls_ms(agent: AgentProcess) -> dict[tuple[str, ...], float]:
    """The stall of each change that an agent has lived through, by its reasons."""
    return {
        tuple(sorted(event["reasons"])): event["stall_ms"] for event in agent.events("transition") if event["stall_ms"]
    }


def num_owned(iteration: dict[str, Any]) -> int:
    """Chunks that took part in an iteration."""
    return sum(iteration["chunks"].values())


def test_nodes_join_leave_and_die_while_the_survivors_keep_task_and_model(cluster: LocalAgents) -> None:
    """2 -> 4 -> 3 (notice) -> 2 (SIGKILL); every chunk is somewhere all the time, and the end is certified."""
    first, second, leaver, victim = start_all(cluster, 4)
    leaver.signal(signal.SIGTERM)
    leaver.signal(signal.SIGUSR1)  # only confirms
    first.wait_for_members(3)
    assert leaver.wait_for_end() == 0
    victim.kill_all()
    first.wait_for_members(2)
    num_chunks = num_owned(first.events("iteration")[0])
    first.wait_for("iteration", lambda event: num_owned(event) == num_chunks, after=len(first.events()))
    end_all(cluster, [first, second])
    for agent in (first, second):
        assert len({event["model_address"] for event in agent.events("iteration")}) == 1
        assert len(agent.events("hot")) == 1
    [lost_s] = [event["time"] for event in first.events("lost")]
    assert all(num_owned(event) == num_chunks for event in first.events("iteration") if event["time"] < lost_s)
    print({", ".join(reasons): f"{stall:.0f} ms" for reasons, stall in stalls_ms(first).items()})
    check_recordings(cluster.folder)


def test_a_notice_that_is_repeated_until_the_task_has_ended_changes_nothing(tmp_path: Path) -> None:
    """scancel repeats its signal for seconds, and a task may write something at its end. None kills the agent, as with
    `start_signals`."""
    task = tmp_path / "task.py"
    task.write_text(
        "import atexit, pathlib, time\nfrom tests.cluster.train_svm import main\n"
        f"ending, may_end = map(pathlib.Path, {[str(tmp_path / 'ending'), str(tmp_path / 'may-end')]})\n"
        "atexit.register(lambda: ending.touch() or [time.sleep(0.01) for _ in iter(may_end.exists, True)])\nmain()\n"
    )
    script = (str(task), *svm_script(tmp_path, "--min-ms", "20", "--tol", "0")[1:])
    with LocalAgents(tmp_path, script=script, environ={"PYTHONPATH": os.getcwd()}) as cluster:
        leaver = cluster.start("n0", before=functools.partial(signal.signal, signal.SIGTERM, signal.SIG_IGN))
        leaver.wait_for("iteration")
        first = cluster.start("n1")
        leaver.wait_for_members(2)
        leaver.signal(signal.SIGTERM)
        assert comes((tmp_path / "ending").exists)
        leaver.wait_for("ended")
        for _ in range(20):
            leaver.signal(signal.SIGTERM)
            time.sleep(0.05)
        (tmp_path / "may-end").touch()
        assert leaver.wait_for_end() == 0, leaver.output()
        cluster.end()
        assert first.wait_for_end() == 0


def check_recordings(folder: Path) -> None:
    """Each of the four agents has written one: it folds to the same effects, and the secret is not in it."""
    secret = (folder / "job.secret").read_text().strip()
    recordings = sorted(folder.glob("*.recording.jsonl"))
    assert [path.name.partition(".")[0] for path in recordings] == ["n0", "n1", "n2", "n3"]
    for path in recordings:
        assert secret not in path.read_text()
        assert [step.difference for step in Replay(path) if step.difference] == []
    assert any(isinstance(effect, FinishJob) for step in Replay(recordings[0]) for effect in step.effects)


@pytest.mark.chaos
def test_the_job_goes_on_without_its_lead(cluster: LocalAgents) -> None:
    """The lead is killed; another one leads, and newcomers find it."""
    lead, second, third = start_all(cluster, 3)
    lead.kill_all()
    second.wait_for_members(2)
    newcomer = cluster.start("n3")
    second.wait_for_members(3)
    end_all(cluster, [second, third, newcomer])


@pytest.mark.chaos
def test_a_lead_under_notice_gives_way(cluster: LocalAgents) -> None:
    """It leaves like any other node: nothing is lost, no iteration is given up."""
    lead, second, third = start_all(cluster, 3)
    lead.signal(signal.SIGTERM)
    second.wait_for_members(2)
    assert lead.wait_for_end() == 0
    second.assert_none("aborted", "lost")
    end_all(cluster, [second, third])


@pytest.mark.chaos
def test_a_task_that_dies_alone_is_started_again(cluster: LocalAgents) -> None:
    """Its node steps out and comes back, with its chunks where they were, also when it leads."""
    lead, second = start_all(cluster, 2)
    for agent, other in ((second, lead), (lead, second)):
        os.kill(agent.task_pid, signal.SIGKILL)
        other.wait_for_members(1)
        other.wait_for_members(2)
    assert len(lead.events("hot")) == len(second.events("hot")) == 2
    end_all(cluster, [lead, second])


@pytest.mark.parametrize(
    "is_lead",
    [
        pytest.param(False, marks=pytest.mark.chaos, id="follower"),
        pytest.param(True, marks=pytest.mark.chaos, id="lead"),
    ],
)
def test_a_silent_host_is_left_behind_and_joins_again(cluster: LocalAgents, is_lead: bool) -> None:
    """Stopped, it is lost after two seconds; when it goes on, it has to join as a newcomer, with the same task."""
    agents = start_all(cluster, 3)
    silent, other = (agents[0], agents[1]) if is_lead else (agents[2], agents[0])
    pids = (silent.process.pid, silent.task_pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    other.wait_for_members(2)
    [stall_ms] = [stall for reasons, stall in stalls_ms(other).items() if f"{silent.name} is lost" in reasons]
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    other.wait_for_members(3)
    assert silent.events("expelled")
    assert len(silent.events("hot")) == 1
    end_all(cluster, agents)
    assert stall_ms < 3000


@pytest.mark.chaos
def test_sums_that_are_cut_without_a_reset_go_on_over_new_connections(tmp_path: Path) -> None:
    """As by a firewall that has forgotten them; the links of the agents are whole, so no node is lost."""
    script = svm_script(tmp_path, "--min-ms", "20", "--tol", "0", "--cut-file", str(tmp_path / "cut"))
    with LocalAgents(tmp_path, script=script) as cluster:
        agents = start_all(cluster, 3)
        here = [len(agent.events()) for agent in agents]
        (tmp_path / "cut").touch()
        broken = [agent.wait_for("broken", after=start)["reason"] for agent, start in zip(agents, here, strict=True)]
        # The first one to look at its connections says so; for the others a member has closed its own.
        assert any("the connection to the task of n" in reason for reason in broken)
        assert any("was cut: nothing was acknowledged for" in reason for reason in broken)
        agents[0].wait_for_members(3)
        agents[0].assert_none("lost")
        end_all(cluster, agents)


@pytest.mark.chaos
def test_the_task_of_a_dead_agent_ends(cluster: LocalAgents) -> None:
    """There are no orphans: the end of the control channel ends the task."""
    first, victim = start_all(cluster, 2)
    pid = victim.task_pid
    victim.signal(signal.SIGKILL)
    first.wait_for_members(1)
    assert comes(lambda: not is_alive(pid), 10)
    end_all(cluster, [first])


@pytest.mark.chaos
def test_a_notice_ends_a_long_iteration_within_the_grace_period(tmp_path: Path) -> None:
    """Iterations of ten seconds, five seconds of grace: chunks are handed over and the node is gone."""
    script = svm_script(tmp_path, "--min-ms", "10000", "--tol", "0")
    with LocalAgents(tmp_path, nodes="2:8", script=script, options=("--grace", "5")) as cluster:
        first, leaver = cluster.start("n0"), cluster.start("n1")
        first.wait_for("group")
        leaver.wait_for("group")
        start_s = time.monotonic()
        leaver.signal(signal.SIGTERM)
        assert leaver.wait_for_end() == 0
        assert time.monotonic() - start_s < 5.5  # half a second for the end of the interpreter
        [leaving] = leaver.events("leaving")
        assert leaving["reason"] == "its chunks are handed over"
        assert leaving["rest_s"], "the other node is on its host"
        paused = first.wait_for("paused")
        assert "1 node here to stay, 2 needed" in paused["reason"]


@pytest.mark.slow
def test_code_of_the_user_that_raises_ends_the_job_everywhere(tmp_path: Path) -> None:
    """Everybody ends with an error, and shows the traceback; so does who comes later."""
    script = svm_script(tmp_path, "--min-ms", "20", "--tol", "0", "--raise-at", "30")
    with LocalAgents(tmp_path, nodes="2:2", script=script) as cluster:
        agents = [cluster.start("n0"), cluster.start("n1")]
        assert [agent.wait_for_end() for agent in agents] == [1, 1]
        assert all("the user's code is at fault" in agent.output() for agent in agents)
        late = cluster.start("n2")
        assert late.wait_for_end() == 1
        assert "the job 'chicle' is over" in late.output()


@pytest.mark.slow
def test_who_comes_after_the_end_is_told_so(cluster: LocalAgents) -> None:
    """The job is not begun afresh by a late node, whose script does not run: its exit code is one of its own."""
    [first] = start_all(cluster, 1)
    end_all(cluster, [first])
    for options, code in ((), EXIT_LATE), (("--leave-exit-code", "143"), 0):  # a resource manager would start it again
        late = cluster.start("n1", options=options)
        assert late.wait_for_end() == code
        assert "the job 'chicle' is over" in late.output()


@pytest.mark.chaos
def test_a_second_agent_of_the_same_name_is_refused(cluster: LocalAgents) -> None:
    """The first one goes on; the second one says what to do."""
    first, second = start_all(cluster, 2)
    double = cluster.start("n1")
    assert double.wait_for_end() == 1
    assert "give every node a name of its own" in double.output()
    assert first.wait_for_members(2)
    end_all(cluster, [first, second])


@pytest.mark.chaos
def test_an_agent_with_another_secret_takes_no_part(cluster: LocalAgents, tmp_path: Path) -> None:
    """It is the one that gets the error; the job does not notice."""
    [first] = start_all(cluster, 1)
    other = tmp_path / "other.secret"
    JobSecret.create(other)
    stranger = cluster.start("n1", secret_file=other)
    assert stranger.wait_for_end() == 1
    assert "cannot be believed" in stranger.output() or "secret" in stranger.output()
    assert first.wait_for_members(1)
    end_all(cluster, [first])


@pytest.mark.chaos
def test_a_job_that_nobody_survived_begins_afresh(cluster: LocalAgents) -> None:
    """A newcomer begins it again; whoever knew the old one forgets its chunks and its model before it joins."""
    first, silent = start_all(cluster, 2)
    pids = (silent.process.pid, silent.task_pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    first.wait_for_members(1)
    first.kill_all()
    newcomer = cluster.start("n2")
    newcomer.wait_for("iteration")
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    newcomer.wait_for_members(2)
    assert newcomer.events("iteration")[0]["iteration"] == 1
    assert len(silent.events("job")) == 2
    assert len(silent.events("hot")) == 2
    end_all(cluster, [newcomer, silent])


@pytest.mark.chaos
def test_a_newcomer_to_a_long_job_begins_with_what_its_log_has_come_to(tmp_path: Path) -> None:
    """The entries from the beginning are not kept any more."""
    script = svm_script(tmp_path, "--min-ms", "0", "--tol", "0")
    with LocalAgents(tmp_path, script=script) as cluster:
        [first] = start_all(cluster, 1)
        first.wait_for("iteration", lambda event: event["iteration"] > 2 * KEPT_ENTRIES)
        second = cluster.start("n1")
        first.wait_for_members(2)
        assert second.events("installed")[0]["length"] > 2 * KEPT_ENTRIES
        end_all(cluster, [first, second])
