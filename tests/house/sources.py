"""The Python files of the repository, as (path relative to it with slashes, text)."""

import os
from pathlib import Path

from tests.house.floors import PRODUCT

ROOT = Path(__file__).parents[2]
NOT_OURS = {"build", "dist", "demo-output", "runs", "__pycache__"}


def python_files(*, below: Path = ROOT) -> dict[str, str]:
    """Every .py file below `below`, by path; folders that begin with a dot and build products are left out."""
    files = {}
    for folder, folders, names in os.walk(below):
        folders[:] = sorted(name for name in folders if name not in NOT_OURS and not name.startswith("."))
        for name in sorted(names):
            if name.endswith(".py"):
                path = Path(folder, name)
                files[path.relative_to(below).as_posix()] = path.read_text(encoding="utf-8")
    return files


def product_files() -> dict[str, str]:
    """The files of the three packages of the wheel."""
    return {path: text for path, text in python_files().items() if path.split("/", 1)[0] in PRODUCT}
