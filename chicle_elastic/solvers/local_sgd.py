"""Local SGD: every task takes H steps on its own samples, then weights and momentum are averaged by samples.

Chicle paper, section on local SGD; with H = 1 it is mini-batch SGD. K tasks share K x L x H samples an iteration, each
in proportion to the samples that it has, in batches of L (`local_sgd_solver`). So all tasks end an epoch in the same
iteration, and how long a task takes follows from its chunks. The learning rate grows with sqrt(K), and follows K when
that changes; momentum is averaged with the weights and not rescaled, because it is in units of a gradient.

Where the training is (epoch, iterations, samples used) travels in the model (`model_vector`), so that every task, a
joiner too, is told by the one all-reduce. An epoch ends when no task has an unused sample.

Beyond the paper, and off by default: `outer_momentum` treats the averaged change as a gradient and adds Nesterov
momentum to it (Douillard et al. 2023, "DiLoCo", algorithm 1); `lr_scaling="linear"` (Goyal et al. 2017, section 2.1).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers import model_vector
from chicle_elastic.solvers.base import Action, Context, Report, Solver, Trainer, Verdict
from chicle_elastic.solvers.engines.base import StepEngine
from chicle_elastic.solvers.model_vector import Layout, Place
from chicle_elastic.solvers.network import Network

LR_SCALINGS = ("sqrt", "linear", "none")


@dataclass(frozen=True, kw_only=True)
class LocalSGDTrainer(Trainer):
    """Classifier by local SGD on the cross-entropy of its logits.

    Attributes:
        network: What is trained.
        batch_size: Samples of a step, L.
        local_steps: Steps between two averages, H; 1 for mini-batch SGD.
        learning_rate: For one task.
        momentum: Of each step.
        lr_scaling: The learning rate grows with sqrt(K), K, or not at all.
        outer_momentum: Nesterov momentum of the averaged changes, not in the paper; 0 for none.
        outer_learning_rate: Their learning rate, used together with `outer_momentum`.
        max_epochs: Epochs after which the training ends.
        seed: Of first weights, order of samples and dropout.
        class_weights: Factor of the loss per class code; None for 1.
        mean_weight: Mean factor of all samples, which the learning rate is for.
        device: "cpu", "cuda" or "cuda:N".
        kernels: "auto", "fused", "onednn" or "native"; see `engines.eager`.
    """

    network: Network
    batch_size: int = 8
    local_steps: int = 16
    learning_rate: float = 5e-4
    momentum: float = 0.9
    lr_scaling: Literal["sqrt", "linear", "none"] = "sqrt"
    outer_momentum: float = 0.0
    outer_learning_rate: float = 0.7
    max_epochs: int = 10
    seed: int = 0
    class_weights: tuple[float, ...] | None = None
    mean_weight: float = 1.0
    device: str = "cpu"
    kernels: str = "auto"

    def __post_init__(self) -> None:
        if not (
            self.batch_size >= 1
            and self.local_steps >= 1
            and self.max_epochs >= 1
            and self.learning_rate > 0
            and 0 <= self.momentum < 1
            and 0 <= self.outer_momentum < 1
            and self.outer_learning_rate > 0
            and self.mean_weight > 0
            and self.lr_scaling in LR_SCALINGS
        ):
            raise UsageError(
                f"local SGD needs batch_size, local_steps and max_epochs >= 1, learning rates and mean_weight > 0, "
                f"momenta in [0, 1) and lr_scaling of {LR_SCALINGS}, got {dict(self.identity())}"
            )

    def engine(self) -> StepEngine:
        """A new engine; torch is imported here and not before.

        Raises:
            UsageError: The network cannot be used, or the device is not there.
        """
        from chicle_elastic.solvers.engines.eager import EagerEngine

        return EagerEngine(self.network, seed=self.seed, device=self.device, kernels=self.kernels)

    def layout(self, layout: Layout) -> Layout:
        """Of the model, from that of the engine."""
        return Layout(num_weights=layout.num_weights, num_buffers=layout.num_buffers, has_outer=self.outer_momentum > 0)

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """The network's first weights, which depend on `seed` only; see `model_vector`, float32."""
        self._require_classes(schema)
        engine = self.engine()
        w, buffers = engine.initial()
        return self.layout(engine.layout).begin(w, buffers, num_rows=schema.num_rows)

    def state(self, schema: DataSchema) -> StateSpec:
        """Per sample the iteration that used it last, int32."""
        return StateSpec(outputs=1, width=1, dtype="int32")

    def solver(self, ctx: Context) -> Solver:
        """The solver of one task."""
        from chicle_elastic.solvers.local_sgd_solver import LocalSGDSolver

        return LocalSGDSolver(ctx, self)

    def metric_names(self, schema: DataSchema) -> tuple[str, ...]:
        """Sum of the "loss" of the samples used, and samples "unused" in this epoch after the iteration."""
        return ("loss", "unused")

    def identity(self) -> Mapping[str, Any]:
        """Everything but when to stop and what does not change the meaning of a model."""
        left_out = ("network", "max_epochs", "device", "kernels")
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in left_out}
        network = {
            "module": self.network.name,
            "input_shape": list(self.network.input_shape),
            "num_classes": self.network.num_classes,
        }
        return {"trainer": "local SGD", "network": network, **settings}

    def recipe(self) -> tuple[str, dict[str, Any]]:
        """How the tasks of a cluster make this trainer.

        Raises:
            UsageError: The module of the network has no name to import it by.
        """
        settings = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "network"}
        return f"{__name__}:make_trainer", {**settings, "network": self.network.to_json()}

    @property
    def takes_parts(self) -> bool:
        """A share of the samples in each iteration, and all of them in an epoch."""
        return True

    @property
    def update_device(self) -> str:
        """That of the engine."""
        return self.device

    def own_class(self) -> type | None:
        """The module's class where no import finds it, as in a notebook; None where there is none."""
        module = self.network.module
        return module if isinstance(module, type) and self.network.importable_name() is None else None

    def with_class_at(self, name: str) -> "LocalSGDTrainer":
        """The same with the module's class by a name ("module:Class") that is found where this trainer goes."""
        return replace(self, network=replace(self.network, module=name))

    def scaled_rate(self, num_tasks: int) -> float:
        """Learning rate of a step with K tasks."""
        factor = {"sqrt": math.sqrt(num_tasks), "linear": float(num_tasks), "none": 1.0}[self.lr_scaling]
        return self.learning_rate * factor

    def merge(self, model: Array, weighted_sum: Array, total_weight: float) -> Array:
        """The average by samples, and the next place.

        A task weighs as much as the samples that it used, or 1 where it used none and only tells what it has left; so
        the samples of all tasks are counted in the sum, and not taken from `total_weight`.
        """
        place, change = model[-model_vector.PLACE :], weighted_sum[-model_vector.PLACE :].copy()
        samples = float(change[model_vector.SAMPLES])
        merged = weighted_sum
        if samples > 0:
            merged[: -model_vector.PLACE] /= samples
            if self.outer_momentum > 0:
                self._outer_step(model, merged)
            merged[: -model_vector.PLACE] += model[: -model_vector.PLACE]
        else:
            merged[: -model_vector.PLACE] = model[: -model_vector.PLACE]
        merged[-model_vector.PLACE :] = _next_place(place, change, total_weight)
        return merged

    def verdict(self, model: Array, report: Report) -> Verdict:
        """Stop after `max_epochs`, or when the loss is no number any more."""
        loss = report.metrics.get("loss", 0.0)
        if not math.isfinite(loss) and not report.is_certificate:
            return Verdict(action=Action.STOP, reason=self.divergence(report.iteration, report.num_tasks))
        done = Place.of(model[-model_vector.PLACE :]).epoch - 1
        if done >= self.max_epochs:
            return Verdict(action=Action.STOP, reason=f"all {self.max_epochs} epochs done")
        return Verdict(action=Action.GO_ON)

    def divergence(self, iteration: int, num_tasks: int) -> str:
        """What to say when the loss is no number any more."""
        rate = self.scaled_rate(self.parallelism(num_tasks))
        return (
            f"the loss is not a finite number in iteration {iteration} at a learning rate of {rate:g} (learning_rate="
            f"{self.learning_rate:g}, {num_tasks} tasks); lower learning_rate, or scale the features"
        )

    def figures(self, model: Array, report: Report) -> Mapping[str, float]:
        """Mean "loss" of the iteration and "learning_rate"; at the end of an epoch its number and "epoch_loss"."""
        if report.is_certificate:
            return {}
        figures = {"learning_rate": self.scaled_rate(self.parallelism(report.num_tasks))}
        if report.samples:
            figures["loss"] = report.metrics["loss"] / report.samples
        if report.metrics["unused"] == 0 and report.is_complete:
            place = Place.of(model[-model_vector.PLACE :])
            figures |= {"epoch": place.epoch - 1, "epoch_loss": place.last_loss}
        return figures

    @cached_property
    def _num_weights(self) -> int:
        """Weights of the network; an engine is made to find out, once per process."""
        return self.engine().layout.num_weights

    def _outer_step(self, model: Array, change: Array) -> None:
        """u <- beta u + d; w changes by eta (d + beta u), with d the averaged change of w; u lies before the place."""
        beta, num_weights = self.outer_momentum, self._num_weights
        step = change[:num_weights]
        outer = slice(len(model) - model_vector.PLACE - num_weights, len(model) - model_vector.PLACE)
        new_outer = beta * model[outer] + step
        change[outer] = new_outer - model[outer]
        step += beta * new_outer
        step *= self.outer_learning_rate

    def _require_classes(self, schema: DataSchema) -> None:
        num_values = math.prod(self.network.input_shape)
        if schema.target_dtype != "int32" or schema.num_classes != self.network.num_classes:
            raise UsageError(
                f"the network is for {self.network.num_classes} classes, and the data has {schema.num_classes} "
                f"(targets of dtype {schema.target_dtype})"
            )
        if schema.kind != "dense" or schema.num_features > num_values:
            raise UsageError(
                f"the network takes samples of shape {self.network.input_shape}, dense and of at most {num_values} "
                f"values, and the data is {schema.kind} with {schema.num_features} features"
            )


def make_trainer(network: Mapping[str, Any], **settings: Any) -> LocalSGDTrainer:
    """A trainer from what `LocalSGDTrainer.recipe` has said."""
    return LocalSGDTrainer(network=Network.from_json(network), **settings)


def _next_place(place: Array, change: Array, total_weight: float) -> Array:
    """The place after an iteration, from the summed figures of all tasks; see `local_sgd_solver`."""
    new = place.copy()
    new[model_vector.MERGED] += np.rint(change[model_vector.MERGED] / total_weight)
    new[model_vector.SAMPLES] += np.rint(change[model_vector.SAMPLES])
    new[model_vector.LOSS] += change[model_vector.LOSS]
    if change[model_vector.EPOCH] == 0 and new[model_vector.SAMPLES] > 0:  # nobody has an unused sample
        new[model_vector.LAST_LOSS] = new[model_vector.LOSS] / new[model_vector.SAMPLES]
        new[model_vector.EPOCH] += 1
        new[model_vector.FIRST] = new[model_vector.MERGED] + 1
        new[model_vector.SAMPLES] = new[model_vector.LOSS] = 0
    return new
