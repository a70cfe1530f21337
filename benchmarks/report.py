"""The end of a run: which gates were missed, and the whole result as one line of JSON."""

import json
import math
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import MISSED, Row
from benchmarks.machine import machine
from benchmarks.peers import Peer


def without_infinities(value: Any) -> Any:
    """The same with None for what JSON has no numbers for."""
    if isinstance(value, dict):
        return {key: without_infinities(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_infinities(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def finish(
    rows: list[Row],
    *,
    peers: list[Peer],
    notes: list[str],
    quick: bool,
    repeats: int,
    started_s: float,
    path: Path | None,
    cells: Sequence[dict[str, Any]] = (),
) -> int:
    """Print the summary and one line of JSON.

    Args:
        rows: Everything measured.
        peers: Who took part.
        notes: Lines about who or what could not.
        quick: Nothing is judged.
        repeats: Timed fits of each side.
        started_s: `time.perf_counter()` at the start.
        path: File for the result as JSON, too.
        cells: What the rows sum up, for the file only.

    Returns:
        Exit code: 1 when a gate is missed.
    """
    judged = not quick
    missed = [row for row in rows if row.verdict(judged=judged) == MISSED]
    print(
        f"\n{len(missed)} of {sum(row.bar is not None for row in rows)} gates missed"
        f"{'' if judged else ' (a quick run judges nothing)'}"
    )
    for row in missed:
        print(f"  {row.what}{'' if row.tol is None else f', tol {row.tol:.0e}'}: {row.value:.2f}")
    result = without_infinities(
        {
            "machine": machine(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "peers": {peer.name: peer.version for peer in peers},
            "notes": notes,
            "quick": quick,
            "repeats": repeats,
            "seconds": time.perf_counter() - started_s,
            "rows": [row.as_json(judged=judged) for row in rows],
            "passed": not missed,
        }
    )
    print(json.dumps(result))
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        more = {"cells": without_infinities(list(cells))} if cells else {}
        path.write_text(json.dumps({**result, **more}, indent=2) + "\n", encoding="utf-8")
    return 1 if missed else 0
