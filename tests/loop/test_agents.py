"""Loops on real agents: every sample counts once, and the curve is that of one process, whatever happens to nodes."""

import shutil
import signal
from pathlib import Path

import pytest

from tests.loop.forked_tasks import TaskServer, fork_tasks
from tests.loop.loop_agents import (
    COUNT,
    NUM_SAMPLES,
    add,
    assert_each_counts_once,
    end,
    loop_agents,
    losses_of,
    results_of,
    start,
    strike,
    train_alone,
    wait_until,
)
from tests.loop.train_loop import POINTS


def is_saved(folder: Path, step: int) -> bool:
    """Whether a checkpoint of a step is complete."""
    return any(folder.glob(f"{step:09d}-*/manifest.json"))


NET = ("--samples", "300", "--batch", "20", "--epochs", "1000")


def test_nodes_that_come_and_go_have_the_curve_of_one_process(tmp_path: Path, tasks: TaskServer) -> None:
    """One is killed, one leaves, one joins: losses of all steps and the model agree to the last digits."""
    job = tmp_path / "job"
    with loop_agents(job, tasks, *NET, "--min-ms", "20", options=("--start-nodes", "3")) as cluster:
        n0, n1, n2 = start(cluster, "n0", "n1", "n2")
        strike(cluster, "n1", "rows")
        n0.wait_for("lost", lambda event: event["who"] == "n1")
        n2.signal(signal.SIGTERM)
        assert n2.wait_for_end() == 0
        n3 = add(cluster, "n3")
        n0.wait_for_members(3)
        results = end(cluster, n0, n1, n3)
        with_n3 = [event["samples"]["n3"] for event in n0.events("iteration") if "n3" in event["samples"]]
        assert with_n3[0] == 0, "its state arrives while the others compute"
        assert 0 not in with_n3[1:-1]
    steps = results[0]["steps"]
    first = ("--initial", str(job / "n0.result.json"))
    alone = train_alone(tmp_path / "alone", tasks, *NET, *first, "--stop-step", str(steps))
    losses = losses_of(results)
    assert sorted(losses) == list(range(steps))
    assert losses == pytest.approx({int(step): loss for step, loss in alone["losses"].items()}, rel=1e-10)
    for ours, theirs in zip(results[0]["model"], alone["model"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-8, abs=1e-12)


def test_each_sample_counts_once_when_a_process_dies_at_any_point_of_a_step(tmp_path: Path, tasks: TaskServer) -> None:
    """Before, within and after the sum, before and after the optimizer."""
    with loop_agents(tmp_path / "job", tasks, *COUNT, options=("--start-nodes", "3")) as cluster:
        agents = start(cluster, "n0", "n1", "n2")
        for number, point in enumerate(POINTS):
            victim, witness = f"n{number % 3}", agents[(number + 1) % 3]
            before = len(witness.events())
            strike(cluster, victim, point)
            witness.wait_for("joined", lambda event, victim=victim: event["who"] == victim, after=before)
            witness.wait_for_members(3)
        results = end(cluster, *agents)
    assert_each_counts_once(results[0])


def test_a_member_lost_in_a_sum_of_the_body_leaves_no_gradient_behind(tmp_path: Path, tasks: TaskServer) -> None:
    """The body goes on to `backward` and `step` after that sum; what it does then is of no step."""
    with loop_agents(tmp_path / "job", tasks, *COUNT, "--parts", "2", options=("--start-nodes", "2")) as cluster:
        n0, n1 = start(cluster, "n0", "n1")
        for _ in range(3):
            before = len(n0.events())
            strike(cluster, "n1", "before")
            n0.wait_for("joined", lambda event: event["who"] == "n1", after=before)
            n0.wait_for_members(2)
        results = end(cluster, n0, n1)
    assert_each_counts_once(results[0])


def test_all_members_have_the_last_step_when_one_dies_in_its_sum(tmp_path: Path, tasks: TaskServer) -> None:
    """One member has the sum, another has not; the job ends when both have."""
    (tmp_path / "n1.fault").write_text("half 29")
    script = (*COUNT, "--samples", "15000", "--batch", "500", "--epochs", "1")  # a vector that is summed in parts
    with loop_agents(tmp_path, tasks, *script, options=("--start-nodes", "3")) as cluster:
        n0, _, n2 = start(cluster, "n0", "n1", "n2")
        for agent in (n0, n2):
            assert agent.wait_for_end() == 0, agent.output()
    assert (tmp_path / "n1.struck").exists()
    results = [result for result in results_of(tmp_path) if result["node"] in ("n0", "n2")]
    assert [result["model"] for result in results] == [[[-1.0] * 15000]] * 2


@pytest.mark.parametrize("local_steps", ["1", "3"])
def test_members_without_samples_take_part_in_sums_of_the_body(
    local_steps: str, tmp_path: Path, tasks: TaskServer
) -> None:
    """An epoch ends with a batch of fewer samples than members; they add zeros to what the others add up."""
    script = ("--work", "count", "--samples", "61", "--batch", "20", "--epochs", "3", "--local-steps", local_steps)
    with loop_agents(tmp_path, tasks, *script, options=("--start-nodes", "3")) as cluster:
        agents = [add(cluster, name) for name in ("n0", "n1", "n2")]
        for agent in agents:
            assert agent.wait_for_end() == 0, agent.output()
    results = results_of(tmp_path)
    assert [result["position"] for result in results] == [[3, 0]] * 3
    assert all("a second loop in one process" in result["second"] for result in results)
    assert local_steps != "1" or all(result["model"] == [[-1.0] * 183] for result in results)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("raise", "ValueError: a fault of n1"),
        ("memory", "can't allocate memory"),
        ("forget", "node n1 did not do loop.step to its end"),
    ],
)
def test_a_fault_on_one_node_takes_that_node_out(how: str, words: str, tmp_path: Path, tasks: TaskServer) -> None:
    """The others go on; its agent ends, and its output has the traceback."""
    with loop_agents(tmp_path, tasks, *NET, "--misbehave", f"n1:{how}", options=("--start-nodes", "3")) as cluster:
        n0, n2, n1 = start(cluster, "n0", "n2", "n1")
        assert n1.wait_for_end() == 1
        assert words in n1.output()
        n0.wait_for_members(2)
        results = end(cluster, n0, n2)
        assert sorted(losses_of(results)) == list(range(results[0]["steps"]))


def test_a_node_that_cannot_connect_for_a_fault_of_its_own_leaves(tmp_path: Path, tasks: TaskServer) -> None:
    """It has no memory for a thread; with it no round would ever form."""
    with loop_agents(tmp_path, tasks, *NET, "--misbehave", "n1:threads", options=("--start-nodes", "2")) as cluster:
        n0, n1 = start(cluster, "n0", "n1")
        n0.wait_for("iteration", lambda event: event["iteration"] >= 8)
        n2 = add(cluster, "n2")
        assert n1.wait_for_end() == 1
        assert "can't start new thread" in n1.output()
        n0.wait_for_members(2)
        end(cluster, n0, n2)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("all:raise", "ValueError: a fault of "),
        ("all:forget", "did not do loop.step to its end for a batch of "),
        ("n1:sum", "n1 calls loop.all_reduce over 2 values"),
    ],
)
def test_a_fault_of_all_nodes_ends_the_job_with_it(how: str, words: str, tmp_path: Path, tasks: TaskServer) -> None:
    """Every agent ends with exit code 1 and has the traceback; no member waits for ever in the sum of another call."""
    with loop_agents(tmp_path, tasks, *NET, "--misbehave", how, options=("--start-nodes", "2")) as cluster:
        agents = start(cluster, "n0", "n1")
        for agent in agents:
            assert agent.wait_for_end() == 1
            assert words in agent.output()


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [(("--batch", "0"), (), "give batch_size"), ((), ("--resume",), "--resume needs the checkpoints")],
)
def test_a_loop_that_cannot_begin_ends_its_node(
    given: tuple[str, ...], options: tuple[str, ...], words: str, tmp_path: Path, tasks: TaskServer
) -> None:
    """Its agent does not start the script again, which would come to the same."""
    with loop_agents(tmp_path, tasks, *NET, *given, options=options) as cluster:
        n0 = add(cluster, "n0")
        assert n0.wait_for_end() == 1
        assert words in n0.output()
        assert n0.events("task_died")[-1]["restarts_left"] == 100


@pytest.mark.parametrize("other", ["--width=3", "--samples=299", "--torch=2.99"])
def test_a_node_with_another_model_data_or_torch_is_refused(other: str, tmp_path: Path, tasks: TaskServer) -> None:
    """By the agents, before it could take part; the others train on."""
    with loop_agents(tmp_path, tasks, *NET) as cluster:
        [n0] = start(cluster, "n0")
        with loop_agents(tmp_path / "other", tasks, *NET, other) as others:
            stranger = others.start(
                "n1",
                secret_file=tmp_path / "job.secret",
                options=("--rdzv-endpoint", cluster.endpoint),
                before=fork_tasks,
            )
            wait_until(lambda: "start all nodes alike" in stranger.output() + n0.output(), "a refusal")
            assert ("2.99" in stranger.output() + n0.output()) is other.startswith("--torch")
        results = end(cluster, n0)
        assert results[0]["changes"] == [["n0"]]


def test_a_checkpoint_is_resumed_on_another_number_of_nodes(tmp_path: Path, tasks: TaskServer) -> None:
    """All nodes are killed; another number of them goes on from the newest checkpoint, and each sample counts once."""
    saved = ("--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "5")
    with loop_agents(tmp_path / "first", tasks, *COUNT, options=(*saved, "--start-nodes", "2")) as cluster:
        start(cluster, "n0", "n1")
        wait_until(lambda: is_saved(tmp_path / "saved", 10), "a checkpoint")
    with loop_agents(tmp_path / "second", tasks, *COUNT, options=(*saved, "--resume", "--start-nodes", "3")) as cluster:
        agents = start(cluster, "m0", "m1", "m2")
        agents[0].wait_for("iteration", lambda event: event["epochs"] >= 1.5)
        results = end(cluster, *agents)
    assert_each_counts_once(results[0])
    assert min(map(int, results[0]["losses"])) >= 5


def test_all_nodes_leave_once_the_job_is_saved_and_later_ones_lose_nothing(tmp_path: Path, tasks: TaskServer) -> None:
    """They do not wait for the end of their time; of the checkpoints none was due but that of the pause."""
    saved = ("--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "1000000", "--resume", "--grace", "600")
    with loop_agents(tmp_path / "job", tasks, *COUNT, options=saved) as cluster:
        old = start(cluster, "n0", "n1", "n2")
        for agent in old:
            agent.signal(signal.SIGTERM)
        for agent in old:
            assert agent.wait_for_end() == 0, agent.output()
        assert any("no node stays, and the job is saved" in agent.output() for agent in old), "the last at least"
        last = max(event["iteration"] for agent in old for event in agent.events("iteration"))
        agents = start(cluster, "m0", "m1")
        results = end(cluster, *agents)
    assert_each_counts_once(results[0])
    assert min(losses_of(results)) == last


def test_a_job_that_resumes_from_a_checkpoint_that_is_gone_ends(tmp_path: Path, tasks: TaskServer) -> None:
    """A node has found it, and no node can read it when they meet: a new model would look like a trained one."""
    saved = ("--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "5")
    with loop_agents(tmp_path / "first", tasks, *COUNT, options=saved) as cluster:
        start(cluster, "n0")
        wait_until(lambda: is_saved(tmp_path / "saved", 10), "a checkpoint")
    with loop_agents(tmp_path / "second", tasks, *COUNT, options=(*saved, "--resume", "--start-nodes", "2")) as cluster:
        m0 = add(cluster, "m0")
        m0.wait_for("hot")
        shutil.rmtree(tmp_path / "saved")
        for agent in (m0, add(cluster, "m1")):
            assert agent.wait_for_end() == 1, agent.output()
            assert "no node that is left has the state of the training" in agent.output()


def test_a_job_whose_state_is_lost_goes_on_from_its_checkpoint(tmp_path: Path, tasks: TaskServer) -> None:
    """The only process dies; the next one reads what the job has saved, and does not begin again."""
    saved = ("--checkpoint", str(tmp_path / "saved"), "--checkpoint-every", "5")
    with loop_agents(tmp_path / "job", tasks, *COUNT, options=saved) as cluster:
        [n0] = start(cluster, "n0")
        wait_until(lambda: is_saved(tmp_path / "saved", 10), "a checkpoint")
        strike(cluster, "n0", "rows")
        before = len(n0.events())
        n0.wait_for("iteration", after=before)
        results = end(cluster, n0)
    assert_each_counts_once(results[0])
    assert min(map(int, results[0]["losses"])) >= 10


def test_a_job_whose_state_is_lost_ends_without_a_checkpoint(tmp_path: Path, tasks: TaskServer) -> None:
    """It says so; trained models that began again would look like others."""
    with loop_agents(tmp_path, tasks, *COUNT) as cluster:
        [n0] = start(cluster, "n0")
        n0.wait_for("iteration", lambda event: event["iteration"] >= 3)
        strike(cluster, "n0", "rows")
        assert n0.wait_for_end() == 1
        assert "no node that is left has the state of the training" in n0.output()


def test_local_steps_of_several_nodes_are_averaged(tmp_path: Path, tasks: TaskServer) -> None:
    """Every sample is in one local step, also when a node dies between two sums; all nodes have the same model. A
    member's local step moves its own samples by 1, and its share of the average is that of its samples."""
    script = (*COUNT, "--local-steps", "4")
    with loop_agents(tmp_path, tasks, *script, options=("--start-nodes", "2")) as cluster:
        n0, n1 = start(cluster, "n0", "n1")
        strike(cluster, "n1", "rows")
        n0.wait_for("lost")
        n0.wait_for_members(2)
        n0.wait_for("iteration", lambda event: event["epochs"] >= 1.2)
        results = end(cluster, n0, n1)
    [counts] = results[0]["model"]
    epoch, _ = results[0]["position"]
    assert epoch >= 1
    done = counts[: epoch * NUM_SAMPLES]
    assert {-0.5} <= set(done) <= {-0.5, -1.0}, "-1 where a member was alone"


def test_a_node_whose_process_is_started_again_when_the_job_ends_ends_with_it(
    tmp_path: Path, tasks: TaskServer
) -> None:
    """Its agent learns of the end before the new process is there, which then has nothing to do."""
    with loop_agents(tmp_path, tasks, *NET, "--hold-restarts", options=("--start-nodes", "2")) as cluster:
        n0, n1 = start(cluster, "n0", "n1")
        strike(cluster, "n1", "rows")
        n0.wait_for("lost")
        end(cluster, n0)
        n1.wait_for("finished")
        (tmp_path / "go").touch()
        assert n1.wait_for_end() == 0, n1.output()
