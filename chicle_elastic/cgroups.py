"""What control groups and the machine leave to this process: processor time and memory.

A container or a batch job is limited by its own control group and by every group above it, so each figure is the
tightest one on the way up. Both versions of control groups are read, because hosts mix them: version 2 is one tree
(`0::/path` in `/proc/self/cgroup`), version 1 one tree per controller (`4:memory:/path`). Where a container sees only
its own part of the tree, `mountinfo` tells which part that is. On other systems than Linux, and where nothing can be
read, there is no limit.
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PROC = Path("/proc")
BYTES_PER_KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """Memory that may still be taken, and who says so."""

    num_bytes: int  # bytes left, >= 0
    source: str


def cpu_quota(proc: Path = PROC) -> float | None:
    """Cores' worth of processor time that the control groups allow this process. Returns for instance 1.5; None where
    nothing limits it."""
    quotas = [_text(folder / "cpu.max").partition(" ")[::2] for folder in _folders("", proc)]
    quotas += [
        (_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")) for folder in _folders("cpu", proc)
    ]
    # "max" (version 2) and -1 (version 1) mean that this level sets no limit.
    limits = [
        int(quota_us) / int(period_us)
        for quota_us, period_us in quotas
        if quota_us.isdecimal() and period_us.isdecimal() and int(period_us) > 0
    ]
    return min(limits, default=None)


def memory_headroom(proc: Path = PROC) -> Headroom | None:
    """Memory that this process may still take: what the machine has left, or less where a control group says so.
    Returns the tightest limit; None where nothing can be read.

    File pages count as taken only where they are in use: a group that has just read a large file is not full. (The
    kernel drops the others before it runs out; `MemAvailable` has that in it, groups do not.)
    """
    headrooms = list(_group_headrooms(proc))
    meminfo = proc / "meminfo"
    available_kib = _field(meminfo, "MemAvailable:")
    if available_kib is not None:
        headrooms.append(Headroom(num_bytes=available_kib * BYTES_PER_KIB, source=f"MemAvailable in {meminfo}"))
    return min(headrooms, key=lambda headroom: headroom.num_bytes, default=None)


class MemoryKills:
    """Tells whether the kernel has killed processes of this control group for memory since this object was made.

    A process that died meanwhile, of this group as children are, was one of these. The group counts them all, and does
    not say which.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._before = dict(_memory_kills(proc))

    @property
    def words(self) -> str:
        """Return what to append to "the process died"; empty where the group says of no process that it was killed."""
        for file, num_killed in _memory_kills(self._proc):
            if num_killed > self._before.get(file, 0):
                return f": its control group had no memory left (oom_kill in {file}); give it more, or use more nodes"
        return ""


def _memory_kills(proc: Path) -> Iterator[tuple[Path, int]]:
    for controller, name in (("", "memory.events"), ("memory", "memory.oom_control")):
        for folder in itertools.islice(_folders(controller, proc), 1):
            yield folder / name, _field(folder / name, "oom_kill") or 0


def _group_headrooms(proc: Path) -> Iterator[Headroom]:
    levels = [(folder, "memory.max", "memory.current", "inactive_file") for folder in _folders("", proc)] + [
        (folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in _folders("memory", proc)
    ]
    for folder, limit_name, use_name, droppable_name in levels:
        limit, use = _text(folder / limit_name), _text(folder / use_name)
        if limit.isdecimal() and use.isdecimal():
            droppable = _field(folder / "memory.stat", droppable_name) or 0
            left = int(limit) - (int(use) - droppable)
            yield Headroom(num_bytes=max(0, left), source=str(folder / limit_name))


def _folders(controller: str, proc: Path) -> Iterable[Path]:
    """Folders of this process's group and of all above it, innermost first; `controller` "" is version 2."""
    return _own_folders(controller, os.getpid()) if proc == PROC else _read_folders(controller, proc)


@lru_cache(maxsize=4)
def _own_folders(controller: str, pid: int) -> tuple[Path, ...]:
    """Those of this process, which stays in its group: reading where that is takes longer than reading its limits."""
    return tuple(_read_folders(controller, PROC))


def _read_folders(controller: str, proc: Path) -> Iterator[Path]:
    group = next((path for name, path in _groups(proc) if name == controller), None)
    mount = next(((root, point) for name, root, point in _mounts(proc) if name == controller), None)
    if group is None or mount is None:
        return
    root, point = mount
    # A group outside of what is mounted (a container without a namespace of its own) is seen as the mount itself.
    relative = Path(group).relative_to(root) if Path(group).is_relative_to(root) else Path()
    folder = point / relative
    yield folder
    while folder != point:
        folder = folder.parent
        yield folder


def _groups(proc: Path) -> Iterator[tuple[str, str]]:
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _mounts(proc: Path) -> Iterator[tuple[str, str, Path]]:
    """(controller, group that the mount shows, where it is mounted) of each mounted tree; see proc(5), mountinfo."""
    for line in _text(proc / "self" / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, source_and_options = after.partition(" ")
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            yield "", root, Path(point)
        elif kind == "cgroup":
            for controller in source_and_options.partition(" ")[2].split(","):
                yield controller, root, Path(point)


def _field(file: Path, name: str) -> int | None:
    for line in _text(file).splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
