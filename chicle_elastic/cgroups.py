"""What the control groups of Linux leave to this process: processor time and memory.

A container or a batch job is limited by its own group and by every group above it, so each figure is the tightest one
on the way up. Both versions are read, because hosts mix them: version 2 is one tree (`0::/path` in
`/proc/self/cgroup`), version 1 one tree per controller (`4:memory:/path`). Where a container sees only its own part of
the tree, `mountinfo` tells which part that is. On other systems, and where nothing can be read, there is no limit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC_SELF = Path("/proc/self")


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """Memory that may still be taken, and who says so.

    Attributes:
        num_bytes: Bytes left, >= 0.
        source: The file or field that it was read from, for messages.
    """

    num_bytes: int
    source: str


def cpu_quota(proc: Path = PROC_SELF) -> float | None:
    """Processors' worth of time per period that this process may use.

    Args:
        proc: Folder with the process's `cgroup` and `mountinfo`.

    Returns:
        For instance 1.5; None where nothing limits it.
    """
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


def memory_headroom(proc: Path = PROC_SELF) -> Headroom | None:
    """Memory that the groups of this process leave it: limit minus use, without file pages that can be dropped.

    Args:
        proc: Folder with the process's `cgroup` and `mountinfo`.

    Returns:
        The tightest level; None where nothing limits it.
    """
    levels = [(folder / "memory.max", folder / "memory.current", "inactive_file") for folder in _folders("", proc)] + [
        (folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes", "total_inactive_file")
        for folder in _folders("memory", proc)
    ]
    headrooms = []
    for limit_file, use_file, droppable in levels:
        limit, use = _text(limit_file), _text(use_file)
        if limit.isdecimal() and use.isdecimal():
            kept = int(use) - _field(limit_file.with_name("memory.stat"), droppable)
            headrooms.append(Headroom(num_bytes=max(0, int(limit) - kept), source=str(limit_file)))
    return min(headrooms, key=lambda headroom: headroom.num_bytes, default=None)


def _folders(controller: str, proc: Path) -> Iterator[Path]:
    """Folders of this process's group and of all above it, innermost first; `controller` "" is version 2."""
    group = next((path for name, path in _groups(proc) if name == controller), None)
    mount = next(((root, point) for name, root, point in _mounts(proc) if name == controller), None)
    if group is None or mount is None:
        return
    root, point = mount
    below = Path(group)
    # A group outside of what is mounted (a container without a namespace of its own) is seen as the mount itself.
    relative = below.relative_to(root) if below.is_relative_to(root) else Path()
    folder = point / relative
    yield folder
    while folder != point:
        folder = folder.parent
        yield folder


def _groups(proc: Path) -> Iterator[tuple[str, str]]:
    """(controller, path of this process's group) of each tree."""
    for line in _text(proc / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _mounts(proc: Path) -> Iterator[tuple[str, str, Path]]:
    """(controller, group that the mount shows, where it is mounted) of each mounted tree; see proc(5), mountinfo."""
    for line in _text(proc / "mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        root, point = before.split(" ")[3:5]
        if kind == "cgroup2":
            yield "", root, Path(point)
        elif kind == "cgroup":
            for controller in options.split(","):
                yield controller, root, Path(point)


def _field(file: Path, name: str) -> int:
    """Number behind `name` in a file of lines `name number`; 0 where it is missing."""
    for line in _text(file).splitlines():
        key, _, number = line.partition(" ")
        if key == name and number.isdecimal():
            return int(number)
    return 0


def _text(file: Path) -> str:
    """Stripped content; empty where the file is missing or unreadable."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
