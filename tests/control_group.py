"""A control group with little memory, for processes that a test starts in it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import programs


@pytest.fixture
def run_with_memory() -> Iterator[Callable[[int, str], subprocess.CompletedProcess[str]]]:
    """Run a program of Python with so many MiB; skips the test where no control group can be made."""
    v1 = Path("/sys/fs/cgroup/memory")
    group = (v1 if v1.is_dir() else v1.parent) / f"chicle-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")

    def run(limit_mib: int, program: str) -> subprocess.CompletedProcess[str]:
        try:
            (group / ("memory.limit_in_bytes" if v1.is_dir() else "memory.max")).write_text(f"{limit_mib}M")
        except OSError as error:
            pytest.skip(f"the group cannot limit memory: {error}")
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        return programs.run(
            "sh", "-c", enter, "sh", sys.executable, "-c", program, code=None, seconds=100, cwd=programs.ROOT
        )

    try:
        yield run
    finally:
        group.rmdir()
