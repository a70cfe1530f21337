"""The policies of a job: they are asked at a boundary, and whatever they say, training goes on.

    observe    what a runtime knows  ->  observations; in the task of rank 0 of a cluster, else in the scheduler
    propose    policy, observations  ->  a proposal, the reason to disable the policy, or None if it wants nothing

Several policies act at once. Moves and redraws add up. Anything else is a *field* with one owner: a parameter of the
trainer, the number of nodes. The first policy in the job's order that wants a field owns it, from then on; a later one
gets it when no earlier one has wanted it. A wish that is lost so is logged.

Every decision leaves a line: what it does, or why it is refused. Where a decision still waits for a boundary when its
policy makes the next one, the newer one replaces it, and a line counts it.

A policy that raises or talks nonsense is not asked again, and a log line names it. Policies of a cluster run in the
task of rank 0 (`runtime.cluster_task.policy_runner`): their proposals come as events, and so does the word that one
failed.
"""

import copy
import dataclasses
import json
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, Protocol

from chicle_elastic.errors import ContractError
from chicle_elastic.ids import NodeId
from chicle_elastic.scheduling import effects
from chicle_elastic.scheduling.effects import Effect, Log
from chicle_elastic.scheduling.events import PolicyDisabled, ResourcesOffered
from chicle_elastic.scheduling.settings import SchedulerSettings
from chicle_elastic.scheduling.text import count_text, disabled_text, fault_text, refused_texts
from chicle_elastic.values import (
    DEADLINE,
    EVERYONE,
    HISTORY_LENGTH,
    POLICY_PREFIX,
    TRAINER,
    AddressedMessage,
    Decision,
    Happening,
    MoveChunks,
    Observations,
    PolicyAction,
    Proposal,
    RedrawOwnership,
    ReleaseNode,
    Remember,
    RequestNodes,
    ResourceOffer,
    SendMessage,
    SetParameter,
    TaskReport,
    TrainingState,
)

NODES = "the number of nodes"  # a field; no parameter has a name with blanks
MOST_CHARACTERS = 1 << 16  # of what a policy sends or remembers, as JSON text: it is in the log of every agent


class DecidingPolicy(Protocol):
    """What the scheduler needs of a policy; `policies.base.Policy` is one."""

    @property
    def name(self) -> str:
        """For the log."""
        ...

    def decide(self, observations: Observations, /) -> Decision | None:
        """What to do, if anything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Which policy decides on a field."""

    policy: str
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHoldings:
    """What a node has, as `Observations` show it."""

    num_chunks: int
    samples: int
    used_bytes: int  # memory that they take
    capacity_bytes: int | None = None  # memory for chunks; None where it is not accounted


@dataclass(eq=False, repr=False)
class RecentIterations:
    """What was said of the last iterations."""

    length: InitVar[int] = HISTORY_LENGTH
    reports: dict[NodeId, list[TaskReport]] = field(default_factory=dict)  # of each task, oldest first, by node
    training: list[TrainingState] = field(default_factory=list)
    happened: tuple[Happening, ...] = ()

    def __post_init__(self, length: int) -> None:
        self._length = length

    def note(self, reports: Mapping[NodeId, TaskReport], training: Iterable[TrainingState]) -> None:
        """Keep what was said of an iteration; no `training` where no policy is going to look at it."""
        for node, report in reports.items():
            said = self.reports.setdefault(node, [])
            said.append(report)
            del said[: -self._length]
        self.training.extend(training)
        del self.training[: -self._length]

    def begin(self, iteration: int, happened: Sequence[Happening]) -> None:
        """Keep what happened before an iteration, once: one that was aborted begins again with all of it."""
        known = self.happened
        if happened:
            known = (*(each for each in known if each.iteration < iteration), *happened)
        if known and known[0].iteration <= iteration - self._length:
            known = tuple(each for each in known if each.iteration > iteration - self._length)
        self.happened = known

    def forget(self, node: NodeId) -> None:
        """The node is gone; if one of that name comes again, it starts without a past."""
        self.reports.pop(node, None)

    def keep_only(self, nodes: Iterable[NodeId]) -> None:
        """Forget all nodes but these."""
        for node in self.reports.keys() - set(nodes):
            self.forget(node)


def observe(
    recent: RecentIterations,
    holdings: Mapping[NodeId, NodeHoldings],
    *,
    round: int,
    iteration: int,
    min_nodes: int,
    max_nodes: int | None,
    wanted: int,
    travelling: int,
    arriving: Mapping[NodeId, tuple[int, int]],
    offer: ResourceOffer,
) -> Observations:
    """Return what policies see after an iteration. Pure."""
    none = 0, 0
    last = recent.training[-1] if recent.training else TrainingState()
    return Observations(
        round=round,
        iteration=iteration,
        num_chunks={node: held.num_chunks + arriving.get(node, none)[0] for node, held in holdings.items()},
        samples={node: held.samples + arriving.get(node, none)[1] for node, held in holdings.items()},
        capacity_bytes={node: held.capacity_bytes for node, held in holdings.items()},
        used_bytes={node: held.used_bytes for node, held in holdings.items()},
        reports={node: tuple(recent.reports.get(node, ())) for node in holdings},
        figures=tuple(state.figures for state in recent.training),
        iteration_s=tuple(state.duration_s for state in recent.training),
        epochs=last.epochs,
        now_s=last.elapsed_s,
        parameters=last.parameters,
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        wanted=wanted or len(holdings),
        travelling=travelling,
        available=offer.available,
        price=offer.price,
        happened=recent.happened,
    )


@dataclass(eq=False, repr=False)
class PendingPolicies:
    """Policies, what they may look at, and what they want."""

    _given: Sequence[DecidingPolicy]
    _emit: Callable[[Effect], None]
    _settings: SchedulerSettings
    proposals: list[Proposal] = field(default_factory=list)
    disabled: dict[str, None] = field(default_factory=dict)  # names of policies that are not asked again, as keys
    parameters: dict[str, float] = field(default_factory=dict)  # values that policies have set, by name
    owners: dict[str, Owner] = field(default_factory=dict)  # who decides on a field, by its name
    messages: list[AddressedMessage] = field(default_factory=list)  # that the next iteration delivers
    memories: dict[str, Any] = field(default_factory=dict)  # what policies have remembered, by name
    fresh: dict[str, None] = field(default_factory=dict)  # names of those that have since the last merge, as keys
    wanted: int = 0  # nodes that were asked for last; 0 for none
    num_requests: int = 0
    offer: ResourceOffer = field(default_factory=ResourceOffer)
    offer_number: int = 0  # of that offer; 0 for none
    # (policy, field) of wishes that were lost, as keys; also (policy, release) of those that were refused
    lost: dict[tuple[str, str], None] = field(default_factory=dict)
    has_said: bool = False  # whether a line was emitted about the proposal that is carried out

    def __post_init__(self) -> None:
        self.recent = RecentIterations(self._settings.history_length)
        self._policies = list(self._given)
        self._places = {id(policy): place for place, policy in enumerate(self._given)}
        self._names = tuple(policy.name for policy in self._given)

    @property
    def has_policies(self) -> bool:
        """Whether any policy would be asked."""
        return bool(self._policies)

    def ask(self, observations: Observations) -> None:
        """Ask every policy; sound decisions become proposals."""
        for policy in list(self._policies):
            seen = private(observations, policy.name, self.memories, self._names)
            answer = propose(policy, seen, place=self._places[id(policy)])
            if isinstance(answer, Proposal):
                self.add(answer)
            elif answer is not None:
                self._policies.remove(policy)
                self.disable(answer.policy, answer.reason)

    def add(self, proposal: Proposal) -> None:
        """Let a decision wait for the boundary, in the place of an earlier one of its policy."""
        for waiting in [waiting for waiting in self.proposals if waiting.policy == proposal.policy]:
            self.proposals.remove(waiting)
            proposal = dataclasses.replace(proposal, replaced=proposal.replaced + waiting.replaced + 1)
        self.proposals.append(proposal)

    def say(self, text: str) -> None:
        """Emit a line about the proposal that is carried out."""
        self.has_said = True
        self._emit(Log(text=text))

    def refuse(self, proposal: Proposal, flaw: str) -> None:
        """Say why a decision, and those that it stands for, are not carried out."""
        for text in refused_texts(proposal, flaw):
            self.say(text)

    def refuse_all(self, flaw: str, policy: str | None = None) -> None:
        """Refuse what waits, of one policy or of all."""
        for proposal in [each for each in self.proposals if policy in (None, each.policy)]:
            self.proposals.remove(proposal)
            self.refuse(proposal, flaw)

    def disable(self, name: str, why: str) -> None:
        """A policy that is disabled is not asked again; what it wanted is forgotten, what it owned has no owner."""
        if name not in self.disabled:
            self.disabled[name] = None
            self.refuse_all("it is disabled", name)
            self.owners = {field: owner for field, owner in self.owners.items() if owner.policy != name}
            self._emit(Log(text=disabled_text(name, why)))

    def take(self) -> list[Proposal]:
        """The proposals that wait, in the order of their policies; none waits any more."""
        proposals, self.proposals = self.proposals, []
        return sorted(proposals, key=lambda proposal: proposal.place)

    def changes(self, proposal: Proposal) -> bool:
        """Whether it would change anything, or would be lost with a line that was not said before."""
        return any(self._changes(proposal, action) for action in proposal.actions)

    def _changes(self, proposal: Proposal, action: PolicyAction) -> bool:
        if isinstance(action, MoveChunks | RedrawOwnership | SendMessage):
            return True
        if isinstance(action, Remember):
            return bool(action.value != self.memories.get(proposal.policy))
        field = action.name if isinstance(action, SetParameter) else NODES
        if self._is_lost(proposal, field):
            return (proposal.policy, field) not in self.lost
        if isinstance(action, SetParameter):
            return self.parameters.get(action.name) != action.value
        if isinstance(action, ReleaseNode):
            return (proposal.policy, _release_text(proposal, action.node)) not in self.lost
        return self.wanted != self._clipped(action.total)

    def set_parameter(self, proposal: Proposal, action: SetParameter) -> None:
        """Carry out a `SetParameter`, unless an earlier policy owns the parameter."""
        if self._claim(proposal, action.name) and self.parameters.get(action.name) != action.value:
            self.parameters[action.name] = action.value
            self.say(f"{proposal.policy} sets {action.name} to {action.value:g}: {proposal.reason}")

    def send_message(self, proposal: Proposal, action: SendMessage) -> None:
        """Carry out a `SendMessage`: the next iteration delivers it."""
        sender = f"{POLICY_PREFIX}{proposal.policy}"
        self.messages.append(AddressedMessage(sender=sender, to=action.to, payload=action.payload))
        self.say(f"{proposal.policy} sends a message to {action.to}: {proposal.reason}")

    def remember(self, proposal: Proposal, action: Remember) -> None:
        """Carry out a `Remember`."""
        self.memories[proposal.policy] = action.value
        self.fresh[proposal.policy] = None
        self.say(f"{proposal.policy} remembers something: {proposal.reason}")

    def fresh_memories(self) -> dict[str, Any]:
        """The memories that the next iteration brings to the tasks."""
        return {name: self.memories[name] for name in self.fresh}

    def delivered(self) -> None:
        """An iteration was merged: all its tasks have the messages and memories that it brought. After an abort the
        next iteration brings them again."""
        self.messages, self.fresh = [], {}

    def request_nodes(self, proposal: Proposal, action: RequestNodes) -> None:
        """Carry out a `RequestNodes`, unless an earlier policy decides on nodes."""
        total = self._clipped(action.total)
        if self.claims_nodes(proposal) and self.wanted != total:
            self.wanted = total
            self.num_requests += 1
            self.say(f"{proposal.policy} wants {count_text(total, 'node')}: {proposal.reason}")
            self._emit(effects.RequestNodes(total=total, reason=proposal.reason, number=self.num_requests))

    def resources_offered(self, event: ResourcesOffered) -> None:
        """Keep what the resource manager says, unless it is known."""
        if event.number > self.offer_number:
            self.offer, self.offer_number = event.offer, event.number
            if event.text:
                self._emit(Log(text=event.text))

    def refuse_release(self, proposal: Proposal, node: NodeId) -> None:
        """Fewer nodes than the job needs would stay; said once in a round, and not heard again in it."""
        key = proposal.policy, _release_text(proposal, node)
        if key not in self.lost:
            self.lost[key] = None
            needed = count_text(self._settings.min_nodes, "node")
            self.say(f"{proposal.policy} does not release {node}: the job needs {needed} (min_nodes)")

    def claims_nodes(self, proposal: Proposal) -> bool:
        """Whether the policy decides on nodes, from now on; else the lost wish is logged once."""
        return self._claim(proposal, NODES)

    def _clipped(self, total: int) -> int:
        total, most = max(total, self._settings.min_nodes), self._settings.max_nodes
        return total if most is None else min(total, most)

    def _claim(self, proposal: Proposal, field: str) -> bool:
        """Tell whether the policy owns the field, from now on; else the lost wish is logged once."""
        if not self._is_lost(proposal, field):
            self.owners[field] = Owner(policy=proposal.policy, place=proposal.place)
            return True
        if (proposal.policy, field) not in self.lost:
            self.lost[proposal.policy, field] = None
            owner = self.owners[field].policy
            self.say(f"{proposal.policy} does not decide on {field}: {owner} does, an earlier policy")
        return False

    def _is_lost(self, proposal: Proposal, field: str) -> bool:
        owner = self.owners.get(field)
        return owner is not None and owner.policy != proposal.policy and owner.place <= proposal.place


def private(
    observations: Observations, name: str, memories: Mapping[str, Any], policies: tuple[str, ...]
) -> Observations:
    """Return the observations of one policy: with a copy of its own memory, which it may change as it likes."""
    return dataclasses.replace(observations, memory=copy.deepcopy(memories.get(name)), policies=policies)


def propose(policy: DecidingPolicy, observations: Observations, *, place: int) -> Proposal | PolicyDisabled | None:
    """Ask a policy: its proposal if that is sound, the reason to disable it, or None if it wants no change.

    Args:
        policy: May be code of the user: whatever it raises disables it.
    """
    name = getattr(policy, "name", type(policy).__name__)
    try:
        decision = policy.decide(observations)
        if decision is None:
            return None
        flaw: str | None = f"{decision!r} is no Decision(actions, reason)"
        if hasattr(decision, "actions") and hasattr(decision, "reason"):
            flaw = flaw_of(decision.actions, observations.num_chunks, observations.parameters, observations.policies)
        if flaw is None:
            return Proposal(
                policy=policy.name,
                round=observations.round,
                actions=tuple(map(_plain, decision.actions)),
                reason=str(decision.reason),
                iteration=observations.iteration,
                place=place,
            )
    except ContractError as error:  # of the runtime that asks: the policy has not answered
        return PolicyDisabled(policy=name, reason=str(error))
    except Exception as error:  # a policy may be user code, and must not end the training
        return PolicyDisabled(policy=name, reason=fault_text(error))
    return PolicyDisabled(policy=name, reason=f"decided nonsense: {flaw}")


def _release_text(proposal: Proposal, node: NodeId) -> str:
    """A wish for which there may be another chance in the next round."""
    return f"release of {node} in round {proposal.round}"


def moves_of(actions: Sequence[object]) -> dict[tuple[NodeId, NodeId], int]:
    """Chunks to be moved, by (source, target)."""
    moves: dict[tuple[NodeId, NodeId], int] = {}
    for action in actions:
        if isinstance(action, MoveChunks):
            pair = action.source, action.target
            moves[pair] = moves.get(pair, 0) + action.count
    return moves


def flaw_of(
    actions: object,
    num_chunks: Mapping[NodeId, int],
    parameters: Mapping[str, float] | None = None,
    policies: Sequence[str] | None = None,
) -> str | None:
    """Say what is wrong with the actions of a decision; None if they can be tried."""
    if not isinstance(actions, Sequence) or isinstance(actions, str):
        return f"actions are {actions!r} and not a sequence of actions"
    for action in actions:
        match action:
            case MoveChunks():
                flaw = _flaw_of_move(action, num_chunks)
            case SetParameter():
                flaw = _flaw_of_parameter(action, parameters)
            case RedrawOwnership():
                is_share = isinstance(action.share, int | float) and 0 < action.share <= 1
                flaw = None if is_share else f"a share of {action.share!r} is to be redrawn; it must be > 0 and <= 1"
            case RequestNodes():
                is_number = isinstance(action.total, int) and not isinstance(action.total, bool) and action.total > 0
                flaw = None if is_number else f"{action.total!r} nodes are wanted; it must be an integer >= 1"
            case ReleaseNode():
                flaw = None if action.node in num_chunks else f"{action.node} is not a member that stays"
            case SendMessage():
                flaw = _flaw_of_receiver(action.to, num_chunks, policies) or _flaw_of_json(action.payload)
            case Remember():
                flaw = _flaw_of_json(action.value)
            case _:
                flaw = f"{action!r} is no action"
        if flaw is not None:
            return flaw
    taken: dict[NodeId, int] = {}
    for (source, _), count in moves_of(actions).items():
        taken[source] = taken.get(source, 0) + count
    for node, count in taken.items():
        if count > num_chunks[node]:
            return f"{count} chunks are to leave {node}, which has {num_chunks[node]}"
    return None


def _plain(action: PolicyAction) -> PolicyAction:
    """The action with numbers of Python, whatever library the policy computes with, and with copies of JSON values."""
    match action:
        case SetParameter():
            return dataclasses.replace(action, value=float(action.value))
        case SendMessage():
            return dataclasses.replace(action, payload=json.loads(json.dumps(action.payload)))
        case Remember():
            return Remember(json.loads(json.dumps(action.value)))
    return action


def _flaw_of_receiver(to: object, num_chunks: Mapping[NodeId, int], policies: Sequence[str] | None) -> str | None:
    if to in (TRAINER, EVERYONE) or to in num_chunks:
        return None
    known = None if policies is None else [f"{POLICY_PREFIX}{name}" for name in policies]
    if isinstance(to, str) and to.startswith(POLICY_PREFIX) and (known is None or to in known):
        return None
    return f"a message is for {to!r}; it can be for {TRAINER}, {EVERYONE}, {', '.join([*num_chunks, *(known or ())])}"


def _flaw_of_json(value: object) -> str | None:
    try:
        length = len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        return f"a value that is sent or remembered is not of JSON: {error}"
    if length > MOST_CHARACTERS:
        return f"a value of {length} characters is sent or remembered; {MOST_CHARACTERS} are allowed"
    return None


def _flaw_of_move(action: MoveChunks, num_chunks: Mapping[NodeId, int]) -> str | None:
    source, target, count = action.source, action.target, action.count
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        return f"{count!r} chunks from {source} to {target}"
    for node in (source, target):
        if node not in num_chunks:
            return f"{node} is not a member that stays"
    return f"{count} chunks from {source} to itself" if source == target else None


def _flaw_of_parameter(action: SetParameter, parameters: Mapping[str, float] | None) -> str | None:
    if not isinstance(action.name, str):
        return f"{action.name!r} is no name of a parameter"
    if parameters is not None and action.name not in parameters:
        known = ", ".join(parameters) or "none"
        return f"{action.name} is no parameter that a policy can set; the trainer has {known}"
    value = action.value
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
        return f"{action.name} is to be {value!r}, which is no finite number"
    if action.name == DEADLINE:
        return f"{DEADLINE} is to be {value!r}; it must be >= 0" if value < 0 else None
    if parameters is not None and parameters[action.name] > 0 >= value:
        return f"{action.name} is to be {value!r}; it must be > 0, as it is"
    return None
