"""Tests of this folder run the command `torchx`, which knows the components of this checkout."""

import os
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the path of Python, as if this checkout was installed with what pyproject.toml says now."""
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "chicle_checkout-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chicle-checkout\nVersion: 0\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in sorted(entries.items()))]  # as a build does
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def environment(installed: Path) -> dict[str, str]:
    """The environment of a shell in which this checkout is installed."""
    return {
        **os.environ,
        # What this process has on its path first, as torchx itself may stand there.
        "PYTHONPATH": os.pathsep.join([str(installed), str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
