"""The word about versions that were not tried, and their table, which agrees with pyproject.toml."""

import tomllib
import warnings
from pathlib import Path

import pytest

from chicle_elastic.versions import TRIED, warn_if_untried
from tests.programs import run_python

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("version", ["3.11.0", "3.12.4", "3.13.0rc1+x"])
def test_a_tried_version_gets_no_word(version: str) -> None:
    """From the first release of the oldest to the last of the newest."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_untried("Python", version)


@pytest.mark.parametrize(
    ("name", "version"), [("Python", "3.10.14"), ("Python", "3.14.0a1"), ("NumPy", "1.9.3"), ("torch", "2.99.0+cpu")]
)
def test_another_version_gets_a_line_with_itself_and_the_tried_ones(name: str, version: str) -> None:
    """Below and above; 1.9 is older than 1.26."""
    with pytest.warns(UserWarning, match="tried") as caught:
        warn_if_untried(name, version)
    [line] = str(caught[0].message).splitlines()
    assert all(word in line for word in (name, version, *TRIED[name]))


def test_a_fit_says_so_once_and_goes_on(tmp_path: Path) -> None:
    """In a process whose NumPy reports another version; numba has looked at the true one."""
    program = (
        "import numpy as np, numba\nnp.__version__ = '1.25.2'\nfrom estimators import ChicleSVM\n"
        "X = np.array([[0.0], [1.0]])\nfor _ in range(2):\n    print(ChicleSVM().fit(X, [0, 1]).score(X, [0, 1]))"
    )
    done = run_python("-c", program, CHICLE_WAITS="off")
    assert done.stdout.split() == ["1.0", "1.0"]
    assert done.stderr.count("1.25.2") == 1


def test_the_table_agrees_with_pyproject() -> None:
    """The oldest versions are those that pip allows, and each Python has its classifier."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = " ".join([*project["dependencies"], *project["optional-dependencies"]["cluster"]])
    assert f"numpy>={TRIED['NumPy'][0]}" in asked
    assert f"torch>={TRIED['torch'][0]} " in asked
    assert project["requires-python"] == f">={TRIED['Python'][0]}"
    first, last = (int(version.split(".")[1]) for version in TRIED["Python"])
    shown = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    assert shown == [f"3.{minor}" for minor in range(first, last + 1)]
