"""Policies on real nodes: no decision is lost without a line, and what they do holds while nodes die or are slow."""

import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

from chicle_elastic import CheckpointSettings
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.evaluate.throttled import Pace, ThrottledCocoa
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.shuffle import Shuffle
from chicle_elastic.policies.straggler import Straggler
from chicle_elastic.runtime.training.job import Job
from tests.cluster.local.local_trainers import Asker, Counter, TunedCocoa
from tests.cluster.local.test_local_cluster import make_job
from tests.cluster.train_svm import PacedCocoa, breast_cancer
from tests.house.sources import ROOT
from tests.programs import run_python
from tests.solvers.linear_jobs import Problem, assert_optimal, problem, recompute

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


def test_a_node_is_killed_while_chunks_are_redrawn() -> None:
    """The ledger has every chunk, what was lost is loaded again, and the certificate is NumPy's."""
    X, y = breast_cancer()
    data = Problem(X=X, y=y.astype(np.int32))
    trainer = PacedCocoa(C=0.1, tol=1e-4, min_s=0.01)

    with LocalCluster(3, grace_s=5) as cluster:

        def kill(record: IterationRecord) -> None:
            if record.iteration == 6:
                os.kill(cluster.members()["n1"].pid, signal.SIGKILL)

        job = Job(
            trainer=trainer,
            source=ArraySource(data.X, data.y, max_tasks=4),
            max_iterations=2000,
            keep_state=True,
            on_iteration=kill,
            policies=(Rebalance(), Shuffle(share=0.5)),
        )
        outcome = cluster.run(job)
    assert_optimal(data, trainer, outcome)
    assert {record.num_tasks for record in outcome.history} >= {2, 3}
    assert outcome.ledger.replayed, "what n1 had was loaded again"
    assert sum(account.rows for account in outcome.ledger) == len(y)
    assert None not in {account.owner for account in outcome.ledger}
    num_iterations = len(outcome.history)
    totals = [sum(account.iterations.values()) for account in outcome.ledger]
    assert max(totals) == num_iterations
    assert sum("Shuffle redraws" in event for record in outcome.history for event in record.events) >= 1
    disabled = [event for record in outcome.history for event in record.events if "disabled" in event]
    assert disabled == []


def test_a_slow_node_is_cut_for_as_long_as_it_is_slow() -> None:
    """The agents agree on the deadline, accept parts of chunks while it holds, and w = w(alpha) in the end."""
    data = problem(rows=800)
    pace = Pace(row_s=1e-4, slow=("n1",), since=10, until=40)
    trainer = ThrottledCocoa(C=0.1, tol=0.0, pace=pace)

    def is_well_again(record: IterationRecord) -> bool:
        return record.iteration > pace.until and any("no deadline any more" in line for line in record.events)

    with LocalCluster(3) as cluster:
        job = Job(
            trainer=trainer,
            source=ArraySource(data.X, data.y, max_tasks=3, chunk_bytes=1024),
            max_iterations=5000,
            keep_state=True,
            on_iteration=is_well_again,
            policies=(Straggler(factor=3.0, margin=0.5),),
        )
        outcome = cluster.run(job)
    lines = [line for record in outcome.history for line in record.events]
    assert any("Straggler sets deadline_s" in line and "n1 takes" in line for line in lines), lines
    assert not [line for line in lines if "disabled" in line]
    assert len(outcome.history) < 5000, "the deadline is lifted once n1 is well"
    epochs = outcome.history.column("epochs")
    assert epochs[-1] < outcome.history[-1].iteration - 1, "iterations lack rows of n1"
    assert sum(account.rows for account in outcome.ledger) == 800
    found = recompute(data, trainer, outcome.model, outcome.state)
    w = outcome.model.reshape(found.w_of_duals.shape)
    assert (np.abs(w - found.w_of_duals) <= 1e-10 * np.abs(w).max() + found.rounding).all()


PAGE = ROOT / "docs/how-to/write-a-policy.md"


def run(block: str, folder: Path) -> str:
    """What a block prints as a script of a user, in another folder."""
    script = folder / "mine.py"
    script.write_text(block, encoding="utf-8")
    return run_python(str(script), seconds=120, cwd=folder).stdout


def test_the_policy_of_the_page_runs_in_process_and_on_a_cluster(tmp_path: Path) -> None:
    """It prints the chunks of a node by iteration."""
    block, _, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [policy] = re.findall(r"^@dataclass.*?(?=\n\n\n)", block, re.DOTALL | re.MULTILINE)
    assert len(policy.splitlines()) < 30
    assert re.match(r"\[\d+", out := run(block, tmp_path)), out


def test_the_policies_that_talk_move_chunks_until_the_node_is_cool(tmp_path: Path) -> None:
    """Of 80 degrees four chunks take 20 away; the trainer hears of each, and every chunk of both runs has its line."""
    _, _, block = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    *told, in_process, on_cluster = run(block, tmp_path).splitlines()
    assert told[:4] == [f"policy:Diary {{'moved': {number}, 'slow links': []}}" for number in range(1, 5)]
    for line, node in ((in_process, "task-1"), (on_cluster, "n1")):
        degrees = re.findall(rf"CoolDown moves 1 of 1 chunk: {node} has (\d+) degrees", line)
        assert degrees == ["80", "75", "70", "65"], line
