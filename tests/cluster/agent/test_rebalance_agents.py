"""Real agents on nodes of different speeds: chunks go to the fast one, whatever else policies do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster_harness import LocalAgents
from tests.harness import paced_app

APP = Path(paced_app.__file__)
NUM_CHUNKS = 64


def app(folder: Path, *options: str) -> tuple[str, ...]:
    """The application: 1024 samples in 64 chunks; n0 takes twice as long for a sample."""
    return (str(APP), "--out", str(folder), "--cost", "n0=60", "--cost", "n1=30", *options)  # the last cost holds


def told(folder: Path) -> list[dict[str, Any]]:
    """What the tasks wrote down, by iteration; all of them the same."""
    first, second = (json.loads(path.read_text()) for path in folder.glob(f"*{paced_app.SUFFIX}"))
    assert first == second
    return first


@pytest.mark.parametrize("part", [1.0, 0.25], ids=["a pass", "steps of local SGD"])
def test_the_slow_one_of_two_real_nodes_is_relieved(tmp_path: Path, part: float) -> None:
    """From an even split to within a chunk of two thirds; every chunk is somewhere all the time, nothing is lost."""
    costs = [word for node, cost in (("n0", 60), ("n1", 30)) for word in ("--cost", f"{node}={cost / part}")]
    script = app(tmp_path, *costs, "--part", str(part), "--iterations", "30")
    with LocalAgents(tmp_path, nodes="2:4", script=script) as agents:
        nodes = [agents.start("n0"), agents.start("n1")]
        assert [node.wait_for_end() for node in nodes] == [0, 0], nodes[0].output()
    history = told(tmp_path)
    assert all(sum(record["chunks"].values()) == NUM_CHUNKS for record in history)
    assert history[0]["chunks"] == {"n0": 32, "n1": 32}
    assert 20 <= history[-1]["chunks"]["n0"] <= 23
    [first, *_] = [line for record in history for line in record["lines"] if "Rebalance moves" in line]
    assert "n0 takes" in first
    nodes[0].assert_none("lost")


@pytest.mark.slow
def test_a_bad_policy_of_a_user_is_disabled_by_name_in_every_log(tmp_path: Path) -> None:
    """It runs in the task of rank 0; the job goes on, and the other policy still works."""
    script = app(tmp_path, "--iterations", "30", "--bad-policy")
    with LocalAgents(tmp_path, nodes="2:4", script=script) as agents:
        nodes = [agents.start("n0"), agents.start("n1")]
        assert [node.wait_for_end() for node in nodes] == [0, 0], nodes[0].output()
    line = r"policy Faulty is disabled: it raised RuntimeError: out of ideas \(paced_app\.py, line \d+\)"
    for node in nodes:
        [text] = [event["text"] for event in node.events("log") if "disabled" in event["text"]]
        assert re.fullmatch(line, text)
    assert told(tmp_path)[-1]["chunks"]["n0"] < 32
