"""How a process of a node has ended, in words."""

import contextlib
import json
import signal
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a task has ended."""

    code: int  # its exit code, negative for a signal
    pid: int = 0  # its process id; 0 where nobody asks
    error_file: str = ""  # where torch's `record` writes its error; "" for nowhere

    def is_failed(self) -> bool:
        """Say whether it has failed."""
        return self.code != 0

    @property
    def error(self) -> str:
        """Return the traceback that the task has left in its error file, else its message; empty without one."""
        try:
            message = json.loads(Path(self.error_file).read_text(encoding="utf-8"))["message"]
            if isinstance(message, dict):
                message = message.get("extraInfo", {}).get("py_callstack") or message["message"]
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return ""  # a task may write anything there
        return str(message)

    def __str__(self) -> str:
        process = f" (process {self.pid})" if self.pid else ""
        told = f", and says in {self.error_file}:\n{self.error.rstrip()}" if self.error else ""
        return f"it ended with {exit_words(self.code)}{process}{told}"


def exit_words(code: int) -> str:
    """Return an exit code in words; a negative one stands for a signal."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"
