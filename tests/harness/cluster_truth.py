"""Judges a job that agents have run in all weathers, by what its tasks and agents have written down.

The evidence of a job is a folder: the event file of every node, whatever became of it, and the outcome of every task
that stayed to the end (`chaos_app`). The rules:

    owned      the tasks at the end have every chunk of the manifest exactly once, with the bytes of its source
    ledger     in each merged iteration no chunk is on two lines, and no line has more rows than its chunk; every node
               has lines for as many rows as the others were told; a complete iteration has all chunks
    lineage    a chunk's state is never older than what was merged into it, unless a node was lost in between
    one job    no node began afresh, and no model was older than the newest merged one that a node survived with
    counted    (count) the model has, per chunk, the iterations that the ledger has; each state has those since it began
    gap        (svm, newton) the certified gap is the one that NumPy finds from X, y, w and the gathered duals
    model      (svm) w is w(alpha)

Which iterations count. A node that was cut off may merge an iteration that the others give up and do again in a later
round; so of one number the iteration of the latest round counts. One that no surviving task merged does not count: its
model is gone, and the next round began with the one before. Lines may be missing where their node died:
a line is written after the merge, and the last one of a killed task may never come. Nothing else may be missing.

What came first. Nothing here compares clocks: a task that was stopped writes its last lines when the others are long in
another round. Losses are entries of the common log, and come with the iteration that was merged last before them.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import NO_STATE, Array
from chicle_elastic.cluster.net.event_file import read_events
from tests.harness import chaos_app

Version = tuple[int, int]
GAP_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """What one task says of one chunk in one merged iteration."""

    node: str  # of the task
    chunk: int  # the chunk
    rows: int  # rows processed
    before: Version  # version of the state before, as (round, iteration)
    after: Version  # version after; its iteration is the merged one


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything that was written down. Values as JSON has them, so that a test can falsify them."""

    events: Sequence[Mapping[str, Any]]  # of all nodes, each node's in its order
    outcomes: Sequence[Mapping[str, Any]]  # of the tasks that stayed to the end

    @classmethod
    def read(cls, folder: Path) -> "Evidence":
        """Read a folder."""
        outcomes = [json.loads(path.read_text()) for path in sorted(folder.glob("*.outcome.json"))]
        return cls(events=list(read_events(folder)), outcomes=outcomes)

    @cached_property
    def merged(self) -> dict[int, int]:
        """The round in which each iteration was merged for good."""
        return {number: round for number, round in self._merged_by_anybody.items() if number not in self.undone}

    @cached_property
    def undone(self) -> set[int]:
        """Iterations that went away with everybody who had merged them, so that the next round began without them.

        Who has the sum when a member dies is chance: perhaps a single survivor, which dies as well.
        """
        undone = set()
        for group in self.of_kind("group"):
            for number, round in self._merged_by_anybody.items():
                if number > group["merged"] and round < group["round"] and not self._is_known(number):
                    undone.add(number)
        return undone

    @cached_property
    def _merged_by_anybody(self) -> dict[int, int]:
        rounds: dict[int, int] = {}
        for event in self.of_kind("iteration"):
            rounds[event["iteration"]] = max(event["round"], rounds.get(event["iteration"], 0))
        return rounds

    def _is_known(self, number: int) -> bool:
        """Whether a node that merged an iteration kept the model of it for long enough to go on with it."""
        open_nodes: set[str] = set()  # what became of them is not yet clear
        for event in self.events:
            node, kind = event["node"], event["kind"]
            if kind == "iteration" and event["iteration"] == number:
                open_nodes.add(node)
            elif node in open_nodes and kind in ("iteration", "ended"):
                return True
            elif node in open_nodes and kind == "task_died":
                open_nodes.remove(node)
        return False

    @cached_property
    def lines(self) -> dict[int, list[LedgerLine]]:
        """The lines of each iteration that counts."""
        lines: dict[int, list[LedgerLine]] = {iteration: [] for iteration in self.merged}
        for page in self.of_kind("ledger"):
            after = page["after"]
            if after is None or self.merged.get(after[1]) != after[0]:
                continue
            lines[after[1]] += [
                LedgerLine(
                    node=page["node"],
                    chunk=chunk,
                    rows=rows,
                    before=(page["before"][0], page["before"][1]),
                    after=(after[0], after[1]),
                )
                for chunk, rows in zip(page["chunks"], page["rows"], strict=True)
            ]
        return lines

    @cached_property
    def samples(self) -> dict[int, dict[str, int]]:
        """Rows of each node in each iteration that counts, as the all-reduce told everybody."""
        return {
            event["iteration"]: event["samples"]
            for event in self.of_kind("iteration")
            if self.merged.get(event["iteration"]) == event["round"]
        }

    @cached_property
    def lost(self) -> dict[str, set[int]]:
        """After which merged iterations each node was lost, by the log of anybody."""
        merged: dict[str, set[int]] = defaultdict(set)
        for event in self.of_kind("lost"):
            merged[event["who"]].add(event["merged"])
        return merged

    def of_kind(self, kind: str) -> Iterator[Mapping[str, Any]]:
        """The events of one kind."""
        return (event for event in self.events if event["kind"] == kind)

    def may_lack(self, node: str, iteration: int) -> bool:
        """Whether a node died so early that its lines of an iteration were perhaps never written."""
        has_died = False
        for event in self.events:
            if event["node"] != node:
                continue
            kind = event["kind"]
            if kind == "iteration" and event["iteration"] < iteration:
                has_died = False
            elif kind in ("task_died", "expelled"):
                has_died = True
            elif kind == "ended" or (kind == "iteration" and event["iteration"] > iteration):
                return has_died
        return True  # its file breaks off


def judge(evidence: Evidence, work: str) -> list[str]:
    """Everything that is wrong, in words; nothing is right where there is no evidence.

    Args:
        evidence: Of a job that has ended.
        work: "svm", "newton" or "count".
    """
    if not evidence.outcomes or not evidence.merged:
        return ["no task has written an outcome, or no iteration was merged: there is nothing to judge"]
    faults = [
        *_judge_survival(evidence),
        *_judge_ownership(evidence),
        *_judge_ledger(evidence),
        *_judge_lineage(evidence),
    ]
    faults += _judge_equality(evidence)
    faults += _judge_counts(evidence) if work == "count" else _judge_gap(evidence, work)
    return faults


def _judge_survival(evidence: Evidence) -> Iterator[str]:
    if len(jobs := {event["job"] for event in evidence.of_kind("job")}) > 1:
        yield f"the job was begun {len(jobs)} times: at some time no node was left of it"
    rounds = {event["round"]: event for event in evidence.of_kind("group")}
    for event in rounds.values():
        newest = max((number for number, round in evidence.merged.items() if round < event["round"]), default=0)
        if event["merged"] < newest:
            yield (
                f"round {event['round']} began with the model of iteration {event['merged']}, and iteration {newest} "
                "was merged: no node was left that had it"
            )


def _judge_ownership(evidence: Evidence) -> Iterator[str]:
    source = chaos_app.source()
    owners: dict[int, list[str]] = defaultdict(list)
    for outcome in evidence.outcomes:
        for name, checksum in outcome["held"].items():
            chunk = int(name)
            owners[chunk].append(outcome["node"])
            if chunk < source.num_chunks:
                expected = chaos_app.checksum(source.load(chunk, NO_STATE))  # type: ignore[arg-type]
                if checksum != expected:
                    yield f"chunk {chunk} on {outcome['node']} has checksum {checksum}, its source {expected}"
    for chunk in sorted(set(range(source.num_chunks)) | owners.keys()):
        if len(owners[chunk]) != 1 or chunk >= source.num_chunks:
            yield f"chunk {chunk} of {source.num_chunks} is owned by {owners[chunk] or 'no node'} at the end"


def _judge_equality(evidence: Evidence) -> Iterator[str]:
    first = evidence.outcomes[0]
    for other in evidence.outcomes[1:]:
        for name in ("iterations", "model", "state", "gap"):
            if other[name] != first[name]:
                yield f"{other['node']} and {first['node']} come to another {name}"
    num_merged = max(evidence.merged) - len(evidence.undone)
    if first["iterations"] != num_merged:
        yield f"the history has {first['iterations']} iterations, and {num_merged} were merged"


def _judge_ledger(evidence: Evidence) -> Iterator[str]:
    rows_of = _rows_of_chunks()
    last = max(evidence.merged)
    for iteration in sorted(set(range(1, last + 1)) - evidence.merged.keys() - evidence.undone):
        yield f"iteration {iteration} was merged by no task, and iteration {last} was"
    for iteration, lines in sorted(evidence.lines.items()):
        readers = Counter(line.chunk for line in lines)
        for chunk, count in readers.items():
            if count > 1:
                nodes = [line.node for line in lines if line.chunk == chunk]
                yield f"iteration {iteration}: chunk {chunk} was processed {count} times, by {nodes}"
        for line in lines:
            if line.rows > rows_of.get(line.chunk, 0):
                yield f"iteration {iteration}: {line.node} processed {line.rows} rows of chunk {line.chunk}"
        told, written = evidence.samples[iteration], Counter[str]()
        for line in lines:
            written[line.node] += line.rows
        lacking = 0
        for node in sorted(told.keys() | written.keys()):
            if written[node] == told.get(node, 0):
                continue
            if not written[node] and evidence.may_lack(node, iteration):
                lacking += told[node]
            else:
                yield (
                    f"iteration {iteration}: {node} told of {told.get(node, 0)} rows and has lines for {written[node]}"
                )
        if sum(told.values()) == sum(rows_of.values()):
            missing = rows_of.keys() - readers.keys()
            if sum(rows_of[chunk] for chunk in missing) != lacking:
                yield f"iteration {iteration} is complete, and chunks {sorted(missing)} were processed by no task"


def _judge_lineage(evidence: Evidence) -> Iterator[str]:
    newest: dict[int, LedgerLine] = {}
    for _, lines in sorted(evidence.lines.items()):
        for line in lines:
            known = newest.get(line.chunk)
            if known is not None and line.before < known.after and not _was_lost(evidence, known, line):
                yield (
                    f"iteration {line.after[1]}: {line.node} processed chunk {line.chunk} with state of version "
                    f"{line.before}, and {known.node} had merged {known.after} into it and was not lost"
                )
        newest.update((line.chunk, line) for line in lines)


def _was_lost(evidence: Evidence, known: LedgerLine, line: LedgerLine) -> bool:
    """Whether the chunk may have been lost between two lines, wherever it was then.

    A loss that breaks an iteration stands in the log before the end of that iteration, if a task had merged it.
    """
    between = range(known.after[1] - 1, line.after[1])
    return any(merged in between for losses in evidence.lost.values() for merged in losses)


def _judge_counts(evidence: Evidence) -> Iterator[str]:
    outcome = evidence.outcomes[0]
    model, state = np.array(outcome["model"]), np.array(outcome["state"])[:, 0, :]
    counts = Counter(line.chunk for lines in evidence.lines.values() for line in lines)
    lacking = _iterations_with_lacking_lines(evidence)
    perhaps_lost = _perhaps_lost(evidence)
    source = chaos_app.source()
    for number in range(source.num_chunks):
        chunk = source.load(number, NO_STATE)  # type: ignore[arg-type]
        most = counts[number] + sum(number not in chunks for chunks in lacking)
        if not counts[number] <= model[number] <= most:
            yield (
                f"chunk {number} took part in {model[number]:.0f} merged iterations by the model, and by the ledger in "
                f"{counts[number]}, or {most} with the lines of those that died"
            )
        rows = state[chunk.row_ids].copy()
        chaos_app.settle(rows, model[number])
        columns = [chaos_app.COUNT, chaos_app.BASE]
        if (rows != rows[0]).any():
            yield f"the samples of chunk {number} were counted differently: {np.unique(rows, axis=0).tolist()}"
        elif not np.array_equal(rows[:, columns], state[chunk.row_ids][:, columns]):
            yield f"the state of chunk {number} is stale: {state[chunk.row_ids][0].tolist()}, model {model[number]:.0f}"
        elif rows[0, columns].sum() != model[number]:
            yield f"the state of chunk {number} has counted {rows[0].tolist()}, and the model {model[number]:.0f}"
        elif rows[0, chaos_app.BASE] and number not in perhaps_lost:
            yield (
                f"the state of chunk {number} began at {rows[0, chaos_app.BASE]:.0f} merged iterations, and no node "
                "was lost before"
            )


def _iterations_with_lacking_lines(evidence: Evidence) -> list[set[int]]:
    """The chunks that have lines, for each iteration in which a node that died took part and has none."""
    chunks = []
    for iteration, told in evidence.samples.items():
        lines = evidence.lines[iteration]
        writers = {line.node for line in lines}
        if any(node not in writers for node, samples in told.items() if samples):
            chunks.append({line.chunk for line in lines})
    return chunks


def _perhaps_lost(evidence: Evidence) -> set[int]:
    """Chunks between two lines of which a node was lost; who owned them then may have written none."""
    newest: dict[int, LedgerLine] = {}
    chunks: set[int] = set()
    for _, lines in sorted(evidence.lines.items()):
        for line in lines:
            known = newest.get(line.chunk)
            if known is not None and line.chunk not in chunks and _was_lost(evidence, known, line):
                chunks.add(line.chunk)
            newest[line.chunk] = line
    return chunks


def _judge_gap(evidence: Evidence, work: str) -> Iterator[str]:
    outcome = evidence.outcomes[0]
    if outcome["gap"] is None:
        yield "there is no certificate at the end"
        return
    w, alpha = np.array(outcome["model"]), np.array(outcome["state"])[:, 0, 0]
    gap, error = recompute_gap(w, alpha)
    if not abs(gap - outcome["gap"]) <= GAP_TOLERANCE * max(1.0, abs(gap)):
        yield f"the certificate says a relative gap of {outcome['gap']:.9e}, and the gathered duals give {gap:.9e}"
    if work == "svm" and not error <= GAP_TOLERANCE:  # Newton's method is ended amid its steps
        yield f"w differs from w(alpha) by {error:.3e}"
    if alpha.min() < 0 or alpha.max() > chaos_app.C:
        yield f"duals from {alpha.min()} to {alpha.max()} are not in their box [0, {chaos_app.C}]"


def recompute_gap(w: Array, alpha: Array) -> tuple[float, float]:
    """The relative duality gap of the hinge loss, from the original data and nothing else.

    Args:
        w: ndarray of shape (num_features + 1,), float64; the last is the intercept.
        alpha: ndarray of shape (num_rows,), float64.

    Returns:
        (P(w) - D(alpha)) / P(w), and |w - w(alpha)| / max(1, |w|).
    """
    X, codes = chaos_app.data()
    X = np.column_stack([X, np.ones(len(X))])
    y = 2.0 * codes - 1.0
    rebuilt = X.T @ (alpha * y)
    primal = 0.5 * w @ w + chaos_app.C * np.maximum(0.0, 1.0 - y * (X @ w)).sum()
    dual = alpha.sum() - 0.5 * rebuilt @ rebuilt
    error = float(np.linalg.norm(w - rebuilt)) / max(1.0, float(np.linalg.norm(w)))
    return float((primal - dual) / primal), error


def _rows_of_chunks() -> dict[int, int]:
    return {int(info.id): info.num_rows for info in chaos_app.source().infos(NO_STATE)}
