"""A test that leaves something running or open behind it fails (docs/style 13).

Theory of operation. A snapshot is taken before and after each test, of
    processes      running children of this process. The process declares itself a subreaper, so that orphans of a
                   child land here and are seen too.
    threads        non-daemon threads
    shared memory  entries of this user in /dev/shm, and mappings of anonymous memory files (arenas) in this process
    descriptors    open files, pipes and sockets of this process

What is new after the test gets a moment to end by itself (a killed child takes time to go) and is then an error that
names it. The fixture comes first and so ends last: resources of a module- or session-wide fixture that exist by then
are no leaks, they belong to the "before" of the test.

Some things are meant to stay, and are known by name: thread pools of ours ("chicle-..."), joblib's pool of processes
(it lives as long as the interpreter) and the resource trackers of multiprocessing. Linux only; elsewhere only threads
are compared.
"""

import contextlib
import ctypes
import gc
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.timeouts import timeout_s

PERSISTENT_THREADS = ("chicle-", "ExecutorManagerThread")  # the second is joblib's, of its pool of processes
PERSISTENT_PROCESSES = re.compile(r"resource_tracker|joblib\.externals\.loky")
PERSISTENT_SHARED_MEMORY = re.compile(r"/dev/shm/(sem\.loky-|sem\.mp-|joblib_memmapping_folder_)")
# Opened once by a library and kept on purpose: its code, its data, fonts.
PERSISTENT_FILES = re.compile(r"/dev/(null|u?random|tty)$|.*/site-packages/|.*\.(so[.\d]*|pyc?|tt[fc]|otf)$")

GRACE_S = 2.0
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What runs and is open at one instant."""

    processes: dict[int, str]  # command line of each running child, by process id
    threads: frozenset[threading.Thread]  # non-daemon threads
    # paths in /dev/shm that belong to this user, and mapped memory files as "address name"
    shared_memory: frozenset[str]
    files: dict[int, str]  # what each open descriptor leads to, by descriptor

    @classmethod
    def take(cls, *, has_mappings: bool = True) -> "Snapshot":
        """Look around now; what is mapped is looked at where there is something."""
        return cls(
            processes=_running_children(),
            threads=frozenset(thread for thread in threading.enumerate() if not thread.daemon),
            shared_memory=_shared_memory(has_mappings=has_mappings),
            files=_open_files(),
        )

    def leaks_since(self, before: "Snapshot") -> list[str]:
        """One line per thing that is here now, was not there before, and is not meant to stay."""
        processes = {pid: command for pid, command in self.processes.items() if pid not in before.processes}
        lines = [
            f"process {pid} is still running: {command}"
            for pid, command in processes.items()
            if not PERSISTENT_PROCESSES.search(command)
        ]
        lines += [
            f"thread {thread.name!r} is still running"
            for thread in self.threads - before.threads
            if not thread.name.startswith(PERSISTENT_THREADS)
        ]
        lines += [
            f"shared memory is left: {name}"
            for name in sorted(self.shared_memory - before.shared_memory)
            if not PERSISTENT_SHARED_MEMORY.match(name)
        ]
        # Pools that may stay talk through pipes that cannot be told apart from others: the test in which a pool starts
        # is not asked about its pipes.
        pool_started = any(PERSISTENT_PROCESSES.search(command) for command in processes.values())
        lines += [
            f"descriptor {fd} is still open: {target}"
            for fd, target in sorted(_new_files(before.files, self.files).items())
            if not PERSISTENT_FILES.match(target) and not (pool_started and target.startswith("pipe:"))
        ]
        return lines


def find_leaks(before: Snapshot, *, has_mapped: bool = True) -> list[str]:
    """What leaked since `before`, after a moment of grace; empty when all is well."""
    leaks = Snapshot.take(has_mappings=has_mapped).leaks_since(before)
    if not leaks:
        return []
    gc.collect()
    deadline = time.monotonic() + timeout_s(GRACE_S)
    while (leaks := Snapshot.take(has_mappings=has_mapped).leaks_since(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return leaks


files_mapped = 0  # how often this process has mapped a file so far


def _count_mapping(event: str, arguments: tuple[object, ...]) -> None:
    """Count a mapping of a file: a look at all mappings (1,600 with torch and Numba) takes 3 ms after each test."""
    if event == "mmap.__new__" and arguments[0] != -1:
        global files_mapped
        files_mapped += 1


sys.addaudithook(_count_mapping)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail the test when it leaves a process, thread, shared memory or descriptor behind."""
    become_subreaper()
    before, mapped_before = Snapshot.take(has_mappings=_has_shared_pages()), files_mapped
    yield
    if leaks := find_leaks(before, has_mapped=files_mapped > mapped_before):
        pytest.fail("the test left something behind:\n  " + "\n  ".join(leaks), pytrace=False)


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process (Linux; elsewhere nothing happens)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _running_children() -> dict[int, str]:
    children: dict[int, str] = {}
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread ended meanwhile
            for pid in map(int, path.read_text().split()):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    if not _is_zombie(pid):
                        children[pid] = _command_line(pid)
    return children


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended and only waits to be asked for its exit code."""
    # The state follows the name, which is in parentheses and may itself contain some.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def _command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def _has_shared_pages() -> bool:
    """Whether this process has any: to ask takes a fiftieth of the time of a look at all its mappings."""
    try:
        return re.search(r"^RssShmem:\s+0 kB$", Path("/proc/self/status").read_text(), re.MULTILINE) is None
    except FileNotFoundError:
        return True


def _shared_memory(*, has_mappings: bool) -> frozenset[str]:
    names = set()
    with contextlib.suppress(FileNotFoundError), os.scandir("/dev/shm") as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.stat(follow_symlinks=False).st_uid == os.getuid():
                    names.add(entry.path)
    if not has_mappings:
        return frozenset(names)
    with contextlib.suppress(FileNotFoundError), open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            if "/memfd:" in line:
                address, _, rest = line.partition(" ")
                names.add(f"{address} {rest[rest.index('/memfd:') :].strip()}")
    return frozenset(names)


def _open_files() -> dict[int, str]:
    files: dict[int, str] = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
                files[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return files


def _new_files(before: dict[int, str], after: dict[int, str]) -> dict[int, str]:
    """Descriptors whose targets are open more often after than before; numbers alone are used again and again."""
    surplus = Counter(after.values()) - Counter(before.values())
    new = {}
    for fd, target in after.items():
        if before.get(fd) != target and surplus[target] > 0:
            surplus[target] -= 1
            new[fd] = target
    return new
