"""Programs that run where something else is mounted, in a mount namespace of their own; needs root."""

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.programs import run

ROOT = Path(__file__).parents[1]
MNT_DETACH = 2


@functools.cache
def reason_to_skip() -> str | None:
    """Why nothing can be mounted here; None where it can."""
    try:
        tried = run("unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/tmp", code=None)
    except FileNotFoundError:
        return "unshare is not installed (util-linux)"
    return f"nothing can be mounted: {tried.stderr.strip()}" if tried.returncode else None


def run_mounted(
    setup: str, program: str, *, folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Python program after a shell's set-up of its mounts; skips the test where there can be none.

    Args:
        setup: Shell commands, with FOLDER in the variable `$folder`.
        program: Python.
        folder: FOLDER; also the working directory.
        environment: Of the program; by default that of this process.
    """
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    command = f'{setup}\nexec "$python" -B -c "$program"'
    names = {"python": sys.executable, "program": program, "folder": str(folder)}
    environ = {**(os.environ if environment is None else environment), **names}
    return run("unshare", "--mount", "sh", "-ec", command, code=None, seconds=100, cwd=folder, environ=environ)


@contextlib.contextmanager
def hanging(folder: Path) -> Iterator[None]:
    """Within this, nothing in a folder gets an answer: it is a FUSE file system whose server reads no request. Then
    all get an error. Skips the test where there can be none."""
    libc, path = ctypes.CDLL(None, use_errno=True), str(folder).encode()
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"there is no FUSE: {error}")
    try:
        options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"hanging", path, b"fuse", 0, options):
            pytest.skip(f"nothing can be mounted: {os.strerror(ctypes.get_errno())}")
        yield
    finally:
        os.close(server)
        libc.umount2(path, MNT_DETACH)
