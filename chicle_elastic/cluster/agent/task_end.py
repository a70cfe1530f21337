"""How a process of a node has ended, in words."""

import contextlib
import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a task has ended."""

    code: int  # its exit code, negative for a signal

    def is_failed(self) -> bool:
        """Whether it has failed."""
        return self.code != 0

    def __str__(self) -> str:
        return f"it ended with {exit_words(self.code)}"


def exit_words(code: int) -> str:
    """Return an exit code in words; a negative one stands for a signal."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"
