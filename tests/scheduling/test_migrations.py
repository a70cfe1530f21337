"""Each chunk that a policy moves has a migration of its own: others are planned and arrive while it travels."""

from dataclasses import dataclass, field

from chicle_elastic.policies.base import Policy
from chicle_elastic.scheduling import effects, events
from chicle_elastic.scheduling.scheduler import Scheduler
from chicle_elastic.values import Decision, MoveChunks, Observations, RedrawOwnership
from tests.harness.sim_cluster import SimCluster
from tests.scheduling.stage import Stage, kinds, only
from tests.scheduling.test_transitions import COPY, PRECOPY, A, B, ended, pairs, result, running


def wish(stage: Stage, iteration: int, *actions: object, policy: str = "p") -> list[effects.Effect]:
    """A decision by event; then the iteration ends, and what that leads to but for pre-copies is answered."""
    proposal = events.Proposal(policy=policy, round=1, actions=actions, reason="slow", iteration=iteration)
    stage.tell(proposal)
    return result(stage)


def last_start(stage: Stage) -> effects.StartIteration:
    """The order to iterate that was given last."""
    return only(stage.orders, effects.StartIteration)[-1]


def test_moves_add_up_while_earlier_ones_travel():
    """A later decision takes other chunks, if it has seen the earlier one; each chunk moves when its rows are there."""
    stage = running(num_chunks=8)
    assert kinds(wish(stage, 1, MoveChunks(A, B, 2))) == ["PrecopyChunks", "StartIteration"]
    first = stage.take(PRECOPY)
    assert (last_start(stage).travelling, last_start(stage).arriving) == (2, {A: (-2, -20), B: (2, 20)})
    wish(stage, 2, MoveChunks(A, B, 1))
    assert "decision of policy p after iteration 2 is refused: chunks were moved for it after iteration 2" in stage.logs
    wish(stage, 3, MoveChunks(A, B, 1))
    second = stage.take(PRECOPY)
    assert not pairs(first) & pairs(second)
    assert (last_start(stage).travelling, last_start(stage).arriving) == (3, {A: (-3, -30), B: (3, 30)})
    ended(stage, second)
    assert pairs(only(result(stage), COPY)) == pairs(second)
    assert stage.counts() == {"a": 3, "b": 5}
    ended(stage, first[:1])
    ended(stage, first[1:], fail=True)
    assert pairs(only(result(stage), COPY)) == pairs(first[:1])
    assert stage.counts() == {"a": 2, "b": 6}
    assert (last_start(stage).travelling, last_start(stage).arriving) == (0, {})


def test_a_decision_is_about_counts_as_they_will_be():
    """No more can leave a node than it will have; what it does not have yet is not moved."""
    stage = running(num_chunks=8)
    wish(stage, 1, MoveChunks(A, B, 3))
    wish(stage, 3, MoveChunks(A, B, 2))
    assert "decision of policy p after iteration 3 is refused: 2 chunks are to leave a, which has 1" in stage.logs
    wish(stage, 4, MoveChunks(B, A, 6))
    assert "p moves 4 of 6 chunks (others are on their way, have left, or find no room): slow" in stage.logs
    assert last_start(stage).arriving == {A: (1, 10), B: (-1, -10)}


def test_redraws_and_moves_travel_together_and_do_not_make_each_other_stale():
    """Moves are planned first, so that a redraw of everything leaves some; it changes no count."""
    stage = running(num_chunks=8)
    stage.tell(
        events.Proposal(policy="redraw", round=1, actions=(RedrawOwnership(1.0),), reason="?", iteration=1, place=0)
    )
    wish(stage, 1, MoveChunks(A, B, 1))
    assert "p moves 1 of 1 chunk: slow" in stage.logs
    assert last_start(stage).travelling == 1 + 2 * 3
    assert last_start(stage).arriving == {A: (-1, -10), B: (1, 10)}
    wish(stage, 2, RedrawOwnership(1.0), policy="redraw")
    assert "redraw after iteration 2 is refused: chunks were redrawn for it after iteration 2" in " ".join(stage.logs)
    ended(stage, [order for order in stage.orders if isinstance(order, PRECOPY) and order.target == A])
    ended(stage, [order for order in stage.take(PRECOPY) if order.target == B])
    result(stage)
    assert stage.counts() == {"a": 3, "b": 5}


@dataclass
class Restless(Policy):
    """Moves or redraws a little after every iteration, and checks what it sees."""

    num_chunks: int = 0  # in all
    overlaps: list[int] = field(default_factory=list)  # decisions that were made while chunks were on their way

    def decide(self, observations: Observations, /) -> Decision | None:
        """In turn."""
        counts = observations.num_chunks
        assert min(counts.values(), default=0) >= 0
        assert min(observations.samples.values(), default=0) >= 0
        assert all((count == 0) == (observations.samples[node] == 0) for node, count in counts.items())
        if observations.travelling:
            self.overlaps.append(observations.iteration)
        if observations.iteration % 2 or len(counts) < 2:
            return Decision(actions=(RedrawOwnership(0.3),), reason="odd")
        poorest, *_, richest = sorted(counts, key=lambda node: (counts[node], node))
        return Decision(actions=(MoveChunks(richest, poorest, min(1, counts[richest])),), reason="even")


def test_no_history_with_overlapping_migrations_breaks_a_guarantee():
    """Nodes join, leave and die, memory is full, copies fail: the ledger is judged after every event."""
    num_overlaps = 0
    for seed in range(600):
        policy = Restless()
        lines: list[str] = []

        def make_scheduler(settings, policies, policy=policy):
            return Scheduler(settings, (*policies, policy))

        SimCluster(seed, make_scheduler=make_scheduler, tell=lines.append).run()
        assert not [line for line in lines if "Restless is disabled" in line]
        num_overlaps += len(policy.overlaps)
    assert num_overlaps > 20
