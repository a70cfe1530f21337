"""A policy: a pure function from observations to a decision with a reason, whose parameters are fields.

    @dataclass(frozen=True)
    class Shed(Policy):
        share: float = 0.1

        def decide(self, observations):
            ...
            return Decision(moves={(slow, fast): 3}, reason=f"{slow} takes 1.8x the median time; shed 3 of 12 chunks")

The scheduler asks its policies at every boundary at which the membership stays as it is, one after the other, all on
the same observations. It clips what they want to what exists and fits, and draws which chunks go. A policy that raises
or decides nonsense is disabled; training goes on. One that takes long runs in a thread of its own and sends its
decision as a `PolicyDecided` event instead.
"""

from abc import ABC, abstractmethod

from chicle_elastic.values import Decision, Observations

__all__ = ["Decision", "Observations", "Policy"]


class Policy(ABC):
    """Base of all policies. Small frozen dataclasses: their fields are what a grid search can vary."""

    @property
    def name(self) -> str:
        """Name for the log, by default that of the class."""
        return type(self).__name__

    @abstractmethod
    def decide(self, observations: Observations, /) -> Decision | None:
        """What to move at this boundary, or None for nothing.

        Pure: the same observations give the same decision, else a recorded story cannot be replayed.
        """
