"""The versions of Python, NumPy and torch that all tests ran with (docs/support.md), and the word about any other."""

import re
import warnings

TRIED = {"Python": ("3.11", "3.13"), "NumPy": ("1.26", "2.5"), "torch": ("2.13", "2.13")}
"""The oldest and the newest of each. A version is added by running the tests with it; `tests/test_versions.py`
compares the table with pyproject.toml."""


def warn_if_untried(name: str, version: str) -> None:
    """Warn in one line about a version of "Python", "NumPy" or "torch" that is outside of the tried ones."""
    oldest, found, newest = (_minor(text) for text in (TRIED[name][0], version, TRIED[name][1]))
    if not oldest <= found <= newest:
        warnings.warn(
            f"{name} {version} is none of the versions that Chicle was tried with ({' to '.join(TRIED[name])}); "
            "if anything fails, install one of them",
            stacklevel=2,
        )


def _minor(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
