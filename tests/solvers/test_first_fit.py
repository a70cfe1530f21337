"""What a first fit waits for: the functions that numba compiles in a process with an empty kernel cache.

How long it takes is measured by `make bench-start`, and asserted nowhere. It follows from how many functions there are.
"""

import json
import re
from pathlib import Path

import pytest

from tests.programs import run_python

PROGRAM = """
import json, sys
import numpy as np
import scipy.sparse
from estimators import ChicleLogisticRegression, ChicleSVM
from numba.core import event

class Listener(event.Listener):
    def on_start(self, event):
        found.append([event.data["dispatcher"].py_func.__name__, str(event.data["args"])])

    def on_end(self, event):
        pass

found = []
event.register("numba:compile", Listener())
rng = np.random.default_rng(0)
X = rng.normal(size=(5000, 60)) if sys.argv[1] == "DenseKind" else scipy.sparse.random(5000, 3000, 0.02, "csr")
y = X @ rng.normal(size=X.shape[1]) > rng.normal(size=X.shape[0])
estimator = {"Hinge": ChicleSVM, "Logistic": ChicleLogisticRegression}[sys.argv[2]]
estimator(max_iter=3, tol=0.5, algorithm="cocoa").fit(X, y)
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("kind", "loss"), [("DenseKind", "Hinge"), pytest.param("CsrKind", "Logistic", marks=pytest.mark.slow)]
)
def test_a_first_fit_compiles_what_its_data_and_loss_need(tmp_path: Path, kind: str, loss: str) -> None:
    """No kernel for another kind of rows or another loss, and only a few functions of a row, 15 ms each at least."""
    run = run_python("-c", PROGRAM, kind, loss, CHICLE_CACHE_DIR=str(tmp_path), seconds=120)
    found = json.loads(run.stdout)
    types = {"DenseKind", "CsrKind", "Hinge", "SquaredHinge", "Logistic"} & set(re.findall(r"\w+", run.stdout))
    assert "descend" in [name for name, _ in found]
    assert types == {kind, loss}
    assert len(found) <= 14
