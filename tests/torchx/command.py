"""The command `torchx`."""

import subprocess
import sys
from pathlib import Path

from tests.timeouts import timeout_s

TORCHX = [sys.executable, "-m", "torchx.cli.main"]


def torchx(environment: dict[str, str], *arguments: str, cwd: Path, limit_s: float = 60) -> str:
    """What torchx says."""
    run = subprocess.run(
        [*TORCHX, *arguments],
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s(limit_s),
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    return run.stdout
