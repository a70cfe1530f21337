"""Nothing but the components needs torchx: agents, tasks and estimators do without it."""

import os
from pathlib import Path

import pytest

from tests.programs import run_python

BLOCK = """
import sys

sys.modules["torchx"] = None  # whoever imports it gets an ImportError, in every process that is started here
"""
PROGRAM = """
import importlib
import sys

for module in ("chicle_elastic.launch", "torchx_components", "torchx_components.anchor", "torchx_components.node"):
    importlib.import_module(module)
try:
    import torchx
except ImportError:
    pass
else:
    sys.exit("torchx is not blocked")

from sklearn.datasets import load_iris

from chicle_elastic import TorchXRuntime
from chicle_elastic.errors import MissingExtraError
from estimators import ChicleSVM, fit_task

model = ChicleSVM(n_workers=2, C=0.1).fit(*load_iris(return_X_y=True))
assert len(model.history_.members) == 2
try:
    ChicleSVM(runtime=TorchXRuntime("local_cwd")).fit(*load_iris(return_X_y=True))
except MissingExtraError as error:
    assert "chicle-elastic[torchx]" in str(error), error
else:
    sys.exit("a job was submitted")
print("fitted by", *model.history_.members)
"""


@pytest.mark.slow
def test_everything_but_the_components_works_without_torchx(tmp_path: Path) -> None:
    """Modules are imported, and a cluster of two agents fits, where no process can import torchx."""
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = run_python("-c", PROGRAM, environ=environment, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "fitted by n0 n1"
