"""The policies of a job: they are asked at a boundary, and whatever they say, training goes on.

A policy that raises or talks nonsense is not asked again, and a log line names it. Policies of a cluster are not here:
their decisions come as events, and so does the word that one of them failed (`runtime.advice`).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from chicle_elastic.errors import ContractError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling.effects import Effect, Log
from chicle_elastic.scheduling.text import disabled_text, fault_text
from chicle_elastic.values import Decision, Observations, TaskReport


class DecidingPolicy(Protocol):
    """What the scheduler needs of a policy; `policies.base.Policy` is one."""

    @property
    def name(self) -> str:
        """For the log."""
        ...

    def decide(self, observations: Observations, /) -> Decision | None:
        """What to move, if anything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A decision that waits for the boundary."""

    policy: str
    generation: int
    moves: Mapping[tuple[NodeId, NodeId], int]
    reason: str
    iteration: int | None = None


class PendingPolicies:
    """Policies, what they may look at, and what they want.

    Args:
        policies: Asked in this order.
        emit: Takes log lines.
        history_length: Iterations whose reports are kept.

    Attributes:
        proposals: Decisions that wait for the boundary.
        disabled: Names of policies that are not asked again, as keys.
        reports: Of the last iterations, by node.
    """

    def __init__(
        self, policies: Sequence[DecidingPolicy], emit: Callable[[Effect], None], *, history_length: int
    ) -> None:
        self.proposals: list[Proposal] = []
        self.disabled: dict[str, None] = {}
        self.reports: dict[NodeId, deque[TaskReport]] = {}
        self._policies = list(policies)
        self._emit = emit
        self._history_length = history_length

    @property
    def has_policies(self) -> bool:
        """Whether any policy would be asked."""
        return bool(self._policies)

    def note(self, reports: Mapping[NodeId, TaskReport]) -> None:
        """Keep the reports of an iteration."""
        for node, report in reports.items():
            if node not in self.reports:
                self.reports[node] = deque(maxlen=self._history_length)
            self.reports[node].append(report)

    def forget(self, node: NodeId) -> None:
        """The node is gone; if one of that name comes again, it starts without a past."""
        self.reports.pop(node, None)

    def ask(self, observations: Observations) -> None:
        """Ask every policy; sound decisions become proposals."""
        for policy in list(self._policies):
            try:
                decision = policy.decide(observations)
                if decision is None:
                    continue
                flaw = flaw_of(decision.moves, observations.num_chunks)
                proposal = Proposal(
                    policy=policy.name,
                    generation=observations.round,
                    moves=dict(decision.moves),
                    reason=decision.reason,
                )
            except ContractError as error:  # of who asks it: it has not answered
                self._dismiss(policy, str(error))
                continue
            except Exception as error:  # a policy is foreign code; training must not end by it
                self._dismiss(policy, fault_text(error))
                continue
            if flaw is not None:
                self._dismiss(policy, f"decided nonsense: {flaw}")
            else:
                self.proposals.append(proposal)

    def disable(self, name: str, why: str) -> None:
        """A policy that is disabled is not asked again; what it wanted is forgotten."""
        if name not in self.disabled:
            self.disabled[name] = None
            self.proposals = [proposal for proposal in self.proposals if proposal.policy != name]
            self._emit(Log(text=disabled_text(name, why)))

    def _dismiss(self, policy: DecidingPolicy, why: str) -> None:
        self._policies.remove(policy)
        self.disable(getattr(policy, "name", type(policy).__name__), why)


def flaw_of(moves: object, num_chunks: Mapping[NodeId, int]) -> str | None:
    """What is wrong with the moves of a decision, in words; None if they can be tried.

    Args:
        moves: Supposed to be numbers of chunks by (source, target).
        num_chunks: Chunks that each node owns that may take part.
    """
    if not isinstance(moves, Mapping):
        return f"moves are {moves!r} and not a mapping"
    taken: dict[NodeId, int] = {}
    for pair, count in moves.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            return f"{pair!r} is not a pair (source, target)"
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            return f"{count!r} chunks from {pair[0]} to {pair[1]}"
        for node in pair:
            if node not in num_chunks:
                return f"{node} is not a member that stays"
        source, target = pair
        if source == target:
            return f"{count} chunks from {source} to itself"
        taken[source] = taken.get(source, 0) + count
    for node, count in taken.items():
        if count > num_chunks[node]:
            return f"{count} chunks are to leave {node}, which has {num_chunks[node]}"
    return None
