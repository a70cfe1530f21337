"""Runs of the anchor that a test watches from outside: data for them, and whether their members train."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from chicle_elastic.cluster.net.event_file import SUFFIX
from tests.timeouts import timeout_s

POLL_S, LAP_S = 0.2, 0.5


def write_data(path: Path, *, rows: int = 20_000, columns: int = 20, noise: float = 0.3) -> tuple[Any, Any]:
    """Write X and y, of two classes that overlap the more the larger the noise is, as an npz file; return them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns))
    y = np.where(X[:, 0] + noise * rng.normal(size=rows) > 0, 1.0, -1.0)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, X=X, y=y)
    return X, y


class WatchedRun(ABC):
    """A run whose members come and go.

    Args:
        logs: Folder of the event files.
    """

    def __init__(self, logs: Path) -> None:
        self.logs = logs

    @abstractmethod
    def members(self) -> Collection[Any]:
        """Those that are there, each with its name as text."""

    @abstractmethod
    def check(self) -> None:
        """Raise an error where nothing is to be waited for any more."""

    @abstractmethod
    def printed(self) -> str:
        """What all processes have printed."""

    def iterations(self, member: object) -> int:
        """Iterations that a member has been in."""
        path = self.logs / f"{member}{SUFFIX}"
        return path.read_bytes().count(b'"iteration"') if path.exists() else 0

    def wait(self, is_so: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
        """Wait for a condition; the error of a wait in vain has all that was printed."""
        end_s = time.monotonic() + timeout_s(seconds)
        while not is_so():
            self.check()
            assert time.monotonic() < end_s, f"waited for {what} in vain:\n{self.printed()}"
            time.sleep(POLL_S)

    def wait_for_training(self, count: int) -> list[Any]:
        """Wait until so many members train together; return them."""

        def is_so() -> bool:
            members = list(self.members())
            before = [self.iterations(member) for member in members]
            if len(members) != count or not all(before):
                return False
            time.sleep(LAP_S)
            return all(self.iterations(member) > number for member, number in zip(members, before, strict=True))

        self.wait(is_so, f"{count} members to train")
        return list(self.members())
