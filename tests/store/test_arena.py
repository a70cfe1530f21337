"""Arenas in one process: sizes, views, closing, and what is refused."""

import fcntl
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest

from chicle_elastic.errors import CapacityError, ProtocolError, UsageError
from chicle_elastic.store.arena import Arena

SLOT_BYTES = 192


def test_slots_are_writable_disjoint_and_zero_at_first():
    """Each slot sees exactly its own bytes."""
    with Arena.create(5, slot_bytes=SLOT_BYTES) as arena:
        for slot in range(5):
            assert not arena.array(slot).any()
            arena.array(slot)[:] = slot + 1
        for slot in range(5):
            assert bytes(arena.view(slot)) == bytes([slot + 1]) * SLOT_BYTES


def test_the_base_address_is_a_page_and_slots_lie_behind_it_at_their_offsets():
    """RDMA registration and kernels compute addresses from these two numbers."""
    with Arena.create(5, slot_bytes=SLOT_BYTES) as arena:
        assert arena.base_address % mmap.PAGESIZE == 0
        addresses = [arena.array(slot).ctypes.data for slot in range(5)]
        assert addresses == [arena.base_address + arena.offset(slot) for slot in range(5)]


def test_all_memory_is_there_from_the_beginning():
    """Every page is allocated at creation, so that writing a slot cannot fail later."""
    with Arena.create(10, slot_bytes=1 << 20) as arena:
        status = os.fstat(arena.fileno())
        assert status.st_size == arena.size_bytes == 10 << 20
        assert status.st_blocks * 512 >= arena.size_bytes


def test_the_memory_has_no_name_in_any_folder():
    """No name, nothing to sweep: the link count of the file is 0."""
    with Arena.create(1, slot_bytes=64) as arena:
        assert os.fstat(arena.fileno()).st_nlink == 0
        assert os.readlink(f"/proc/self/fd/{arena.fileno()}") == "/memfd:chicle-arena (deleted)"


def test_nobody_who_has_the_descriptor_can_resize_the_arena():
    """A peer that shrinks the file would kill the others with SIGBUS."""
    with Arena.create(4, slot_bytes=4096) as arena:
        for size_bytes in (4096, 1 << 20):
            with pytest.raises(PermissionError):
                os.ftruncate(arena.fileno(), size_bytes)


def test_the_descriptor_is_not_inherited_by_programs_that_are_started():
    """Otherwise any child would keep the memory of a dead agent."""
    with Arena.create(1, slot_bytes=64) as arena:
        assert not os.get_inheritable(arena.fileno())


def test_an_attached_arena_shows_the_same_memory():
    """Two maps of one file, as in an agent and its task."""
    with Arena.create(3, slot_bytes=SLOT_BYTES) as owner:
        with Arena.attach(os.dup(owner.fileno()), num_slots=3, slot_bytes=SLOT_BYTES) as other:
            other.view(2)[:5] = b"hello"
            assert other.base_address != owner.base_address
        assert bytes(owner.view(2)[:5]) == b"hello"


def test_close_unmaps_at_once_when_no_view_is_held():
    """Nothing of the arena is left in the maps of this process, and closing again is fine."""
    arena = Arena.create(1, slot_bytes=1 << 20)
    arena.view(0)[:1] = b"x"
    assert arena.close() is True
    assert arena.close() is True
    assert arena.is_closed


def test_close_waits_for_views_that_are_still_held():
    """A view stays valid after close; the memory goes with the last one."""
    arena = Arena.create(1, slot_bytes=64)
    view, array = arena.view(0), arena.array(0)
    array[:3] = 7
    assert arena.close() is False
    assert bytes(view[:4]) == b"\x07\x07\x07\x00"
    del view
    assert arena.close() is False
    del array
    assert arena.close() is True


def test_a_forgotten_arena_gives_its_descriptor_and_memory_back():
    """Also without close; the watch over leaks of this suite would see the descriptor."""
    arena = Arena.create(1, slot_bytes=64)
    fd = arena.fileno()
    del arena
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("use", [Arena.fileno, lambda arena: arena.view(0), lambda arena: arena.base_address])
def test_a_closed_arena_says_so(use):
    """And not "bad file descriptor" or "None has no attribute"."""
    arena = Arena.create(1, slot_bytes=64)
    arena.close()
    with pytest.raises(UsageError, match="the arena is closed"):
        use(arena)


@pytest.mark.parametrize("slot", [-1, 3])
def test_a_slot_that_is_not_there_is_an_error(slot):
    """Negative numbers too, which would count from the end."""
    with Arena.create(3, slot_bytes=64) as arena, pytest.raises(UsageError, match=f"no slot {slot} in an arena of 3"):
        arena.view(slot)


@pytest.mark.parametrize("slot_bytes", [0, -64, 1, 100])
def test_slot_bytes_must_be_a_positive_multiple_of_64(slot_bytes):
    """Chunks are 64-byte aligned, so slots are."""
    with pytest.raises(UsageError, match=rf"slot_bytes={slot_bytes} cannot be; .* positive multiple of 64"):
        Arena.create(1, slot_bytes=slot_bytes)


@pytest.mark.parametrize("num_slots", [0, -3])
def test_an_arena_needs_a_slot(num_slots):
    """An empty one would only hide a wrong computation of sizes."""
    with pytest.raises(UsageError, match=f"an arena of {num_slots} slots"):
        Arena.create(num_slots, slot_bytes=64)


def test_an_absurd_size_is_refused_before_anything_is_taken():
    """With both figures; taking memory until the system kills somebody is no way to find out."""
    with pytest.raises(CapacityError, match=r"needs 1048576\.0 GiB, but MemAvailable in /proc/meminfo leaves .* GiB"):
        Arena.create(1 << 30, slot_bytes=1 << 20)


def test_the_limit_of_a_control_group_is_respected(tmp_path):
    """The group of a container with 8 MiB left (written here as the proc and cgroup file systems would show it)."""
    group = tmp_path / "cgroup"
    group.mkdir()
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "self" / "mountinfo").write_text(f"30 23 0:26 / {group} rw shared:4 - cgroup2 cgroup2 rw\n")
    (group / "memory.max").write_text(f"{100 << 20}\n")
    (group / "memory.current").write_text(f"{92 << 20}\n")
    with pytest.raises(CapacityError, match=r"needs 16\.0 MiB, but .*memory\.max leaves 8\.0 MiB"):
        Arena.create(16, slot_bytes=1 << 20, proc=tmp_path)
    Arena.create(8, slot_bytes=1 << 20, proc=tmp_path).close()


@pytest.mark.parametrize("limit", ["RLIMIT_FSIZE", "RLIMIT_AS"])
def test_a_limit_of_this_process_is_an_error_with_a_remedy_and_leaks_nothing(limit):
    """A real process under a real limit of 256 MiB asks for 1 GiB, then counts its descriptors."""
    program = f"""
import os, resource
from chicle_elastic.errors import CapacityError
from chicle_elastic.store.arena import Arena
before = os.listdir("/proc/self/fd")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() if "{limit}" == "RLIMIT_AS" else 0
resource.setrlimit(resource.{limit}, (used + (256 << 20),) * 2)
try:
    Arena.create(1024, slot_bytes=1 << 20)
except CapacityError as error:
    print(error)
print("leaked", len(os.listdir("/proc/self/fd")) - len(before))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "needs 1024.0 MiB, and the system refused it" in run.stdout
    assert "ulimit" in run.stdout
    assert run.stdout.endswith("leaked 0\n")


def test_creating_an_arena_outside_linux_says_what_to_do_instead(monkeypatch):
    """In-process fit needs no arena and runs everywhere."""
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match=r"needs Linux .* this is darwin; fit in process"):
        Arena.create(1, slot_bytes=64)


def test_the_store_can_be_imported_where_fcntl_is_missing():
    """As on Windows, where estimators are used in process."""
    program = "import sys; sys.modules['fcntl'] = None; import chicle_elastic.store.arena as a; print(a.SLOT_ALIGNMENT)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "64\n"


def test_attaching_to_another_size_than_announced_is_refused():
    """Reading beyond the end of the file would be a SIGBUS."""
    with Arena.create(4, slot_bytes=4096) as arena:
        fd = os.dup(arena.fileno())
        with pytest.raises(ProtocolError, match=r"holds 16384 bytes, but the announced arena has 20480"):
            Arena.attach(fd, num_slots=5, slot_bytes=4096)


def test_attaching_to_a_file_that_can_shrink_is_refused():
    """Its owner could take the memory away under a running kernel."""
    fd = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    with pytest.raises(ProtocolError, match="memory file that can still shrink"):
        Arena.attach(fd, num_slots=1, slot_bytes=4096)


def test_attaching_to_something_else_than_memory_is_refused(tmp_path):
    """And the descriptor, which now belongs to the arena that never was, is closed."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    with pytest.raises(ProtocolError, match="is no memory file"):
        Arena.attach(fd, num_slots=1, slot_bytes=64)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_views_are_plain_bytes_for_numpy():
    """A decoded chunk is made of such views: uint8, contiguous, writable, aligned to 64 bytes."""
    with Arena.create(2, slot_bytes=SLOT_BYTES) as arena:
        array = arena.array(1)
        assert array.dtype == np.uint8
        assert array.shape == (SLOT_BYTES,)
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.ctypes.data % 64 == 0
        del array
