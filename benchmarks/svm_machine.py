"""How close the kernels are to the machine: a pass over one read of the same bytes, two threads over one, memory."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numba
import numpy as np

from benchmarks.bars import Row
from benchmarks.datasets import DataSet
from benchmarks.fits import timed_fit
from benchmarks.problems import strong
from benchmarks.svm_bars import EPOCH, MEMORY_BYTES, MEMORY_VECTORS, THREADS
from benchmarks.svm_peers import ours
from chicle_elastic.solvers.linear.descent import Descent

THREAD_PAIRS = 7
"""Pairs of fits with one thread and two, per repeat."""


def compare_threads(name: str, data: DataSet, repeats: int) -> Row:
    """Wall time of whole fits with one and with two threads, alternated; the median of the ratios of neighbours.

    A fit is a tenth of a second, in which a neighbour of this machine may take one of its processors away, and the
    speed of the whole changes every few seconds: many pairs, each within a fifth of a second.
    """
    tol = 1e-5
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for repeat in range(THREAD_PAIRS * repeats + 1):
        for n_threads, times in seconds.items():
            model = ours(strong(data), tol, n_threads)
            wall = timed_fit(model, data).wall
            if repeat:  # the first of each warms up
                times.append(wall)
    one, two = (statistics.median(times) for times in seconds.values())
    return Row(
        part="threads",
        what=f"two threads against one: {data.title}",
        tol=tol,
        measured=f"{two * 1e3:.0f} ms",
        against=f"{one * 1e3:.0f} ms",
        value=statistics.median(a / b for a, b in zip(seconds[1], seconds[2], strict=True)),
        bar=THREADS[name],
        details={"one_thread_s": seconds[1], "two_threads_s": seconds[2], "cores": os.cpu_count()},
    )


@numba.njit(nogil=True)
def _sum_words(words: np.ndarray) -> np.uint64:
    """Sum of 8-byte words: the least work that still reads every byte, and the compiler makes it vectors.

    words: ndarray of shape (num_words,), uint64. Equal to `words.sum()`.
    """
    total = np.uint64(0)
    for i in range(words.size):
        total += words[i]
    return total


def read_once(data: DataSet) -> float:
    """Seconds to read the bytes of X from memory on this thread."""
    views = [part.reshape(-1).view(np.uint8) for part in data.parts()]
    words = [view[: view.size // 8 * 8].view(np.uint64) for view in views]
    start = time.perf_counter()
    for part in words:
        _sum_words(part)
    return time.perf_counter() - start


@contextmanager
def timed_passes() -> Iterator[list[dict[str, float]]]:
    """Every SCD pass of the fits inside: its wall seconds, and the share of the duals that it looked at.

    Wrapped is the pass itself, so that tables, certificates and Newton steps are not counted as one.
    """
    passes: list[dict[str, float]] = []
    run = Descent.run

    def timed(self: Descent, *arguments: Any, **named: Any) -> Any:
        start, before = time.perf_counter(), self.visits
        found, processed = run(self, *arguments, **named)
        seconds = time.perf_counter() - start
        duals = max(1, int(processed.sum()) * len(found))
        passes.append({"seconds": seconds, "share_visited": (self.visits - before) / duals})
        return found, processed

    with patch.object(Descent, "run", timed):
        yield passes


def compare_epoch(name: str, data: DataSet, repeats: int) -> list[Row]:
    """The first pass of a fit and the last one before its certificate, over one read of X in the same process."""
    tol = 1e-5
    reads: list[float] = []
    fits: list[list[dict[str, float]]] = []
    read_once(data)
    for repeat in range(max(5, repeats) + 1):
        with timed_passes() as passes:
            ours(strong(data), tol).fit(data.fresh(), data.y)
        if repeat:  # the first fit warms up
            fits.append(passes)
        reads += [read_once(data) for _ in range(5)]
    read = statistics.median(reads)
    num_bytes = sum(part.nbytes for part in data.parts())
    rows = []
    for which, index in (("first", 0), ("last", -1)):
        seconds = statistics.median(passes[index]["seconds"] for passes in fits)
        visited = statistics.median(passes[index]["share_visited"] for passes in fits)
        rows.append(
            Row(
                part="epoch",
                what=f"{which} pass of {len(fits[0])} ({visited:.1%} of duals visited) over one read: {data.title}",
                tol=tol,
                measured=f"{seconds * 1e3:.2f} ms",
                against=f"{read * 1e3:.2f} ms",
                value=seconds / read,
                bar=EPOCH[name, which],
                details={
                    "passes_s": [passes[index]["seconds"] for passes in fits],
                    "read_s": reads,
                    "read_gb_per_s": num_bytes / read / 1e9,
                    "share_visited": visited,
                },
            )
        )
    return rows


def measure_memory(*, quick: bool) -> Row:
    """Peak of a fit in a fresh process beyond X and y, per sample."""
    num_samples = 200_000 if quick else 2_000_000
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.svm_machine", str(num_samples)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if run.returncode != 0:
        sys.exit(f"the fit whose memory is measured failed:\n{run.stderr}")
    figures = json.loads(run.stdout)
    return Row(
        part="memory",
        what=f"peak memory of a fit beyond X and y, bytes per sample: {num_samples} x 28 float32",
        tol=figures["tol"],
        measured=f"{figures['extra_bytes'] / 2**20:.1f} MiB",
        against=f"X {figures['X_bytes'] / 2**20:.0f} MiB",
        value=max(0.0, figures["extra_bytes"] - figures["vectors_bytes"]) / num_samples,
        bar=MEMORY_BYTES,
        details=figures,
    )


def status_bytes(name: str) -> int:
    """A figure of this process from the kernel: VmRSS (now) or VmHWM (peak), in bytes. Linux only."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}: memory is measured on Linux only, leave it out with --only")


def fit_and_print_memory(num_samples: int) -> None:
    """What the fresh process does: a warm-up fit, so that libraries and kernels are loaded, then the measured one."""
    num_features, tol, warm_up = 28, 1e-3, 20_000  # the warm-up takes the way of large data
    rng = np.random.default_rng(3)
    X = np.empty((num_samples, num_features), dtype=np.float32)
    rng.standard_normal(out=X, dtype=np.float32)
    y = (X[:, 0] + rng.standard_normal(num_samples, dtype=np.float32) > 0).astype(np.int64)
    ours(100.0 / warm_up, tol).fit(X[:warm_up], y[:warm_up])
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before = status_bytes("VmRSS")
    svm = ours(100.0 / num_samples, tol).fit(X, y)
    figures = {
        "tol": tol,
        "gap": svm.duality_gap_,
        "extra_bytes": status_bytes("VmHWM") - before,
        "vectors_bytes": MEMORY_VECTORS * 8 * num_features,
        "X_bytes": X.nbytes,
        "y_bytes": y.nbytes,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    fit_and_print_memory(int(sys.argv[1]))
