"""Real data sets that are not in the repository: a9a, Fashion-MNIST and a sample of HIGGS, in their own file formats.

The variable CHICLE_DATA names their folder, by default `data` in the repository; tests that lack a file are skipped.
"""

from pathlib import Path

import pytest

from benchmarks.real import FOLDER


def real_data(name: str) -> Path:
    """Return the path of a file, e.g. "a9a/a9a.gz"; skips the test where it is not there."""
    path = FOLDER / name
    if not path.is_file():
        pytest.skip(f"{name} is not in {FOLDER} (CHICLE_DATA names another folder)")
    return path
