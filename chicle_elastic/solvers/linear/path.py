"""Several fits over the same rows, one after the other in one job: the candidates and folds of a search.

Each is a *stage*: a `LinearTrainer` or `MultinomialTrainer` with parameters and rows of its own (`class_weights` of
target codes leave rows out). Its trainer decides when to certify, and when to stop. Then its model and gap go into the
progress (`certified`), and the next one begins; chunks stay where they are.

A stage that differs from the last one in a larger C alone goes on from its duals, which are feasible, and their w, and
solvers keep their tables, rows and second derivatives (DeCoste and Wagstaff 2000, "Alpha seeding for support vector
machines"; Chu et al. 2015, "Warm start for parameter selection of linear classifiers"). Any other begins *afresh*: w is
0 and so are the duals, which solvers write in its first iteration. So does a stage after one of the hinge that ended
with another w than that of its duals, for coordinate descent could not go on from there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers.base import (
    NO_PROGRESS,
    Action,
    Budget,
    Context,
    Report,
    Solver,
    Summed,
    Trainer,
    Update,
    Verdict,
)
from chicle_elastic.solvers.linear.newton.state import NewtonState
from chicle_elastic.solvers.linear.newton.trainer import MultinomialTrainer
from chicle_elastic.solvers.linear.objectives import SLIGHT
from chicle_elastic.solvers.linear.progress import ProgressState, nothing
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.local_chunk import LocalChunk

Stage: TypeAlias = LinearTrainer | MultinomialTrainer
STAGE = "stage"  # name of the figure that says which stage an iteration is of


@dataclass(slots=True, kw_only=True)
class StageResult(ProgressState):
    """A stage that is over."""

    iterations: int  # how many it took
    gap: float  # relative duality gap, certified
    model: Array  # ndarray of shape (num_parameters,)


@dataclass(slots=True, kw_only=True)
class PathState(ProgressState):
    """Progress of a path."""

    stage: int = 0  # number of the present stage, from 0
    began: int = 0  # Iterations before this stage
    is_first: bool = True  # no iteration of this stage has been merged yet
    is_fresh: bool = False  # It begins afresh
    inner: Array = field(default_factory=nothing)  # progress of the trainer of the stage, a state or its vector
    results: list[StageResult] = field(default_factory=list)  # of each stage that is over

    @classmethod
    def of(cls, progress: Array) -> "PathState":
        """Return the state of a progress, for reading, and the first one where there is none yet."""
        return cls.look(progress) if cls.is_of(progress) else cls()


def results_of(progress: Array) -> list[StageResult]:
    """What a path has found before the present stage, from its progress as its last certificate has it."""
    return list(PathState.of(progress).results)


@dataclass(frozen=True, slots=True, kw_only=True)
class PathTrainer(Trainer):
    """See the module; all stages have the same number of outputs, and each its most iterations."""

    stages: tuple[Stage, ...]
    max_iterations: tuple[int, ...]
    uses_blas_threads: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.stages or len(self.max_iterations) != len(self.stages) or min(self.max_iterations) < 1:
            raise UsageError(
                f"a path needs at least one stage and max_iterations >= 1 for each, got {len(self.stages)} stages and "
                f"max_iterations={self.max_iterations}"
            )

    def can_go_on(self, stage: int) -> bool:
        """Whether a stage can begin where the one before it ended."""
        before, this = self.stages[stage - 1], self.stages[stage]
        return this.C >= before.C and replace(this, C=before.C) == before

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """As a stage."""
        return self.stages[0].init(schema, rng)

    def state(self, schema: DataSchema) -> StateSpec:
        """As a stage."""
        return self.stages[0].state(schema)

    def identity(self) -> Mapping[str, Any]:
        """That of all stages, in order."""
        return {"trainer": "path", "stages": [stage.identity() for stage in self.stages]}

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """As a stage."""
        return self.stages[0].metric_names(schema)

    def solver(self, ctx: Context) -> Solver:
        """The local solver of one task."""
        return PathSolver(ctx, self)

    def _now(self, progress: Array) -> tuple[Stage, PathState]:
        """Return the trainer of the present stage, and the state."""
        state = PathState.of(progress)
        return self.stages[state.stage], state

    def begin(self, schema: DataSchema, model: Array, progress: Any, num_tasks: int) -> Any:
        """As the present stage."""
        trainer, state = self._now(progress)
        inner = trainer.begin(schema, model, state.inner, num_tasks)
        return progress if inner is state.inner else replace(state, inner=inner)

    def method(self, schema: DataSchema, num_tasks: int) -> str:
        """Of the first stage."""
        return self.stages[0].method(schema, num_tasks)

    def may_be_cut(self, progress: Array) -> bool:
        """Never: a stage begins with a whole iteration."""
        return False

    def reads_all(self, progress: Array) -> bool:
        """As the present stage."""
        trainer, state = self._now(progress)
        return trainer.reads_all(state.inner)

    def update_size(self, model: Array, progress: Array) -> int:
        """As the present stage."""
        trainer, state = self._now(progress)
        return trainer.update_size(model, state.inner)

    def advance(self, model: Array, progress: Any, summed: Summed) -> tuple[Array, Any]:
        """As the present stage."""
        trainer, state = self._now(progress)
        model, inner = trainer.advance(model, state.inner, summed)
        return model, replace(state, inner=inner, is_first=False)

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """As a stage."""
        return self.stages[0].merge(model, weighted_sum, total_weight)

    def rebuild(self, model: Array, contribution: Array, progress: Array) -> Array:
        """As the present stage; at its beginning 0 where solvers write duals of 0 next."""
        trainer, state = self._now(progress)
        if state.is_first and state.is_fresh:
            return np.zeros_like(model)
        return trainer.rebuild(model, contribution, state.inner)

    def settled(self, model: Array, progress: Array, contribution: Array, num_tasks: int) -> Array | None:
        """As the present stage."""
        trainer, state = self._now(progress)
        return trainer.settled(model, state.inner, contribution, num_tasks)

    def verdict(self, model: Array, report: Report) -> Verdict:
        """As the present stage; only the certificate of the last one ends the job."""
        trainer, report, stage = self._stage_report(model, report)
        verdict = trainer.verdict(model, report)
        if verdict.action is not Action.STOP or (report.is_complete and stage + 1 == len(self.stages)):
            return verdict
        return Verdict(action=Action.GO_ON, reason=verdict.reason)

    def certified(self, model: Array, progress: Any, report: Report) -> tuple[Array, Any]:
        """Go over to the next stage, if the certificate ends this one."""
        trainer, relative, stage = self._stage_report(model, report)
        is_over = relative.is_complete and trainer.verdict(model, relative).action is Action.STOP
        if not is_over or stage + 1 == len(self.stages):
            return model, progress
        state = PathState.of(progress)
        gap = trainer.relative_gap(model, relative)
        found = StageResult(iterations=relative.iteration, gap=gap, model=model.copy())
        rebuilt = model if report.rebuilt is None else report.rebuilt
        start = _start(trainer, model, rebuilt, state.inner)
        if isinstance(trainer, MultinomialTrainer) and stage and self.can_go_on(stage) and self.can_go_on(stage + 1):
            start = self._foreseen(stage, model, state.results[-1].model)
        following = PathState(
            stage=stage + 1,
            began=report.iteration,
            is_fresh=start is None or not self.can_go_on(stage + 1),
            results=[*state.results, found],
            inner=NO_PROGRESS,
        )
        return np.zeros_like(model) if start is None or following.is_fresh else start.copy(), following

    def _foreseen(self, stage: int, model: Array, before: Array) -> Array:
        """Go on as from the stage before, and no farther: weights are about linear in log C.

        On rows like embeddings the objective is 3 to 20 times closer to the best one there than at `model`.
        """
        past, this, following = (math.log(self.stages[number].C) for number in range(stage - 1, stage + 2))
        return model + min((following - this) / (this - past), 1.0) * (model - before) if this > past else model

    def relative_gap(self, model: Array, report: Report) -> float:
        """As the present stage."""
        trainer, report, _ = self._stage_report(model, report)
        return trainer.relative_gap(model, report)

    def figures(self, model: Array, report: Report) -> Mapping[str, float]:
        """As the present stage, and its number as "stage"."""
        trainer, report, stage = self._stage_report(model, report)
        return {STAGE: float(stage), **trainer.figures(model, report)}

    def _stage_report(self, model: Array, report: Report) -> tuple[Stage, Report, int]:
        """Return the trainer of the present stage, its report, and the number of the stage."""
        state = PathState.of(report.progress)
        is_own = report.last_certificate > state.began
        relative = replace(
            report,
            iteration=report.iteration - state.began,
            max_iterations=self.max_iterations[state.stage],
            last_certificate=report.last_certificate - state.began if is_own else 0,
            last_figures=report.last_figures if is_own else {},
            progress=state.inner,
        )
        return self.stages[state.stage], relative, state.stage


def _start(trainer: Stage, model: Array, rebuilt: Array, progress: Array) -> Array | None:
    """Find where the next stage goes on after one that ended with `model` and w(alpha) `rebuilt`; None for nowhere.

    A softmax and Newton's method go on from any w. Coordinate descent needs that of the duals; where second derivatives
    do not fit into a message, it may be the method of the next stage.
    """
    if isinstance(trainer, MultinomialTrainer):
        return model
    if NewtonState.is_of(progress):
        return model if NewtonState.look(progress).has_all_columns and trainer.loss != "hinge" else rebuilt
    return rebuilt if float(np.abs(rebuilt - model).max()) <= SLIGHT * float(np.abs(model).max()) else None


class PathSolver(Solver):
    """The solver of the present stage, with the chunks of the task."""

    def __init__(self, ctx: Context, trainer: PathTrainer) -> None:
        super().__init__(ctx)
        self._trainer = trainer
        self._stage = 0
        self._inner = self._solver_of(0)

    def _solver_of(self, stage: int) -> Any:
        return self._trainer.stages[stage].solver(self.ctx)

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """As the solver of the stage."""
        super().attach(added, removed)
        self._inner.attach(added, removed)

    def solve(self, model: Array, budget: Budget) -> Update:
        """As the solver of the stage."""
        state = PathState.of(budget.progress)
        self._go_to(state)
        return self._inner.solve(model, replace(budget, progress=state.inner))

    def recover(self, model: Array) -> Array:
        """As the solver of any stage: w of the duals, whatever their bounds."""
        return self._inner.recover(model)

    def evaluate(self, model: Array, progress: Array) -> Update:
        """As the solver of the stage."""
        state = PathState.of(progress)
        self._go_to(state)
        return self._inner.evaluate(model, state.inner)

    def close(self) -> None:
        """As the solver of the stage."""
        self._inner.close()

    def _go_to(self, state: PathState) -> None:
        """Have the solver of this stage; called inside an iteration."""
        is_fresh = state.is_first and state.is_fresh
        if state.stage == self._stage and not is_fresh:
            return
        if state.stage == self._stage + 1 and not state.is_fresh:
            self._inner.raise_bounds(self._trainer.stages[state.stage].C)
        else:
            self._inner.close()
            self._inner = self._solver_of(state.stage)
            if is_fresh:
                for chunk in self.chunks.values():
                    chunk.peek().state[...] = 0.0
            self._inner.attach(list(self.chunks.values()), ())
        self._stage = state.stage
