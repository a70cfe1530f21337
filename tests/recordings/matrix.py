"""Which faults of a scheduler each recording of a log folder would catch, as a table.

    python -m tests.recordings.matrix FOLDER ...

Folders may hold log folders at any depth, such as those of `python -m tests.harness.chaos --keep FOLDER`.
Recordings without a merged iteration are left out, and so are empty ones. The exit code is 1 when one differs with the
scheduler as it is, or when one catches no mutant of `tests.scheduling.test_mutants`.
"""

import importlib
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.scheduling.events import IterationFinished
from chicle_elastic.scheduling.replaying import Replay, difference_text

# Not by a statement, by which mypy would come to a file of tests.
MUTANTS = importlib.import_module("tests.scheduling.test_mutants").MUTANTS


def difference(path: Path) -> str | None:
    """The first one; None when all effects are equal."""
    try:
        return next((difference_text(step) for step in Replay(path) if step.difference is not None), None)
    except ProtocolError as error:
        return str(error)


def main(folders: Sequence[str]) -> int:
    """Print the table; returns the exit code."""
    paths = sorted(path for folder in folders for path in Path(folder).rglob("*.recording.jsonl*"))
    caught_by: Counter[str] = Counter()
    wrong = num_paths = num_entries = 0
    for path in paths:
        if not path.stat().st_size:
            continue
        steps = [type(step.line.event) for step in Replay(path)]
        if IterationFinished not in steps:
            continue
        num_paths, num_entries = num_paths + 1, num_entries + len(steps)
        found = difference(path)
        caught = []
        for name, (*place, _) in MUTANTS.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(*place)
                if difference(path) is not None:
                    caught.append(name)
        caught_by.update(caught)
        wrong += found is not None or not caught
        verdict = "equal" if found is None else found
        print(f"{path}: {len(steps)} entries, {verdict}, catches {len(caught)} of {len(MUTANTS)}", flush=True)
    for name in MUTANTS:
        print(f"{name:50} caught by {caught_by[name]:4} of {num_paths}")
    print(f"{num_paths} recordings, {num_entries} entries, {wrong} of them wrong")
    return int(wrong > 0 or num_paths == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
