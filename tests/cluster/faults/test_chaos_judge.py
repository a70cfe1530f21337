"""The judge of chaos catches what it is there for: evidence of a real job, falsified in one place, is found out."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.harness import chaos_app
from tests.harness.chaos import WORKS, Chaos
from tests.harness.chaos_nodes import ChaosNodes
from tests.harness.cluster_truth import Evidence, LedgerLine, judge, recompute_gap
from tests.harness.fault_schedule import schedule_of
from tests.harness.outages import outages_of
from tests.timeouts import comes


@pytest.fixture(scope="module", params=[pytest.param(work, marks=pytest.mark.chaos) for work in WORKS])
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Evidence]]:
    """A job in which a node joined, one left under notice and one was killed: its kind, and its evidence."""
    with ChaosNodes(
        tmp_path_factory.mktemp("job") / request.param, work=request.param, min_ms=10, max_nodes=8
    ) as nodes:
        first, second, third = nodes.start(), nodes.start(), nodes.start()
        assert comes(lambda: len(nodes.members()) == 3, 60), first.output()
        chaos = Chaos(nodes, random.Random(1), schedule_of(0), outages_of(0), print)
        chaos.notice(second)
        assert comes(lambda: not second.is_running, 30), second.output()
        third.kill()
        nodes.start()
        assert comes(lambda: len(nodes.members()) == 2, 60), first.output()
        assert chaos.calm() is None
        yield request.param, Evidence.read(nodes.log)


@pytest.fixture
def work(job: tuple[str, Evidence]) -> str:
    """Kind of the job."""
    return job[0]


@pytest.fixture
def evidence(job: tuple[str, Evidence]) -> Evidence:
    """A copy to falsify."""
    return Evidence(events=copy.deepcopy(job[1].events), outcomes=copy.deepcopy(job[1].outcomes))


def page_of(evidence: Evidence, line: LedgerLine) -> dict[str, Any]:
    """The page that a line is on."""
    return next(
        page
        for page in map(_mutable, evidence.of_kind("ledger"))
        if page["node"] == line.node and page["after"] == list(line.after) and line.chunk in page["chunks"]
    )


def _mutable(event: Any) -> dict[str, Any]:
    assert isinstance(event, dict)
    return event


def strike_out(evidence: Evidence, line: LedgerLine) -> None:
    """Take a line away."""
    page = page_of(evidence, line)
    position = page["chunks"].index(line.chunk)
    del page["chunks"][position], page["rows"][position]


def last_lines(evidence: Evidence) -> list[LedgerLine]:
    """Of the last iteration that all rows had a part in, but for those at the very end; in calm weather: near a loss
    the judge excuses what is missing, and the job may have ended soon after one."""
    rows = {iteration: sum(line.rows for line in lines) for iteration, lines in evidence.lines.items()}
    losses = set[int]().union(*evidence.lost.values())
    calm = [
        each
        for each, count in rows.items()
        if count == max(rows.values())
        and each <= max(evidence.merged) - 3
        and losses.isdisjoint(range(each - 2, each + 2))
        and not any(evidence.may_lack(line.node, each) for line in evidence.lines[each])
    ]
    return evidence.lines[max(calm)]


def moved(evidence: Evidence) -> tuple[LedgerLine, LedgerLine]:
    """The last line of the source of a chunk that moved, and the first of its target."""
    newest: dict[int, LedgerLine] = {}
    for iteration in sorted(evidence.merged):
        for line in evidence.lines[iteration]:
            source = newest.get(line.chunk)
            if source is not None and source.node != line.node:
                return source, line
            newest[line.chunk] = line
    raise AssertionError("no chunk has moved")


def fresh(evidence: Evidence) -> Evidence:
    """The same events; what was worked out of them is forgotten."""
    return Evidence(events=evidence.events, outcomes=evidence.outcomes)


def test_a_job_in_good_order_is_found_in_good_order(evidence: Evidence, work: str) -> None:
    """Join, notice and SIGKILL are no faults, and there is something to judge."""
    assert judge(evidence, work) == []
    assert len(evidence.merged) > 10
    assert evidence.lost
    assert moved(evidence)


def test_no_evidence_is_a_fault(work: str) -> None:
    """Nothing written is nothing proven."""
    assert "nothing to judge" in judge(Evidence(events=[], outcomes=[]), work)[0]


def test_a_chunk_that_nobody_has_is_missed(evidence: Evidence, work: str) -> None:
    """Dropped at the end."""
    del evidence.outcomes[0]["held"][min(evidence.outcomes[0]["held"])]
    assert any("owned by no node" in fault for fault in judge(evidence, work))


def test_a_chunk_that_two_have_is_found(evidence: Evidence, work: str) -> None:
    """Doubled at the end."""
    first, second = evidence.outcomes
    chunk = min(first["held"])
    second["held"][chunk] = first["held"][chunk]
    assert any(f"chunk {chunk} of" in fault and "is owned by [" in fault for fault in judge(evidence, work))


def test_a_bit_that_flipped_is_found(evidence: Evidence, work: str) -> None:
    """Bytes are those of the source."""
    held = evidence.outcomes[0]["held"]
    held[min(held)] ^= 1
    assert any("has checksum" in fault for fault in judge(evidence, work))


def test_a_chunk_that_nobody_processed_is_missed(evidence: Evidence, work: str) -> None:
    """Dropped in one iteration, by everybody's account: only the model has counted it."""
    if work != "count":
        pytest.skip("linear models do not count")
    line = last_lines(evidence)[0]
    strike_out(evidence, line)
    for event in map(_mutable, evidence.of_kind("iteration")):
        if event["iteration"] == line.after[1]:
            event["samples"][line.node] -= line.rows
    assert any(f"chunk {line.chunk} took part in" in fault for fault in judge(fresh(evidence), work))


def test_a_line_that_was_never_written_is_missed(evidence: Evidence, work: str) -> None:
    """The others were told of these rows."""
    line = last_lines(evidence)[0]
    strike_out(evidence, line)
    assert any("rows and has lines for" in fault for fault in judge(fresh(evidence), work))


def test_a_chunk_that_two_processed_is_found(evidence: Evidence, work: str) -> None:
    """Doubled in one iteration: the source went on with a chunk whose move was committed."""
    source, target = moved(evidence)
    page = next(
        page
        for page in map(_mutable, evidence.of_kind("ledger"))
        if page["node"] != target.node and page["after"] == list(target.after)
    )
    page["chunks"].append(target.chunk)
    page["rows"].append(target.rows)
    faults = judge(fresh(evidence), work)
    assert any(f"chunk {source.chunk} was processed 2 times" in fault for fault in faults)


def test_a_commit_that_was_skipped_is_found(evidence: Evidence, work: str) -> None:
    """The source freed the chunk, and the target never took it: it is in no complete iteration any more."""
    _, target = moved(evidence)
    for lines in evidence.lines.values():
        for line in lines:
            if line.chunk == target.chunk and line.after >= target.after:
                strike_out(evidence, line)
    faults = judge(fresh(evidence), work)
    assert any(f"chunks [{target.chunk}] were processed by no task" in fault for fault in faults)


def test_a_merge_that_was_not_committed_is_found(evidence: Evidence, work: str) -> None:
    """One task says that it has not merged what the others have."""
    line = last_lines(evidence)[0]
    page_of(evidence, line)["after"] = None
    assert any("has lines for 0" in fault for fault in judge(fresh(evidence), work))


def test_a_round_that_goes_back_behind_a_merge_of_survivors_is_found(evidence: Evidence, work: str) -> None:
    """A model is older than the newest one that somebody still has."""
    group = _mutable([event for event in evidence.of_kind("group") if event["merged"] > 1][-1])
    group["merged"] -= 1
    assert any("no node was left that had it" in fault for fault in judge(fresh(evidence), work))


@pytest.mark.parametrize(("fate", "undone"), [("task_died", {2}), ("killed", {2}), ("iteration", set())])
def test_what_nobody_lived_to_go_on_with_was_not_merged(fate: str, undone: set[int]) -> None:
    """Of three nodes one is killed when sums are exchanged, only one of the others has all, and is lost as well."""
    events = [
        {"node": "a", "kind": "iteration", "iteration": 1, "round": 1},
        {"node": "a", "kind": "iteration", "iteration": 2, "round": 1},
        *([{"node": "a", "kind": fate, "iteration": 3, "round": 3}] if fate != "killed" else []),
        {"node": "b", "kind": "iteration", "iteration": 1, "round": 1},
        {"node": "b", "kind": "group", "round": 2, "merged": 1},
        {"node": "b", "kind": "iteration", "iteration": 3, "round": 2},
    ]
    evidence = Evidence(events=events, outcomes=[])
    assert evidence.undone == undone
    assert (2 in evidence.merged) == (not undone)


def test_stale_state_is_found_by_its_version(evidence: Evidence, work: str) -> None:
    """A chunk went on with the state of an iteration earlier than the last one that had processed it."""
    line = last_lines(evidence)[0]
    earlier = [each.after for lines in evidence.lines.values() for each in lines if each.chunk == line.chunk]
    merge, iteration = max(after for after in earlier if after < line.after)
    page_of(evidence, line)["before"] = [merge, iteration - 1]
    assert any("and was not lost" in fault for fault in judge(fresh(evidence), work))


def falsify(evidence: Evidence, name: str, change: Callable[[np.ndarray], None]) -> Evidence:
    """Change model or state, in all outcomes alike."""
    for outcome in map(_mutable, evidence.outcomes):
        array = np.array(outcome[name])
        change(array)
        outcome[name] = array.tolist()
    return evidence


def test_stale_state_is_found_by_its_content(evidence: Evidence, work: str) -> None:
    """The versions are right, and the bytes are older: the counter lacks one, or w is not w(alpha)."""
    rows = chaos_app.source().load(0, chaos_app.CountTrainer(num_chunks=1).state(None)).row_ids  # type: ignore[arg-type]

    def age(state: np.ndarray) -> None:
        if work == "count":
            state[rows, 0, : chaos_app.BASE] -= 1
        else:
            state[rows, 0, 0] = 0.5 * state[rows, 0, 0] + 0.1

    faults = judge(falsify(evidence, "state", age), work)
    said = {"count": "chunk 0 is stale", "svm": "w(alpha)", "newton": "the gathered duals give"}[work]
    assert any(said in fault for fault in faults), faults


def test_a_sample_that_was_counted_once_too_often_is_found(evidence: Evidence, work: str) -> None:
    """One sample of a chunk differs from the others."""
    if work != "count":
        pytest.skip("linear models do not count")

    def count(state: np.ndarray) -> None:
        state[17, 0, chaos_app.COUNT] += 1

    assert any("counted differently" in fault for fault in judge(falsify(evidence, "state", count), work))


def test_a_certificate_that_is_too_good_is_found(evidence: Evidence, work: str) -> None:
    """NumPy finds another gap."""
    if work == "count":
        pytest.skip("the counter has no gap")
    for outcome in map(_mutable, evidence.outcomes):
        outcome["gap"] *= 0.5
        outcome["gap"] -= 1e-6
    assert any("the certificate says" in fault for fault in judge(evidence, work))


def test_the_gap_is_the_one_of_the_formula() -> None:
    """At w = 0 and alpha = 0 the primal is C times the number of samples, and the dual is 0."""
    gap, error = recompute_gap(np.zeros(chaos_app.NUM_FEATURES + 1), np.zeros(chaos_app.NUM_ROWS))
    assert (gap, error) == (1.0, 0.0)
