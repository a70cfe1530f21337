"""Importing is free (docs/style 15): what gets loaded, opened and set by an import, seen from a fresh interpreter.

How long it takes is measured by `make bench-start` and asserted nowhere: a test does not race the machine it runs on.
"""

import functools
import json
from typing import Any

import pytest

from tests.programs import run_python

HEAVY = {
    "torch",
    "numba",
    "llvmlite",
    "matplotlib",
    "tensorboard",
    "pandas",
    "pyarrow",
    "torchx",
    "cloudpickle",
    "msgspec",
}
PEER = "sklearn.base"  # it loads pandas and pyarrow itself, where they are installed

LOOK_AROUND = """
import json, os, sys, threading

def look():
    return {
        "environment": dict(os.environ),
        "files": sorted(os.listdir("/proc/self/fd")) if sys.platform == "linux" else [],
        "threads": threading.active_count(),
    }

before = look()
STATEMENT
after = look()
loaded = sorted({module.partition(".")[0] for module in sys.modules})
print(json.dumps({"before": before, "after": after, "loaded": loaded}))
"""


@functools.cache
def import_afresh(statement: str) -> dict[str, Any]:
    """What an interpreter finds before and after it executes an import."""
    run = run_python("-c", LOOK_AROUND.replace("STATEMENT", statement))
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def test_a_heavy_package_would_be_noticed() -> None:
    """The look around sees what an import really loads."""
    assert "pandas" in import_afresh("import pandas")["loaded"]


def test_importing_chicle_elastic_loads_nothing_but_itself() -> None:
    """The bare package does without even NumPy."""
    heavy = {"numpy", "scipy", "sklearn", *HEAVY} & set(import_afresh("import chicle_elastic")["loaded"])
    assert not heavy


@pytest.mark.parametrize(
    "statement", ["import estimators", "from estimators import ChicleSVM", "from estimators import ChicleCNNClassifier"]
)
def test_importing_an_estimator_loads_nothing_heavy(statement: str) -> None:
    """No torch, no numba and no optional package, beyond what scikit-learn's own base class loads."""
    by_peer = set(import_afresh(f"import {PEER}")["loaded"])
    by_us = set(import_afresh(statement)["loaded"])
    heavy = HEAVY & (by_us - by_peer)
    assert not heavy
    never = {"torch", "numba"} & by_us
    assert not never


@pytest.mark.parametrize("module", ["chicle_elastic", "estimators", "torchx_components"])
def test_importing_opens_and_sets_nothing(module: str) -> None:
    """No descriptor, no thread of Python and no environment variable is there afterwards that was not there before."""
    seen = import_afresh(f"import {module}")
    assert seen["after"] == seen["before"]
