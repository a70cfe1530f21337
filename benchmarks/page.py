"""Run a benchmark and write its tables into the block of a page that has its name.

    python -m benchmarks.page PAGE NAME [ARGUMENT ...]

runs `python -m benchmarks.NAME ARGUMENT ...` and puts the tables that it prints between the lines
`<!-- NAME:start -->` and `<!-- NAME:end -->` of PAGE, below date, machine and load. The rest of the page stays. A quick
run, and one that prints no table or fewer lines of them than are there, change nothing. The exit code is that of the
benchmark.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.machine import machine


def tables_of(lines: Iterable[str]) -> str:
    """Return the tables among the lines, each below the line before it, and an empty line between two of them."""
    found, title, is_in_table = list[str](), "", False
    for line in (line.rstrip("\n") for line in lines):
        if line.startswith("|"):
            if not is_in_table:
                found += ["", *([title, ""] if title else [])]
            found.append(line)
            title, is_in_table = "", True
        else:
            title, is_in_table = line or title, False
    return "\n".join(found[1:])


def replaced(page: str, name: str, text: str) -> str:
    """Return the page with another text in the block of this name.

    Raises:
        ValueError: The page has no such block.
    """
    start, end = f"<!-- {name}:start -->\n", f"<!-- {name}:end -->"
    before, found, rest = page.partition(start)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"the page has no block {start.strip()} ... {end}; add the two lines where the tables belong")
    return f"{before}{start}{text}\n{end}{after}"


def block_of(page: str, name: str) -> str:
    """Return the text of the block of this name."""
    return page.partition(f"<!-- {name}:start -->\n")[2].partition(f"<!-- {name}:end -->")[0]


def main() -> int:
    """Run the command line; return the exit code."""
    page, name, *arguments = sys.argv[1:]
    path = Path(page)
    old = path.read_text(encoding="utf-8")
    replaced(old, name, "")  # a page without the block is an error before the run, not after it
    lines = []
    command = [sys.executable, "-u", "-m", f"benchmarks.{name}", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    tables, before = tables_of(lines), block_of(old, name)
    if tables.count("\n|") < before.count("\n|") - 1:
        print(f"{page} stays as it is: its block {name} has more lines than this run", file=sys.stderr)
    elif tables and "--quick" not in arguments:
        how = " ".join(["of this target", *(f"`{argument}`" for argument in arguments)])
        head = f"A run {how} on {time.strftime('%Y-%m-%d')}: {machine()}, load {os.getloadavg()[2]:.0f}."
        path.write_text(replaced(old, name, f"{head}\n\n{tables}"), encoding="utf-8")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
