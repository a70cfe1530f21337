"""How fast the readers turn text into arrays, beside the well-known loaders, in the same run.

Three files are generated: one-hot svmlight (like a9a), svmlight with fractions, and CSV with fractions (like HIGGS).
Reader and peer alternate on the same file in the page cache, and the ratio is that of the medians. The peers hold the
whole result in memory, our readers one block at a time.

    python -m benchmarks.readers [--rounds N] [--megabytes N] [--json FILE]

There is no bar: the figures are for the reader, the exit code is 0.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.chunks.readers.formats import READERS, detect_format


def one_hot_line(rng: np.random.Generator) -> str:
    """14 features of 123, like a9a."""
    return f"{rng.choice(['-1', '+1'])} " + " ".join(f"{i}:1" for i in np.sort(rng.choice(123, 14, replace=False)) + 1)


def fractions_line(rng: np.random.Generator) -> str:
    """30 features of 1,000 with 6 digits."""
    indices = np.sort(rng.choice(1000, 30, replace=False)) + 1
    return "1 " + " ".join(f"{i}:{v:.6g}" for i, v in zip(indices, rng.normal(size=30), strict=True))


def csv_line(rng: np.random.Generator) -> str:
    """A label and 28 features with 3 decimals, like the HIGGS file."""
    return "1," + ",".join(f"{value:.3f}" for value in rng.normal(size=28))


def generate(path: Path, line: Callable[[np.random.Generator], str], size_bytes: int) -> None:
    """Write `size_bytes` of lines; 5,000 different ones, repeated."""
    rng = np.random.default_rng(0)
    lines = "\n".join(line(rng) for _ in range(5000)) + "\n"
    with path.open("w") as file:
        for _ in range(max(1, size_bytes // len(lines))):
            file.write(lines)


def read(path: Path) -> None:
    """Read all blocks and forget each."""
    for _ in READERS[detect_format(path)](path, ReadOptions()):
        pass


def load_csv(path: Path) -> None:
    """numpy's loader."""
    np.loadtxt(path, delimiter=",")


def load_svmlight(path: Path) -> None:
    """scikit-learn's loader."""
    load_svmlight_file(str(path))


CASES: tuple[tuple[str, Callable[[np.random.Generator], str], str, Callable[[Path], None]], ...] = (
    ("one-hot.svm", one_hot_line, "sklearn load_svmlight_file", load_svmlight),
    ("fractions.svm", fractions_line, "sklearn load_svmlight_file", load_svmlight),
    ("fractions.csv", csv_line, "numpy loadtxt", load_csv),
)


def measure(path: Path, peer: Callable[[Path], None], rounds: int) -> tuple[float, float]:
    """Median seconds of our reader and of the peer, alternated; one warm-up of each is thrown away."""
    times: dict[Callable[[Path], None], list[float]] = {read: [], peer: []}
    for _ in range(rounds + 1):
        for function, taken in times.items():
            start = time.perf_counter()
            function(path)
            taken.append(time.perf_counter() - start)
    return statistics.median(times[read][1:]), statistics.median(times[peer][1:])


def main() -> int:
    """Measure, print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description="Readers of text beside the known loaders.")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs (default 5)")
    parser.add_argument("--megabytes", type=int, default=20, help="size of each file (default 20)")
    parser.add_argument("--json", type=Path, help="file for the result as JSON")
    arguments = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name, line, peer_name, peer in CASES:
            path = Path(folder) / name
            generate(path, line, arguments.megabytes * 10**6)
            ours_s, peer_s = measure(path, peer, arguments.rounds)
            size_mb = path.stat().st_size / 1e6
            results.append(
                {
                    "file": name,
                    "peer": peer_name,
                    "ours_mb_per_s": size_mb / ours_s,
                    "peer_mb_per_s": size_mb / peer_s,
                    "ratio": peer_s / ours_s,
                }
            )
    print("| file | ours, MB/s | peer, MB/s | times as fast | peer |\n| --- | --- | --- | --- | --- |")
    for result in results:
        print(
            f"| {result['file']} | {result['ours_mb_per_s']:.0f} | {result['peer_mb_per_s']:.0f} "
            f"| {result['ratio']:.2f} | {result['peer']} |"
        )
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"
    report = {"results": results, "rounds": arguments.rounds, "machine": machine, "python": platform.python_version()}
    print(json.dumps(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
