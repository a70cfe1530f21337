"""How many nodes there were, over time: files of our own, and those of public studies of spot machines.

    counts      `seconds nodes [price]` a line, by blanks or commas: our own. The studies of Bamboo and Parcae have such
                files, too, Parcae's in milliseconds; several lines of one moment are one change, the last one holds
    changes     `milliseconds,add|remove,name` a line: the simulators of Bamboo and of Oobleck
    JSON lines  `[milliseconds, "add"|"remove"|..., {"nodes": [...], "duration": milliseconds}]`: Parcae's replayer
    samples     `{"metadata": {"gap_seconds": 300}, "data": [0, 3, 16]}`: the spot traces of SkyPilot

What a file is, its text says. The files are the user's; none of them comes with Chicle. A trace that goes back in time,
leaves time out, or removes a node that is not there is refused with its line.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chicle_elastic.errors import UsageError
from chicle_elastic.resources.schedule import MAX_NODES, figures_of, flaw_of_step, numbered_lines

MAX_TIME = 1e15
CHANGES = ("add", "remove")
UNITS_S = {"s": 1.0, "ms": 1e-3}
MS = UNITS_S["ms"]

Step = tuple[float, ...]  # (second, nodes) or (second, nodes, price)


def read_trace(path: Path, *, unit: str = "s", from_s: float = 0.0) -> list[Step]:
    """Read a trace. Raises UsageError when it cannot be read, or a line cannot be; with file and line. Returns steps in
    the order of time, from the beginning of the job on.

    Args:
        unit: Of the first column of counts, "s" or "ms"; the other formats have one of their own.
        from_s: Second of the trace at which the job begins.
    """
    lines = numbered_lines(path, "trace")
    first = lines[0][1]
    if first.startswith("{"):
        steps = list(_samples(path, "\n".join(line for _, line in lines)))
    elif first.startswith("["):
        steps = list(_json_lines(lines))
    elif re.match(r"[^,]*,\s*(add|remove)\b", first):
        steps = list(_changes(lines))
    else:
        steps = list(_counts(lines, UNITS_S[unit]))
    return _since(path, steps, from_s)


def _counts(lines: list[tuple[str, str]], unit_s: float) -> Iterator[Step]:
    before_s = 0.0
    for where, (time, *values) in figures_of(lines):
        step = (time * unit_s, *values)
        flaw = flaw_of_step(step, None) or _backwards(step[0], before_s)
        if flaw is not None:
            raise UsageError(f"{where}: {flaw}")
        before_s = step[0]
        yield step


def _changes(lines: list[tuple[str, str]]) -> Iterator[Step]:
    there: set[str] = set()
    before_s = 0.0
    for where, line in lines:
        words = [word.strip() for word in line.split(",")]
        if len(words) != 3 or words[1] not in CHANGES or not re.fullmatch(r"\d+(\.\d+)?", words[0]):
            raise UsageError(f"{where}: {line!r} is not `milliseconds,add|remove,name`, as in `60000,add,node1`")
        now_s = float(words[0]) * MS
        flaw = _backwards(now_s, before_s) or _change(there, words[1], [words[2]])
        if flaw is not None:
            raise UsageError(f"{where}: {line!r}: {flaw}")
        before_s = now_s
        yield now_s, len(there)


def _json_lines(lines: list[tuple[str, str]]) -> Iterator[Step]:
    there: set[str] = set()
    ends: float | None = None
    for where, line in lines:
        shape = "[milliseconds, kind, {nodes, duration}]"
        try:
            time, kind, what = json.loads(line)
            nodes, duration = what["nodes"], what.get("duration")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise UsageError(f"{where}: the line is not {shape}") from None
        are_names = isinstance(nodes, list) and all(isinstance(node, str) for node in nodes)
        if not _is_time(time) or not (duration is None or _is_time(duration)) or not are_names:
            raise UsageError(f"{where}: the line is not {shape}")
        flaw = _change(there, kind, nodes) if kind in CHANGES else None
        if ends is not None and time != ends:
            flaw = f"it begins at {time:g} ms, and the line before ends at {ends:g} ms"
        if flaw is not None:
            raise UsageError(f"{where}: {flaw}")
        ends = None if duration is None else time + duration
        yield time * MS, len(there)


def _samples(path: Path, text: str) -> Iterator[Step]:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}") from error
    metadata = table.get("metadata")
    gap_s: Any = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    data = table.get("data")
    if not _is_time(gap_s) or gap_s == 0 or not isinstance(data, list) or not data:
        raise UsageError(f"{path}: the trace has no metadata.gap_seconds > 0, or no list `data`")
    for number, count in enumerate(data):
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_NODES:
            raise UsageError(f"{path}: data[{number}] is {count!r}, and not a number of nodes from 0 to {MAX_NODES}")
        yield number * gap_s, count


def _since(path: Path, steps: list[Step], from_s: float) -> list[Step]:
    """The steps from a second on, without those that change nothing; of one moment the last one holds."""
    if from_s > steps[-1][0]:
        raise UsageError(f"{path}: the last step is at second {steps[-1][0]:g}, and the job is to begin at {from_s:g}")
    found: list[Step] = []
    for step in steps:
        moved = (max(0.0, step[0] - from_s), *step[1:])
        if found and found[-1][0] == moved[0]:
            found.pop()
        if not found or found[-1][1:] != moved[1:]:
            found.append(moved)
    return found


def _change(there: set[str], kind: str, nodes: list[str]) -> str | None:
    for node in nodes:
        if (node in there) == (kind == "add"):
            return f"{node} is added, and is there" if kind == "add" else f"{node} is removed, and is not there"
        if kind == "add":
            there.add(node)
        else:
            there.remove(node)
    return None


def _backwards(now_s: float, before_s: float) -> str | None:
    return f"it is before second {before_s:g}; a trace is in the order of time" if now_s < before_s else None


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MAX_TIME
