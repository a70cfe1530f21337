"""Does a solver keep the contract of chunks? A check for the algorithms of Chicle and for a user's own.

It plays scheduler for a few iterations. At every boundary each chunk moves to new memory, as after a journey between
nodes, and its old memory is poisoned: a solver that kept a view instead of asking again reads NaN or leaves a trace.
"""

import dataclasses
import zlib
from collections.abc import Sequence

import numpy as np

from chicle_elastic.chunks.views import Array, Chunk, CsrRows, DataSchema
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.errors import ContractError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.training.uni_task import LocalContext, Mailboxes, UniTask
from chicle_elastic.solvers.base import NO_PROGRESS, Budget, StopFlag, Summed, Trainer

POISON_BYTE = 0xFF  # NaN as float32 and float64, -1 as an integer


def check_solver_contract(
    trainer: Trainer, schema: DataSchema, chunks: Sequence[Chunk], *, num_tasks: int = 2, num_iterations: int = 4
) -> Array:
    """Run `trainer` over `chunks`, moving them at every boundary.

    Args:
        trainer: Gives the solvers under test.
        schema: Of the chunks.
        chunks: At least `num_tasks`; they are copied.
        num_tasks: Tasks between which the chunks rotate.
        num_iterations: Iterations to run.

    Returns:
        The model after the last iteration.

    Raises:
        ContractError: It names the task, the chunk and the iteration.
    """
    mailboxes = Mailboxes()
    rng = np.random.default_rng(0)
    model, progress = trainer.init(schema, rng), NO_PROGRESS
    clock = MonotonicClock()
    tasks = []
    for k in range(num_tasks):
        mailboxes.add(f"task-{k}")
        context = LocalContext(f"task-{k}", [0, k], mailboxes)
        tasks.append(UniTask(NodeId(context.name), trainer, context, clock, schema))
    owners: dict[ChunkId, int] = {}
    current = {chunk.id: _moved(chunk) for chunk in chunks}
    try:
        for iteration in range(1, num_iterations + 1):
            graveyard = _rotate(tasks, owners, current, iteration)
            immutable = {chunk_id: _crc(chunk) for chunk_id, chunk in current.items()}
            progress = trainer.begin(schema, model, progress, trainer.parallelism(num_tasks))
            weighted_sum, total_weight = np.zeros(trainer.update_size(model, progress)), 0.0
            metrics: dict[str, float] = {}
            for rank, task in enumerate(tasks):
                budget = Budget(
                    clock=clock,
                    num_tasks=trainer.parallelism(num_tasks),
                    iteration=iteration,
                    progress=progress,
                    rank=rank,
                    num_ranks=num_tasks,
                )
                update, _ = task.solve(model, budget)
                _require_finite(update.delta, task.node, iteration)
                weighted_sum += update.weight * update.delta
                total_weight += update.weight
                for name, value in update.metrics.items():
                    metrics[name] = metrics.get(name, 0.0) + value
            for chunk_id, chunk in current.items():
                if _crc(chunk) != immutable[chunk_id]:
                    raise ContractError(
                        f"a solver changed the rows, targets or weights of chunk {chunk_id} in iteration {iteration}; "
                        "only its state may be written"
                    )
            _require_poisoned(graveyard, iteration)
            if total_weight > 0:
                summed = Summed(delta=weighted_sum, weight=total_weight, metrics=metrics, num_tasks=num_tasks)
                model, progress = trainer.advance(model, progress, summed)
        progress = trainer.begin(schema, model, progress, 1)
        _check_interruption(tasks[0], model, progress, num_iterations + 1)
    finally:
        for task in tasks:
            task.close()
    return model


def _rotate(
    tasks: list[UniTask], owners: dict[ChunkId, int], current: dict[ChunkId, Chunk], iteration: int
) -> dict[ChunkId, Chunk]:
    """Give every chunk new memory and the next task; poison what it leaves behind."""
    graveyard: dict[ChunkId, Chunk] = {}
    added: list[list[ChunkId]] = [[] for _ in tasks]
    removed: list[list[ChunkId]] = [[] for _ in tasks]
    for position, (chunk_id, old) in enumerate(list(current.items())):
        target = (position + iteration) % len(tasks)
        new = _moved(old)
        if chunk_id in owners:
            source = owners[chunk_id]
            tasks[source].free(chunk_id)
            removed[source].append(chunk_id)
        tasks[target].hold(new)
        added[target].append(chunk_id)
        owners[chunk_id] = target
        current[chunk_id] = new
        for array in _arrays(old):
            array.view(np.uint8)[...] = POISON_BYTE
        graveyard[chunk_id] = old
    for task, task_added, task_removed in zip(tasks, added, removed, strict=True):
        task.attach(task_added, task_removed)
    return graveyard


def _check_interruption(task: UniTask, model: Array, progress: Array, iteration: int) -> None:
    """A solver that is asked to stop before it begins must return a valid, partial update."""
    stop = StopFlag()
    stop.set()
    budget = Budget(clock=MonotonicClock(), num_tasks=1, iteration=iteration, stop=stop, progress=progress)
    update, _ = task.solve(model, budget)
    _require_finite(update.delta, task.node, iteration)
    if task.num_chunks and not update.is_partial:
        raise ContractError(
            f"the solver of task {task.node!r} was asked to stop before iteration {iteration} and returned a full "
            "update; look at budget.is_spent() between chunks and return Update(is_partial=True)"
        )


def _require_finite(delta: Array, node: str, iteration: int) -> None:
    if not np.isfinite(delta).all():
        raise ContractError(
            f"the solver of task {node!r} returned a delta with NaN or infinity in iteration {iteration}; perhaps it "
            "read memory of a chunk that has moved: ask chunk.read() again in every iteration"
        )


def _require_poisoned(graveyard: dict[ChunkId, Chunk], iteration: int) -> None:
    for chunk_id, chunk in graveyard.items():
        if any((array.view(np.uint8) != POISON_BYTE).any() for array in _arrays(chunk)):
            raise ContractError(
                f"a solver wrote into the old memory of chunk {chunk_id} in iteration {iteration}, after the chunk "
                "had moved: it kept a view over the boundary"
            )


def _moved(chunk: Chunk) -> Chunk:
    rows = chunk.rows
    new_rows = (
        CsrRows(rows.indptr.copy(), rows.indices.copy(), rows.values.copy(), rows.num_features)
        if isinstance(rows, CsrRows)
        else rows.copy()
    )
    return dataclasses.replace(
        chunk,
        rows=new_rows,
        targets=chunk.targets.copy(),
        weights=None if chunk.weights is None else chunk.weights.copy(),
        row_ids=chunk.row_ids.copy(),
        state=chunk.state.copy(),
    )


def _arrays(chunk: Chunk) -> list[Array]:
    """Every array whose poisoning a solver can notice.

    The index arrays of CSR rows stay as they are: following poisoned indices would crash, not report.
    """
    rows = [chunk.rows.values] if isinstance(chunk.rows, CsrRows) else [chunk.rows]
    return [*rows, chunk.targets, chunk.state, *([] if chunk.weights is None else [chunk.weights])]


def _crc(chunk: Chunk) -> int:
    crc = zlib.crc32(chunk.targets.tobytes())
    rows = chunk.rows
    parts = [rows.indptr, rows.indices, rows.values] if isinstance(rows, CsrRows) else [rows]
    for part in [*parts, chunk.row_ids, *([] if chunk.weights is None else [chunk.weights])]:
        crc = zlib.crc32(part.tobytes(), crc)
    return crc
