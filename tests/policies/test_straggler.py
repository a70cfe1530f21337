"""Bounding an iteration: who is slow, when that ends, and that what is cut breaks no promise."""

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.evaluate.throttled import Pace, ThrottledCocoa
from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Policy
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.straggler import Straggler
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.solvers.base import NO_PROGRESS
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.testing.virtual_clock import VirtualClock
from chicle_elastic.values import DEADLINE, Decision, Observations, SetParameter, TaskReport
from tests.solvers.linear_jobs import Problem, assert_optimal, problem, recompute

ROWS = 100
MS = 1e-3


def observe(
    times_ms: dict[str, float | list[float]],
    *,
    deadline_ms: float | None = 0.0,
    iterations: int = 6,
    rows: dict[str, int] | None = None,
) -> Observations:
    """What a policy sees of tasks that would take so long for all of their rows, and were cut at the deadline."""
    reports = {}
    own = {name: (rows or {}).get(name, ROWS) for name in times_ms}
    for name, given in times_ms.items():
        series = given if isinstance(given, list) else [given] * iterations
        parts = [min(1.0, deadline_ms / time_ms) if deadline_ms else 1.0 for time_ms in series]
        reports[NodeId(name)] = tuple(
            TaskReport(samples=int(part * own[name]), duration_s=MS * part * time_ms)
            for part, time_ms in zip(parts, series, strict=True)
        )
    nodes = list(reports)
    return Observations(
        round=1,
        iteration=iterations,
        num_chunks=dict.fromkeys(nodes, 10),
        samples={NodeId(name): count for name, count in own.items()},
        capacity_bytes=dict.fromkeys(nodes),
        used_bytes=dict.fromkeys(nodes, 1000),
        reports=reports,
        parameters={} if deadline_ms is None else {DEADLINE: MS * deadline_ms},
    )


def set_to(decision: Decision | None) -> float | None:
    """The deadline that is decided, in milliseconds; None for nothing."""
    if decision is None:
        return None
    [action] = decision.actions
    assert isinstance(action, SetParameter)
    assert action.name == DEADLINE
    return pytest.approx(action.value / MS)


EVEN = {"a": 20.0, "b": 20.0, "c": 20.0, "d": 20.0}


DEADLINES = {
    "even": (EVEN, 0, None),
    "slower": (EVEN | {"d": 30.0}, 0, None),
    "slow": (EVEN | {"d": 200.0}, 0, 25.0),
    "two": ({"a": 20.0, "d": 200.0}, 0, 25.0),
    "noisy": ({"a": 18.0, "b": 20.0, "c": 22.0, "d": 200.0}, 0, 20 + 5 * 1.4826 * 2),
    "short": ({"a": 2.0, "b": 2.0, "d": 20.0}, 0, 5.0),
    "short and slow": ({"a": 2.0, "b": 2.0, "d": 4.5}, 0, None),
    "alone": ({"d": 200.0}, 0, None),
    "very slow once": (EVEN | {"d": [20.0, 20.0, 20.0, 20.0, 20.0, 200.0]}, 0, 25.0),
    "slow once": (EVEN | {"d": [20.0, 20.0, 20.0, 20.0, 20.0, 60.0]}, 0, None),
    "very slow before": (EVEN | {"d": [20.0, 20.0, 20.0, 20.0, 200.0, 20.0]}, 0, None),
    "bound": (EVEN | {"d": 200.0}, 25, None),
    "still slow": (EVEN | {"d": 30.0}, 25, None),
    "well enough": (EVEN | {"d": 24.0}, 25, 0.0),
    "well": (EVEN, 25, 0.0),
    "well for long": (EVEN | {"d": [200.0, 20.0, 20.0, 20.0, 20.0, 20.0]}, 25, 0.0),
    "well again": (EVEN | {"d": [20.0, 20.0, 200.0, 20.0, 20.0, 20.0]}, 25, None),
    "later": ({"a": 40.0, "b": 40.0, "c": 40.0, "d": 400.0}, 70, 50.0),
    "earlier": ({"a": 10.0, "b": 10.0, "c": 10.0, "d": 200.0}, 25, 12.5),
    "not to be cut": (EVEN | {"d": 200.0}, None, None),
}
"""Times of the tasks, the deadline that they have, and the one that is decided."""


@pytest.mark.parametrize("name", DEADLINES)
def test_the_deadline_follows_the_others(name: str) -> None:
    """Median and deviation of the others, nothing for what is not slow, and an end of it."""
    times_ms, deadline_ms, expected = DEADLINES[name]
    decision = Straggler().decide(observe(times_ms, deadline_ms=deadline_ms))
    assert set_to(decision) == (None if expected is None else pytest.approx(expected, rel=0.02))


def test_the_reason_names_the_node_and_its_factor() -> None:
    """A line of the log that says what is the matter."""
    decision = Straggler().decide(observe(EVEN | {"d": 200.0}))
    assert decision is not None
    assert decision.reason == (
        "d takes 10x the median time of the others for its rows; iterations end after 25 ms with what is done"
    )


def test_a_task_is_judged_by_the_rows_that_it_has_now() -> None:
    """`Rebalance` has taken nine tenths of them: it would finish in time."""
    slow = EVEN | {"d": 20.0}
    assert set_to(Straggler().decide(observe(slow, deadline_ms=25.0, rows={"d": 10}))) == pytest.approx(0.0)


def test_a_cluster_that_became_slower_as_a_whole_has_no_straggler() -> None:
    """All tasks are cut at first, so none of them shows how many rows it would take."""
    slower = dict.fromkeys(EVEN, 60.0)
    assert set_to(Straggler().decide(observe(slower, deadline_ms=25.0))) == pytest.approx(0.0)


def test_too_few_reports_and_no_rows_are_no_ground() -> None:
    """A node that joined just now, and one without chunks."""
    assert Straggler().decide(observe(EVEN | {"d": [200.0, 200.0]})) is None
    assert Straggler().decide(observe(EVEN | {"d": 200.0}, rows={"d": 0})) is None


def test_noise_is_no_straggler() -> None:
    """A hundred iterations at 5 % noise: no decision."""
    rng = np.random.default_rng(0)
    series = {name: (20.0 * (1 + 0.05 * rng.standard_normal(105))).tolist() for name in "abcdefgh"}
    for end in range(5, 105):
        seen = {name: values[max(0, end - 32) : end] for name, values in series.items()}
        assert Straggler().decide(observe(dict(seen))) is None


# In process, on a clock that the tasks move.


def train(*policies: Policy, until: int = 40, iterations: int = 80) -> tuple[Problem, LinearTrainer, Outcome]:
    """Four tasks; one of them takes ten times as long from iteration 10 on."""
    data = problem(rows=800)
    pace = Pace(row_s=1e-4, slow=("task-1",), since=10, until=until)
    trainer = ThrottledCocoa(C=0.1, tol=0.0, pace=pace)
    job = Job(
        trainer=trainer,
        source=ArraySource(data.X, data.y, max_tasks=4, chunk_bytes=1024),
        max_iterations=iterations,
        keep_state=True,
        policies=policies,
    )
    return data, trainer, InProcess(num_tasks=4).run(job, clock=VirtualClock())


def assert_consistent(data: Problem, trainer: LinearTrainer, outcome: Outcome) -> None:
    """w = w(alpha), to rounding, and the duals are feasible."""
    found = recompute(data, trainer, outcome.model, outcome.state)
    w = outcome.model.reshape(found.w_of_duals.shape)
    assert (np.abs(w - found.w_of_duals) <= 1e-10 * np.abs(w).max() + found.rounding).all()


def slowest_ms(outcome: Outcome) -> list[float]:
    """Time of the slowest task, by iteration."""
    return [max(record.seconds.values()) / MS for record in outcome.history]


def test_the_others_wait_for_a_part_of_its_rows_only() -> None:
    """From the second slow iteration on; afterwards all rows are read again."""
    data, trainer, outcome = train(Straggler())
    times_ms = slowest_ms(outcome)
    assert times_ms[:9] == [pytest.approx(20.0, rel=0.1)] * 9
    assert max(times_ms[9:14]) > 150
    assert max(times_ms[11:39]) < 27
    assert times_ms[50:] == [pytest.approx(20.0, rel=0.1)] * 30
    said = [line for record in outcome.history for line in record.events if "deadline_s" in line]
    assert len(said) == 2
    assert "Straggler sets deadline_s to 0.02" in said[0]
    assert "task-1 takes 10x the median time" in said[0]
    assert "no deadline any more" in said[1]
    held = outcome.history.column("parameters.deadline_s")
    assert np.isnan(held[:9]).all()
    assert (held[20:38] > 0).all()
    assert held[-1] == 0
    assert_consistent(data, trainer, outcome)


def test_with_rebalance_the_slow_task_keeps_its_deadline_until_its_rows_are_gone() -> None:
    """Both at once: chunks leave the slow task while it is cut, and then nothing is cut."""
    data, trainer, outcome = train(Straggler(), Rebalance(min_iteration_s=0.001), until=1000, iterations=120)
    times_ms = slowest_ms(outcome)
    assert max(times_ms[15:]) < 40
    assert outcome.history[-1].num_chunks["task-1"] <= 3
    assert times_ms[-1] < 30
    assert_consistent(data, trainer, outcome)


class TickingClock(VirtualClock):
    """A second passes from one look at it to the next."""

    def now(self) -> float:
        self.advance(1.0)
        return super().now()


class Cut(Policy):
    """Sets a deadline that comes with the third look at the clock."""

    def decide(self, observations: Observations, /) -> Decision | None:
        assert DEADLINE in observations.parameters
        return Decision(actions=(SetParameter(DEADLINE, 3.0),), reason="as short as that")


class Ascent(LinearTrainer):
    """Coordinate ascent with any number of tasks."""

    def begin(self, schema: DataSchema, model: Array, progress: Array, num_tasks: int) -> Array:
        return NO_PROGRESS


def test_real_passes_end_at_the_deadline_with_duals_that_fit() -> None:
    """The kernel's own look at the clock: iterations lack rows, and w = w(alpha) all the same."""
    data = problem(rows=60_000, features=30)
    trainer = Ascent(C=0.1, tol=0.0)
    job = Job(
        trainer=trainer,
        source=ArraySource(data.X, data.y, max_tasks=2),
        max_iterations=20,
        keep_state=True,
        policies=(Cut(),),
    )
    outcome = InProcess(num_tasks=2).run(job, clock=TickingClock())
    epochs = outcome.history.column("epochs")
    parts = np.diff(epochs[2:])
    assert 0.2 < parts.min() <= parts.max() < 0.4
    assert_consistent(data, trainer, outcome)


def test_newton_is_not_cut() -> None:
    """Its sums need every row, so policies are not offered a deadline, and one that is set does not count."""
    data = problem(rows=400)

    class Insist(Policy):
        def decide(self, observations: Observations, /) -> Decision | None:
            assert DEADLINE not in observations.parameters
            return None

    trainer = LinearTrainer(C=1.0, tol=1e-6, loss="logistic")
    job = Job(
        trainer=trainer,
        source=ArraySource(data.X, data.y, max_tasks=2),
        max_iterations=200,
        keep_state=True,
        policies=(Insist(), Straggler()),
    )
    outcome = InProcess(num_tasks=2).run(job)
    assert not [line for record in outcome.history for line in record.events if "disabled" in line]
    assert_optimal(data, trainer, outcome)
