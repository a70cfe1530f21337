"""The watch over leaks sees what it has to see: each kind of leak is made for real, named, and taken away again."""

import mmap
import os
import signal
import subprocess
import sys
import threading
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from tests.leaks import Snapshot
from tests.timeouts import timeout_s

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the watch reads /proc")

SLEEPER = [sys.executable, "-c", "input()"]


def test_nothing_new_is_no_leak() -> None:
    """Two looks at the same state differ in nothing."""
    assert Snapshot.take().leaks_since(Snapshot.take()) == []


def test_a_running_child_is_named_until_it_ends() -> None:
    """A child is a leak with its id while it runs, and none as soon as it has ended."""
    before = Snapshot.take()
    with subprocess.Popen(SLEEPER, stdin=subprocess.PIPE) as child:
        assert any(
            line.startswith(f"process {child.pid} is still running") for line in Snapshot.take().leaks_since(before)
        )
    assert Snapshot.take().leaks_since(before) == []


def test_an_orphan_of_a_child_is_seen() -> None:
    """A process whose parent has ended lands here and is a leak, though this process never started it."""
    code = (
        "import subprocess, sys\n"
        "orphan = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(orphan.pid, flush=True)\n"
        "sys.stdout.close()\n"
        "import os; os._exit(0)\n"
    )
    before = Snapshot.take()
    # Not `capture_output`: the orphan holds the pipe, and reading to its end would never return.
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        parent.wait(timeout_s(30))
        try:
            leaks = Snapshot.take().leaks_since(before)
        finally:
            os.kill(orphan, signal.SIGKILL)
            os.waitpid(orphan, 0)
    assert any(line.startswith(f"process {orphan} is still running") for line in leaks)


def test_a_thread_is_named_unless_it_belongs_to_a_pool_of_ours() -> None:
    """A non-daemon thread is a leak; one called chicle-... is meant to stay."""
    before = Snapshot.take()
    release = threading.Event()
    threads = [threading.Thread(target=release.wait, name=name) for name in ("forgotten", "chicle-pool-0")]
    for thread in threads:
        thread.start()
    try:
        assert Snapshot.take().leaks_since(before) == ["thread 'forgotten' is still running"]
    finally:
        release.set()
        for thread in threads:
            thread.join()


def test_a_segment_in_dev_shm_is_named() -> None:
    """A shared-memory segment that was not unlinked is a leak, under its name."""
    before = Snapshot.take()
    segment = shared_memory.SharedMemory(create=True, size=64)
    segment.close()
    try:
        assert f"shared memory is left: /dev/shm/{segment.name}" in Snapshot.take().leaks_since(before)
    finally:
        segment.unlink()


def test_a_mapped_memory_file_is_named_even_when_its_descriptor_is_closed() -> None:
    """An arena that is still mapped holds memory, whether or not its descriptor is open."""
    before = Snapshot.take()
    fd = os.memfd_create("forgotten-arena")
    os.ftruncate(fd, mmap.PAGESIZE)
    mapped = mmap.mmap(fd, mmap.PAGESIZE)
    os.close(fd)
    try:
        assert any("/memfd:forgotten-arena" in line for line in Snapshot.take().leaks_since(before))
    finally:
        mapped.close()
    assert Snapshot.take().leaks_since(before) == []


def test_an_open_file_is_named(tmp_path: Path) -> None:
    """A descriptor that was not there before is a leak, with the file that it leads to."""
    path = tmp_path / "forgotten.txt"
    before = Snapshot.take()
    with path.open("w") as file:
        assert Snapshot.take().leaks_since(before) == [f"descriptor {file.fileno()} is still open: {path}"]


LEAKING_TESTS = """
import os

def test_clean(tmp_path):
    (tmp_path / "a").write_text("a")

def test_leaking(tmp_path):
    os.open(tmp_path / "b", os.O_CREAT)
"""

# joblib keeps processes, threads and pipes, and matplotlib its fonts.
KEEPING_TESTS = """
from joblib import Parallel, delayed
from matplotlib.figure import Figure

def test_pool():
    assert Parallel(n_jobs=2)(delayed(abs)(number) for number in (-1, -2)) == [1, 2]

def test_fonts(tmp_path):
    figure = Figure()
    figure.text(0.5, 0.5, "text needs a font")
    figure.savefig(tmp_path / "text.png")
"""


def run_pytest(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Run `tests` under the watch, in a process of their own: what they leave behind must not stay in this one."""
    (folder / "test_inner.py").write_text(tests, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.leaks", "--rootdir", str(folder), "-q", str(folder)]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=timeout_s(60), check=False)


def test_a_leaking_test_fails_and_a_clean_one_passes(tmp_path: Path) -> None:
    """The fixture turns a leak into a failure of the very test that left it."""
    run = run_pytest(tmp_path, LEAKING_TESTS)
    assert run.returncode == 1, run.stdout + run.stderr
    assert run.stdout.splitlines()[-1].startswith("2 passed, 1 error")
    assert "is still open" in run.stdout
    assert "test_leaking" in run.stdout.splitlines()[-2]


def test_what_libraries_keep_on_purpose_is_no_leak(tmp_path: Path) -> None:
    """A grid search with two jobs and a picture leave things behind that are not ours to close."""
    run = run_pytest(tmp_path, KEEPING_TESTS)
    assert run.returncode == 0, run.stdout + run.stderr
