"""How long a user waits before the first line of work: the import, and the first fit with cold kernel caches.

Both imports run in fresh interpreters, alternated so that a busy moment of the machine hits both, and the ratio is that
of the medians. The first fit gets an empty kernel cache each time; its seconds are those of `fit` alone, import not
included (the line below it has the whole process).

scikit-learn loads pandas and pyarrow with its base class where they are installed, which makes its import slower and
our bar easier: measure without them (an environment made by `make demo` has neither). The result says what was there.

    python -m benchmarks.start [--rounds N] [--fits N] [--json FILE]

Exit code 1 when a bar is missed.
"""

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MAX_IMPORT_RATIO = 1.3
MAX_FIRST_FIT_S = 3.0

IMPORT = "import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
PEER = "import sklearn.base"
OURS = "from estimators import ChicleSVM"

FIRST_FIT = """
import time
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from estimators import ChicleSVM
X, y = load_breast_cancer(return_X_y=True)
X = scale(X)
start = time.perf_counter()
ChicleSVM().fit(X, y)
print(time.perf_counter() - start)
"""


def run_python(code: str, **environment: str) -> float:
    """The number that a fresh interpreter prints."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if run.returncode != 0:
        sys.exit(f"the measured program failed:\n{run.stderr}")
    return float(run.stdout)


def measure_imports(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of the peer's import and of ours, alternated; one warm-up of each is thrown away."""
    peer, ours = [], []
    for _ in range(rounds + 1):
        peer.append(run_python(IMPORT.format(statement=PEER)))
        ours.append(run_python(IMPORT.format(statement=OURS)))
    return peer[1:], ours[1:]


def measure_first_fits(fits: int) -> tuple[list[float], list[float]]:
    """Seconds of the first fit of breast_cancer with an empty kernel cache, and of the whole process around it."""
    fit, process = [], []
    for _ in range(fits):
        with tempfile.TemporaryDirectory() as cache:
            start = time.perf_counter()
            fit.append(run_python(FIRST_FIT, CHICLE_CACHE_DIR=cache))
            process.append(time.perf_counter() - start)
            if not any(Path(cache).rglob("*.nbi")):
                sys.exit(f"nothing was cached in {cache}: the fit was not measured with a cold cache of its own")
    return fit, process


def main() -> int:
    """Measure, print a table and one line of JSON, compare with the bars."""
    parser = argparse.ArgumentParser(description="Import time and first fit, against their bars.")
    parser.add_argument("--rounds", type=int, default=15, help="pairs of imports (default 15)")
    parser.add_argument("--fits", type=int, default=3, help="first fits (default 3)")
    parser.add_argument("--json", type=Path, help="file for the result as JSON")
    arguments = parser.parse_args()

    peer, ours = measure_imports(arguments.rounds)
    fits, processes = measure_first_fits(arguments.fits)
    ratio = statistics.median(ours) / statistics.median(peer)
    first_fit_s = statistics.median(fits)
    has_pandas = importlib.util.find_spec("pandas") is not None
    result = {
        "import_peer_s": statistics.median(peer),
        "import_ours_s": statistics.median(ours),
        "import_ratio": ratio,
        "import_ratio_bar": MAX_IMPORT_RATIO,
        "first_fit_s": first_fit_s,
        "first_fit_slowest_s": max(fits),
        "first_fit_process_s": statistics.median(processes),
        "first_fit_bar_s": MAX_FIRST_FIT_S,
        "pandas_is_installed": has_pandas,
        "rounds": arguments.rounds,
        "fits": arguments.fits,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "passed": ratio <= MAX_IMPORT_RATIO and first_fit_s <= MAX_FIRST_FIT_S,
    }
    print("| what | median | slowest | bar |")
    print("| --- | --- | --- | --- |")
    print(f"| {PEER} | {statistics.median(peer):.3f} s | {max(peer):.3f} s | |")
    print(f"| {OURS} | {statistics.median(ours):.3f} s | {max(ours):.3f} s | |")
    print(f"| ratio of the medians | {ratio:.2f} | | {MAX_IMPORT_RATIO:.2f} |")
    print(f"| first fit, cold kernel cache | {first_fit_s:.2f} s | {max(fits):.2f} s | {MAX_FIRST_FIT_S:.2f} s |")
    print(f"| the process around it | {statistics.median(processes):.2f} s | {max(processes):.2f} s | |")
    if has_pandas:
        print("\npandas is installed, and slows the peer's import down: the ratio flatters us here.")
    print(json.dumps(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
