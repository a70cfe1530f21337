"""A job on spot machines: a trace of their availability replayed on agents of this machine, without a hand.

    python -m benchmarks.spot [--trace FILE --window FIRST:LAST] [--json FILE]

The trace (`spot_trace`) says how many of 16 machines there are; each of four agents stands for four of them. A tick of
300 s takes 2.5 s. Machines come when the trace says so, and all that are taken at one time get SIGTERM together, as
long ahead as the grace; every third decrease comes without a word, by SIGKILL to agent and task. Each runs the same
command, with --checkpoint and --resume; the store runs in this process.

The job is CoCoA with a fixed number of iterations, so it ends by itself, in the last third of the trace. Measured:

    node time that was there   each machine from its start until it was taken, while there were at least MIN
    node time used             of the same: member of the round and training, or in a transition between two iterations;
                               not its start, not a pause, not the rest of its grace after its last iteration
    iterations lost            merged, and merged again after the job had begun anew
    transitions                rounds that were formed between two iterations

Exit code 1 when a bar is missed.
"""

import itertools
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import spot_trace
from benchmarks.bars import Bar, Row
from benchmarks.report import Report, parser
from benchmarks.spot_nodes import Machine, problem, train
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.resources.schedule import Schedule
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.transports.secret import JobSecret

MIN, MAX = 2, 4
TICK_S, NUM_TICKS, SEED = 2.5, 180, 5
GRACE_S = 2.0
ITERATION_S = 0.1
SHARE_OF_WORK = 0.72
"""Iterations of the job over those that fit into the time with at least MIN machines: it ends in the last stretch. What
there is in the last tick stays until the job is over."""
UNANNOUNCED = 3
"""Every so many decreases come without a notice."""
REFERENCE_ITERATIONS = 1000
LATE_S = 120.0
"""How long after the end of the trace the job may take."""


@dataclass(slots=True)
class Replay:
    """What happened.

    Attributes:
        machines: All there were, in the order in which they came.
        counts: (time, machines from then on).
        bulks: Names of the machines that came at one time, for each such time.
        falls: (machines taken, those left, whether they were told).
        ended_s: When the job was over.
    """

    machines: list[Machine] = field(default_factory=list)
    counts: list[tuple[float, int]] = field(default_factory=list)
    bulks: list[list[str]] = field(default_factory=list)
    falls: list[tuple[int, int, bool]] = field(default_factory=list)
    ended_s: float = 0.0


def schedule_of(counts: Sequence[int], tick_s: float) -> Schedule:
    """The times at which the number of machines changes."""
    steps = [(0.0, counts[0])]
    for tick, (before, after) in enumerate(itertools.pairwise(counts), 1):
        if before != after:
            steps.append((tick * tick_s, after))
    return Schedule(steps)


def replay(schedule: Schedule, folder: Path, num_iterations: int, end_s: float) -> Replay:
    """Let machines come and go until the job is over.

    Raises:
        RuntimeError: It is not, long after the end of the trace; or a machine has given up.
    """
    result, rng = Replay(), np.random.default_rng(SEED)
    here: list[Machine] = []
    JobSecret.load_or_create(folder / "job.secret")
    names, work = itertools.count(), partial(train, folder, ITERATION_S, num_iterations)
    with StoreServer() as store:
        arguments = [
            *("--nnodes", f"{MIN}:{MAX}", "--rdzv-endpoint", store.endpoint, "--log-dir", str(folder)),
            *("--secret-file", str(folder / "job.secret"), "--checkpoint", f"file://{folder}/checkpoints"),
            *("--checkpoint-every", "5s", "--resume", "--grace", str(GRACE_S), "--leave-exit-code", "143"),
        ]
        began_s = time.time()
        changes = list(schedule.steps)
        doomed: list[Machine] = []
        try:
            while True:
                now_s = time.time() - began_s
                if any(machine.exit_code == 0 for machine in here):
                    result.ended_s = min(json.loads(path.read_text())["time"] for path in folder.glob("*.result.json"))
                    return result
                failed = [machine for machine in here if machine.exit_code not in (None, 143)]
                if failed or now_s > end_s + LATE_S:
                    told = "\n".join(f"{machine.name}:\n{machine.output()}" for machine in failed or here)
                    raise RuntimeError(f"the job is not over after {now_s:.0f} s\n{told}")
                if changes and (fall := len(here) - changes[0].nodes) > 0:
                    is_told = len(result.falls) % UNANNOUNCED != UNANNOUNCED - 1
                    if is_told and not doomed and now_s >= changes[0].start_s - GRACE_S:
                        doomed = [here[index] for index in rng.permutation(len(here))[:fall]]
                        for machine in doomed:
                            machine.notice()
                if changes and now_s >= changes[0].start_s:
                    step = changes.pop(0)
                    if (fall := len(here) - step.nodes) > 0:
                        result.falls.append((fall, step.nodes, bool(doomed)))
                        for machine in doomed or [here[index] for index in rng.permutation(len(here))[:fall]]:
                            machine.take()
                            here.remove(machine)
                        doomed = []
                    else:
                        came = [f"m{next(names)}" for _ in range(-fall)]
                        new = [Machine(name, ["--name", name, *arguments], folder, work) for name in came]
                        here += new
                        result.machines += new
                        result.bulks.append(came)
                    result.counts.append((time.time(), len(here)))
                    print(f"{now_s:6.1f} s: {len(here)} machines", flush=True)
                time.sleep(0.02)
        finally:
            for machine in here:
                machine.take()


def there_s(result: Replay) -> float:
    """Node time that was there."""
    ends = [*(start_s for start_s, _ in result.counts[1:]), result.ended_s]
    return sum(
        (min(end_s, result.ended_s) - start_s) * count
        for (start_s, count), end_s in zip(result.counts, ends, strict=True)
        if count >= MIN and start_s < result.ended_s
    )


def used_s(machine: Machine, ended_s: float) -> tuple[float, float]:
    """Seconds of a machine in training or a transition, and in merged iterations alone."""
    used = merged = 0.0
    since: float | None = None
    for event in machine.events():
        kind, now_s = event["kind"], min(event["time"], ended_s)
        if kind == "iteration" and machine.name in event["seconds"]:
            own_s = event["duration_ms"] / 1e3
            used += own_s if since is None else max(own_s, now_s - since)
            merged += own_s
            since = now_s
        elif kind == "paused" and since is not None:
            used += now_s - since
            since = None
    return used, merged


def iterations(result: Replay) -> list[tuple[float, int, int, int]]:
    """(time, iteration, round, members) of each merged iteration, once, in the order of time."""
    seen: dict[tuple[int, int, float], tuple[float, int, int, int]] = {}
    jobs: dict[str, float] = {}
    for machine in result.machines:
        job = 0.0
        for event in machine.events():
            if event["kind"] == "job":
                job = jobs.setdefault(str(event["job"]), event["time"])
            elif event["kind"] == "iteration":
                row = (event["time"], event["iteration"], event["round"], len(event["seconds"]))
                key = (event["iteration"], event["round"], job)
                seen[key] = min(row, seen.get(key, row))
    return sorted(seen.values())


def report(result: Replay, reference: float, counts: Sequence[int], num_iterations: int, folder: Path) -> list[Row]:
    """The table."""
    merged = iterations(result)
    outcomes = [json.loads(path.read_text()) for path in folder.glob("*.result.json")]
    there = there_s(result)
    times = [used_s(machine, result.ended_s) for machine in result.machines]
    used, in_iterations = (sum(column) for column in zip(*times, strict=True))
    again = [before - after + 1 for (_, before, *_), (_, after, *_) in itertools.pairwise(merged) if after <= before]
    transitions = sum(before[2:] != after[2:] for before, after in itertools.pairwise(merged)) + 1
    periods = [left for _, left, _ in result.falls if left == 0]
    bulk = [rounds_of(result, names) for names in result.bulks]
    objective = max(outcome["objective"] for outcome in outcomes)
    what = f"{len(result.machines)} machines, {len(result.falls)} decreases ({spot_trace.describe(list(counts))})"
    details: dict[str, Any] = {
        "falls": result.falls,
        "machines": [(machine.name, *pair) for machine, pair in zip(result.machines, times, strict=True)],
        "bulks": list(zip(result.bulks, bulk, strict=True)),
        "outcomes": outcomes,
    }
    told = [number for number, (_, left, is_told) in enumerate(result.falls) if left == 0 and is_told]

    def row(name: str, measured: str, against: str, value: float, bar: Bar | None) -> Row:
        return Row("spot", name, None, measured, against, value, bar, details if "node time used" in name else {})

    return [
        row(f"node time used; {what}", f"{used:.0f} s", f"{there:.0f} s", used / there, Bar(gate=0.9)),
        row("node time in merged iterations", f"{in_iterations:.0f} s", f"{there:.0f} s", in_iterations / there, None),
        row(
            "iterations of the job, done without a hand",
            str(outcomes[0]["iterations"]),
            str(num_iterations),
            outcomes[0]["iterations"] / num_iterations,
            Bar(gate=1.0),
        ),
        row(
            "times without any machine, survived",
            f"{len(periods)}, {len(told)} of them after a notice",
            "",
            float(len(periods)),
            Bar(gate=2),
        ),
        row(
            "iterations lost where the last machines had a notice",
            f"{lost(merged, result, True):.0f}",
            "0",
            lost(merged, result, True),
            Bar(gate=0, at_most=True),
        ),
        row("iterations lost in all", str(sum(again)), str(len(merged)), float(sum(again)), None),
        row("transitions", str(transitions), f"{len(result.falls) + len(result.bulks)} changes", transitions, None),
        row(
            "rounds until all machines that came at once trained",
            ", ".join(f"{len(names)}: {rounds}" for names, rounds in zip(result.bulks, bulk, strict=True)),
            "",
            float(max(bulk)),
            None,
        ),
        row(
            "objective over that of a job in one process",
            f"{objective:.9g}",
            f"{reference:.9g}",
            objective / reference,
            Bar(gate=1 + 1e-5, at_most=True),
        ),
    ]


def lost(merged: Sequence[tuple[float, int, int, int]], result: Replay, is_told: bool) -> float:
    """Iterations that were merged again after the machines had gone to the last, with a notice or without."""
    zeros = [start_s for start_s, count in result.counts if count == 0]
    told = [was_told for _, left, was_told in result.falls if left == 0]
    total = 0
    for zero_s, was_told in zip(zeros, told, strict=True):
        before = [number for time_s, number, *_ in merged if time_s <= zero_s]
        after = [number for time_s, number, *_ in merged if time_s > zero_s]
        if was_told is is_told and before and after:
            total += max(0, max(before) - after[0] + 1)
    return float(total)


def rounds_of(result: Replay, names: Sequence[str]) -> int:
    """Rounds with any of these machines until all of them are in one; one that was taken before does not count."""
    rounds: dict[tuple[float, ...], set[str]] = {}
    for machine in result.machines:
        if machine.name in names:
            for event in machine.events():
                if event["kind"] == "round":
                    members = set(event["members"]) & set(names)
                    rounds.setdefault((event["round"],), set()).update(members)
    everyone = set().union(*rounds.values()) if rounds else set()
    number = 0
    for _, members in sorted(rounds.items()):
        number += 1
        if members == everyone:
            return number
    return number


def main() -> int:
    """Replay, and print the table."""
    arguments = parser(__doc__)
    arguments.add_argument("--trace", type=Path, help="a file of public traces; by default one is generated")
    arguments.add_argument("--window", default=f"0:{NUM_TICKS}", help="its ticks (default %(default)s)")
    arguments.add_argument("--work", type=float, default=SHARE_OF_WORK, help="iterations over those that fit")
    options = arguments.parse_args()
    found = Report(options)
    num_ticks = NUM_TICKS // 3 if options.quick else NUM_TICKS
    first, last = map(int, options.window.split(":"))
    counts = (
        spot_trace.generated(SEED, num_ticks=num_ticks)
        if options.trace is None
        else spot_trace.read(options.trace, first, last)
    )
    scaled = spot_trace.scaled(counts, MAX)
    usable_s = TICK_S * sum(count >= MIN for count in scaled)
    num_iterations = int(options.work * usable_s / ITERATION_S)
    trainer, source = problem(MAX)
    job = Job(trainer=trainer, source=source, max_iterations=REFERENCE_ITERATIONS)
    outcome = InProcess(num_tasks=MAX).run(job)
    assert outcome.certificate is not None
    reference = trainer.figures(outcome.model, outcome.certificate)["objective"]
    with tempfile.TemporaryDirectory(prefix="chicle-spot-") as name:
        folder = Path(name)
        result = replay(schedule_of(scaled, TICK_S), folder, num_iterations, TICK_S * len(scaled))
        rows = report(result, reference, counts, num_iterations, folder)
    found.add(rows)
    found.notes.append("generated" if options.trace is None else f"{options.trace.name}, ticks {options.window}")
    return found.finish()


if __name__ == "__main__":
    raise SystemExit(main())
