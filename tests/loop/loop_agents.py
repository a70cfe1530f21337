"""Nodes that run the script of the tests: real agents, and a process per node that trains."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chicle_elastic.torch.schedule import Plan
from tests.cluster.cluster_harness import AgentProcess, LocalAgents
from tests.loop.forked_tasks import ForkedTask, TaskServer, fork_tasks
from tests.timeouts import comes, timeout_s

SCRIPT = Path(__file__).with_name("train_loop.py")


def train_alone(folder: Path, tasks: TaskServer, *options: str) -> dict[str, Any]:
    """Run the script without any agent; what it came to."""
    folder.mkdir(parents=True, exist_ok=True)
    argv = [str(SCRIPT), "--out", str(folder), *options]
    task = ForkedTask(tasks.address, {"argv": argv, "environ": {}, "output": str(folder / "out")})
    assert task.poll(timeout_s(60)) == 0, (folder / "out").read_text()
    task.close()
    [result] = results_of(folder)
    assert result["steps"] > 0
    return result


def results_of(folder: Path) -> list[dict[str, Any]]:
    """What the processes that stayed to the end have written down."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.result.json"))]


@contextmanager
def loop_agents(folder: Path, tasks: TaskServer, *script: str, options: tuple[str, ...] = ()) -> Iterator[LocalAgents]:
    """A job of the script, without nodes yet. Its nodes train until `end`, or all epochs are done."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = (str(SCRIPT), "--out", str(folder), "--end-file", str(folder / "end"), *script)
    options = ("--max-restarts", "100", *options)
    with LocalAgents(folder, script=whole, options=options, environ={"FORKED_TASKS": tasks.address}) as agents:
        yield agents


def add(cluster: LocalAgents, name: str) -> AgentProcess:
    """Start a node."""
    return cluster.start(name, before=fork_tasks)


def start(cluster: LocalAgents, *names: str) -> list[AgentProcess]:
    """Start nodes, and wait until all of them train."""
    agents = [add(cluster, name) for name in names]
    agents[0].wait_for_members(len(agents))
    return agents


NUM_SAMPLES, NUM_EPOCHS = 1200, 100
COUNT = (
    *("--work", "count", "--samples", str(NUM_SAMPLES), "--batch", "40"),
    *("--epochs", str(NUM_EPOCHS), "--min-ms", "20"),
)
"""The model that counts; more epochs than any test trains."""


def assert_each_counts_once(result: dict[str, Any]) -> None:
    """Each parameter of the model that counts is -1 where its sample was in a step up to the end, else 0."""
    [counts] = result["model"]
    epoch, offset = result["position"]
    plan = Plan(num_samples=NUM_SAMPLES, num_epochs=NUM_EPOCHS, batch_size=40, seed=7)
    expected = [-1.0 if done < epoch else 0.0 for done in range(NUM_EPOCHS) for _ in range(NUM_SAMPLES)]
    if offset:
        for sample in plan.order(epoch)[:offset]:
            expected[epoch * NUM_SAMPLES + sample] = -1.0
    wrong = [(place, count) for place, (count, due) in enumerate(zip(counts, expected, strict=True)) if count != due]
    assert epoch or offset
    assert not wrong, f"{len(wrong)} samples, of {epoch} epochs and {offset} samples; {wrong[:10]}"


def strike(cluster: LocalAgents, node: str, point: str) -> None:
    """Let a node's process kill itself at a point, and wait until it has."""
    path = cluster.folder / f"{node}.fault"
    partial = path.with_suffix(".partial")
    partial.write_text(point)
    partial.rename(path)
    struck = path.with_suffix(".struck")
    wait_until(struck.exists, f"{node} to be struck at {point}")
    struck.unlink()


def wait_until(is_it: Callable[[], bool], what: str) -> None:
    """Wait for something."""
    assert comes(is_it, poll_s=0.005), f"waited in vain for {what}"


def end(cluster: LocalAgents, *agents: AgentProcess) -> list[dict[str, Any]]:
    """End the training, and give what the nodes came to; it is the same model in each."""
    cluster.end()
    for agent in agents:
        assert agent.wait_for_end() == 0, agent.output()
    results = results_of(cluster.folder)
    assert len(results) == len(agents)
    assert all(result["model"] == results[0]["model"] for result in results)
    return results


def losses_of(results: list[dict[str, Any]]) -> dict[int, float]:
    """Losses by step, from all nodes that have seen the step; they are the same in each."""
    losses: dict[int, float] = {}
    for result in results:
        for step, loss in result["losses"].items():
            assert losses.setdefault(int(step), loss) == loss
    return losses
