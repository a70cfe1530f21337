"""Simulate a job: how long would it take, what would it cost, and what would move, under these policies?

A scenario (TOML) has the job, its nodes with speeds, prices, joins, notices and losses, the network, and the nodes that
can be had. A recording of a job will do, too: its nodes, joins, notices and losses, with their speeds and delays,
under other policies. The scheduler and the policies are those of a cluster; nodes, network and clock are virtual. Each
scenario is simulated with each set of policies, one row of the table each. The same seed gives the same output. What
policies do to convergence is known with --work real only, which trains on a folder of chunks. The exit code is 0 also
where a job does not finish: its line says why.
"""

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chicle_elastic.errors import UsageError

if TYPE_CHECKING:
    from chicle_elastic.runtime.simulate.result import SimulationResult
    from chicle_elastic.runtime.simulate.scenario import Scenario
    from chicle_elastic.runtime.simulate.virtual_cluster import VirtualClock
    from chicle_elastic.runtime.simulate.work import Work

RECORDINGS = (".jsonl", ".jsonl.gz")
RECORDED = "as recorded"
PICTURES = (".png", ".svg", ".pdf")
MOST_LANES = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle simulate` takes."""
    parser.add_argument(
        "scenarios", type=Path, nargs="+", metavar="SCENARIO.toml", help="what to simulate, or a recording (.jsonl)"
    )
    parser.add_argument(
        "--policies",
        action="append",
        metavar="SET",
        help='policies joined by +, as in "Rebalance+Shuffle:share=0.1", or none; your own as package.module:Class; '
        "may be repeated; by default those of the scenario, or Rebalance",
    )
    parser.add_argument("--work", choices=("cost", "real"), default="cost", help="charge time only, or train as well")
    parser.add_argument("--iterations", type=int, metavar="N", help="instead of those of the scenario")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, each iteration included")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw the chunks of each node over the iterations"
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate each scenario with each set of policies. Raises UsageError when a scenario contradicts itself, a policy
    is none, or there are no data for real work."""
    from chicle_elastic.runtime.simulate.policy_sets import policies_of
    from chicle_elastic.runtime.simulate.virtual_cluster import VirtualCluster

    if arguments.plot is not None and arguments.plot.suffix not in PICTURES:
        raise UsageError(f"--plot {arguments.plot}: its name must end with {', '.join(PICTURES)}")
    prepared = []
    for given in [_read(path, arguments) for path in arguments.scenarios]:  # all are checked before the first one runs
        sets = {}
        for text in arguments.policies or given.scenario.job.policies or ("Rebalance",):
            try:
                sets[text] = policies_of(text)
            except UsageError as error:
                raise error if arguments.policies else UsageError(f"{given.path}: job.policies: {error}") from error
        prepared.append((given, sets))
    results = []
    for given, sets in prepared:
        title = f"{given.scenario.name}: " if len(prepared) > 1 else ""
        if given.recorded is not None:
            results.append((f"{title}{RECORDED}", given.recorded))
        for text, policies in sets.items():
            cluster = VirtualCluster(given.scenario, policies, make_work=given.make_work)
            results.append((f"{title}{text}", cluster.run()))
    if arguments.json:
        print(json.dumps([{"label": label, **result.to_dict()} for label, result in results], allow_nan=False))
    else:
        _print(results)
    if arguments.plot is not None:
        _plot(results, arguments.plot)
    return 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """One of the files."""

    path: Path
    scenario: "Scenario"
    # makes the work; None for charged time by the scenario's job
    make_work: "Callable[[VirtualClock], Work] | None" = None
    recorded: "SimulationResult | None" = None  # the job as it was, where the file is a recording of one


def _read(path: Path, arguments: argparse.Namespace) -> _Input:
    from chicle_elastic.runtime.simulate.recorded import read_recording
    from chicle_elastic.runtime.simulate.scenario import Scenario
    from chicle_elastic.runtime.simulate.work import Cost

    if not path.name.endswith(RECORDINGS):
        scenario = _limited(Scenario.read(path), arguments.iterations)
        make_work = _real_work(path, scenario) if arguments.work == "real" else None
        return _Input(path=path, scenario=scenario, make_work=make_work)
    if arguments.work == "real":
        raise UsageError(f"{path}: a recording has no data, so --work real cannot train; write a scenario with [data]")
    job = read_recording(path)
    scenario = _limited(job.scenario, arguments.iterations)
    return _Input(
        path=path, scenario=scenario, make_work=lambda clock: Cost(scenario.job, job.infos), recorded=job.result
    )


def _limited(scenario: "Scenario", iterations: int | None) -> "Scenario":
    if iterations is None:
        return scenario
    if iterations < 1:
        raise UsageError(f"--iterations {iterations}: it must be >= 1")
    return dataclasses.replace(scenario, job=dataclasses.replace(scenario.job, iterations=iterations))


def _real_work(path: Path, scenario: "Scenario") -> "Callable[[VirtualClock], Work]":
    """Trains on the scenario's folder of chunks: a linear model, or the trainer that the scenario names."""
    from chicle_elastic.chunks.folder import ChunkFolder
    from chicle_elastic.runtime.simulate.policy_sets import own_class
    from chicle_elastic.runtime.simulate.work import Real
    from chicle_elastic.runtime.training.job import Job
    from chicle_elastic.solvers.base import Trainer
    from chicle_elastic.solvers.linear.trainer import LinearTrainer

    data = scenario.data
    if data is None:
        raise UsageError(f"{path}: --work real needs a table [data] with the folder of chunks")
    source = ChunkFolder(path.parent / data.folder)
    trainer: Trainer = LinearTrainer(loss=data.loss, C=data.C, tol=data.tol)
    if data.trainer:
        words = f"{path}: data.trainer {data.trainer}"
        kind = own_class(data.trainer, words)
        if not isinstance(kind, type) or not issubclass(kind, Trainer):
            raise UsageError(f"{words}: it is no class of trainers; derive it from chicle_elastic.Trainer")
        try:
            trainer = kind(**data.parameters)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path}: data.parameters: {data.trainer} is not made with these: {error}") from error
    job = Job(trainer=trainer, source=source, max_iterations=scenario.job.iterations, seed=scenario.seed)
    return lambda clock: Real(job, clock)


def _plot(results: "list[tuple[str, SimulationResult]]", path: Path) -> None:
    from chicle_elastic.monitoring.swimlane import draw

    for number, (label, result) in enumerate(results, start=1):
        if len(result.history.tasks) > MOST_LANES:
            raise UsageError(
                f"{label}: {len(result.history.tasks)} nodes took part, and a picture has {MOST_LANES} lanes at most; "
                "leave --plot out"
            )
        name = path if len(results) == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
        drawing = draw(result.history, title=f"{label}: {result.time_s:.4g} s, price {result.cost:.4g}")
        drawing.savefig(name)


def _print(results: "list[tuple[str, SimulationResult]]") -> None:
    from chicle_elastic.runtime.simulate.result import ONLY_TIME, table

    print("\n".join(table([result.row(label) for label, result in results])))
    for label, result in results:
        ended = result.reason if result.has_finished else f"the job does not finish: {result.reason}"
        lost = (
            f"; {result.aborted} iterations aborted, {result.chunks_lost} states begun anew" if result.aborted else ""
        )
        print(f"{label}: {ended}{lost}")
    if not all(result.is_real for _, result in results):
        print(ONLY_TIME)
