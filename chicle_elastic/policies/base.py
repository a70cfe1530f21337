"""A policy: a pure function from observations to a decision with a reason, whose parameters are fields.

A job has any number of policies (`Job.policies`); each sees the same observations after every iteration, and the
scheduler clips their decisions to what exists and fits, and draws the chunks to move. Moves of several policies add up;
a parameter, and the number of nodes, belong to the first policy that decides on them.

A policy that raises, returns an invalid decision or does not answer is disabled, with a line that names it; training
goes on. On a cluster policies run in the task of rank 0, each in a thread of its own, and a decision is an event in the
log that all agents share (`runtime.cluster_task.policy_runner`). In one process the scheduler asks them at the boundary
itself.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

from chicle_elastic.errors import UsageError
from chicle_elastic.values import HISTORY_LENGTH, Decision, Observations


class Policy(ABC):
    """Base of all policies. Small frozen dataclasses: their fields are what a grid search can vary.

    One that moves so many chunks from the first task to the last one, while it can:

    >>> from dataclasses import dataclass
    >>> from sklearn.datasets import load_breast_cancer
    >>> from chicle_elastic import ArraySource, Decision, InProcess, Job, LinearTrainer, MoveChunks, Policy
    >>> @dataclass(frozen=True, slots=True, kw_only=True)
    ... class Drain(Policy):
    ...     count: int = 2
    ...     def decide(self, observations):
    ...         first, *_, last = sorted(observations.num_chunks)
    ...         if observations.num_chunks[first] <= self.count:
    ...             return None
    ...         actions = (MoveChunks(first, last, self.count),)
    ...         return Decision(actions=actions, reason=f"{first} shall have less to do")
    >>> source = ArraySource(*load_breast_cancer(return_X_y=True), max_tasks=2)
    >>> job = Job(trainer=LinearTrainer(tol=0.0), source=source, max_iterations=8, policies=[Drain(count=3)])
    >>> history = InProcess(num_tasks=2).run(job).history
    >>> history.column("num_chunks.task-0")
    array([18, 15, 12,  9,  6,  3,  3,  3])
    >>> history[1].events[0]
    'Drain moves 3...: task-0 shall have less to do'
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """Name for the log, by default that of the class; the policies of a job have different ones."""
        return type(self).__name__

    @abstractmethod
    def decide(self, observations: Observations, /) -> Decision | None:
        """What to do at the next boundary, or None for nothing.

        Pure: the same observations give the same decision, else a recording of events cannot be replayed.
        """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The fields by name, as scikit-learn's `clone` and grid searches want them.

        Args:
            deep: Of no effect: fields are plain values.
        """
        return {field.name: getattr(self, field.name) for field in self._fields() if field.init}

    def set_params(self, **params: Any) -> Self:
        """Change fields in place; nothing else may, but scikit-learn ignores what `set_params` returns. Raises
        UsageError when there is no such field, or the policy does not allow the value; no field has changed.

        A grid search clones the estimator before it sets parameters, so each clone changes a policy of its own.
        """
        known = self.get_params()
        unknown = sorted(params.keys() - known.keys())
        if unknown:
            raise UsageError(f"{self.name} has no parameter {unknown[0]!r}; its parameters are {sorted(known)}")
        changed = type(self)(**{**known, **params})
        for name in params:
            object.__setattr__(self, name, getattr(changed, name))
        return self

    def _fields(self) -> tuple[dataclasses.Field[Any], ...]:
        if not dataclasses.is_dataclass(self):
            raise UsageError(f"{type(self).__name__} is not a dataclass; decorate it with @dataclass(frozen=True)")
        return dataclasses.fields(self)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def require_count(
    policy: Policy, name: str, least: int, *, below: int | None = None, is_optional: bool = False
) -> None:
    """Refuse a field that is no integer >= `least` and < `below`."""
    value = getattr(policy, name)
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not (is_count and (below is None or value < below)) and not (is_optional and value is None):
        limits = f"an integer >= {least}" + ("" if below is None else f" and < {below}")
        _refuse(policy, name, f"{limits}, or None" if is_optional else limits)


def require_reports(policy: Policy, window: int, min_reports: int) -> None:
    """Refuse a `window` of reports that is smaller than `min_reports`, or larger than what policies see."""
    require_count(policy, "min_reports", 2)
    require_count(policy, "window", min_reports)
    if window > HISTORY_LENGTH:
        name = type(policy).__name__
        raise UsageError(f"{name}(window={window}): policies see the last {HISTORY_LENGTH} iterations only")


def require_number(
    policy: Policy, name: str, is_allowed: Callable[[float], bool], limits: str, *, is_optional: bool = False
) -> None:
    """Refuse a field that is no number within its limits."""
    value = getattr(policy, name)
    if not (_is_number(value) and is_allowed(value)) and not (is_optional and value is None):
        _refuse(policy, name, f"{limits}, or None" if is_optional else limits)


def _refuse(policy: Policy, name: str, limits: str) -> None:
    raise UsageError(f"{type(policy).__name__}({name}={getattr(policy, name)!r}): it must be {limits}")


def require_policies(policies: object) -> None:
    """Check the policies of a job. Raises UsageError when it is not a sequence of policies with different names."""
    if not isinstance(policies, Sequence) or isinstance(policies, str):
        raise UsageError(f"policies={policies!r}: it must be a sequence of policies, for one of them (policy,)")
    for policy in policies:
        if isinstance(policy, type) or not callable(getattr(policy, "decide", None)):
            raise UsageError(f"policies has {policy!r}; pass an object with name and decide(observations), not a class")
    names = [policy.name for policy in policies]
    if len(set(names)) < len(names):
        raise UsageError(f"policies have the names {names}; they must differ, because a line in the log names one")
