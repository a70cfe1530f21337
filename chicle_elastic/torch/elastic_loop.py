"""The loop that a training script writes: batches out, steps in. A thin shell around `schedule`.

Theory of operation. The body of the user's `for` is one attempt at a step. The loop seeds the generators of random
numbers from (seed, position, rank), hands out this member's samples, and `step` adds up with the other members:

    rows        one small sum: who calls what, samples, losses, votes                  (`schedule.Row`, `mismatch_of`)
    gradients   one sum, weighted by samples                                           (`sums`)
    commit      the sum of all members is here: optimizer, scheduler, position move on

Up to the sum nothing is changed that a step depends on, but for buffers of the module, which are put back when the sum
does not come. After it nothing can fail but this process. So a step counts for the job if a member that stays has its
sum; else all members that stay do it again, from the same position, with the same random numbers.

A process that an agent has started rehearses one step before it says that it may join: libraries, kernels and memory
are warm then, and a fault of the script shows where no other node waits for it.
"""

import contextlib
import dataclasses
import functools
import logging
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from chicle_elastic.chunks.views import Array
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.errors import JobFailedError, PeerLostError, UsageError
from chicle_elastic.settings import Settings
from chicle_elastic.torch.batches import Batch, Samples
from chicle_elastic.torch.checks import check_methods, digest_of, inner_module
from chicle_elastic.torch.schedule import Call, Plan, Position, Row, failed_of, mismatch_of
from chicle_elastic.torch.seat import ClusterSeat, Seat
from chicle_elastic.torch.state import TrainingState, parameters_of
from chicle_elastic.torch.sums import StepSum

logger = logging.getLogger(__name__)


class Loop:
    """Trains a model on nodes that may come and go. A context manager. One class because a step, from its batch to its
    commit, is one sequence.

    Args:
        model: Trained in place. Every node builds the same one; the values of the first node win.
        optimizer: Of parameters of the model.
        dataset: Map-style data set, tensor or array, tuple of them, or a chunk folder; the same on every node.
        batch_size: Samples of a step of all nodes together, cut over them.
        batch_size_per_node: Samples of each node, in place of `batch_size`. More nodes make larger steps, and the
            learning rate is multiplied by `rate_of_nodes`.
        seed: Of the order of the samples, and of all random numbers in the body.
        shuffle: Whether each epoch has an order of its own; else that of the data.
        collate: Makes a batch of samples of a map-style data set.
        scheduler: Of the learning rate; the loop steps it after each "epoch" or "step" (`scheduler_every`).
        scaler: A gradient scaler, for float16.
        max_grad_norm: To which gradients are clipped.
        reduction: "mean" or "sum": how the loss reduces the samples of a batch.
        rate_of_nodes: Factor of the learning rate by the number of nodes; by default the number itself.
        local_steps: Steps that each node takes alone between two averages.
        outer_rate: Of the step that is made of an average.
        outer_momentum: Nesterov's momentum of that step. "auto" is 1 - 1 / sqrt(nodes) for optimizers of Adam's kind,
            and 0 for others, whose average is taken as it is.

    Raises:
        UsageError: The options cannot work, the optimizer has parameters that the model has not, or the data set has no
            samples by number.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Any,
        *,
        batch_size: int | None = None,
        batch_size_per_node: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        collate: Callable[[list[Any]], Any] | None = None,
        scheduler: Any = None,
        scheduler_every: str = "epoch",
        scaler: Any = None,
        max_grad_norm: float | None = None,
        reduction: str = "mean",
        rate_of_nodes: Callable[[int], float] = float,
        local_steps: int = 1,
        outer_rate: float = 1.0,
        outer_momentum: float | Literal["auto"] = "auto",
    ) -> None:
        settings, clock = Settings.from_environment(), MonotonicClock()
        address, most = settings.control, settings.max_nodes
        self._seat = Seat() if address is None else ClusterSeat(address, clock, max_nodes=most)
        size, is_local = batch_size or batch_size_per_node, local_steps > 1
        with self._leaving_on_error():
            if (batch_size is None) == (batch_size_per_node is None) or not size or size < 1:
                raise UsageError("give batch_size, of all nodes together, or batch_size_per_node; at least 1")
            if scheduler_every not in ("epoch", "step") or reduction not in ("mean", "sum") or local_steps < 1:
                raise UsageError(
                    f"scheduler_every={scheduler_every!r} is 'epoch' or 'step', reduction={reduction!r} 'mean' or "
                    f"'sum', and local_steps={local_steps} at least 1"
                )
            if is_local and scaler is not None:
                raise UsageError("a gradient scaler works with local_steps=1 only, as its scale differs between nodes")
            self._model, self._optimizer = inner_module(model), optimizer
            check_methods(self._model, optimizer, scheduler)
            self._samples = Samples(dataset, collate)
            if not len(self._samples):
                raise UsageError("the data set has no samples")
        self._plan = Plan(
            num_samples=len(self._samples),
            num_epochs=0,
            batch_size=size,
            is_per_node=batch_size is None,
            local_steps=local_steps,
            seed=seed,
            is_shuffled=shuffle,
        )
        scales = scaler or torch.amp.GradScaler(enabled=False)
        self._state = TrainingState(self._model, optimizer, scheduler, scales, is_alike=not is_local)
        self._options = [
            *(type(scheduler).__name__, scheduler_every, type(scaler).__name__, max_grad_norm, reduction),
            *(rate_of_nodes is float, outer_rate, outer_momentum),
        ]
        self._is_scheduler_by_step = scheduler_every == "step"
        self._max_grad_norm, self._is_mean, self._rate_of_nodes = max_grad_norm, reduction == "mean", rate_of_nodes
        self._outer_rate, self._outer_momentum = outer_rate, outer_momentum
        self._sum = StepSum(self._model, optimizer, self._apply, is_local=is_local, is_mean=self._is_mean)
        self._batches: Iterator[Batch] | None = None
        self._batch: Batch | None = None
        self._left: list[range] = []  # what this member has still to take until the next sum
        self._is_void, self._is_done, self._wants_stop, self._is_over = False, True, False, False

    # What a script uses.

    @property
    def rank(self) -> int:
        """Rank of this process among the members, from 0; changes with them."""
        return self._seat.rank

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the nodes that take part, by rank."""
        return self._seat.members

    @property
    def position(self) -> Position:
        """Epochs that are done, samples of this epoch that are done, and steps that are done."""
        return self._state.position

    def on_change(self, callback: Callable[[tuple[str, ...]], object]) -> None:
        """Call `callback(members)` between two steps when there are other members from then on."""
        self._seat.callbacks.append(callback)

    def epochs(self, number: int) -> Iterator[Batch]:
        """Yield the batches of this process until all samples were used in `number` epochs. The body of the loop calls
        `step` once for each of them."""
        if self._batches is not None or number < 0:
            raise UsageError(f"epochs({number}): a loop trains once; give the number of all epochs, from 0 on")
        self._plan = dataclasses.replace(self._plan, num_epochs=number)
        self._order = functools.lru_cache(maxsize=1)(self._plan.order)
        self._batches = self._train()
        return self._batches

    def backward(self, loss: Tensor, part: Batch | None = None) -> None:
        """Add the gradients of a loss to those of this step.

        Args:
            loss: Of the batch, or of `part`.
            part: One of `batch.parts(n)`; by default the whole batch.
        """
        batch, scaler = self._require_batch(), self._state.scaler
        num = len(batch if part is None else part)
        scaled = loss * (num / len(batch)) if self._is_mean and num != len(batch) else loss
        scaler.scale(scaled).backward()
        self._loss_sum += float(loss.detach()) * (num if self._is_mean else 1)

    def step(self, loss: Tensor | None = None) -> float | None:
        """Take one step with the other members.

        Args:
            loss: Of the batch; None where `backward` was called for its parts.

        Returns:
            The mean loss over the samples of all members since the last sum, when the step counts. None when it does
            not: a member was lost, and the loop hands its samples out again; or it was a rehearsal; or a local step,
            after which nothing is added up.
        """
        batch = self._require_batch()
        if loss is not None and not self._is_void:
            self.backward(loss)
        self._batch, loss_of_all = None, None
        self._samples_done += len(batch)
        if not (batch.is_rehearsal or self._is_void):
            self._sum.end_batch()
            if not self._left:
                loss_of_all = self._add_up()
            elif self._seat.is_broken:
                self._break("a member was lost")
        self._is_done = True
        return loss_of_all

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of the members' tensors. All members call it, between a batch and its `step`. When a member is
        lost meanwhile, it returns the tensor of this one: the step does not count then, and is done again.

        Args:
            tensor: Of the same shape in every member; added up in float64.
        """
        batch = self._require_batch()
        values = tensor.detach().to("cpu", torch.float64, copy=True).reshape(-1)
        if batch.is_rehearsal or self._is_void:
            return tensor.clone()
        rows = self._agree(Row(Call.ALL_REDUCE, values.numel()), values.numpy())
        return values.reshape(tensor.shape).to(tensor) if rows else tensor.clone()

    def stop(self) -> None:
        """End the training with the next step that counts. One member that calls it is enough."""
        self._wants_stop = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._batch = None
        with self._leaving_on_error():
            if error is None and self._batches is not None and self._is_done:
                next(self._batches, None)  # the step of the last batch, which the others wait for
            if error is None and self._batches is not None and not self._is_over:
                raise UsageError("the loop was left before its end, as by break; call loop.stop() before loop.step")
        self._leave(error)

    # One step.

    def _train(self) -> Iterator[Batch]:
        """Yield all batches of this process, those of a rehearsal first, which does not count."""
        self._state.describe()  # raises here, and not on the node that a joining one asks for its state
        if isinstance(self._seat, ClusterSeat):
            self._begin()
            piece = self._plan.batches(self.position, self._seat.max_nodes)[0][0] or range(1)
            yield from self._offer(piece, is_rehearsal=True)
            self._sum.undo()
            self._wants_stop = False
        digest = digest_of(self._model, self._optimizer, self._plan, self._options)
        self._seat.declare(self._state, seed=self._plan.seed, num_samples=self._plan.num_samples, digest=digest)
        while self._has_step():
            self._begin()
            self._left = [piece for piece in self._shares[self.rank] if piece]
            if not self._left:
                self._add_up()
            while self._left and not self._is_void:
                yield from self._offer(self._left.pop(0))
            if self._is_void:
                self._sum.undo()  # what the body has done since the member was lost
        self._is_over = True

    def _begin(self) -> None:
        """Begin a step. A step that is done again draws the same random numbers."""
        num, now, before = self._plan.num_samples, parameters_of(self._optimizer), self._sum.parameters
        if len(self._samples) != num:
            raise UsageError(
                f"the data set had {num} samples and has {len(self._samples)} now; it has to stay as it is until the "
                "loop ends, because every node cuts the samples by their numbers"
            )
        if [*map(id, now)] != [*map(id, before)]:
            raise UsageError(
                f"the optimizer had {len(before)} parameters and has {len(now)} now, or others; give all groups before "
                "elastic.loop, and set requires_grad=False for those that are to wait"
            )
        self._is_void, self._samples_done, self._loss_sum = False, 0, 0.0
        entropy = [self._plan.seed, self.position.epoch, self.position.offset, self.rank]
        first, second = np.random.SeedSequence(entropy).generate_state(2, np.uint32).tolist()
        torch.manual_seed(first << 32 | second)
        np.random.seed(first)  # noqa: NPY002 - data sets draw from NumPy's global generator
        random.seed(second)
        workers = self._seat.workers
        found = dict(zip(workers, self._plan.batches(self.position, len(workers)), strict=True))
        self._shares = [found.get(rank, []) for rank in range(len(self.members))]  # until the next sum, by rank
        self._sum.begin()

    def _offer(self, piece: range, *, is_rehearsal: bool = False) -> Iterator[Batch]:
        """Hand samples to the body of the user's loop."""
        epoch = self.position.epoch
        numbers = self._order(epoch)[piece.start : piece.stop]
        self._batch, self._is_done = Batch(self._samples, numbers, epoch=epoch, is_rehearsal=is_rehearsal), False
        yield self._batch
        if not self._is_done:
            raise UsageError(
                f"node {self._seat.node} did not do loop.step to its end for a batch of {len(piece)} samples in epoch "
                f"{epoch}, and the others wait for it; call loop.step() without a loss to skip samples, and do not "
                "catch exceptions of loop.step, which may leave the state half done: then this node leaves"
            )

    def _add_up(self) -> float | None:
        """Add up with the other members, and commit."""
        before = self.position
        num_samples = [sum(map(len, pieces)) for pieces in self._shares]
        is_first = self.rank == next(rank for rank, num in enumerate(num_samples) if num)
        buffer = self._sum.fill(num_samples[self.rank] / sum(num_samples), is_first=is_first)
        counts = [sum(map(bool, pieces)) for pieces in self._shares]
        call = Call.STEP if counts[self.rank] == max(counts) else Call.IDLE  # the others run the body once more
        row = Row(call, len(buffer), self._samples_done, self._loss_sum, wants_stop=self._wants_stop)
        rows = self._agree(row, buffer)
        if not rows:
            return None
        self._sum.commit(self._outer_step())
        self._state.position = self._plan.after(before, len(self._seat.workers))
        num_due = max(counts) if self._is_scheduler_by_step else self.position.epoch - before.epoch
        for _ in range(num_due if self._state.scheduler is not None else 0):
            self._state.scheduler.step()
        self._state.is_stopped = any(row.wants_stop for row in rows)
        if not before.step:
            self._state.describe()  # the optimizer has made its state
        self._commit(rows)
        num = sum(row.samples for row in rows) if self._is_mean else 1
        return sum(row.loss for row in rows) / num

    def _apply(self) -> None:
        """Take the optimizer's step with the gradients that the parameters have, and forget these."""
        optimizer, scaler, groups = self._optimizer, self._state.scaler, self._optimizer.param_groups
        if self._max_grad_norm is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters_of(optimizer), self._max_grad_norm)
        rates = [group["lr"] for group in groups]
        if self._plan.is_per_node and self._plan.local_steps == 1:
            for group in groups:
                group["lr"] = group["lr"] * self._rate_of_nodes(len(self._seat.workers))
        scaler.step(optimizer)
        scaler.update()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        optimizer.zero_grad(set_to_none=True)

    def _outer_step(self) -> torch.optim.Optimizer:
        momentum = self._outer_momentum
        if momentum == "auto":
            # A step of SGD is linear in its gradient, so an average of steps is that of the mean gradient. One of
            # Adam's kind has a length of its own: on a K-th of the samples, where noise decides, it goes a sqrt(K)-th
            # as far along the mean gradient. A momentum m makes an average 1 / (1 - m) times as long in all.
            is_normalised = all("betas" in group for group in self._optimizer.param_groups)
            momentum = (1.0 - len(self._seat.workers) ** -0.5) * is_normalised
        self._state.outer.param_groups[0].update(lr=self._outer_rate, momentum=momentum, nesterov=True)
        return self._state.outer

    def _agree(self, row: Row, values: Array | None = None) -> Sequence[Row]:
        """Exchange rows, and add up `values` in place; where others ask for sums first, add zeros to these. Returns the
        rows of all members; none when a member was lost or its code has failed, so that the step does not count. Raises
        UsageError when the members call different things."""
        try:
            while True:
                rows = self._seat.gather(row)
                if failed := failed_of(rows, self.members):
                    text = f"the code of {', '.join(failed)} has failed, as the output there says"
                    logger.warning("%s; the step is done again without", text)
                    raise PeerLostError(text)
                if mismatch := mismatch_of(rows, self.members):
                    raise UsageError(f"the members do not call the same: {mismatch}")
                asked = [other.num_values for other in rows if other.call == Call.ALL_REDUCE]
                if not asked or row.call == Call.ALL_REDUCE:
                    break
                self._seat.all_reduce(np.zeros(int(asked[0])))
            if values is not None:
                self._seat.all_reduce(values)
        except PeerLostError as error:
            self._break(str(error))
            return ()
        return rows

    def _break(self, reason: str) -> None:
        """The step does not count; what its body has changed is put back at the end of the body."""
        self._is_void = True
        self._seat.broke(reason)

    # The end.

    @contextlib.contextmanager
    def _leaving_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self._leave(error)
            raise

    def _is_complete(self) -> bool:
        return self._state.is_stopped or self._plan.is_over(self.position)

    def _commit(self, rows: Sequence[Row], stop_reason: str | None = None) -> None:
        epochs = self.position.epoch + self.position.offset / self._plan.num_samples
        self._seat.committed(rows, stop_reason=stop_reason, epochs=epochs, is_last=self._is_complete())

    def _has_step(self) -> bool:
        """Say whether the body has a step to do. The job ends in an iteration of its own, without samples: when all
        members take part in that, all of them have the last step."""
        while self._seat.next():
            if not self._is_complete():
                return True
            reason = "loop.stop was called" if self._state.is_stopped else f"{self._plan.num_epochs} epochs are done"
            if rows := self._agree(Row(Call.STEP)):
                self._commit(rows, reason)
        return False

    def _leave(self, error: BaseException | None) -> None:
        """Leave the job. If the code of all members has failed, the job ends with this error."""
        failure = None
        if error is not None and not isinstance(error, SystemExit | JobFailedError):
            with contextlib.suppress(PeerLostError):  # the others learn of it by the closed connections
                rows = self._seat.gather(Row(Call.FAILED))
                if len(failed_of(rows, self.members)) == len(rows):
                    failure = "".join(traceback.format_exception(error))
            if failure is None:
                print(f"node {self._seat.node} leaves the training: {error}", file=sys.stderr, flush=True)
        self._seat.close(failure)

    def _require_batch(self) -> Batch:
        if self._batch is None:
            raise UsageError("call backward, all_reduce and, once, step in the body of `for batch in loop.epochs()`")
        return self._batch


loop = Loop
"""As scripts write it: `with elastic.loop(...) as loop`."""
