"""The faults that chaos deals over many seeds, and the tally that says whether they were enough."""

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from chicle_elastic.cluster.net import fault_points
from tests.harness.chaos import WORKS
from tests.harness.chaos_table import ANY_TIME, OF_THE_LEAD, VISITED, WANTED, Struck, main, place, table, tally, write
from tests.harness.fault_schedule import FAULTS_PER_JOB, Victim, all_faults, schedule_of
from tests.harness.faults import ACTIONS, Fault
from tests.harness.outages import Outage, outages_of


def test_every_step_is_killed_at_and_every_action_is_in_the_deck() -> None:
    """What no card says never strikes."""
    scheduled_faults = all_faults()
    assert {fault.step for fault in scheduled_faults if fault.action == "kill"} == fault_points.FAULT_POINTS
    assert {fault.action for fault in scheduled_faults} == set(ACTIONS) - {"part"}, "outages part nodes"


def test_every_card_is_a_fault_that_can_strike() -> None:
    """Steps and actions that do not fit are refused when the fault is made."""
    for fault in all_faults():
        Fault(name="a", node="n0", step=fault.step, action=fault.action, where=fault.where, occurrence=fault.occurrence)


def test_twenty_seeds_deal_every_card() -> None:
    """Each seed has three jobs, and each begins where the one before stopped."""
    jobs = range(20 * len(WORKS))
    dealt = Counter(str(fault) for job in jobs for fault in islice(schedule_of(job), FAULTS_PER_JOB))
    assert all(dealt[fault] >= count for fault, count in Counter(map(str, all_faults())).items())


def test_six_jobs_begin_with_all_outages() -> None:
    """Two seeds have six jobs."""
    assert {next(outages_of(job)) for job in range(6)} == set(Outage)


def everything(count: int) -> Struck:
    """So much of everything that is wanted."""
    lead, member = Victim.LEAD.value, Victim.MEMBER.value
    kinds = ("join", "notice", "two at once", *ACTIONS, *(outage.value for outage in Outage))
    struck: Struck = Counter({(kind, ANY_TIME): count for kind in kinds})
    struck += Counter({("stop", place(step, {}, member)): count for step in fault_points.FAULT_POINTS})
    struck["kill", place("log.appended", {"event": "ChunksCopied"}, lead)] = count
    struck["kill", place("commit.done", {}, lead)] = count
    struck["kill", place("rows.before_told", {}, lead)] = count
    return struck


def without(step: str, struck: Struck) -> Struck:
    """The same, as if nothing had struck there."""
    return Counter({key: count for key, count in struck.items() if step not in key[1]})


def test_a_tally_counts_what_is_wanted() -> None:
    """A kind counts wherever it struck, the lead by either way to strike it."""
    assert tally(Counter()) == dict.fromkeys([*WANTED, *VISITED], 0)
    counts = tally(everything(5) + Counter({("kill" + OF_THE_LEAD, ANY_TIME): 3}))
    assert counts["kill of the lead"] == 18
    assert counts["kill"] == 23
    assert counts["kill between copy and commit"] == counts["kill between commit and free"] == 5
    assert counts["anything at log.appended"] == 10
    assert counts["kill while rows travel ahead"] == 5
    assert counts["join"] == counts["drop"] == counts["anything at task.ready"] == 5


@pytest.mark.parametrize(
    ("struck", "num_faults", "code"),
    [
        (everything(5), 0, 0),
        (everything(5), 1, 1),
        (everything(4), 0, 1),
        (without("free.done", everything(5)), 0, 1),
    ],
)
def test_too_few_strikes_are_as_bad_as_a_fault(tmp_path: Path, struck: Struck, num_faults: int, code: int) -> None:
    """The exit code says so; of a seed that ran twice the last run counts."""
    path = tmp_path / "tally.jsonl"
    write(path, seed=1, struck=Counter(), num_faults=7)
    write(path, seed=1, struck=struck, num_faults=num_faults)
    assert main([str(path), "--at-least", "5"]) == code


def test_the_table_says_what_struck_where() -> None:
    """One line per kind and step."""
    text = table(Counter({("kill", "copy.committed: a member"): 3, ("stop", ANY_TIME): 12}))
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["kill", "copy.committed:", "a", "member", "3"],
        ["stop", "any", "time", "12"],
    ]
