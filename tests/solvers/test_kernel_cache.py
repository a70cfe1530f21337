"""The kernel cache: whatever its disk does, a kernel is compiled and gives the right result."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from chicle_elastic.solvers import kernel_cache
from chicle_elastic.solvers.kernels import disk_cache, jit
from tests.mounts import run_mounted
from tests.programs import run_python

PROGRAM = """
import logging, sys
sys.path.insert(0, {folder!r})
from scale import scale
from chicle_elastic.solvers.kernels.jit import kernel
compiled = kernel(scale)
{meanwhile}
print(compiled(3.0), compiled(4), kernel(scale)(5.0))
"""
RESULTS = "9.0 12 15.0\n"
FILL = "dd if=/dev/zero of=$folder/disk/fill bs=1k 2>/dev/null || true"


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Make a kernel anew, as another process would, with a cache in a folder of this test's own."""
    monkeypatch.setattr(disk_cache, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(kernel_cache, "errors", [])
    return lambda: jit.kernel(scale)


def scale(x: Any) -> Any:
    """The kernel of these tests."""
    return 3 * x


def num_hits(kernel: Any) -> int:
    """How many signatures came from the cache."""
    return sum(kernel.stats.cache_hits.values())


def zeros(content: bytes) -> bytes:
    """A power failure leaves a file of the right length, of which some pages or all were never written."""
    return content[: len(content) // 2] + bytes(len(content) - len(content) // 2)


def flipped(content: bytes) -> bytes:
    """One bit is wrong, in the machine code of an entry."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def test_machine_code_is_kept(compiled: Callable[[], Any]) -> None:
    """Otherwise every process would compile it again."""
    first, second = compiled(), compiled()
    assert (first(2.0), num_hits(first)) == (6.0, 0)
    assert (second(2.0), num_hits(second)) == (6.0, 1)


def test_a_kernel_is_known_by_its_file_wherever_that_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second checkout or environment compiles nothing; a constant of the file is no part of the kernel's bytecode."""
    monkeypatch.setattr(disk_cache, "cache_dir", lambda: tmp_path / "kept")
    for folder, factor, num_hits_now in (("one", 3, 0), ("two", 3, 1), ("two", 4, 0)):
        (tmp_path / folder).mkdir(exist_ok=True)
        file = tmp_path / folder / "scaled.py"
        file.write_text(f"FACTOR = {factor}\ndef scaled(x):\n    return FACTOR * x\n")
        module = ModuleType("scaled")
        exec(compile(file.read_text(), file, "exec"), module.__dict__)
        monkeypatch.setitem(sys.modules, "scaled", module)
        compiled = jit.kernel(module.scaled)
        assert (compiled(2.0), num_hits(compiled)) == (2.0 * factor, num_hits_now)


def test_a_process_whose_kernels_were_kept_can_compile(tmp_path: Path) -> None:
    """Load kernels without what the compiler has to know; it learns that for the first function of others."""
    (tmp_path / "scale.py").write_text("def scale(x):\n    return 3 * x\n")
    other = (
        "import numba, numpy; kept = compiled(3.0), sum(compiled.stats.cache_hits.values()); "
        "print(*kept, numba.njit(lambda x: numpy.sort(x)[0])(numpy.array([2.0, 1.0])))"
    )
    for num_hits_now in (0, 1):
        program = PROGRAM.format(folder=str(tmp_path), meanwhile=other)
        run = run_python("-c", program, CHICLE_CACHE_DIR=str(tmp_path / "kept"))
        assert run.stdout == f"9.0 {num_hits_now} 1.0\n{RESULTS}"


@pytest.mark.parametrize("damage", [lambda _: b"", lambda c: c[: len(c) // 2], lambda c: bytes(len(c)), zeros])
@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_damaged_file_is_made_again(
    compiled: Callable[[], Any], tmp_path: Path, suffix: str, damage: Callable[[bytes], bytes]
) -> None:
    """Empty, cut short, never written: the index or an entry."""
    compiled()(2.0)
    [path] = tmp_path.rglob(f"*{suffix}")
    path.write_bytes(damage(path.read_bytes()))
    second, third = compiled(), compiled()
    assert (second(2.0), num_hits(second)) == (6.0, 0)
    assert (third(2.0), num_hits(third)) == (6.0, 1)


def test_machine_code_with_a_wrong_bit_is_not_run(compiled: Callable[[], Any], tmp_path: Path) -> None:
    """It can be unpickled, and may do anything."""
    compiled()(2.0)
    [path] = tmp_path.rglob("*.nbc")
    path.write_bytes(flipped(path.read_bytes()))
    second = compiled()
    assert (second(2.0), num_hits(second)) == (6.0, 0)


def test_the_entry_of_another_signature_is_not_run(compiled: Callable[[], Any], tmp_path: Path) -> None:
    """Two processes that save at a time may leave such an index: numba writes it before the entry."""
    first = compiled()
    assert (first(2.0), first(2)) == (6.0, 6)
    one, two = sorted(tmp_path.rglob("*.nbc"))
    shutil.copy(one, two)
    second = compiled()
    assert (second(2.5), second(2), num_hits(second)) == (7.5, 6, 1)


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_path_that_cannot_be_written_is_told_once(
    compiled: Callable[[], Any], tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder in the place of a file: an OSError that root gets, too."""
    compiled()(2.0)
    [path] = tmp_path.rglob(f"*{suffix}")
    path.unlink()
    path.mkdir()
    for number in (2.0, 3.0):
        assert compiled()(number) == 3 * number
    assert [record.message.count("CHICLE_CACHE_DIR") for record in caplog.records] == [1]


@pytest.mark.parametrize(
    ("setup", "meanwhile"),
    [
        (FILL, ""),
        (f"mkdir -p $folder/disk/c; {FILL}; truncate -s -12k $folder/disk/fill", ""),
        ("true", "__import__('shutil').rmtree({disk!r} + '/c'); open({disk!r} + '/c', 'w').close()"),
        ("true", "import subprocess; subprocess.run(['mount', '-o', 'remount,ro', {disk!r}], check=True)"),
    ],
    ids=["full", "full at the entry", "gone", "read-only later"],
)
def test_a_disk_that_takes_no_kernels_costs_no_fit(tmp_path: Path, setup: str, meanwhile: str) -> None:
    """One line says so; the results are right."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "scale.py").write_text("def scale(x):\n    return 3 * x\n")
    run = run_mounted(
        "mount -t tmpfs -o size=1m tmpfs $folder/disk\nexport CHICLE_CACHE_DIR=$folder/disk/c TMPDIR=$folder/disk\n"
        f"unset HOME XDG_CACHE_HOME CHICLE_WAITS\n{setup}",
        PROGRAM.format(folder=str(tmp_path), meanwhile=meanwhile.format(disk=str(tmp_path / "disk"))),
        folder=tmp_path,
    )
    assert (run.returncode, run.stdout) == (0, RESULTS), run.stderr
    assert run.stderr.count("\n") == 1
    assert "CHICLE_CACHE_DIR" in run.stderr


READ_ONLY = """
mount -o remount,ro,bind /
for each in /tmp /var/tmp $folder; do mount --bind $each $each; mount -o remount,ro,bind $each; done
cd $folder
unset HOME XDG_CACHE_HOME CHICLE_CACHE_DIR CHICLE_WAITS TMPDIR
"""


def test_a_read_only_root_needs_no_cache(tmp_path: Path) -> None:
    """Kubernetes with readOnlyRootFilesystem and no volume at /tmp."""
    (tmp_path / "scale.py").write_text("def scale(x):\n    return 3 * x\n")
    run = run_mounted(READ_ONLY, PROGRAM.format(folder=str(tmp_path), meanwhile=""), folder=tmp_path)
    assert (run.returncode, run.stdout) == (0, RESULTS), run.stderr
    assert run.stderr.count("\n") == 1
    assert "CHICLE_CACHE_DIR" in run.stderr


@pytest.mark.slow
@pytest.mark.parametrize("num_nodes", [None, 2])
def test_a_fit_needs_no_disk(tmp_path: Path, num_nodes: int | None) -> None:
    """All kernels of a fit are compiled in memory, on nodes too, and one line tells it."""
    program = (
        "from estimators import ChicleSVM\nfrom sklearn.datasets import load_breast_cancer\n"
        "X, y = load_breast_cancer(return_X_y=True)\n"
        f"print(ChicleSVM(n_workers={num_nodes}).fit(X / X.max(0), y).duality_gap_ <= 1e-3)"
    )
    run = run_mounted(READ_ONLY, program, folder=tmp_path)
    assert (run.returncode, run.stdout) == (0, "True\n"), run.stderr
    assert run.stderr.count("CHICLE_CACHE_DIR") == 1
