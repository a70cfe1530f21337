"""Fold the recording of a job again: does the scheduler order now what it ordered then?

Agents with --log-dir write recordings (NODE.recording.jsonl), and so does InProcess(log_dir=...). The exit code is 0 if
all effects are equal, and 1 at the first entry where they differ, or where the file cannot be read. With --until the
state of the scheduler after that entry is printed. With --policies the scheduler asks these policies again, where the
job had them in one process, and does not take their recorded answers. Nothing is trained, and no data is needed.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from chicle_elastic.errors import ProtocolError, UsageError
from chicle_elastic.policies.base import Policy
from chicle_elastic.runtime.simulate.policy_sets import policies_of
from chicle_elastic.scheduling.replaying import Replay, Step, difference_text
from chicle_elastic.scheduling.scheduler import Scheduler
from chicle_elastic.scheduling.snapshot import snapshot
from chicle_elastic.scheduling.text import bytes_text, count_text
from chicle_elastic.scheduling.together import by_key

MAX_ITEMS_SHOWN = 12
MAX_SPANS_SHOWN = 24
MAX_CHARACTERS = 400
IN_NODE_LINES = frozenset(("ledger", name) for name in ("node_chunks", "_infos", "_entries", "_missing"))
"""Parts of a snapshot that are shown by node instead."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle replay` takes."""
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a recording; may be compressed (.gz)")
    parser.add_argument(
        "--policies",
        metavar="SET",
        help="policies of a job of one process to ask again, as for chicle simulate: Rebalance, package.module:Class; "
        "they get no messages, which a recording does not have",
    )
    parser.add_argument(
        "--until", type=int, metavar="N", help="print the scheduler's state after entry N (from 1) of one recording"
    )


def run(arguments: argparse.Namespace) -> int:
    """Replay each file. Raises UsageError when `until` is no entry of the recording, or there are several files,
    ProtocolError when a file cannot be read, or effects differ."""
    policies = policies_of(arguments.policies or "")
    if arguments.until is None:
        for path in arguments.files:
            _compare(path, policies)
        return 0
    if len(arguments.files) > 1:
        raise UsageError("--until is for one recording; name one file")
    _show(arguments.files[0], arguments.until, policies)
    return 0


def _compare(path: Path, policies: Sequence[Policy]) -> None:
    replay = Replay(path, policies)
    for step in replay:
        _require_equal(step, policies)
    parts = f" in {replay.num_parts} parts" if replay.num_parts > 1 else ""
    print(f"{path}: {_entries(replay.num_entries)}{parts}, all effects are equal")
    for note in replay.notes:
        print(f"  {note}")


def _show(path: Path, until: int, policies: Sequence[Policy]) -> None:
    replay = Replay(path, policies)
    for step in replay:
        if step.number == until:
            print("\n".join(state_lines(step)))
            _require_equal(step, policies)
            return
        _require_equal(step, policies)
    raise UsageError(f"--until {until}: {path} has {_entries(replay.num_entries)}; the first one is 1")


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _require_equal(step: Step, policies: Sequence[Policy]) -> None:
    if step.difference is not None:
        hint = "; a policy that is asked again gets no messages: where one reads any, leave out --policies"
        raise ProtocolError(difference_text(step) + (hint if policies else ""))


def state_lines(step: Step) -> Iterator[str]:
    """The entry, its effects and the scheduler after it, for a person; empty variables are left out."""
    line = step.line
    yield f"entry {step.number} ({step.where}), entry {step.index} of the job's log, at {line.now:.3f} s"
    yield f"  event    {_short(str(line.event))}"
    for effect in step.effects[:MAX_ITEMS_SHOWN]:
        yield f"  effect   {_short(str(effect))}"
    if len(step.effects) > MAX_ITEMS_SHOWN:
        yield f"  and {count_text(len(step.effects) - MAX_ITEMS_SHOWN, 'more effect')}"
    yield from _node_lines(step.scheduler)
    data = snapshot(step.scheduler)
    yield f"settings {_text(data['settings'])}"
    if data["policies"]:
        yield f"policies {_text(data['policies'])}"
    for part, variables in data["parts"].items():
        shown = {
            name.lstrip("_"): value
            for name, value in variables.items()
            if value not in (None, [], {}, "") and (part, name) not in IN_NODE_LINES
        }
        if shown:
            yield part.lstrip("_") or "scheduler"
            width = max(map(len, shown))
            for name, value in shown.items():
                yield f"  {name:{width}}  {_text(value)}"


def _node_lines(scheduler: Scheduler) -> Iterator[str]:
    """Which node has which chunks, by what its copies are."""
    ledger = scheduler.ledger
    owned = sum(len(node.owned) for node in ledger.node_chunks.values())
    yield f"chunks {ledger.num_chunks}, {owned} of them owned"
    for name, node in ledger.node_chunks.items():
        capacity = "" if node.capacity_bytes is None else f" of {bytes_text(node.capacity_bytes)}"
        closing = ", leaves" if node.is_closing else ""
        yield f"  {name}: {node.num_rows} rows, {bytes_text(node.used_bytes)}{capacity}{closing}"
        for phase, chunks in by_key((phase, chunk) for chunk, phase in node.copies.items()).items():
            yield f"    {phase.value:10} {_ranges(chunks)}"


def _ranges(chunks: Iterable[int]) -> str:
    """How many, and which: "5 (0-3, 9)"."""
    spans: list[list[int]] = []
    numbers = sorted(chunks)
    for chunk in numbers:
        if spans and spans[-1][1] == chunk - 1:
            spans[-1][1] = chunk
        else:
            spans.append([chunk, chunk])
    shown = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans[:MAX_SPANS_SHOWN])
    return f"{len(numbers)} ({shown}{', ...' if len(spans) > MAX_SPANS_SHOWN else ''})"


def _text(value: Any) -> str:
    """JSON, without most items of long lists and objects."""
    num_more = len(value) - MAX_ITEMS_SHOWN if isinstance(value, list | dict) else 0
    if num_more > 0:
        first = dict(list(value.items())[:MAX_ITEMS_SHOWN]) if isinstance(value, dict) else value[:MAX_ITEMS_SHOWN]
        return f"{_text(first)} and {num_more} more"
    return _short(json.dumps(value, ensure_ascii=False))


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} ..."
