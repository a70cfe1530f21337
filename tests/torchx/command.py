"""The command `torchx`."""

from pathlib import Path

from tests.programs import run_python


def torchx(environment: dict[str, str], *arguments: str, cwd: Path, limit_s: float = 60) -> str:
    """What torchx says."""
    ended = run_python("-m", "torchx.cli.main", *arguments, environ=environment, cwd=cwd, seconds=limit_s)
    return ended.stdout + ended.stderr
