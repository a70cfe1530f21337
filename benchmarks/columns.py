"""A benchmark as users type it and with one thread, in two columns.

Runs `python -m MODULE ARGS` with no thread variable in its environment, then with those of BLAS and OpenMP at 1, and
puts the two tables side by side. What each of them prints passes through.

    python -m benchmarks.columns benchmarks.glm [ARGS ...]

Exit code 1 when a gate is missed in either column.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from chicle_elastic.settings import THREAD_LIMITS

COLUMNS: dict[str, dict[str, str]] = {"as typed": {}, "one thread": dict.fromkeys(THREAD_LIMITS, "1")}


def run(module: str, arguments: list[str], variables: dict[str, str]) -> tuple[int, list[dict[str, Any]]]:
    """The exit code of a benchmark in this environment, and the rows of its table."""
    bare = {name: value for name, value in os.environ.items() if name not in THREAD_LIMITS}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        command = [sys.executable, "-m", module, *arguments, "--json", str(result)]
        code = subprocess.run(command, env={**bare, **variables}, check=False).returncode
        return code, json.loads(result.read_text(encoding="utf-8"))["rows"] if result.exists() else []


def merged(tables: dict[str, list[dict[str, Any]]]) -> str:
    """The tables as one, in Markdown: a line per row, a value and a verdict per column."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for column, rows in tables.items():
        for row in rows:
            tol = "" if row["tol"] is None else f"{row['tol']:.0e}"
            value = "none" if row["value"] is None else f"{row['value']:.2f}"
            cells.setdefault((row["what"], tol), {})[column] = f"{row['measured']}; {value} {row['verdict']}".strip()
    lines = [" | ".join(["| what", "tol", *tables]) + " |", "| --- " * (2 + len(tables)) + "|"]
    for (what, tol), found in cells.items():
        lines.append(" | ".join([f"| {what}", tol, *(found.get(column, "") for column in tables)]) + " |")
    return "\n".join(lines)


def main() -> int:
    """See the module."""
    module, *arguments = sys.argv[1:]
    codes, tables = [], {}
    for column, variables in COLUMNS.items():
        print(f"\n## {column}\n", flush=True)
        code, tables[column] = run(module, arguments, variables)
        codes.append(code)
    print(f"\n## side by side\n\n{merged(tables)}")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
