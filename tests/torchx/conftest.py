"""Tests of this folder run the command `torchx`, which knows the components of this checkout."""

import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell in which this checkout is installed, as pyproject.toml says it is now."""
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "chicle_checkout-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chicle-checkout\nVersion: 0\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["torchx.components"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[torchx.components]", *lines]) + "\n")
    return {
        **os.environ,
        # What this process has on its path first, as torchx itself may stand there.
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
