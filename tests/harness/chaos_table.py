"""What struck in how many runs of chaos, and whether that was enough to mean something.

    python -m tests.harness.chaos --seed 1 --minutes 1 --tally chaos.jsonl      # for every seed
    python -m tests.harness.chaos_table chaos.jsonl --at-least 5

Exit codes: 0 every check of every run holds, and each kind of fault struck often enough; 1 otherwise.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from chicle_elastic.cluster.net import fault_points
from tests.harness.fault_schedule import Victim
from tests.harness.faults import ACTIONS
from tests.harness.outages import Outage

Struck: TypeAlias = Counter[tuple[str, str]]
"""How often, by (kind of fault, where)."""
ANY_TIME = "any time"
OF_THE_LEAD = " of the lead"
TWO_AT_ONCE = "two at once"


def place(step: str, where: Mapping[str, object], victim: str) -> str:
    """What the table says of a fault at a named step."""
    values = ", ".join(f"{value}" for value in where.values())
    return f"{step} {values}".strip() + f": {victim}"


def step_of(place: str) -> str:
    """The named step of a place, with the event if there is one."""
    return place.partition(":")[0]


def write(path: Path, *, seed: int, struck: Struck, num_faults: int) -> None:
    """Add a line for one run."""
    line = {"seed": seed, "faults": num_faults, "struck": [[*key, count] for key, count in sorted(struck.items())]}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> tuple[dict[int, int], Struck]:
    """What is wrong by seed, and what struck in all runs; of one seed the last run counts."""
    runs = {run["seed"]: run for run in map(json.loads, path.read_text().splitlines())}
    struck: Struck = Counter()
    for run in runs.values():
        struck.update({(kind, where): count for kind, where, count in run["struck"]})
    return {seed: run["faults"] for seed, run in sorted(runs.items())}, struck


def table(struck: Struck) -> str:
    """How often each kind of fault struck at which step."""
    width = max((len(where) for _, where in struck), default=0) + 2
    lines = [f"{'fault':<22}{'at':<{width}}{'times':>5}"]
    lines += [f"{kind:<22}{where:<{width}}{count:>5}" for (kind, where), count in sorted(struck.items())]
    return "\n".join(lines)


def _is_kill(kind: str) -> bool:
    return kind.removesuffix(OF_THE_LEAD) == "kill"


WANTED: Mapping[str, Callable[[str, str], bool]] = {
    **{
        kind: lambda struck, _, kind=kind: struck.removesuffix(OF_THE_LEAD) == kind  # type: ignore[misc]
        for kind in ("join", "notice", TWO_AT_ONCE, *ACTIONS, *(outage.value for outage in Outage))
    },
    "kill of the lead": lambda kind, where: (
        _is_kill(kind) and (kind.endswith(OF_THE_LEAD) or where.endswith(Victim.LEAD.value))
    ),
    "kill while rows travel ahead": lambda kind, where: _is_kill(kind) and step_of(where).startswith("rows."),
    "kill between copy and commit": lambda kind, where: (
        _is_kill(kind) and step_of(where) in ("copy.committed", "log.appended ChunksCopied")
    ),
    "kill between commit and free": lambda kind, where: (
        _is_kill(kind) and step_of(where) in ("commit.done", "free.before")
    ),
}
"""What has to strike so often as is asked for, and which entries of the table count for it."""
VISITED: Mapping[str, Callable[[str, str], bool]] = {
    f"anything at {step}": lambda _, where, step=step: step_of(where).split()[0] == step  # type: ignore[misc]
    for step in sorted(fault_points.FAULT_POINTS)
}
"""What has to strike at all."""


def tally(struck: Struck) -> dict[str, int]:
    """How often everything in `WANTED` and `VISITED` struck."""
    return {
        name: sum(count for (kind, where), count in struck.items() if counts(kind, where))
        for name, counts in {**WANTED, **VISITED}.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.chaos_table", description=__doc__.split("\n")[0])
    parser.add_argument("tally", type=Path, help="written by chaos --tally")
    parser.add_argument(
        "--at-least", type=int, default=5, help="times that each kind has to strike; default: %(default)s"
    )
    options = parser.parse_args(argv)
    wrong, struck = read(options.tally)
    print(table(struck))
    counts = tally(struck)
    print("\n".join(f"{name:<34}{count:>5}" for name, count in counts.items()))
    lacking = [name for name, count in counts.items() if count < (options.at_least if name in WANTED else 1)]
    failed = [seed for seed, num_faults in wrong.items() if num_faults]
    print(f"{len(wrong)} seeds, {sum(struck.values())} strikes; with faults: {failed or 'none'}")
    if lacking:
        print(f"less than {options.at_least} times, or never at a step: {', '.join(lacking)}")
    return 1 if failed or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
