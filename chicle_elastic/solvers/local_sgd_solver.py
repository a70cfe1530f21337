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

import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.ids import ChunkId
from chicle_elastic.solvers import model_vector
from chicle_elastic.solvers.base import Budget, Context, Solver, Update
from chicle_elastic.solvers.epoch_order import EpochOrder, forget
from chicle_elastic.solvers.local_chunk import LocalChunk
from chicle_elastic.solvers.model_vector import Place
from chicle_elastic.solvers.network import GatheredSamples, padded

if TYPE_CHECKING:
    from chicle_elastic.solvers.engines.eager import EagerEngine


MOST_NAMED = 8
"""Samples of a step whose loss is no number that are named."""
_log = logging.getLogger("chicle_elastic")
AHEAD_VALUES = 1 << 20
"""Values of samples that are copied out of their chunks at a time at most, for as many iterations ahead as that is. So
a chunk gives several samples at a time, and one that lies in a file is read in few places. They stay in the cache."""


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
        self._ahead: GatheredSamples | None = None
        self._first_ahead, self._num_ahead = 0, 1
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
        bad_step = self._engine.bad_step if has_stepped and self._engine is not None else 0
        self._built_for = (place.epoch, budget.iteration)
        unused = self._order.num_left + (not budget.is_complete)  # a missing chunk may have some
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
            metrics={"loss": loss, "unused": float(unused), "bad_step": float(bad_step)},
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
            self._ahead, self._num_ahead = None, 1  # and twice as many iterations each time, while no chunk moves

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
        """Take steps over these samples; return how many were used, and their loss."""
        trainer = self._trainer
        engine = self._engine = self._engine or trainer.engine()
        samples = self._gather(len(rows))
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
        for chunk, places in self._by_chunk(positions[:done]):
            chunk.peek().state[rows[places], 0, 0] = budget.iteration
            chunk.count(len(places))
        if engine.bad_step:
            bad = slice((engine.bad_step - 1) * trainer.batch_size, engine.bad_step * trainer.batch_size)
            named = self._by_chunk(positions[bad])
            ids = np.concatenate([np.asarray(chunk.peek().row_ids)[rows[bad][places]] for chunk, places in named])
            _log.warning(
                "%s: the loss is not a finite number in step %d of iteration %d (epoch %d), of the samples %s",
                *(self.ctx.name, engine.bad_step, budget.iteration, place.epoch),
                ", ".join(map(str, np.sort(ids)[:MOST_NAMED].tolist())),
            )
        return done, loss

    def _by_chunk(self, positions: Array) -> Iterator[tuple[LocalChunk, Array]]:
        """Yield each chunk of some positions, and where it is among them."""
        order = np.argsort(positions, kind="stable")
        ends = np.flatnonzero(np.diff(positions[order], append=-1)) + 1
        for start, stop in itertools.pairwise((0, *ends.tolist())):
            yield self.chunks[self._order.chunks[positions[order[start]]]], order[start:stop]

    def _change(self, model: Array, told: Array, budget: Budget) -> Any:
        """What the steps have changed, on the engine's device where that is wanted, and what is told."""
        engine = self._engine
        assert engine is not None
        if budget.on_device:
            return engine.change(told, len(model))
        delta, layout = np.empty_like(model), self._trainer.layout(engine.layout)
        for part, of in zip(engine.parts(), (layout.w, layout.buffers, layout.v), strict=True):
            np.subtract(part, of(model), out=of(delta))
        delta[layout.num_averaged : -model_vector.PLACE] = 0.0
        delta[-model_vector.PLACE :] = told
        return delta

    def _gather(self, count: int) -> GatheredSamples:
        """Return the next samples, from those that were copied ahead; copy more where they are used up."""
        used = self._order.num_used
        if self._ahead is None or used + count > self._first_ahead + len(self._ahead.targets):
            most = AHEAD_VALUES // (count * math.prod(self._trainer.network.input_shape))
            # A task takes a sample more in some iterations.
            self._ahead, self._first_ahead = self._copies(min(self._num_ahead, max(most, 1)) * (count + 1)), used
            self._num_ahead *= 2
        ahead, span = self._ahead, slice(used - self._first_ahead, used - self._first_ahead + count)
        weights = None if ahead.weights is None else ahead.weights[span]
        return GatheredSamples(rows=ahead.rows[span], targets=ahead.targets[span], weights=weights)

    def _copies(self, most: int) -> GatheredSamples:
        """Return copies of the next samples, as the network takes them."""
        network, (positions, rows) = self._trainer.network, self._order.next(most)
        first = next(iter(self.chunks.values())).peek()
        dtype, num_features = np.asarray(first.rows).dtype, np.asarray(first.rows).shape[1]
        found = np.empty((len(rows), num_features), dtype=np.uint8 if dtype == np.uint8 else np.float32)
        targets = np.empty(len(rows), dtype=np.int64 if network.target_shape is None else np.float32)
        weights = None if first.weights is None else np.empty(len(rows), dtype=np.float32)
        for chunk, places in self._by_chunk(positions):
            block, chosen = chunk.peek(), rows[places]
            found[places], targets[places] = np.asarray(block.rows)[chosen], block.targets[chosen]
            if weights is not None:
                weights[places] = block.weights[chosen]  # type: ignore[index]  # all chunks have some
        num_behind = network.target_columns(found.dtype)
        if num_behind:
            behind = np.ascontiguousarray(found[:, num_features - num_behind :])
            found, targets = found[:, : num_features - num_behind], behind.view(np.float32)
        if self._class_weights is not None:
            factors = self._class_weights[targets].astype(np.float32)
            weights = factors if weights is None else weights * factors
        if weights is not None:
            weights = weights / np.float32(self._trainer.mean_weight)
        padding = network.scaling_of(is_byte=found.dtype == np.uint8).padding
        return GatheredSamples(rows=padded(found, network.input_shape, padding), targets=targets, weights=weights)


def _unchanged(model: Array, told: Array) -> Array:
    """No change of the model, and what is told."""
    delta = np.zeros_like(model)
    delta[-model_vector.PLACE :] = told
    return delta
