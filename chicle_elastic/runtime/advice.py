"""Policies at work beside a job: what they are shown, and threads for those that think long.

    observe    after each merge, in the main thread: hands the newest observations to every policy that is idle
    advise     a policy's own thread: decide, judge the decision, say it
    dismiss    a policy that raised, decided nonsense or has not answered for `patience_s` is heard no more

Each policy has a thread of its own, so a slow one holds up neither the job nor the others; what it did not see while it
thought, it does not see at all. A thread that never comes back cannot be ended: it is a daemon, and left behind.

In a cluster this is done in the task of rank 0, because agents run no code of the user. Every task keeps the reports,
so whoever becomes rank 0 can go on; what was dismissed is in the log, and comes with `control.Round`. In one process
the scheduler asks by itself and at once, and only the patience is needed (`Patient`).
"""

import threading
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from chicle_elastic.clock import Clock
from chicle_elastic.errors import ContractError
from chicle_elastic.ids import NodeId
from chicle_elastic.runtime import control
from chicle_elastic.scheduling.council import Adviser, flaw_of
from chicle_elastic.values import HISTORY_LENGTH, Decision, Observations, TaskReport

PATIENCE_S = 30.0
"""How long a policy may think."""

Say: TypeAlias = Callable[[control.Advice | control.PolicyFailed], None]


class Seen:
    """What the tasks of a job have seen of each other, iteration by iteration."""

    def __init__(self) -> None:
        self._reports: dict[NodeId, deque[TaskReport]] = {}

    def note(self, members: Sequence[NodeId], reports: Mapping[NodeId, TaskReport]) -> None:
        """Keep the reports of an iteration, and forget who is no member any more."""
        self._reports = {node: self._reports.get(node, deque(maxlen=HISTORY_LENGTH)) for node in members}
        for node, report in reports.items():
            self._reports[node].append(report)

    def observations(
        self, order: control.Round, *, iteration: int, num_chunks: Mapping[NodeId, int], samples: Mapping[NodeId, int]
    ) -> Observations:
        """What policies see after an iteration of a round."""
        members = order.members
        return Observations(
            round=order.round,
            iteration=iteration,
            num_chunks=num_chunks,
            samples=samples,
            weights=dict(zip(members, order.weights, strict=True)),
            capacity_bytes=dict(zip(members, order.capacity_bytes, strict=True)),
            used_bytes={node: order.chunk_bytes * count for node, count in num_chunks.items()},
            reports={node: tuple(reports) for node, reports in self._reports.items()},
        )


class Advisers:
    """See the top of the module.

    Args:
        policies: Of the job.
        clock: Of this process.
        say: Takes decisions and complaints; called in the threads of the policies, and by `observe`.
        patience_s: How long a policy may think.
    """

    def __init__(self, policies: Sequence[Adviser], clock: Clock, say: Say, *, patience_s: float = PATIENCE_S) -> None:
        self._desks = {policy.name: _Desk(policy, clock, say) for policy in policies}
        self._clock, self._say, self._patience_s = clock, say, patience_s

    def __bool__(self) -> bool:
        return bool(self._desks)

    def dismiss(self, names: Container[str]) -> None:
        """These are disabled; whoever was rank 0 then has said so."""
        for name in [name for name in self._desks if name in names]:
            self._desks.pop(name).close()

    def observe(self, observations: Observations) -> None:
        """Show the policies how things stand; returns at once."""
        now = self._clock.now()
        for name, desk in list(self._desks.items()):
            if desk.has_failed:
                del self._desks[name]
            elif (since := desk.busy_since) is None:
                desk.put(observations)
            elif now - since > self._patience_s:
                self._desks.pop(name).close()
                self._say(control.PolicyFailed(policy=name, reason=_no_answer(now - since)))

    def close(self) -> None:
        """Nobody listens any more."""
        for desk in self._desks.values():
            desk.close()
        self._desks.clear()


class _Desk:
    """One policy and its thread, which begins with the first thing to think about.

    Attributes:
        busy_since: When it was given what it thinks about; None while it is idle.
        has_failed: It has said that it failed, and will not think again.
    """

    def __init__(self, policy: Adviser, clock: Clock, say: Say) -> None:
        self.busy_since: float | None = None
        self.has_failed = False
        self._policy, self._clock, self._say = policy, clock, say
        self._changed = threading.Condition()
        self._observations: Observations | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def put(self, observations: Observations) -> None:
        """Something to think about; only while it is idle."""
        with self._changed:
            self._observations = observations
            self.busy_since = self._clock.now()
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"chicle-{self._policy.name}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """What it may still say is not heard."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._observations is not None)
                if self._is_closed:
                    return
                observations, self._observations = self._observations, None
            assert observations is not None
            answer = advice_of(self._policy, observations)
            with self._changed:
                self.has_failed = isinstance(answer, control.PolicyFailed)
                if answer is not None and not self._is_closed:
                    self._say(answer)
                self.busy_since = None
                if self.has_failed:
                    return


def advice_of(policy: Adviser, observations: Observations) -> control.Advice | control.PolicyFailed | None:
    """Ask a policy: its decision if that is sound, why it is to be disabled, or None where it wants nothing."""
    try:
        decision = policy.decide(observations)
        if decision is None:
            return None
        flaw = flaw_of(decision.moves, observations.num_chunks)
        if flaw is None:
            return control.Advice(
                policy=policy.name,
                round=observations.round,
                iteration=observations.iteration,
                moves=dict(decision.moves),
                reason=str(decision.reason),
            )
    except Exception as error:  # a policy is somebody else's code; training must not end by it
        return control.PolicyFailed(policy=policy.name, reason=f"raised {type(error).__name__}: {error}")
    return control.PolicyFailed(policy=policy.name, reason=f"decided nonsense: {flaw}")


@dataclass(frozen=True, slots=True)
class Patient:
    """A policy that raises when it does not answer, for whoever asks at once and waits.

    Attributes:
        policy: The policy.
        patience_s: How long it may think.
    """

    policy: Adviser
    patience_s: float = PATIENCE_S

    @property
    def name(self) -> str:
        """Of the policy."""
        return self.policy.name

    def decide(self, observations: Observations, /) -> Decision | None:
        """What the policy decides.

        Raises:
            ContractError: It did not answer.
            Exception: Whatever it raised.
        """
        answers: list[Decision | None] = []
        errors: list[Exception] = []

        def think() -> None:
            try:
                answers.append(self.policy.decide(observations))
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=think, name=f"chicle-{self.name}", daemon=True)
        thread.start()
        thread.join(self.patience_s)
        if errors:
            raise errors[0]
        if not answers:
            raise ContractError(_no_answer(self.patience_s))
        return answers[0]


def _no_answer(seconds: float) -> str:
    return f"did not answer within {seconds:.3g} s"
