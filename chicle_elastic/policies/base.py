"""A policy: a pure function from observations to a decision with a reason, whose parameters are fields.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Shed(Policy):
        count: int = 3

        def decide(self, observations):
            slow, fast = ...
            return Decision(moves={(slow, fast): self.count}, reason=f"{slow} takes 1.8x the median time per sample")

A job has any number of policies (`Job.policies`); each sees the same observations after every iteration, and the
scheduler clips what they want to what exists and fits, and draws which chunks go. A policy that raises, decides
nonsense or does not answer is disabled with a line that names it; training goes on. On a cluster policies run in the
task of rank 0, each in a thread of its own, and a decision is an event in the log that all agents share
(`runtime.advice`). In one process they are asked at the boundary itself.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from chicle_elastic.errors import UsageError
from chicle_elastic.values import Decision, Observations

__all__ = ["Decision", "Observations", "Policy", "require_policies"]


class Policy(ABC):
    """Base of all policies. Small frozen dataclasses: their fields are what a grid search can vary."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """Name for the log, by default that of the class; the policies of a job have different ones."""
        return type(self).__name__

    @abstractmethod
    def decide(self, observations: Observations, /) -> Decision | None:
        """What to move at the next boundary, or None for nothing.

        Pure: the same observations give the same decision, else a recorded story cannot be replayed.
        """

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The fields by name, as scikit-learn's `clone` and grid searches want them.

        Args:
            deep: Of no effect: fields are plain values.
        """
        return {field.name: getattr(self, field.name) for field in self._fields() if field.init}

    def set_params(self, **params: Any) -> Self:
        """Change fields in place: the one door for it, because scikit-learn ignores what `set_params` returns.

        An estimator that is cloned before its parameters are set, as every grid search does, has a policy of its own.

        Raises:
            UsageError: There is no such field, or the policy does not allow the value; nothing is changed.
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


def require_policies(policies: object) -> None:
    """Refuse what cannot be the policies of a job.

    Raises:
        UsageError: It is not a sequence of policies with different names.
    """
    if not isinstance(policies, Sequence) or isinstance(policies, str):
        raise UsageError(f"policies={policies!r}: it must be a sequence of policies, for one of them (policy,)")
    for policy in policies:
        if isinstance(policy, type) or not callable(getattr(policy, "decide", None)):
            raise UsageError(f"policies has {policy!r}, which is no object with name and decide(observations)")
    names = [policy.name for policy in policies]
    if len(set(names)) < len(names):
        raise UsageError(f"policies have the names {names}; they must differ, because a line in the log names one")
