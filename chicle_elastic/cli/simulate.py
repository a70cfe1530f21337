"""Simulate a job: how long would it take, what would it cost, and what would move, under these policies?

A scenario (TOML) has the job, its nodes with speeds, prices, joins, notices and losses, the network, and the nodes
that can be had. The scheduler and the policies are those of a cluster; nodes, network and clock are virtual. Each
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `chicle simulate` takes."""
    parser.add_argument("scenarios", type=Path, nargs="+", metavar="SCENARIO.toml", help="what to simulate")
    parser.add_argument(
        "--policies",
        action="append",
        metavar="SET",
        help='policies joined by +, as in "Rebalance+Shuffle:share=0.1", or none; may be repeated; by default those of '
        "the scenario, or Rebalance",
    )
    parser.add_argument("--work", choices=("cost", "real"), default="cost", help="charge time only, or train as well")
    parser.add_argument("--iterations", type=int, metavar="N", help="instead of those of the scenario")
    parser.add_argument("--json", action="store_true", help="print everything as JSON, each iteration included")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE.png", help="draw the chunks of each node over the iterations"
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate each scenario with each set of policies.

    Raises:
        UsageError: A scenario contradicts itself, a policy is none, or there are no data for real work.
    """
    from chicle_elastic.runtime.simulate.policy_sets import policies_of
    from chicle_elastic.runtime.simulate.scenario import Scenario
    from chicle_elastic.runtime.simulate.virtual_cluster import VirtualCluster

    prepared = []
    for path in arguments.scenarios:  # all of them are checked before the first one runs
        scenario = _limited(Scenario.read(path), arguments.iterations)
        make_work = _real_work(path, scenario) if arguments.work == "real" else None
        for text in arguments.policies or scenario.job.policies or ("Rebalance",):
            try:
                policies = policies_of(text)
            except UsageError as error:
                raise error if arguments.policies else UsageError(f"{path}: job.policies: {error}") from error
            prepared.append((scenario, text, policies, make_work))
    results = [
        (f"{scenario.name}: {text}" if len(arguments.scenarios) > 1 else text, result)
        for scenario, text, policies, make_work in prepared
        for result in [VirtualCluster(scenario, policies, make_work=make_work).run()]
    ]
    if arguments.plot is not None:
        _plot(results, arguments.plot)
    if arguments.json:
        print(json.dumps([{"label": label, **result.to_dict()} for label, result in results], allow_nan=False))
    else:
        _print(results)
    return 0


def _limited(scenario: "Scenario", iterations: int | None) -> "Scenario":
    if iterations is None:
        return scenario
    if iterations < 1:
        raise UsageError(f"--iterations {iterations}: it must be >= 1")
    return dataclasses.replace(scenario, job=dataclasses.replace(scenario.job, iterations=iterations))


def _real_work(path: Path, scenario: "Scenario") -> "Callable[[VirtualClock], Work]":
    """Trains a linear model on the scenario's folder of chunks."""
    from chicle_elastic.chunks.folder import ChunkFolder
    from chicle_elastic.runtime.simulate.work import Real
    from chicle_elastic.runtime.training.job import Job
    from chicle_elastic.solvers.linear.trainer import LinearTrainer

    data = scenario.data
    if data is None:
        raise UsageError(f"{path}: --work real needs a table [data] with the folder of chunks")
    source = ChunkFolder(path.parent / data.folder)
    trainer = LinearTrainer(loss=data.loss, C=data.C, tol=data.tol)
    job = Job(trainer=trainer, source=source, max_iterations=scenario.job.iterations, seed=scenario.seed)
    return lambda clock: Real(job, clock)


def _plot(results: "list[tuple[str, SimulationResult]]", path: Path) -> None:
    from chicle_elastic.monitoring.swimlane import draw

    for number, (label, result) in enumerate(results, start=1):
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
