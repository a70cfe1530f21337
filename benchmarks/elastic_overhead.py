"""What agents cost while nothing happens: an iteration on a cluster against the same loop without agents.

Both loops are run by two tasks on this host, in the same code: solve, one all-reduce, merge, judge, record. The solver
sleeps, so that the processors are free for any process that wants them. In one loop the tasks are those of a cluster:
agents keep the log, watch each other and write the event file. In the other one two processes that were told once
who they are call the same parts (`RoundContext`, `Training`), and no agent watches.

Both write the time of each iteration into the history of the job. The figures are the medians of the later iterations,
the runs alternate so that a busy moment of the machine hits both, and the ratio is that of the medians of the runs.

    python -m benchmarks.elastic_overhead [--rounds N] [--iterations N] [--iteration-ms MS] [--policies] [--json FILE]

With `--policies` both loops have agents. One has neither policies nor a log folder. In the other one `Rebalance` and
`Straggler` see every iteration, and each agent writes its event file and the recording of the job.

Exit code 1 when the bar is missed.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.agents import run_agents
from benchmarks.bars import Bar, Row
from benchmarks.report import Report, parser
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.cluster.rendezvous.store import StoreServer
from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Policy
from chicle_elastic.policies.rebalance import Rebalance
from chicle_elastic.policies.straggler import Straggler
from chicle_elastic.runtime.cluster_task.round import RoundContext
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.runtime.collectives.socket_group import GroupNetwork
from chicle_elastic.runtime.control.messages import Iterate
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.runtime.training.training import Training
from chicle_elastic.runtime.training.uni_task import TRAINER, LocalContext, Mailboxes, UniTask
from chicle_elastic.solvers.base import Budget, Context, Solver, StopFlag, Trainer, Update

MAX_RATIO = 1.02
MAX_RATIO_OF_POLICIES = 1.01
NUM_TASKS = 2
NUM_ROWS = 20_000
NUM_PARAMETERS = 4096
POLICIES: Mapping[str, Sequence[Policy] | None] = {"default": None, "none": (), "all": (Rebalance(), Straggler())}
NUM_THROWN_AWAY = 30
"""Iterations at the beginning of a run: nodes join, chunks move."""


class SleepingSolver(Solver):
    """Reads every row and sleeps."""

    def __init__(self, ctx: Context, iteration_s: float) -> None:
        super().__init__(ctx)
        self._iteration_s = iteration_s

    def solve(self, model: Array, budget: Budget) -> Update:
        """One iteration."""
        for chunk in self.chunks.values():
            chunk.read()
        samples = sum(chunk.num_rows for chunk in self.chunks.values())
        time.sleep(self._iteration_s)
        return Update(delta=np.ones_like(model), samples=samples, weight=samples, metrics={"rows": samples})


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepingTrainer(Trainer):
    """Its model counts iterations."""

    iteration_s: float

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """Zeros."""
        return np.zeros(NUM_PARAMETERS)

    def state(self, schema: DataSchema) -> StateSpec:
        """One number per row."""
        return StateSpec(outputs=1, width=1, dtype="int32")

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Rows."""
        return ("rows",)

    def solver(self, ctx: Context) -> Solver:
        """A solver."""
        return SleepingSolver(ctx, self.iteration_s)

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """The mean."""
        return model + weighted_sum / total_weight


def make_job(iteration_s: float, iterations: int, *, policies: Sequence[Policy] | None = None) -> Job:
    """The job of both loops; `policies` None are those of the runtime."""
    source = ArraySource(np.zeros((NUM_ROWS, 3)), np.arange(float(NUM_ROWS)), max_tasks=NUM_TASKS, seed=1)
    trainer = SleepingTrainer(iteration_s=iteration_s)
    return Job(trainer=trainer, source=source, max_iterations=iterations, policies=policies)


def median_ms(times_s: Sequence[float]) -> float:
    """The median time of an iteration, by the instants at which iterations ended."""
    return 1e3 * float(np.median(np.diff(times_s[NUM_THROWN_AWAY:])))


# With agents.


def run_watched(iteration_s: float, iterations: int, policies: str = "default") -> float:
    """Milliseconds of an iteration with agents; a log folder unless `policies` is "none"."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = ("-m", "benchmarks.elastic_overhead", "--task", name, "--of-task", policies)
        pace = ("--iteration-ms", str(1e3 * iteration_s), "--iterations", str(iterations))
        run_agents(NUM_TASKS, folder, *program, *pace, has_logs=policies != "none")
        return statistics.median(float(path.read_text()) for path in folder.glob("*.ms"))


def be_task(folder: Path, iteration_s: float, iterations: int, policies: str) -> None:
    """What agents start."""
    outcome = cluster_runtime().run(make_job(iteration_s, iterations, policies=POLICIES[policies]))
    times = [record.time_s for record in outcome.history]
    (folder / f"{os.getpid()}.ms").write_text(str(median_ms(times)))


# Without.


def run_alone(iteration_s: float, iterations: int) -> float:
    """Milliseconds of an iteration without agents."""
    context = multiprocessing.get_context("spawn")
    with StoreServer() as store:
        port = int(store.endpoint.rpartition(":")[2])
        receivers, processes = [], []
        for rank in range(NUM_TASKS):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=be_alone, args=(rank, port, iteration_s, iterations, sender))
            process.start()
            sender.close()
            receivers.append(receiver)
            processes.append(process)
        figures = [float(receiver.recv()) for receiver in receivers]
        for process in processes:
            process.join()
    return statistics.median(figures)


def be_alone(rank: int, port: int, iteration_s: float, iterations: int, sender: object) -> None:
    """The loop of a task, by itself."""
    job, clock = make_job(iteration_s, iterations), MonotonicClock()
    members = tuple(NodeId(f"n{number}") for number in range(NUM_TASKS))
    mailboxes, rng = Mailboxes(), np.random.default_rng(0)
    mailboxes.add(members[rank])
    task = UniTask(members[rank], job.trainer, LocalContext(members[rank], rng, mailboxes), clock)
    training = Training(job, context=LocalContext(TRAINER, rng, mailboxes), elapsed_s=clock.now, keeps_address=True)
    state = job.trainer.state(job.source.schema)
    infos = job.source.infos(state)[rank::NUM_TASKS]
    for info in infos:
        task.hold(job.source.load(info.id, state))
    task.attach([info.id for info in infos], [])
    group = ProcessGroup(round=1, rank=rank, size=NUM_TASKS)
    network = GroupNetwork.of(bind="127.0.0.1", advertise="127.0.0.1", key="00" * 32)
    group.begin(("127.0.0.1", port), prefix="overhead/", network=network)
    group.connect()
    round_context = RoundContext(job, task, training, group, members, has_caller=False, elapsed_s=clock.now)
    stop, times = StopFlag(), []
    for iteration in range(1, iterations + 1):
        order = Iterate(round=1, iteration=iteration, is_complete=True, num_tasks=NUM_TASKS)
        round_context.solve(order, stop, clock)
        round_context.add_up(has_vote=False)
        training.judge(round_context.merge(order), round_context.evaluate, round_context.ask_callers)
        times.append(clock.now())
    round_context.leave()
    sender.send(median_ms(times))  # type: ignore[attr-defined]


def main() -> int:
    """Measure, print a table and one line of JSON, compare with the bar."""
    line = parser("An iteration with agents watching, against the same loop without.")
    line.add_argument("--rounds", type=int, help="pairs of runs (default 5; 1 when quick)")
    line.add_argument("--iterations", type=int, default=300, help="iterations of a run (default 300)")
    line.add_argument("--iteration-ms", type=float, default=20.0, help="what a solver takes (default 20)")
    line.add_argument("--policies", action="store_true", help="what policies and recording cost, instead of agents")
    line.add_argument("--task", type=Path, help=argparse.SUPPRESS)
    line.add_argument("--of-task", choices=POLICIES, default="default", help=argparse.SUPPRESS)
    arguments = line.parse_args()
    iteration_s = arguments.iteration_ms / 1e3
    if arguments.task:
        be_task(arguments.task, iteration_s, arguments.iterations, arguments.of_task)
        return 0
    rounds = arguments.rounds or (1 if arguments.quick else 5)
    report = Report(arguments, repeats=rounds)
    alone, watched = [], []
    what, bar = "with agents, over the loop without", MAX_RATIO
    if arguments.policies:
        what, bar = "policies, event files and recordings, over no policies and no log folder", MAX_RATIO_OF_POLICIES
    for _ in range(rounds):
        if arguments.policies:
            alone.append(run_watched(iteration_s, arguments.iterations, "none"))
            watched.append(run_watched(iteration_s, arguments.iterations, "all"))
        else:
            alone.append(run_alone(iteration_s, arguments.iterations))
            watched.append(run_watched(iteration_s, arguments.iterations))
    ratio = statistics.median(watched) / statistics.median(alone)
    ours, peer = (f"{statistics.median(ms):.3f} ms ({min(ms):.3f} to {max(ms):.3f})" for ms in (watched, alone))
    what = f"an iteration of {arguments.iteration_ms:g} ms, {NUM_TASKS} tasks: {what}"
    details = {"alone_ms": alone, "watched_ms": watched, "iterations": arguments.iterations}
    report.add([Row("overhead", what, None, ours, peer, ratio, Bar(bar, at_most=True), details)])
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
