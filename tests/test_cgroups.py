"""Limits of control groups, read from trees as the kernel shows them."""

from pathlib import Path

import pytest

from chicle_elastic.cgroups import MemoryKills, cpu_quota, memory_headroom

MIB = 1 << 20
# What version 1 shows where there is no limit.
NO_LIMIT_V1 = 9223372036854771712


class ProcTree:
    """Builds a proc file system and the control groups that it tells of.

    Args:
        root: Folder for both.
        group: Group of the process, e.g. "/job/task".
        mount_root: Group that the mounts show; not "/" in a container that sees only its part.
    """

    def __init__(self, root: Path, group: str = "/", mount_root: str = "/") -> None:
        self.proc = root / "proc"
        self.points = root / "sys"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "cgroup").write_text(f"4:memory:{group}\n3:cpu,cpuacct:{group}\n0::{group}\n")
        mounts = [
            f"25 23 0:26 {mount_root} {self.points}/unified rw,relatime shared:4 - cgroup2 cgroup2 rw",
            f"26 23 0:27 {mount_root} {self.points}/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct",
            f"27 23 0:28 {mount_root} {self.points}/memory rw,relatime - cgroup cgroup rw,memory",
            "28 23 0:29 / /tmp rw,relatime - tmpfs tmpfs rw",
        ]
        (self.proc / "self" / "mountinfo").write_text("\n".join(mounts) + "\n")

    def write(self, file: str, text: object) -> None:
        """Write one file below the mount points, e.g. "unified/job/cpu.max"."""
        path = self.points / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


HOST, INNER = {"group": "/job/task"}, {"group": "/docker/abc/inner", "mount_root": "/docker/abc"}
V1_QUOTA, V1_PERIOD = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"
QUOTAS = {
    "version 2": ({}, {"unified/cpu.max": "150000 100000"}, 1.5),
    "version 1": ({}, {V1_QUOTA: 250000, V1_PERIOD: 100000}, 2.5),
    "no quota": ({}, {"unified/cpu.max": "max 100000", V1_QUOTA: -1, V1_PERIOD: 100000}, None),
    "the tightest is the root's": (HOST, {"unified/cpu.max": "200000 100000", "unified/job/cpu.max": "max 1"}, 2.0),
    "the tightest is the parent's": (HOST, {"unified/cpu.max": "max 1", "unified/job/cpu.max": "200000 100000"}, 2.0),
    "the tightest is the own": (
        HOST,
        {"unified/job/cpu.max": "400000 100000", "unified/job/task/cpu.max": "200000 100000"},
        2.0,
    ),
    "a sibling does not count": (HOST, {"unified/job/other/cpu.max": "100000 100000"}, None),
    # The path in /proc/self/cgroup is that of the host; the mount shows the container's group as its root.
    "a container sees its part": (INNER, {"unified/inner/cpu.max": "max 1", "unified/cpu.max": "300000 100000"}, 3.0),
    "empty": ({}, {"unified/cpu.max": ""}, None),
    "rubbish": ({}, {"unified/cpu.max": "rubbish"}, None),
    "a period of 0": ({}, {"unified/cpu.max": "5 0"}, None),
    "no period": ({}, {"unified/cpu.max": "max"}, None),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_a_quota_is_time_by_period(tmp_path, name):
    """Only the way up from the own group is read, and an unknown format is no limit."""
    place, files, expected = QUOTAS[name]
    tree = ProcTree(tmp_path, **place)
    for file, text in files.items():
        tree.write(file, text)
    assert cpu_quota(tree.proc) == expected


V1_MEMORY = "memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"
V2_MEMORY = "unified/memory.max", "unified/memory.current", "unified/memory.stat"
HEADROOM = {
    "limit less use": ("/job", "/", {"unified/job/memory.max": 100, "unified/job/memory.current": 30}, 70),
    # Some containers mount another part than the one they are said to be in.
    "a group outside of the mount": ("/elsewhere", "/docker/abc", {V1_MEMORY[0]: 100, V1_MEMORY[1]: 60}, 40),
    "over the limit": ("/", "/", {V2_MEMORY[0]: 10, V2_MEMORY[1]: 11}, 0),
    # A job that has just read its data set is not out of memory: the kernel can drop pages of files.
    "pages of files, version 2": ("/", "/", dict(zip(V2_MEMORY, (100, 95, "inactive_file"), strict=True)), 55),
    "pages of files, version 1": ("/", "/", dict(zip(V1_MEMORY, (100, 95, "total_inactive_file"), strict=True)), 55),
}


@pytest.mark.parametrize("name", HEADROOM)
def test_memory_left_is_that_of_the_group(tmp_path, name):
    """The file of the limit is named, so that the error of a store shows where it comes from."""
    group, mount_root, files, expected_mib = HEADROOM[name]
    tree = ProcTree(tmp_path, group=group, mount_root=mount_root)
    for file, value in files.items():
        tree.write(file, f"anon {MIB}\n{value} {50 * MIB}\nactive_file {MIB}" if "stat" in file else value * MIB)
    if name == "limit less use":
        tree.write("unified/memory.max", "max")
        tree.write("unified/memory.current", 900 * MIB)
    headroom = memory_headroom(tree.proc)
    assert headroom is not None
    assert headroom.num_bytes == expected_mib * MIB
    assert headroom.source.endswith(next(iter(files)))


def test_without_a_tighter_group_the_machine_is_the_limit(tmp_path):
    """MemAvailable, in KiB in /proc/meminfo."""
    tree = ProcTree(tmp_path)
    tree.write("memory/memory.limit_in_bytes", NO_LIMIT_V1)
    tree.write("memory/memory.usage_in_bytes", 60 * MIB)
    (tree.proc / "meminfo").write_text("MemTotal:        2048 kB\nMemFree:  100 kB\nMemAvailable:    1024 kB\n")
    headroom = memory_headroom(tree.proc)
    assert headroom is not None
    assert headroom.num_bytes == MIB
    assert headroom.source == f"MemAvailable in {tree.proc}/meminfo"


def test_a_system_without_proc_has_no_limits(tmp_path):
    """macOS and Windows."""
    assert cpu_quota(tmp_path) is None
    assert memory_headroom(tmp_path) is None


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("unified/job/task/memory.events", "low 0\nhigh 0\nmax 9\noom 4\noom_kill {}\noom_group_kill 0"),
        ("memory/job/task/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}"),
    ],
    ids=["version 2", "version 1"],
)
def test_a_process_that_the_kernel_killed_for_memory_is_known(tmp_path, file, text):
    """By the count of the group, which names no process: an earlier kill does not count."""
    tree = ProcTree(tmp_path, group="/job/task")
    tree.write(file, text.format(2))
    kills = MemoryKills(tree.proc)
    assert kills.words == ""
    tree.write(file, text.format(3))
    assert "memory" in kills.words
    assert str(tree.points / file) in kills.words
    assert MemoryKills(tree.proc).words == ""


def test_a_group_that_counts_no_kills_names_none(tmp_path):
    """Old kernels, the root of the tree, and other systems."""
    tree = ProcTree(tmp_path)
    tree.write("unified/memory.events", "oom")
    assert MemoryKills(tree.proc).words == MemoryKills(tmp_path / "nothing").words == ""
