"""Policies on real nodes: no decision is lost without a line, and what they remember outlives their node."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from chicle_elastic import CheckpointSettings
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.monitoring.records import IterationRecord
from tests.cluster.local.local_trainers import Asker, Counter, TunedCocoa
from tests.cluster.local.test_local_cluster import make_job

DECISIONS = 200
WISHES = ("move", "move", "redraw", "same", "new", "nodes", "message", "memory", "move", "redraw")


@pytest.mark.parametrize("count", [1, 3, 10])
def test_every_decision_of_every_policy_has_its_line(tmp_path: Path, count: int) -> None:
    """200 decisions of policies that all speak whenever they can, beside one that thinks longer than an iteration: each
    is carried out, refused or replaced, and a line says so."""
    told = tmp_path / "told"
    told.mkdir()
    most = DECISIONS // count
    policies = tuple(
        Asker(
            title=f"p{number}", wish=WISHES[number], folder=str(told), most=most, pause_s=0.02 if number == 1 else 0.0
        )
        for number in range(count)
    )

    def is_over(record: IterationRecord) -> bool:
        return all((told / policy.title).with_suffix(".done").exists() for policy in policies)

    with LocalCluster(2, log_dir=tmp_path / "logs") as cluster:
        job = make_job(TunedCocoa(C=0.1, tol=0.0), max_iterations=10**6, policies=policies, on_iteration=is_over)
        history = cluster.run(job).history
    texts = texts_of(tmp_path / "logs")
    found = {policy.title: outcomes(policy.title, texts) for policy in policies}
    assert {title: sum(parts) for title, parts in found.items()} == dict.fromkeys(found, most), found
    in_record = [event for record in history for event in record.events]
    assert sum("refused" in event for event in in_record) >= 0.9 * sum("refused" in text for text in texts) - count
    assert not [text for text in texts if "disabled" in text]
    if count > 1:
        carried_out, _, _ = found["p1"]
        assert carried_out >= most // 4, "the slow one has its way beside one that moves chunks all the time"


@pytest.mark.parametrize("wish", ["same", "memory"])
def test_decisions_on_their_way_when_the_job_ends_by_itself_have_their_lines(tmp_path: Path, wish: str) -> None:
    """Of every policy one is: each speaks whenever it is asked, and the last iteration is one like the others."""
    told = tmp_path / "told"
    told.mkdir()
    policies = tuple(Asker(title=f"p{number}", wish=wish, folder=str(told), most=10**6) for number in range(3))
    folder = tmp_path / "checkpoints"
    checkpoint = CheckpointSettings(folder=str(folder), every_iterations=1)
    with LocalCluster(1, log_dir=tmp_path / "logs") as cluster:
        cluster.run(make_job(TunedCocoa(C=0.1, tol=0.0), max_iterations=60, policies=policies, checkpoint=checkpoint))
    texts = texts_of(tmp_path / "logs")
    decided = {policy.title: (told / policy.title).stat().st_size for policy in policies}
    assert {title: sum(outcomes(title, texts)) for title in decided} == decided
    assert not [text for text in texts if text.startswith("CheckpointSaved")]


def texts_of(logs: Path) -> list[str]:
    """The lines of n0."""
    lines = [json.loads(line) for line in (logs / "n0.events.jsonl").read_text().splitlines()]
    return [line["text"] for line in lines if line["kind"] == "log"]


def outcomes(title: str, texts: list[str]) -> tuple[int, int, int]:
    """Decisions of a policy that were carried out, refused and replaced."""
    carried_out = sum(
        re.match(rf"{title} (moves|redraws|sets|wants|sends|remembers|does not)", text) is not None for text in texts
    )
    refused = sum(text.startswith(f"decision of policy {title} ") for text in texts)
    replaced = [re.match(rf"policy {title} has replaced (\d+) decision", text) for text in texts]
    return carried_out, refused, sum(int(match[1]) for match in replaced if match)


def test_a_memory_outlives_the_node_where_policies_run() -> None:
    """n0, which leads and asks the policies, is killed: n1 goes on counting where it was."""
    killed_at = 0

    with LocalCluster(2) as cluster:

        def kill(record: IterationRecord) -> bool:
            nonlocal killed_at
            if not killed_at and record.figures.get("echo", 0.0) >= 4.0:
                killed_at = record.iteration
                os.kill(cluster.members()["n0"].agent_pid, signal.SIGKILL)
            return killed_at > 0 and record.figures.get("echo", 0.0) >= 8.0

        job = make_job(TunedCocoa(C=0.1, tol=0.0), max_iterations=10**6, policies=(Counter(),), on_iteration=kill)
        history = cluster.run(job).history
    told = [event for record in history for event in record.events if "Counter remembers something" in event]
    counts = [int(re.findall(r"asked (\d+) times", event)[0]) for event in told]
    assert counts == sorted(set(counts)), "it never began again"
    assert counts[-1] >= 8
    assert 0 < killed_at < len(history)
