"""Trainers for the tests of the local cluster; tasks import them by name."""

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from threadpoolctl import threadpool_info

from chicle_elastic import waits
from chicle_elastic.chunks.views import Array, DataSchema
from chicle_elastic.ids import NodeId
from chicle_elastic.policies.base import Policy
from chicle_elastic.solvers.base import Budget, Context, Report, Solver, Update
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.values import (
    Decision,
    MoveChunks,
    Observations,
    PolicyAction,
    RedrawOwnership,
    ReleaseNode,
    Remember,
    RequestNodes,
    SendMessage,
    SetParameter,
)
from tests.cluster.train_svm import ChangedLinear, Solve


@dataclass(frozen=True, slots=True, kw_only=True)
class TalkativeCocoa(ChangedLinear):
    """CoCoA whose solver reports a sum that no trainer knows of."""

    def change(self, ctx: Context, solve: Solve, model: Array, budget: Budget) -> Update:
        """The solver of CoCoA, which says more."""
        update = solve(model, budget)
        return replace(update, metrics={**update.metrics, "mine": 1.0})


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingCocoa(ChangedLinear):
    """CoCoA whose solvers hang in an iteration, whatever is asked of them; that of n0 sends a Ctrl-C to the driver."""

    hangs_at: int = 4
    driver_pid: int = 0

    def change(self, ctx: Context, solve: Solve, model: Array, budget: Budget) -> Update:
        """The solver of CoCoA, which hangs."""
        if budget.iteration == self.hangs_at and ctx.name.startswith("n"):  # not while a task warms up
            if ctx.name == "n0":
                os.kill(self.driver_pid, signal.SIGINT)
            threading.Event().wait()
        return solve(model, budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyCocoa(ChangedLinear):
    """CoCoA whose solver raises in an iteration, in the tasks of some nodes."""

    raise_at: int = 3
    nodes: tuple[str, ...] = ("n1",)

    def change(self, ctx: Context, solve: Solve, model: Array, budget: Budget) -> Update:
        """The solver of CoCoA, with a fault."""
        if budget.iteration == self.raise_at and ctx.name in self.nodes:
            raise ZeroDivisionError("the fault of the test")
        return solve(model, budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyCocoa(ChangedLinear):
    """CoCoA whose solver takes memory until the kernel kills its task, and no other process."""

    def change(self, ctx: Context, solve: Solve, model: Array, budget: Budget) -> Update:
        """The solver of CoCoA, with a leak."""
        taken: list[bytes] = []
        Path("/proc/self/oom_score_adj").write_text("1000")
        while True:
            taken.append(os.urandom(1 << 20))


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadedCocoa(LinearTrainer):
    """CoCoA whose tasks say, by an error, how many threads their BLAS has where a trainer uses them."""

    uses_blas_threads: ClassVar[bool] = True

    def solver(self, ctx: Context) -> Solver:
        """No solver: it raises."""
        found = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
        raise RuntimeError(f"threads of BLAS: {sorted(found)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnevenCocoa(ChangedLinear):
    """CoCoA that is slow on one node."""

    slow_node: str = "n1"
    slow_s: float = 0.01

    def change(self, ctx: Context, solve: Solve, model: Array, budget: Budget) -> Update:
        """The solver of CoCoA, slowed down on that node."""
        if ctx.name == self.slow_node:
            time.sleep(self.slow_s)
        return solve(model, budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCocoa(LinearTrainer):
    """CoCoA whose tasks explain a wait in their first iteration, as if they compiled something then."""

    def solver(self, ctx: Context) -> Solver:
        """The solver of CoCoA."""
        waits.tell("compiling for the test")
        return LinearTrainer.solver(self, ctx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift(Policy):
    """Moves chunks from the first node to the second as long as the first one has more than `keep`."""

    keep: int = 2

    def decide(self, observations: Observations, /) -> Decision | None:
        """One at a time."""
        first, second, *_ = observations.num_chunks
        if observations.num_chunks[first] <= self.keep:
            return None
        return Decision(actions=MoveChunks.of({(first, second): 1}), reason=f"{first} is to keep {self.keep}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedCocoa(ChangedLinear):
    """CoCoA with a parameter of no effect, whose sum over the tasks is a figure."""

    def tunables(self, schema: DataSchema) -> Mapping[str, float]:
        """The parameter."""
        return {"echo": 1.0}

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """The parameter, too."""
        return (*LinearTrainer.metric_names(self, schema), "echo")

    def figures(self, model: Array, report: Report) -> Mapping[str, float]:
        """What the solvers have found in their budgets, on average."""
        echo = {} if report.is_certificate else {"echo": report.metrics["echo"] / report.num_tasks}
        return {**LinearTrainer.figures(self, model, report), **echo}

    def change(self, ctx: Context, solve: Solve, model: Array, budget: Budget) -> Update:
        """The solver of CoCoA."""
        update = solve(model, budget)
        return replace(update, metrics={**update.metrics, "echo": budget.parameters.get("echo", 1.0)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Double(Policy):
    """Doubles a parameter once, after some iterations."""

    parameter: str = "echo"
    after: int = 3

    def decide(self, observations: Observations, /) -> Decision | None:
        """Twice the value that it has, if that is still 1."""
        value = observations.parameters[self.parameter]
        if observations.iteration < self.after or value != 1.0:
            return None
        figures = [figures["echo"] for figures in observations.figures]
        assert figures == [1.0] * len(figures), figures
        return Decision(actions=(SetParameter(self.parameter, 2.0 * value),), reason=f"{len(figures)} iterations")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo(Policy):
    """Redraws ownership, and then lets the last node go and asks for three, while there are two."""

    def decide(self, observations: Observations, /) -> Decision | None:
        """A parameter says what has been done."""
        if len(observations.num_chunks) < 2:
            return None
        if observations.parameters["echo"] == 1.0:
            return Decision(actions=(RedrawOwnership(0.5), SetParameter("echo", 2.0)), reason="to mix")
        return Decision(actions=(ReleaseNode(max(observations.num_chunks)), RequestNodes(3)), reason="enough")


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulty(Policy):
    """Raises in an iteration, or decides nonsense, or does not answer."""

    fault: str = "raises"
    iteration: int = 2

    def decide(self, observations: Observations, /) -> Decision | None:
        """Nothing, until then."""
        if observations.iteration < self.iteration:
            return None
        if self.fault == "raises":
            raise ZeroDivisionError("no reports")
        if self.fault == "sleeps":
            time.sleep(0.5)
            return None
        return Decision(actions=MoveChunks.of({(NodeId("n7"), NodeId("n8")): 1}), reason="no reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps(Policy):
    """Asks for numbers of nodes, one after the other, as soon as there are as many as it asked for before.

    It waits for the first offer of the resource manager.
    Where there are more than it asks for, it releases the newest ones.
    """

    totals: tuple[int, ...] = (4, 3, 9)

    def decide(self, observations: Observations, /) -> Decision | None:
        """The next number."""
        nodes = len(observations.num_chunks)
        if observations.wanted != nodes or observations.available is None:
            return None
        before = self.totals.index(nodes) + 1 if nodes in self.totals else 0
        if before == len(self.totals):
            return None
        total = self.totals[before]
        newest = sorted(observations.num_chunks)[total:]
        releases = (ReleaseNode(node) for node in newest)
        return Decision(actions=(RequestNodes(total), *releases), reason=f"{observations.available} more at hand")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker(Policy):
    """Decides as often as it is told, whenever it is asked, and counts its decisions in a file.

    A second file says that it was asked again after the last one: then its decisions have left its thread.
    """

    title: str
    wish: str  # what each decision wants
    folder: str
    most: int
    pause_s: float = 0.0  # how long it thinks

    @property
    def name(self) -> str:
        """Given by the test."""
        return self.title

    def decide(self, observations: Observations, /) -> Decision | None:
        """The next one."""
        path = Path(self.folder) / self.title
        number = path.stat().st_size if path.exists() else 0
        if number == self.most:
            path.with_suffix(".done").touch()
            return None
        time.sleep(self.pause_s)
        with path.open("ab") as file:
            file.write(b"x")
        counts = observations.num_chunks
        poor, rich = min(counts, key=lambda node: counts[node]), max(counts, key=lambda node: counts[node])
        wishes: dict[str, PolicyAction] = {
            "move": MoveChunks(rich if poor != rich else max(counts), poor, 1),
            "redraw": RedrawOwnership(0.1),
            "same": SetParameter("echo", 1.0),
            "new": SetParameter("echo", 2.0 + number),
            "nodes": RequestNodes(len(counts)),
            "message": SendMessage("*", number),
            "memory": Remember((observations.memory or 0) + 1),
        }
        return Decision(actions=(wishes[self.wish],), reason=f"number {number}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter(Policy):
    """Counts in its memory how often it was asked to some iteration on, and sets a parameter to it."""

    def decide(self, observations: Observations, /) -> Decision | None:
        """One more, at every fifth iteration."""
        if observations.iteration % 5:
            return None
        count = (observations.memory or 0) + 1
        return Decision(actions=(Remember(count), SetParameter("echo", float(count))), reason=f"asked {count} times")
