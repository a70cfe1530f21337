"""A policy that strikes in the middle of a search: searches have no callbacks that could."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from chicle_elastic.policies.base import Policy
from chicle_elastic.values import Decision, Observations


@dataclass(frozen=True, slots=True, kw_only=True)
class KillOwnTask(Policy):
    """Kills the task that it runs in, once."""

    mark: str  # file that says that it has
    after: int = 10  # iterations before

    def decide(self, observations: Observations, /) -> Decision | None:
        """Nothing, if it survives."""
        if observations.iteration >= self.after and not Path(self.mark).exists():
            Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return None
