"""How long a user waits before the first line of work: the import, and the first fit with cold kernel caches.

Both imports run in fresh interpreters, alternated so that a busy moment of the machine hits both, and the ratio is that
of the medians. The first fit is that of every estimator, on dense and on CSR rows of float32 and float64, each in a
process of its own with an empty kernel cache: the seconds that it takes beyond the second fit, the imports of numba and
of torch included. The samples have more values than NumPy works on alone, so that all kernels of a fit are compiled.

scikit-learn loads pandas and pyarrow with its base class where they are installed, which makes its import slower and
our bar easier: measure without them (an environment made by `make demo` has neither). The result says what was there.

    python -m benchmarks.start [--rounds N] [--fits N] [--json FILE]

Exit code 1 when a bar is missed.
"""

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bars import Bar, Row
from benchmarks.report import Report, parser

MAX_IMPORT_RATIO = 1.3
MAX_FIRST_FIT_S = 3.0

IMPORT = "import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
PEER = "import sklearn.base"
OURS = "from estimators import ChicleSVM"

ESTIMATORS = {
    "SVM, hinge": "ChicleSVM()",
    "SVM, squared hinge": "ChicleSVM(loss='squared_hinge')",
    "SVM, l1": "ChicleSVM(loss='squared_hinge', penalty='l1')",
    "LogisticRegression": "ChicleLogisticRegression()",
    "LogisticRegression, l1": "ChicleLogisticRegression(l1_ratio=1.0)",
    "LogisticRegression, elastic net": "ChicleLogisticRegression(l1_ratio=0.5)",
    "LogisticRegression, multinomial": "ChicleLogisticRegression()",
    "Ridge": "ChicleRidge()",
    "Lasso": "ChicleLasso(alpha=0.1)",
    "ElasticNet": "ChicleElasticNet(alpha=0.1)",
    "SVR, epsilon": "ChicleSVR(loss='epsilon_insensitive')",
    "SVR, squared epsilon": "ChicleSVR(loss='squared_epsilon_insensitive')",
}
ROWS = [f"{layout} {dtype}" for layout in ("dense", "CSR") for dtype in ("float64", "float32")]
CASES = [(name, rows) for name in ESTIMATORS for rows in ROWS] + [("CNNClassifier", "images")]

FIRST_FIT = """
import time, warnings
import numpy as np
import scipy.sparse
from sklearn.datasets import make_classification
import estimators
warnings.simplefilter("ignore")
name, rows, expression = {name!r}, {rows!r}, {expression!r}
rng = np.random.default_rng(0)
if rows == "images":
    X, y = rng.random((256, 1, 28, 28), np.float32), rng.integers(0, 10, 256)
else:
    layout, dtype = rows.split()
    sparse = scipy.sparse.random(9000, 1500, 0.02, "csr", random_state=0)
    X = rng.normal(size=(3000, 100)) if layout == "dense" else sparse
    target = X @ rng.normal(size=X.shape[1]) + rng.normal(size=X.shape[0])
    X, y = X.astype(dtype), target / target.std()
    if name.startswith(("SVM", "Logistic")):
        y = np.digitize(y, [-0.5, 0.5] if name.endswith("multinomial") else [0.0])
estimator = eval("estimators." + expression)
seconds = []
for _ in range(2):
    start = time.perf_counter()
    estimator.fit(X, y)
    seconds.append(time.perf_counter() - start)
print(seconds[0] - seconds[1])
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


def first_fits(fits: int, cases: list[tuple[str, str]]) -> Iterator[Row]:
    """Seconds of the first fit beyond the second one per case, the median of so many processes."""
    is_cached = False
    for name, rows in cases:
        expression = ESTIMATORS.get(name, "ChicleCNNClassifier(max_epochs=1, kernels='fused')")
        if rows == "images" and importlib.util.find_spec("torch") is None:
            continue
        found = []
        for _ in range(fits):
            with tempfile.TemporaryDirectory() as cache:
                code = FIRST_FIT.format(name=name, rows=rows, expression=expression)
                found.append(run_python(code, CHICLE_CACHE_DIR=cache))
                is_cached |= any(Path(cache).rglob("*.nbi"))
        seconds, bar = statistics.median(found), Bar(MAX_FIRST_FIT_S, at_most=True)
        what = f"first fit beyond the second, s: {name}, {rows}"
        yield Row("first fit", what, None, f"{seconds:.2f} s", "", seconds, bar)
    if not is_cached:
        sys.exit("nothing was cached: the fits had no cold kernel cache of their own")


def main() -> int:
    """Measure, print a table and one line of JSON, compare with the bars."""
    line = parser("Import time and first fit, against their bars.")
    line.add_argument("--rounds", type=int, default=15, help="pairs of imports (default 15)")
    line.add_argument("--fits", type=int, default=1, help="first fits of each case (default 1)")
    arguments = line.parse_args()
    report = Report(arguments, packages=["scikit-learn", "pandas"], repeats=arguments.rounds)
    peer, ours = measure_imports(arguments.rounds)
    ours_s, peer_s = statistics.median(ours), statistics.median(peer)
    what, shown = f"{OURS}, over {PEER}", (f"{ours_s:.3f} s", f"{peer_s:.3f} s")
    report.add([Row("import", what, None, *shown, ours_s / peer_s, Bar(MAX_IMPORT_RATIO, at_most=True))])
    report.add(first_fits(arguments.fits, CASES[::16] if arguments.quick else CASES))
    if importlib.util.find_spec("pandas") is not None:
        report.notes.append("pandas is installed, and slows the peer's import down: the ratio flatters us here.")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
