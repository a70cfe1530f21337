"""Importing is free (STYLE rule 15): what gets loaded, opened and set by an import, seen from a fresh interpreter.

How long it takes is measured by `make bench-start` and asserted nowhere: a test does not race the machine it runs on.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.timeouts import timeout_s

HEAVY = {"torch", "numba", "llvmlite", "matplotlib", "tensorboard", "pandas", "pyarrow", "torchx"}

LOOK_AROUND = """
import json, os, sys, threading

def look():
    return {
        "environment": dict(os.environ),
        "files": sorted(os.listdir("/proc/self/fd")) if sys.platform == "linux" else [],
        "threads": threading.active_count(),
    }

before = look()
import NAME
after = look()
loaded = sorted({module.partition(".")[0] for module in sys.modules})
print(json.dumps({"before": before, "after": after, "loaded": loaded}))
"""


def import_afresh(module: str) -> dict[str, Any]:
    """What an interpreter finds before and after it imports `module`."""
    run = subprocess.run(
        [sys.executable, "-c", LOOK_AROUND.replace("NAME", module)],
        capture_output=True,
        text=True,
        timeout=timeout_s(60),
        check=False,
    )
    assert run.returncode == 0, run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def test_a_heavy_package_would_be_noticed() -> None:
    """The look around sees what an import really loads."""
    assert "pandas" in import_afresh("pandas")["loaded"]


def test_importing_chicle_elastic_loads_nothing_but_itself() -> None:
    """The bare package does without even NumPy."""
    assert not {"numpy", "scipy", "sklearn", *HEAVY} & set(import_afresh("chicle_elastic")["loaded"])


def test_importing_estimators_loads_nothing_heavy() -> None:
    """The estimators come without torch, numba and every optional package: these load where they are used."""
    assert not HEAVY & set(import_afresh("estimators")["loaded"])


def test_importing_the_estimator_itself_loads_nothing_heavy() -> None:
    """`from estimators import ChicleSVM`, the line of the README, loads no more than sklearn.base and its like."""
    loaded = set(import_afresh("estimators; from estimators import ChicleSVM")["loaded"])
    assert "sklearn" in loaded
    assert not HEAVY & loaded


@pytest.mark.parametrize("module", ["chicle_elastic", "estimators", "torchx_components"])
def test_importing_opens_and_sets_nothing(module: str) -> None:
    """No descriptor, no thread of Python and no environment variable is there afterwards that was not there before."""
    seen = import_afresh(module)
    assert seen["after"] == seen["before"]
