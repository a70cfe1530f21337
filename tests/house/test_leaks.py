"""The watch over leaks sees what it has to see: each kind of leak is made for real, named, and taken away again."""

import contextlib
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from tests.leaks import Snapshot
from tests.programs import run
from tests.timeouts import timeout_s

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the watch reads /proc")

SLEEPER = [sys.executable, "-c", "input()"]
ORPHANING = """
import os, subprocess, sys
orphan = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print(orphan.pid, flush=True)
os._exit(0)
"""


@contextlib.contextmanager
def child() -> Iterator[str]:
    """Run a child; yield what the watch says of it."""
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as process:
        yield f"process {process.pid} is still running"


@contextlib.contextmanager
def orphan() -> Iterator[str]:
    """Run a child of a child that has ended, which this process never started."""
    # Not `capture_output`: the orphan holds the pipe, and reading to its end would never return.
    with subprocess.Popen([sys.executable, "-c", ORPHANING], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.wait(timeout_s(30))
    try:
        yield f"process {pid} is still running"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextlib.contextmanager
def thread() -> Iterator[str]:
    """Run a thread, beside one of a pool of ours, which is meant to stay."""
    release = threading.Event()
    threads = [threading.Thread(target=release.wait, name=name) for name in ("forgotten", "chicle-pool-0")]
    for each in threads:
        each.start()
    try:
        yield "thread 'forgotten' is still running"
    finally:
        release.set()
        for each in threads:
            each.join()


@contextlib.contextmanager
def segment() -> Iterator[str]:
    """Leave a segment in /dev/shm."""
    shared = shared_memory.SharedMemory(create=True, size=64)
    shared.close()
    yield f"shared memory is left: /dev/shm/{shared.name}"
    shared.unlink()


@contextlib.contextmanager
def mapped_memory() -> Iterator[str]:
    """Keep an arena mapped whose descriptor is closed."""
    fd = os.memfd_create("forgotten-arena")
    os.ftruncate(fd, mmap.PAGESIZE)
    with mmap.mmap(fd, mmap.PAGESIZE):
        os.close(fd)
        yield "/memfd:forgotten-arena"


@contextlib.contextmanager
def open_file() -> Iterator[str]:
    """Keep a file open."""
    with tempfile.NamedTemporaryFile() as file:
        yield f"descriptor {file.fileno()} is still open: {file.name}"


@pytest.mark.parametrize("plant", [child, orphan, thread, segment, mapped_memory, open_file])
def test_each_kind_of_leak_is_named_until_it_ends(plant: Callable[[], AbstractContextManager[str]]) -> None:
    """One line names it while it is there, and none does before or afterwards."""
    before = Snapshot.take()
    assert Snapshot.take().leaks_since(before) == []
    with plant() as words:
        assert any(words in line for line in Snapshot.take().leaks_since(before))
    assert Snapshot.take().leaks_since(before) == []


LEAKING_TESTS = """
import mmap
import os

def test_clean(tmp_path):
    (tmp_path / "a").write_text("a")

def test_leaking(tmp_path):
    os.open(tmp_path / "b", os.O_CREAT)

def test_mapping():
    global mapped
    fd = os.memfd_create("untouched")
    os.ftruncate(fd, 1)
    mapped = mmap.mmap(fd, 1)
    os.close(fd)
"""


def run_pytest(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run `tests` under the watch, in a process of their own: what they leave behind must not stay in this one."""
    (folder / "test_inner.py").write_text(tests, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.leaks", "--rootdir", str(folder), "-q", str(folder)]
    root = Path(__file__).parents[2]
    return run(*command, code=None, cwd=root)


def test_a_leaking_test_fails_and_a_clean_one_passes(tmp_path: Path) -> None:
    """The fixture turns a leak into a failure of the very test that left it."""
    run = run_pytest(tmp_path, LEAKING_TESTS)
    assert run.returncode == 1, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1].startswith("3 passed, 2 errors")
    assert "is still open" in run.stdout
    assert "/memfd:untouched" in run.stdout
    failed = [line for line in run.stdout.splitlines() if line.startswith("ERROR ")]
    assert ["test_leaking" in failed[0], "test_mapping" in failed[1]] == [True, True]
