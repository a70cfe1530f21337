"""Programs that a test runs to their end, with this checkout on the path of Python."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.timeouts import timeout_s

ROOT = Path(__file__).parents[1]

Ended = subprocess.CompletedProcess[str]


def run(
    *command: str | Path,
    code: int | None = 0,
    seconds: float = 60.0,
    cwd: Path | None = None,
    text: str | None = None,
    environ: dict[str, str] | None = None,
    **variables: str,
) -> Ended:
    """Run a program.

    Args:
        command: With its arguments.
        code: The exit code that it has to have; None for any.
        seconds: How long it may take.
        cwd: Its working directory; by default that of the tests.
        text: What it reads; nothing by default.
        environ: Its environment; by default that of the tests.
        variables: Further ones.
    """
    environ = {**os.environ} if environ is None else environ
    path = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH", "")]))
    ended = subprocess.run(
        [str(word) for word in command],
        env={**environ, "PYTHONPATH": path, **variables},
        cwd=cwd,
        input=text or "",
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s(seconds),
        check=False,
    )
    assert code is None or ended.returncode == code, f"exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}"
    return ended


def run_python(*arguments: str | Path, **options: Any) -> Ended:
    """Run Python, with the options of `run`."""
    return run(sys.executable, *arguments, **options)
