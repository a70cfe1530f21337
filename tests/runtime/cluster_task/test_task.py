"""The task of a node: real processes, driven over the real control channel."""

import os
import signal

import numpy as np
import pytest

from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.runtime.cluster_task.control_client import ORPHAN_EXIT_CODE
from chicle_elastic.runtime.cluster_task.runtime import LEAVING_NICENESS, cluster_runtime
from chicle_elastic.runtime.control import messages as control
from chicle_elastic.settings import Settings
from chicle_elastic.values import StateVersion
from tests.chunk_slots import bytes_in_slot
from tests.runtime.cluster_task.cluster_apps import cancer
from tests.runtime.cluster_task.cluster_driver import Driver
from tests.runtime.collectives.members import store
from tests.timeouts import timeout_s

__all__ = ["store"]


@pytest.fixture
def driver(tmp_path, store, request):
    """A cluster without nodes, yet."""
    driver = Driver(tmp_path, store.port, request.node.name)
    yield driver
    for node in driver.nodes:
        node.end()


def recomputed_gap(outcome):
    """Relative duality gap of the hinge loss, from the duals alone; and w from them."""
    X, codes = cancer()
    X = np.column_stack([X, np.ones(len(X))])
    signs = np.where(codes == 1, 1.0, -1.0)
    alpha = np.array(outcome["state"])
    assert alpha.min() >= 0
    assert alpha.max() <= 0.1
    w = X.T @ (alpha * signs)
    primal = 0.5 * w @ w + 0.1 * np.maximum(0.0, 1.0 - signs * (X @ w)).sum()
    return (primal - (alpha.sum() - 0.5 * w @ w)) / primal, w


def assert_certified(outcomes, max_gap=1e-3):
    """All outcomes are the same, and what they claim is true."""
    first = outcomes[0]
    for other in outcomes[1:]:
        assert {**other, "pid": 0, "address": 0} == {**first, "pid": 0, "address": 0}
    gap, w = recomputed_gap(first)
    assert gap <= max_gap * 1.01
    np.testing.assert_allclose(first["model"], w, atol=1e-9 * np.abs(w).max())
    assert first["history"]["duality_gap"][-1] == pytest.approx(gap, rel=1e-6)
    assert first["certified"][0] == first["history"]["iteration"][-1] == len(first["history"]["iteration"])


def test_two_tasks_train_to_a_certificate_and_agree_on_everything(driver):
    """Model, certificate, history and state are the same on both, and true."""
    nodes = driver.begin("cocoa", "n0", "n1")
    ended = driver.iterate(lines=("n0 and n1 have begun",))
    assert set(ended[0].reports) == {"n0", "n1"}
    assert sum(report.samples for report in ended[0].reports.values()) == 569
    assert "relative duality gap" in driver.train()
    assert_certified(outcomes := driver.finish("gap reached"))
    assert outcomes[0]["reason"] == "gap reached"
    assert outcomes[0]["history"]["events"][:2] == ["n0 and n1 have begun", ""]
    num_chunks = len(nodes[0].declared.rows)
    assert outcomes[0]["history"]["num_chunks.n0"][0] == (num_chunks + 1) // 2
    times = outcomes[0]["history"]["time_s"]
    assert times == sorted(times)
    for node, outcome in zip(nodes, outcomes, strict=True):
        assert node.addresses == {outcome["address"]}
        assert node.process.pid == outcome["pid"]


def test_survivors_of_a_killed_task_go_on_where_they_were(driver):
    """The model is rebuilt from the duals that are left; lost chunks come back from their source, with fresh state."""
    n0, n1, n2 = driver.begin("ascent", "n0", "n1", "n2")
    driver.iterate(5)
    n1.signal(signal.SIGSTOP)  # so that the others are in the iteration for sure
    driver.order()
    n1.signal(signal.SIGKILL)
    for node in (n0, n2):
        broke = node.expect(control.IterationBroke)
        assert (broke.round, broke.iteration) == (1, 6)
        assert {page.after for page in broke.ledger} == {None}
    driver.form([n0, n2], has_losses=True)
    assert driver.iteration == 5
    ended = driver.iterate(3, is_complete=False)
    assert sum(report.samples for report in ended[0].reports.values()) < 569
    lost = sorted(n1.attached)
    for index, node in enumerate((n0, n2)):
        node.load(lost[index::2], round=2, merged=8)
        node.attach()
    assert "relative duality gap" in driver.train()
    assert_certified(outcomes := driver.finish())
    assert [outcome["pid"] for outcome in outcomes] == [n0.process.pid, n2.process.pid]
    assert n0.addresses == {outcomes[0]["address"]}


def test_tasks_connect_before_the_members_of_a_round_have_met(driver, store):
    """A member of a round that was called was lost, so another one is called; the round before ends with neither."""
    n0, n1 = driver.begin("count", "n0", "n1")
    driver.iterate()
    [n2] = driver.start("count", "n2")
    n2.signal(signal.SIGSTOP)
    driver.call_round([n0, n1, n2])
    told = [f"{driver.run}/{driver.round}/{rank}" for rank in range(2)]
    assert store.get_all(told, wait_s=timeout_s(30)) is not None
    n2.signal(signal.SIGKILL)
    driver.form([n0, n1])
    assert driver.iterate()[0].reports.keys() == {"n0", "n1"}


def test_a_joiner_takes_the_newest_model_and_the_history(driver):
    """Chunks come with their duals, so nothing is lost and nothing starts again."""
    n0, n1 = driver.begin("cocoa", "n0", "n1")
    before = driver.iterate(20)[0]  # the first certificate is behind them
    [n2] = driver.start("cocoa", "n2")
    driver.announce_round([n0, n1, n2])
    for node in driver.members:
        assert node.expect(control.GroupReady).merged == 20
    for source in (n0, n1):
        for chunk in sorted(source.attached)[::3]:
            driver.move(chunk, source, n2)
    for node in driver.members:
        node.attach()
    after, *later = [driver.iterate()[0] for _ in range(4)]  # one task may solve for a working set first
    assert any(found.reports[n2.name].samples > 0 for found in (after, *later))
    assert after.figures["duality_gap_estimate"] < 2 * before.figures["duality_gap_estimate"]
    driver.train()
    assert_certified(driver.finish())


def test_a_survivor_that_missed_merges_takes_the_newest_model(driver):
    """It is behind, so its model is thrown away; the model is then rebuilt from the state of all."""
    n0, n1 = driver.begin("cocoa", "n0", "n1")
    driver.iterate(4)
    driver.form([n0], has_losses=True)
    driver.iterate(3, is_complete=False)
    driver.form([n1, n0], has_losses=True)
    assert driver.iteration == 7
    driver.train()
    assert_certified(driver.finish())


def test_state_that_comes_back_is_in_the_model_before_the_next_iteration(driver):
    """The survivor rebuilt its model without these duals, and no task knows that: the scheduler does."""
    n0, n1 = driver.begin("ascent", "n0", "n1")
    driver.iterate(4)
    driver.form([n0], has_losses=True)
    driver.iterate(3, is_complete=False)
    driver.form([n1, n0])
    driver.order(must_rebuild=True)
    driver.hear()
    for outcome in driver.finish():
        _, w = recomputed_gap(outcome)
        np.testing.assert_allclose(outcome["model"], w, atol=1e-9 * np.abs(w).max())


def test_state_counts_merged_iterations_while_chunks_move(driver):
    """No sample is visited twice or left out in an iteration, whoever has it; the pages of the ledger say the same."""
    n0, n1 = driver.begin("count", "n0", "n1")
    versions = {ChunkId(chunk): StateVersion() for chunk in range(len(n0.declared.rows))}
    rng = np.random.default_rng(0)
    for _ in range(6):
        rows_read = {}
        for ended in driver.iterate():
            for page in ended.ledger:
                for chunk, rows in zip(page.chunks, page.rows, strict=True):
                    assert page.before == versions[chunk]
                    rows_read[chunk] = rows_read.get(chunk, 0) + rows
                    assert page.after == StateVersion(driver.round, driver.iteration)
        assert rows_read == dict(enumerate(n0.declared.rows))
        versions = dict.fromkeys(versions, StateVersion(driver.round, driver.iteration))
        source, target = (n0, n1) if rng.random() < 0.5 else (n1, n0)
        for chunk in rng.permutation(sorted(source.attached))[:5].tolist():
            driver.move(ChunkId(chunk), source, target)
        n0.attach()
        n1.attach()
    outcomes = driver.finish("enough")
    for outcome in outcomes:
        assert outcome["state"] == [6] * 200
        assert outcome["model"] == [6.0] * 3
        # The job was ended from outside, so the last model is certified then.
        assert outcome["certified"] == [6, {"rows": 0.0}]


def test_rows_that_came_ahead_and_never_became_a_chunk_are_forgotten(driver):
    """Their slot is another chunk's, or was never written to; the task had looked at them already."""
    n0, n1 = driver.begin("count", "n0", "n1")
    driver.iterate(2)
    unwanted, moved = sorted(n0.attached)[:2]
    content = bytes_in_slot(n0.store, unwanted)
    n1.store.reserve(unwanted, len(content))[:] = content
    n1.say_ahead(unwanted)
    address = n1.store.address(unwanted)
    n1.store.reserve(moved, len(content))
    n1.say_ahead(moved)
    n1.store.free(moved)
    n1.store.free(unwanted)
    driver.move(moved, n0, n1)
    assert n1.store.address(moved) == address
    n0.attach()
    n1.attach()
    driver.iterate(2)
    for outcome in driver.finish("enough"):
        assert outcome["state"] == [4] * 200


def test_a_task_without_chunks_takes_part_in_the_sum(driver):
    """A node that has none yet (or none any more) neither counts nor hinders."""
    n0, n1 = driver.start("short", "n0", "n1")
    n0.load(range(len(n0.declared.rows)))
    driver.form([n1, n0])
    ended = driver.iterate()
    assert set(ended[0].reports) == {"n0"}
    assert driver.train() == "all 3 iterations used"
    for outcome in driver.finish():
        assert outcome["state"] == [3] * 200
        assert outcome["history"]["num_tasks"] == [1, 1, 1]


def test_an_interrupt_ends_a_long_iteration_and_votes_are_counted(driver):
    """What was done is merged; everybody learns how many want to stop here."""
    n0, n1 = driver.begin("slow", "n0", "n1")
    for num_votes in (1, 2):
        driver.order()
        for node in (n0, n1)[:num_votes]:
            node.say(control.Vote())
        for node in (n0, n1):
            node.say(control.Interrupt())
        ended = driver.hear()
        assert ended[0].votes == num_votes
        assert 0 < sum(report.samples for report in ended[0].reports.values()) < 200
        assert max(message.duration_s for message in ended) < 30


def test_tasks_that_may_go_on_wait_for_nobody_until_somebody_votes(driver):
    """One order, many iterations; a boundary with a vote is the last one, for all of them."""
    n0, _ = driver.begin("steady", "n0", "n1")
    driver.order(may_go_on=True)
    for _ in range(3):
        assert all(ended.goes_on and ended.votes == 0 for ended in driver.hear())
        driver.iteration += 1
    n0.say(control.Vote())
    last = driver.hear()
    while last[0].goes_on:
        driver.iteration += 1
        last = driver.hear()
    assert [ended.votes for ended in last] == [1, 1]
    assert not any(ended.goes_on for ended in last)
    merged = driver.iteration
    driver.iterate()
    assert all(outcome["state"] == [merged + 1] * 200 for outcome in driver.finish())


def test_a_task_that_went_on_is_interrupted_where_it_is_by_then(driver):
    """An interrupt meant for one iteration does not end all that follow."""
    [n0] = driver.begin("slow", "n0")
    driver.order(may_go_on=True)
    for _ in range(2):
        n0.say(control.Interrupt())
        [ended] = driver.hear()
        assert ended.is_interrupted
        assert ended.goes_on
        driver.iteration += 1
    n0.say(control.Break(round=1))
    assert n0.expect(control.IterationBroke).iteration == 3


def test_an_order_for_an_iteration_that_is_merged_is_a_fault(driver):
    """Nothing is counted twice: the task ends with an error instead."""
    [n0] = driver.begin("count", "n0")
    driver.iterate(2)
    n0.say(control.Iterate(round=1, iteration=2, is_complete=True, num_tasks=1))
    assert "iteration 2 of round 1 is merged" in n0.expect(control.Failed).traceback
    assert n0.exit_code() == 1


def test_a_break_frees_a_task_that_waits_for_a_silent_one(driver):
    """The silent one finds its connections closed when it wakes up; both can go on in the next round."""
    n0, n1 = driver.begin("count", "n0", "n1")
    driver.iterate()
    n1.signal(signal.SIGSTOP)
    driver.order()
    n0.say(control.Break(round=1))
    assert n0.expect(control.IterationBroke).iteration == 2
    n1.signal(signal.SIGCONT)
    # What n0 gave before it was cut off may be all that n1 still needed.
    answer = n1.next()
    assert isinstance(answer, control.IterationBroke | control.IterationEnded)
    assert answer.iteration == 2
    driver.announce_round([n0, n1])
    n0.expect(control.GroupReady)
    n1.expect(control.GroupReady)
    # An order that names a round of the past is answered, too.
    n0.say(control.Iterate(round=1, iteration=2, is_complete=True, num_tasks=2))
    assert "no group for round 1" in n0.expect(control.IterationBroke).reason


def test_a_round_that_cannot_be_formed_is_broken_and_the_next_one_counts(driver):
    """A member died between the rendezvous and its connection."""
    n0, n1 = driver.start("count", "n0", "n1")
    driver.share([n0, n1])
    n1.signal(signal.SIGSTOP)
    driver.announce_round([n0, n1])
    n1.signal(signal.SIGKILL)
    n0.say(control.Break(round=1))
    assert n0.expect(control.GroupBroke).round == 1
    driver.form([n0])
    assert driver.iterate()[0].reports.keys() == {"n0"}


def test_the_end_of_the_agent_is_the_end_of_the_task(driver):
    """In the middle of an iteration, too: there are no orphans. Signals are for the agent alone."""
    [n0] = driver.begin("slow", "n0")
    driver.order()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        n0.signal(number)
    n0.say(control.Interrupt())
    driver.hear()
    driver.order()
    n0.channel.close()
    assert n0.exit_code() == ORPHAN_EXIT_CODE
    assert "the agent is gone" in n0.log.read_text()


@pytest.mark.parametrize("merged", [0, 2])
def test_who_was_taken_for_lost_brings_no_iteration_that_the_others_gave_up(driver, merged):
    """It had the whole sum when they were cut off, and they have gone on without it: its lines are in no ledger."""
    n0, n1 = driver.begin("count", "n0", "n1")
    if merged:
        driver.iterate(merged)
    driver.form([n1])
    driver.iterate()
    assert driver.merged == merged + 1
    driver.announce_round([n1, n0], merged=merged, returned=[n1], has_losses=True)
    for node in driver.members:
        assert node.expect(control.GroupReady).merged == merged
        node.attach()
    driver.iteration = merged
    driver.iterate()
    first, second = driver.finish()
    assert first["model"] == second["model"]


def test_who_was_taken_for_lost_takes_the_model_of_an_iteration_that_the_others_repeated(driver):
    """Both have merged iteration 3, each in a round without the other: the log knows which one counts."""
    n0, n1 = driver.begin("ascent", "n0", "n1")
    driver.iterate(2)
    driver.form([n1])
    driver.iterate(is_complete=False)
    driver.form([n0])
    driver.iterate(is_complete=False)
    driver.announce_round([n1, n0], merged=3, merged_round=3, returned=[n1])
    ready = [node.expect(control.GroupReady) for node in driver.members]
    assert {message.merged for message in ready} == {3}
    for node in driver.members:
        node.attach()
    first, second = driver.finish()
    assert first["model"] == second["model"]


def test_who_has_not_the_last_model_has_no_outcome(driver):
    """One that has just started, and one that was away: only those who have the model may hand it to the script."""
    n0, n1 = driver.begin("count", "n0", "n1")
    driver.iterate(2)
    for chunk in sorted(n1.attached):
        driver.move(chunk, n1, n0)
    driver.form([n0])
    driver.iterate()
    [late] = driver.start("count", "n2")
    for node in (n1, late):
        node.say(control.Finish(reason="done", merged=driver.merged))
        node.expect(control.Left)
        assert node.exit_code() == 0
        assert not node.out.exists()
        assert f"ended with iteration 3, and task {node.name} has no model of it" in node.log.read_text()
    [outcome] = driver.finish()
    assert outcome["reason"] == "done"


def test_a_node_that_leaves_ends_its_task_with_exit_code_0(driver):
    """`run` does not return there: what the script does with the outcome is for those who stay."""
    n0, n1 = driver.begin("count", "n0", "n1")
    driver.iterate()
    n1.say(control.Exit())
    n1.expect(control.Left)
    assert n1.exit_code() == 0
    assert not n1.out.exists()
    # Its end takes a while; who stays and is on the same host goes on meanwhile.
    assert f"leaves with niceness {min(19, os.nice(0) + LEAVING_NICENESS)}\n" in n1.log.read_text()
    driver.members.remove(n1)
    driver.order()
    assert n0.expect(control.IterationBroke).iteration == 2


def test_an_exception_of_user_code_travels_as_text_and_ends_the_job_everywhere(driver):
    """The task that raised says where; the others raise what their agents tell them."""
    n0, n1 = driver.start("failing", "n0", "n1")
    n0.load(range(len(n0.declared.rows)))  # n1 has no chunks, so its solver is not called
    driver.form([n0, n1])
    driver.iterate()
    driver.order()
    failed = n0.expect(control.Failed)
    assert "ValueError: this solver was told to fail" in failed.traceback
    assert n0.exit_code() == 1
    n1.expect(control.IterationBroke)
    n1.say(control.Finish(reason="the task of n0 failed", merged=0, failure=failed.traceback))
    n1.expect(control.Left)
    assert n1.exit_code() == 1
    assert "JobFailedError: the task of n0 failed" in n1.log.read_text()


def test_a_callback_in_any_task_ends_the_job_in_all(driver):
    """Every task is asked at each boundary, and one True is enough."""
    [n0] = driver.start("called", "n0")
    [n1] = driver.start("count", "n1")
    driver.share([n0, n1])
    driver.form([n0, n1])
    assert driver.train() == "ended by a callback"
    assert driver.iteration == 2
    assert all(outcome["certified"][0] == 2 for outcome in driver.finish())


@pytest.mark.parametrize("app", ["called", "count"], ids=["by a callback", "from outside"])
def test_a_job_that_ends_while_chunks_are_missing_has_no_certificate(driver, app):
    """Sums over a part of the samples bound nothing; the model and the history are there all the same."""
    n0, n1 = driver.start(app, "n0", "n1")
    chunks = range(len(n0.declared.rows))
    n0.load(chunks[: len(chunks) // 2])
    driver.form([n0, n1])
    driver.iterate(2, is_complete=False)
    for outcome in driver.finish():
        assert outcome["certified"] is None
        assert outcome["model"] == [2.0] * 3
        assert len(outcome["history"]["iteration"]) == 2


def test_messages_between_solvers_and_trainer_pass_through_the_agents(driver):
    """The trainer listens in the task of rank 0, and answers."""
    n0, n1 = driver.begin("chatty", "n0", "n1")
    driver.order()
    posts = {node.name: node.expect(control.UserMessage) for node in (n0, n1)}
    assert (posts["n1"].sender, posts["n1"].to) == ("n1", "*")
    # Rank 0 answers its own solver at once; the mail of the other is brought before the next iteration.
    driver.hear()
    n0.say(control.Deliver(sender="n1", to="*", payload=posts["n1"].payload))
    driver.order()
    answer = n0.expect(control.UserMessage)
    assert (answer.sender, answer.to, answer.payload) == ("trainer", "n1", '"welcome"')
    driver.hear()
    driver.finish()
    heard = n0.log.read_text().splitlines()
    assert "trainer heard {'hello from': 'n0'} from n0" in heard
    assert "trainer heard {'hello from': 'n1'} from n1" in heard
    assert "n0 heard {'hello from': 'n1'} from n1" in heard
    assert "n0 heard welcome from trainer" in heard


def test_a_chunk_that_cannot_be_loaded_is_reported_with_the_reason(driver):
    """The task lives on, and loads the next one."""
    [n0] = driver.start("count", "n0")
    n0.store.reserve(ChunkId(0), n0.declared.size_bytes[0])
    n0.say_arenas()
    for chunk, arena in ((999, 0), (0, 7)):
        n0.say(control.Load(chunk=ChunkId(chunk), arena=arena, slot=0, round=1, merged=0))
    assert "there is no chunk 999" in n0.expect(control.LoadFailed).reason
    assert "the agent has not sent arena 7" in n0.expect(control.LoadFailed).reason
    n0.store.free(ChunkId(0))
    n0.load([1, 0])


def test_the_agent_tells_its_task_by_the_environment_where_it_is():
    """Chunks are cut for the largest number of nodes, so every task has to know it."""
    address = "unix:@chicle-control-7"
    runtime = cluster_runtime(Settings.from_environment({"CHICLE_CONTROL": address, "CHICLE_MAX_NODES": "8"}))
    assert (runtime.control, runtime.most_tasks()) == (address, 8)


def test_a_script_that_no_agent_started_is_told_what_to_do():
    """The same script runs in process with another runtime."""
    with pytest.raises(UsageError, match=r"chicle_elastic\.launch, or use InProcess"):
        cluster_runtime(Settings())
