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


def test_a_version_2_quota_is_time_by_period(tmp_path):
    """1.5 cores' worth."""
    tree = ProcTree(tmp_path)
    tree.write("unified/cpu.max", "150000 100000")
    assert cpu_quota(tree.proc) == 1.5


def test_a_version_1_quota_is_time_by_period(tmp_path):
    """The same in two files."""
    tree = ProcTree(tmp_path)
    tree.write("cpu/cpu.cfs_quota_us", 250000)
    tree.write("cpu/cpu.cfs_period_us", 100000)
    assert cpu_quota(tree.proc) == 2.5


@pytest.mark.parametrize("tightest", ["unified", "unified/job", "unified/job/task"])
def test_the_tightest_quota_on_the_way_up_counts(tmp_path, tightest):
    """A pod is limited by its own group and by those of its namespace and of the kubelet."""
    tree = ProcTree(tmp_path, group="/job/task")
    for folder in ("unified", "unified/job", "unified/job/task"):
        tree.write(f"{folder}/cpu.max", "200000 100000" if folder == tightest else "max 100000")
    assert cpu_quota(tree.proc) == 2.0


def test_no_quota_is_none(tmp_path):
    """Version 2 says max, version 1 says -1."""
    tree = ProcTree(tmp_path)
    tree.write("unified/cpu.max", "max 100000")
    tree.write("cpu/cpu.cfs_quota_us", -1)
    tree.write("cpu/cpu.cfs_period_us", 100000)
    assert cpu_quota(tree.proc) is None


def test_a_sibling_group_does_not_count(tmp_path):
    """Only the way up from the own group is read."""
    tree = ProcTree(tmp_path, group="/job/task")
    tree.write("unified/job/other/cpu.max", "100000 100000")
    assert cpu_quota(tree.proc) is None


def test_a_container_that_sees_only_its_own_part_is_limited_by_it(tmp_path):
    """The path in /proc/self/cgroup is that of the host; the mount shows the container's group as its root."""
    tree = ProcTree(tmp_path, group="/docker/abc/inner", mount_root="/docker/abc")
    tree.write("unified/inner/cpu.max", "max 100000")
    tree.write("unified/cpu.max", "300000 100000")
    assert cpu_quota(tree.proc) == 3.0


def test_a_group_outside_of_the_mount_is_seen_as_the_mount(tmp_path):
    """Some containers mount another part than the one they are said to be in."""
    tree = ProcTree(tmp_path, group="/elsewhere", mount_root="/docker/abc")
    tree.write("memory/memory.limit_in_bytes", 100 * MIB)
    tree.write("memory/memory.usage_in_bytes", 60 * MIB)
    headroom = memory_headroom(tree.proc)
    assert headroom is not None
    assert headroom.num_bytes == 40 * MIB


def test_memory_left_is_limit_minus_use_and_names_the_file(tmp_path):
    """The error of a store shows where the limit comes from."""
    tree = ProcTree(tmp_path, group="/job")
    tree.write("unified/job/memory.max", 100 * MIB)
    tree.write("unified/job/memory.current", 30 * MIB)
    tree.write("unified/memory.max", "max")
    tree.write("unified/memory.current", 900 * MIB)
    headroom = memory_headroom(tree.proc)
    assert headroom is not None
    assert headroom.num_bytes == 70 * MIB
    assert headroom.source.endswith("unified/job/memory.max")


@pytest.mark.parametrize(
    ("folder", "limit_name", "use_name", "droppable_name"),
    [
        ("unified", "memory.max", "memory.current", "inactive_file"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_file_pages_that_can_be_dropped_do_not_count_as_used(tmp_path, folder, limit_name, use_name, droppable_name):
    """A job that has just read its data set is not out of memory."""
    tree = ProcTree(tmp_path)
    tree.write(f"{folder}/{limit_name}", 100 * MIB)
    tree.write(f"{folder}/{use_name}", 95 * MIB)
    tree.write(f"{folder}/memory.stat", f"anon {MIB}\n{droppable_name} {50 * MIB}\nactive_file {MIB}")
    headroom = memory_headroom(tree.proc)
    assert headroom is not None
    assert headroom.num_bytes == 55 * MIB


def test_a_group_over_its_limit_leaves_nothing(tmp_path):
    """And not a negative number."""
    tree = ProcTree(tmp_path)
    tree.write("unified/memory.max", 10 * MIB)
    tree.write("unified/memory.current", 11 * MIB)
    headroom = memory_headroom(tree.proc)
    assert headroom is not None
    assert headroom.num_bytes == 0


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


@pytest.mark.parametrize("text", ["", "rubbish", "5 0", "max"])
def test_unreadable_quotas_are_no_limit(tmp_path, text):
    """An unknown format must not stop a fit, or divide by zero."""
    tree = ProcTree(tmp_path)
    tree.write("unified/cpu.max", text)
    assert cpu_quota(tree.proc) is None


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
