"""TorchX submits jobs; what runs on the nodes, and everything else, does without it."""

import subprocess
import sys

import pytest

from tests.timeouts import timeout_s

MODULES = (
    "chicle_elastic.launch",
    "chicle_elastic.cluster.agent",
    "chicle_elastic.cluster.local",
    "chicle_elastic.cluster.local_server",
    "estimators.fit_task",
    "torchx_components.anchor",
    "torchx_components.node",
)


@pytest.mark.parametrize("module", MODULES)
def test_everything_but_the_components_imports_without_torchx(module: str) -> None:
    """As where it is not installed."""
    program = f"import sys; sys.modules['torchx'] = None; import {module}"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout_s(60), check=False
    )
    assert run.returncode == 0, run.stderr
