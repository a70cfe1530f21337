"""The rows of a benchmark as they come, its page, and its end: which gates were missed, and all as a line of JSON."""

import argparse
import importlib.metadata
import json
import math
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import HEADER, MISSED, Row
from benchmarks.machine import machine

END_OF_MEASURED = "\n<!-- measured:end -->\n"
"""Below this line of a page is what people have written."""


def parser(description: str | None, *, page: bool = False) -> argparse.ArgumentParser:
    """The options that benchmarks share: --quick and --json, and --page where a page is rewritten."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--quick", action="store_true", help="little data: shows that everything runs, judges nothing")
    found.add_argument("--json", type=Path, help="file for the result as JSON")
    if page:
        found.add_argument("--page", type=Path, help="Markdown page to be rewritten")
    return found


def names_of(text: str, known: Iterable[str], option: str) -> list[str]:
    """The words between commas.

    Raises:
        SystemExit: One of them is not known.
    """
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"{option} knows no {unknown[0]}; it knows {', '.join(known)}")
    return names


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Those of the packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def without_infinities(value: Any) -> Any:
    """The same with None for what JSON has no numbers for."""
    if isinstance(value, dict):
        return {key: without_infinities(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Report:
    """Collect what a run finds.

    Args:
        arguments: Of the command line: `quick` (nothing is judged), `json` and `page`, as far as they are there.
        packages: Distributions that take part, for their versions.
        repeats: Timed runs of each side.
    """

    def __init__(self, arguments: argparse.Namespace, *, packages: Iterable[str] = (), repeats: int = 1) -> None:
        self.rows: list[Row] = []
        self.notes: list[str] = []
        self.judged = not getattr(arguments, "quick", False)
        self._arguments = arguments
        self.packages = versions(packages)
        self._repeats = repeats
        self._started_s = time.perf_counter()
        print(machine(), flush=True)

    def add(self, rows: Iterable[Row]) -> None:
        """Print rows as they are measured, and keep them."""
        for row in rows:
            if not self.rows:
                print(f"\n{HEADER}")
            print(row.as_markdown(judged=self.judged), flush=True)
            self.rows.append(row)

    def table(self) -> str:
        """All rows, as Markdown."""
        return "\n".join([HEADER, *(row.as_markdown(judged=self.judged) for row in self.rows)])

    def write_page(self, text: str, **facts: Any) -> None:
        """Fill in the page's text and write it, where the command line names a page and the run is judged.

        What follows the line `END_OF_MEASURED` of the page that is there stays.
        """
        if self._arguments.page and self.judged:
            shown = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "table": self.table()}
            found = ", ".join(f"{name} {version}" for name, version in self.packages.items())
            page = text.format(**shown, python=platform.python_version(), versions=found, **facts)
            path = self._arguments.page
            _, mark, kept = (path.read_text(encoding="utf-8") if path.exists() else "").partition(END_OF_MEASURED)
            path.write_text(page + mark + kept, encoding="utf-8")

    def finish(self, cells: Sequence[dict[str, Any]] = ()) -> int:
        """Print the summary, the notes and one line of JSON.

        Args:
            cells: What the rows sum up, for the file only.

        Returns:
            Exit code: 1 when a gate is missed.
        """
        missed = [row for row in self.rows if row.verdict(judged=self.judged) == MISSED]
        quick = "" if self.judged else " (a quick run judges nothing)"
        print(f"\n{len(missed)} of {sum(row.bar is not None for row in self.rows)} gates missed{quick}")
        for row in missed:
            print(f"  {row.what}{'' if row.tol is None else f', tol {row.tol:.0e}'}: {row.value:.2f}")
        for note in dict.fromkeys(self.notes):
            print(note)
        result = without_infinities(
            {
                "machine": machine(),
                "python": platform.python_version(),
                "numpy": np.__version__,
                "packages": self.packages,
                "notes": self.notes,
                "quick": not self.judged,
                "repeats": self._repeats,
                "seconds": time.perf_counter() - self._started_s,
                "rows": [row.as_json(judged=self.judged) for row in self.rows],
                "passed": not missed,
            }
        )
        print(json.dumps(result))
        if path := self._arguments.json:
            path.parent.mkdir(parents=True, exist_ok=True)
            more = {"cells": without_infinities(list(cells))} if cells else {}
            path.write_text(json.dumps({**result, **more}, indent=2) + "\n", encoding="utf-8")
        return 1 if missed else 0
