"""When a node that reaches no agent of a job begins it anew, and when it waits."""

import pytest

from chicle_elastic.cluster.agent.job_search import PROVEN_S, UNREACHABLE_S, JobSearch
from chicle_elastic.cluster.consensus.term_store import Beacon, Contact, Term

TERM = Term(term=3, lead="n0#1", address="tcp://10.0.0.1:4000", members=("n0#1", "n1#1"))
AGENTS = (Contact(life="n0#1", address="tcp://10.0.0.1:4000"), Contact(life="n1#1", address="tcp://10.0.0.2:4000"))
BEACON = Beacon(count=7, term=3, leader="n0#1", agents=AGENTS)
LATE_S = UNREACHABLE_S + 1


def test_it_is_too_early_to_say_at_first() -> None:
    """An agent may be reached in a moment."""
    search = JobSearch(may_begin_anew=True)
    search.begin(0.0)
    assert search.look(TERM, BEACON, dead=set(), waited_s=1.0, now=1.0) is None


def test_a_job_whose_agents_are_all_proven_dead_is_begun_anew_soon() -> None:
    """They left in order, or their processes refuse a connection. One whose state is not known makes it wait."""
    early_s = (PROVEN_S + UNREACHABLE_S) / 2
    for dead, is_dead in (({"n0#1", "n1#1"}, True), ({"n0#1"}, False)):
        search = JobSearch(may_begin_anew=True)
        search.begin(0.0)
        search.look(TERM, BEACON, dead=set(), waited_s=0.0, now=0.0)
        finding = search.look(TERM, BEACON, dead=dead, waited_s=early_s, now=early_s)
        assert finding is not None
        assert finding.is_dead is is_dead
        assert not finding.is_late


def test_a_beacon_that_has_just_moved_is_of_an_agent_that_lives() -> None:
    """It is not among those that are proven dead, as it has joined since."""
    search = JobSearch(may_begin_anew=False)
    search.begin(0.0)
    now = UNREACHABLE_S - 1
    finding = search.look(TERM, BEACON, dead={"n0#1", "n1#1"}, waited_s=now, now=now)
    assert finding is not None
    assert not finding.is_dead


@pytest.mark.parametrize("may_begin_anew", [False, True])
def test_a_job_whose_beacon_moves_is_alive_whatever_the_operator_says(may_begin_anew: bool) -> None:
    """Its agents may all refuse this host: a firewall can do that."""
    search = JobSearch(may_begin_anew=may_begin_anew)
    search.begin(0.0)
    search.look(TERM, BEACON, dead=set(), waited_s=0.0, now=0.0)
    moved = Beacon(count=8, term=3, leader="n0#1", agents=AGENTS)
    finding = search.look(TERM, moved, dead={"n0#1", "n1#1"}, waited_s=LATE_S, now=LATE_S)
    assert finding is not None
    assert not finding.is_dead
    assert finding.reason.startswith("the job lives")


def test_an_agent_that_was_lost_before_the_newest_term_is_not_waited_for() -> None:
    """The leader ended before it could give a sign of life without that one."""
    search = JobSearch(may_begin_anew=False)
    search.begin(0.0)
    alone = Term(term=4, lead="n0#1", address="tcp://10.0.0.1:4000", members=("n0#1",))
    search.look(alone, BEACON, dead=set(), waited_s=0.0, now=0.0)
    finding = search.look(alone, BEACON, dead={"n0#1"}, waited_s=LATE_S, now=LATE_S)
    assert finding is not None
    assert finding.is_dead


@pytest.mark.parametrize(
    ("dead", "may_begin_anew", "is_dead"),
    [({"n0#1"}, False, False), ({"n0#1", "n1#1"}, False, True), (set(), True, True), (set(), False, False)],
)
def test_a_silent_job_is_dead_if_all_its_agents_are_or_the_operator_says_so(
    dead: set[str], may_begin_anew: bool, is_dead: bool
) -> None:
    """Silence alone proves nothing; the message names the agents that may live, and what to do."""
    search = JobSearch(may_begin_anew=may_begin_anew)
    search.begin(0.0)
    search.look(TERM, BEACON, dead=set(), waited_s=0.0, now=0.0)
    finding = search.look(TERM, BEACON, dead=dead, waited_s=LATE_S, now=LATE_S)
    assert finding is not None
    assert finding.is_dead is is_dead
    assert finding.silent.keys() == {"n0#1", "n1#1"} - dead
    if not is_dead:
        assert "n1#1 at tcp://10.0.0.2:4000" in finding.reason
        assert "--begin-anew" in finding.reason
