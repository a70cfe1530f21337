"""Memory does not grow with the input: measured in a process of its own, as the peak that the kernel recorded.

The bound: a conversion of 28 MB takes at most 14 MiB more than one of 28 kB, with 4 MiB for the shuffle. Measured were
6 to 10 MiB more; and with the default of 64 MiB for the shuffle a peak of 90 MiB for 50, 150 and 450 MB of CSV alike.
"""

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.programs import run_python

MIB = 1 << 20
LARGE_BYTES = 28 * 10**6
SMALL_BYTES = 28 * 10**3
MAX_GROWTH_BYTES = 14 * MIB

CONVERT = """
import json, sys
from pathlib import Path
from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.chunks.readers.base import ReadOptions

def peak_bytes():
    # Not getrusage: its maximum includes the parent that this process was forked from.
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])

for name in ("small", "large"):
    path, targets = Path(sys.argv[1]) / f"{name}{sys.argv[2]}", Path(sys.argv[1]) / f"{name}.y.npy"
    read = ReadOptions(targets=targets if targets.exists() else None)
    convert([path], Path(sys.argv[1]) / f"{name}.out", ConvertOptions(max_tasks=1, memory_bytes=4 << 20, read=read))
    print(peak_bytes())
"""


def lines_of(line: str, size_bytes: int) -> bytes:
    """Text of that size, the same line again and again; labels alternate."""
    pair = f"0{line}\n1{line}\n".encode()
    return pair * (size_bytes // len(pair))


def write_csv(path: Path, size_bytes: int) -> None:
    """28 features, like HIGGS."""
    path.write_bytes(lines_of(",-0.125" * 28, size_bytes))


def write_svmlight_gz(path: Path, size_bytes: int) -> None:
    """30 features of 123, compressed."""
    text = lines_of("".join(f" {index}:1" for index in range(3, 123, 4)), size_bytes)
    path.write_bytes(gzip.compress(text, compresslevel=1))


def write_npz(path: Path, size_bytes: int) -> None:
    """A compressed archive of 50 columns."""
    num_rows = size_bytes // 200
    np.savez_compressed(path, X=np.ones((num_rows, 50), dtype=np.float32), y=np.arange(num_rows) % 2)


def write_npy(path: Path, size_bytes: int) -> None:
    """The same as two files."""
    num_rows = size_bytes // 200
    np.save(path, np.ones((num_rows, 50), dtype=np.float32))
    np.save(path.with_suffix(".y.npy"), np.arange(num_rows) % 2)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    ("suffix", "write"),
    [
        (".csv", write_csv),
        (".svm.gz", write_svmlight_gz),
        (".npz", write_npz),
        (".npy", write_npy),
    ],
)
def test_memory_does_not_grow_with_the_file(tmp_path: Path, suffix: str, write: Callable[[Path, int], None]) -> None:
    """A thousand times the input, and the peak grows by half of the input at most."""
    write(tmp_path / f"small{suffix}", SMALL_BYTES)
    write(tmp_path / f"large{suffix}", LARGE_BYTES)
    small, large = map(int, run_python("-c", CONVERT, tmp_path, suffix, seconds=120).stdout.split())
    assert large - small < MAX_GROWTH_BYTES, f"{(large - small) / MIB:.1f} MiB more for {LARGE_BYTES / MIB:.0f} MiB"
