"""The local solver of local SGD: takes its share of the iteration's samples, and lets an engine step over them.

The share. All tasks together use B = K x L x H samples; a task with n_k of the n samples takes B n_k / n, in whole
samples, and carries the rest of the division on to the next iteration. So it is never more than one sample off, it may
take none in an iteration, and all tasks come to the end of the epoch together.

What it tells. `delta` is the change of weights, buffers and momentum, and the weight is the samples used. In the place
of the model lie figures that are to be summed, each divided by the weight that it will be multiplied with: the samples
used, their loss, and (where the number of the epoch would be) the samples that are left. Two are the same for all
tasks and not divided, so that their weighted mean is what each has told: iterations since the last merged one, and how
many tasks there are.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers import model_vector
from chicle_elastic.solvers.base import Budget, Context, Solver, Update
from chicle_elastic.solvers.epoch_order import EpochOrder, forget
from chicle_elastic.solvers.local_chunk import LocalChunk, RowBlock
from chicle_elastic.solvers.model_vector import Place
from chicle_elastic.solvers.network import GatheredSamples, columns_for

if TYPE_CHECKING:
    from chicle_elastic.solvers.engines.eager import EagerEngine


class LocalSGDSolver(Solver):
    """One per uni-task.

    Args:
        ctx: Of the task.
        trainer: A `LocalSGDTrainer`, which imports this file.
    """

    def __init__(self, ctx: Context, trainer: Any) -> None:
        super().__init__(ctx)
        self._trainer = trainer
        self._engine: EagerEngine | None = None
        self._order = EpochOrder(trainer.seed)
        self._built_for: tuple[int, int] | None = None
        self._epoch = 0
        self._carry = 0
        self._rows: Array = np.empty((0, 0))
        self._columns: Any = slice(None)
        self._codes: Array = np.empty(0, dtype=np.int64)
        self._weights: Array = np.empty(0, dtype=np.float32)
        self._class_weights = None if trainer.class_weights is None else np.array(trainer.class_weights)

    def attach(self, added: Sequence[LocalChunk], removed: Sequence[ChunkId]) -> None:
        """The order of the samples is found again in the next iteration, when chunks may be read."""
        super().attach(added, removed)
        self._built_for = None

    def solve(self, model: Array, budget: Budget) -> Update:
        """This task's share of the iteration's samples, in steps of L; fewer where the epoch ends or the budget."""
        if not self.chunks:
            return Update(delta=np.zeros_like(model), samples=0, weight=0.0)
        place = Place.of(model[-model_vector.PLACE :])
        self._find_order(place)
        positions, rows = self._order.next(self._share(budget, place))
        done, loss = 0, 0.0
        has_stepped = len(rows) > 0 and not budget.is_spent()
        if has_stepped:
            done, loss = self._steps(model, positions, rows, budget, place)
            self._order.num_used += done
        self._built_for = (place.epoch, budget.iteration)
        unused = self._order.num_left
        weight = float(max(done, 1))
        told = np.zeros(model_vector.PLACE, dtype=model.dtype)
        told[model_vector.MERGED] = budget.iteration - place.merged
        told[model_vector.TASKS] = budget.num_tasks
        told[model_vector.EPOCH] = unused / weight
        told[model_vector.SAMPLES] = done / weight
        told[model_vector.LOSS] = loss / weight
        return Update(
            delta=self._change(model, told, budget) if has_stepped else _unchanged(model, told),
            samples=done,
            weight=weight,
            metrics={"loss": loss, "unused": float(unused)},
            is_partial=done < self._num_rows,
        )

    def recover(self, model: Array) -> Array:
        """Forget what was marked in iterations that were never merged; the model is kept as it is."""
        place = Place.of(model[-model_vector.PLACE :])
        for chunk in self.chunks.values():
            forget(chunk.peek().state, place.merged)
        self._built_for = None
        return np.zeros_like(model)

    @property
    def _num_rows(self) -> int:
        return sum(chunk.num_rows for chunk in self.chunks.values())

    def _find_order(self, place: Place) -> None:
        """Look for unused samples anew, unless what is known of them still holds."""
        if self._epoch != place.epoch:
            self._epoch, self._carry = place.epoch, 0
        if self._built_for != (place.epoch, place.merged):
            self._order.build(self.chunks, place)

    def _share(self, budget: Budget, place: Place) -> int:
        """Samples to take in this iteration."""
        if budget.samples is not None:
            return budget.samples
        trainer = self._trainer
        samples = budget.num_tasks * trainer.batch_size * trainer.steps(budget.parameters)
        whole = samples * self._num_rows + self._carry
        share, self._carry = divmod(whole, place.num_rows)
        return share

    def _steps(self, model: Array, positions: Array, rows: Array, budget: Budget, place: Place) -> tuple[int, float]:
        """Steps over these samples; returns how many were used, and their loss."""
        trainer = self._trainer
        engine = self._engine = self._engine or trainer.engine()
        blocks = {position: self.chunks[self._order.chunks[position]].peek() for position in set(positions.tolist())}
        samples = self._gather(blocks, positions, rows)
        layout = trainer.layout(engine.layout)
        engine.load(layout.w(model), layout.buffers(model), layout.v(model), for_change=budget.on_device)
        done, loss = engine.run(
            samples,
            batch_size=trainer.batch_size,
            lr=trainer.scaled_rate(budget.num_tasks, place.progress(trainer.max_epochs), budget.parameters),
            momentum=trainer.momentum,
            seed=hash((trainer.seed, budget.iteration, self._order.chunks[0])) & 0x7FFFFFFF,
            is_spent=budget.is_spent,
        )
        for position, row in zip(positions[:done].tolist(), rows[:done].tolist(), strict=True):
            blocks[position].state[row] = budget.iteration
        counts = np.bincount(positions[:done], minlength=len(self._order.chunks))
        for position in np.flatnonzero(counts).tolist():
            self.chunks[self._order.chunks[position]].count(int(counts[position]))
        return done, loss

    def _change(self, model: Array, told: Array, budget: Budget) -> Any:
        """What the steps have changed, on the engine's device where that is wanted, and what is told."""
        engine = self._engine
        assert engine is not None
        if budget.on_device:
            return engine.change(told, len(model))
        delta, layout = _unchanged(model, told), self._trainer.layout(engine.layout)
        engine.store(layout.w(delta), layout.buffers(delta), layout.v(delta))
        delta[: layout.num_averaged] -= model[: layout.num_averaged]
        return delta

    def _gather(self, blocks: dict[int, RowBlock], positions: Array, rows: Array) -> GatheredSamples:
        """Copies of these samples, in memory that is used again in the next iteration."""
        count, first = len(rows), next(iter(blocks.values()))
        dense = [(block, np.asarray(block.rows)) for block in blocks.values()]
        num_features = dense[0][1].shape[1]
        is_byte = dense[0][1].dtype == np.uint8
        if len(self._rows) < count:
            network = self._trainer.network
            num_values, padding = int(np.prod(network.input_shape)), network.scaling_of(is_byte=is_byte).padding
            self._columns = columns_for(num_features, network.input_shape)
            self._rows = np.full((count, num_values), padding, dtype=np.uint8 if is_byte else np.float32)
            self._codes = np.empty(count, dtype=np.int64)
            self._weights = np.empty(count, dtype=np.float32)
        sources = {position: (values, block) for position, (block, values) in zip(blocks, dense, strict=True)}
        has_weights = first.weights is not None
        for target, (position, row) in enumerate(zip(positions.tolist(), rows.tolist(), strict=True)):
            values, block = sources[position]
            self._rows[target, self._columns] = values[row]
            self._codes[target] = block.targets[row]
            if block.weights is not None:
                self._weights[target] = block.weights[row]
        weights = self._weights[:count] if has_weights else None
        if self._class_weights is not None:
            factors = self._class_weights[self._codes[:count]].astype(np.float32)
            weights = factors if weights is None else weights * factors
        if weights is not None:
            weights = weights / np.float32(self._trainer.mean_weight)
        return GatheredSamples(rows=self._rows[:count], codes=self._codes[:count], weights=weights)


def _unchanged(model: Array, told: Array) -> Array:
    """No change of the model, and what is told."""
    delta = np.zeros_like(model)
    delta[-model_vector.PLACE :] = told
    return delta
