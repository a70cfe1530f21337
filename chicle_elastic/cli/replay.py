"""Fold the recording of a job again: does the scheduler order now what it ordered then?

Agents with --log-dir write recordings (NODE.recording.jsonl), and so does InProcess(log_dir=...). The exit code is 0 if
all effects are equal, and 1 at the first entry where they differ, or where the file cannot be read. With --until the
state of the scheduler after that entry is printed. Nothing is trained, and no data is needed.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.scheduling.replaying import Replay, Step, difference_text
from chicle_elastic.scheduling.snapshot import snapshot
from chicle_elastic.scheduling.text import count_text

MAX_ITEMS_SHOWN = 12
MAX_VALUE_CHARACTERS = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle replay` takes."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a recording")
    parser.add_argument(
        "--until", type=int, metavar="N", help="print the scheduler's state after entry N (from 1) of one recording"
    )


def run(arguments: argparse.Namespace) -> int:
    """Replay each file.

    Raises:
        UsageError: `until` is no entry of the recording, or there are several files.
        ProtocolError: A file cannot be read, or effects differ.
    """
    if arguments.until is None:
        for path in arguments.files:
            _compare(path)
        return 0
    if len(arguments.files) > 1:
        raise UsageError("--until is for one recording; name one file")
    _show(arguments.files[0], arguments.until)
    return 0


def _compare(path: Path) -> None:
    replay = Replay(path)
    for step in replay:
        _require_equal(step)
    parts = f" in {replay.num_parts} parts" if replay.num_parts > 1 else ""
    entries = "1 entry" if replay.num_entries == 1 else f"{replay.num_entries} entries"
    print(f"{path}: {entries}{parts}, all effects are equal")
    for note in replay.notes:
        print(f"  {note}")


def _show(path: Path, until: int) -> None:
    replay = Replay(path)
    for step in replay:
        if step.number == until:
            print("\n".join(state_lines(step)))
            _require_equal(step)
            return
        _require_equal(step)
    count = replay.num_entries
    raise UsageError(f"--until {until}: {path} has {'1 entry' if count == 1 else f'{count} entries'}, from 1 on")


def _require_equal(step: Step) -> None:
    if step.difference is not None:
        raise ProtocolError(difference_text(step))


def state_lines(step: Step) -> Iterator[str]:
    """The entry, its effects and the scheduler after it, for a person; empty variables are left out."""
    line = step.line
    yield f"entry {step.number} ({step.where}), entry {step.index} of the job's log, at {line.now:.3f} s"
    yield f"  event    {_short(str(line.event))}"
    for effect in step.effects[:MAX_ITEMS_SHOWN]:
        yield f"  effect   {_short(str(effect))}"
    if len(step.effects) > MAX_ITEMS_SHOWN:
        yield f"  and {count_text(len(step.effects) - MAX_ITEMS_SHOWN, 'more effect')}"
    data = snapshot(step.scheduler)
    yield f"settings {_text(data['settings'])}"
    if data["policies"]:
        yield f"policies {_text(data['policies'])}"
    for part, variables in data["parts"].items():
        shown = {name: value for name, value in variables.items() if value not in (None, [], {}, "")}
        if shown:
            yield part.lstrip("_") or "scheduler"
            width = max(map(len, shown))
            for name, value in shown.items():
                yield f"  {name.lstrip('_'):{width}} {_text(value)}"


def _text(value: Any) -> str:
    """JSON, without most items of long lists."""
    if isinstance(value, list) and len(value) > MAX_ITEMS_SHOWN:
        first = json.dumps(value[:MAX_ITEMS_SHOWN], ensure_ascii=False)
        return f"{_short(first)} and {len(value) - MAX_ITEMS_SHOWN} more"
    if isinstance(value, dict) and value and all(isinstance(item, dict | list) for item in value.values()):
        return "; ".join(f"{key}: {_text(item)}" for key, item in value.items())
    return _short(json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]} ..."
