"""Runs the policies of a job: their observations, and a worker thread for each.

    observe    after each merge, in the main thread: hands the newest observations to every idle policy
    decide     in the policy's worker thread: decide, check the decision, send it as a proposal, which the agent
               appends to the log as it is
               A policy's messages and its memory (`SendMessage`, `Remember`) are in its observations
    dismiss    a policy that raised, returned an invalid decision or has not answered for `patience_s` is dropped

Each policy has a thread of its own, so a slow policy stalls neither the job nor the others; it does not see the
observations of the iterations during which it decides. A thread that never returns cannot be ended: it is a daemon, and
is abandoned.

In a cluster the task of rank 0 runs the policies, because agents run no user code. Every task keeps the reports, so the
task of any node can continue as rank 0; the dismissed policies are in the log, and come with `control.Round`. In one
process the scheduler asks each policy directly, and only needs the time limit (`TimeLimitedPolicy`).
"""

import dataclasses
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from chicle_elastic import waits
from chicle_elastic.clock import Clock
from chicle_elastic.errors import ContractError
from chicle_elastic.runtime.training.uni_task import Exchange
from chicle_elastic.scheduling.events import PolicyDisabled
from chicle_elastic.scheduling.pending_policies import DecidingPolicy, private, propose
from chicle_elastic.values import POLICY_PREFIX, Decision, Observations, Proposal

PATIENCE_S = 30.0  # how long a policy may take to decide

Answer: TypeAlias = Proposal | PolicyDisabled
SendAnswer: TypeAlias = Callable[[Answer], None]


class PolicyRunner:
    """See the top of the module."""

    def __init__(
        self,
        policies: Sequence[DecidingPolicy],
        clock: Clock,
        say: SendAnswer,
        *,
        mailboxes: Exchange,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._workers = {
            policy.name: _PolicyWorker(HearingPolicy(policy, mailboxes), clock, say, place=place)
            for place, policy in enumerate(policies)
        }
        self._names = tuple(self._workers)
        self._clock, self._say, self._patience_s = clock, say, patience_s

    def __bool__(self) -> bool:
        return bool(self._workers)

    def dismiss(self, names: Container[str]) -> None:
        """Drop policies that are disabled, as an earlier or the present rank 0 has reported."""
        for name in [name for name in self._workers if name in names]:
            self._workers.pop(name).close()

    def observe(self, observations: Observations, memories: Mapping[str, Any]) -> None:
        """Hand the observations to every idle policy, each with its memory; returns at once."""
        now = self._clock.now()
        for name, worker in list(self._workers.items()):
            if worker.has_failed:
                del self._workers[name]
            elif (since := worker.busy_since) is None:
                worker.put(private(observations, name, memories, self._names))
            elif now - since > self._patience_s:
                self._workers.pop(name).close()
                self._say(PolicyDisabled(policy=name, reason=_no_answer(now - since)))

    def close(self) -> None:
        """Drop all policies; their later decisions are ignored."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()


@dataclass(frozen=True, slots=True)
class HearingPolicy:
    """A policy that is given its messages with its observations."""

    policy: DecidingPolicy
    mailboxes: Exchange

    @property
    def name(self) -> str:
        """Of the policy."""
        return self.policy.name

    def decide(self, observations: Observations, /) -> Decision | None:
        """The decision of the policy; raises what it raises."""
        messages = []
        while (message := self.mailboxes.take(f"{POLICY_PREFIX}{self.name}")) is not None:
            messages.append(message)
        return self.policy.decide(dataclasses.replace(observations, messages=tuple(messages)))


class _PolicyWorker:
    """One policy and its thread, which starts with the first observations."""

    def __init__(self, policy: DecidingPolicy, clock: Clock, say: SendAnswer, *, place: int) -> None:
        self.busy_since: float | None = None  # when it got the observations that it decides upon; None while it is idle
        self.has_failed = False  # it has reported a failure, and will not decide again
        self._policy, self._clock, self._say, self._place = policy, clock, say, place
        self._changed = threading.Condition()
        self._observations: Observations | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def put(self, observations: Observations) -> None:
        """Hand over observations; only while the policy is idle."""
        with self._changed:
            self._observations = observations
            self.busy_since = self._clock.now()
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"chicle-{self._policy.name}", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ignore its later decisions."""
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
            answer = propose(self._policy, observations, place=self._place)
            with self._changed:
                self.has_failed = isinstance(answer, PolicyDisabled)
                if answer is not None and not self._is_closed:
                    self._say(answer)
                self.busy_since = None
                if self.has_failed:
                    return


@dataclass(slots=True)
class TimeLimitedPolicy:
    """A policy with a time limit, for a caller that waits for the decision."""

    policy: DecidingPolicy
    patience_s: float = PATIENCE_S  # how long it may take to decide
    has_told: bool = False  # whether the user has been told once that the job waits for it

    @property
    def name(self) -> str:
        """Of the policy."""
        return self.policy.name

    def decide(self, observations: Observations, /) -> Decision | None:
        """The decision of the policy. Raises ContractError when the policy did not answer in time, Exception for any
        error of the policy."""
        answers: list[Decision | None] = []
        errors: list[Exception] = []

        def think() -> None:
            try:
                answers.append(self.policy.decide(observations))
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=think, name=f"chicle-{self.name}", daemon=True)
        thread.start()
        thread.join(min(waits.PATIENCE_S, self.patience_s))
        if thread.is_alive() and self.patience_s > waits.PATIENCE_S:
            if not self.has_told:
                self.has_told = True
                waits.tell(f"waiting for policy {self.name} to decide (it has {self.patience_s:.3g} s)")
            thread.join(self.patience_s - waits.PATIENCE_S)
        if errors:
            raise errors[0]
        if not answers:
            raise ContractError(_no_answer(self.patience_s))
        return answers[0]


def _no_answer(seconds: float) -> str:
    return f"did not answer within {seconds:.3g} s"
