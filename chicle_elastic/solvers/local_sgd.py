"""Local SGD: every task takes H steps on its own samples, then weights and momentum are averaged by samples.

Chicle paper, section on local SGD; with H = 1 it is mini-batch SGD. K tasks share K x L x H samples an iteration, each
in proportion to the samples that it has, in batches of L (`local_sgd_solver`). So all tasks end an epoch in the same
iteration, and how long a task takes follows from its chunks. The learning rate grows with sqrt(K), and follows K when
that changes; momentum is averaged with the weights and not rescaled, because it is in units of a gradient.

Where the training is (epoch, iterations, samples used) travels in the model (`model_vector`), so that every task, a
joiner too, is told by the one all-reduce. An epoch ends when no task has an unused sample, and no chunk is missing.

Beyond the paper: `outer_momentum` treats the averaged change as a gradient and adds Nesterov momentum to it (Douillard
et al. 2023, "DiLoCo", algorithm 1). "auto" does so with as much momentum as the number of tasks asks for, see
`OuterStep.of_tasks`: DiLoCo's 0.7 and 0.9 for 16 tasks, less for fewer, because two learn worse by that much.
`lr_scaling="linear"` (Goyal et al. 2017, section 2.1) and `decay` are off by default.

The outer momentum u while K changes. It is part of the model, so a joiner gets it with the model, and a leaver takes
nothing of it away. A change of K from 4 to 16, say, neither resets nor rescales it: the next iterations forget it, the
faster the fewer tasks there are. One task makes no averages, so its iterations set u to zero, and u begins anew when a
second task joins.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers import model_vector
from chicle_elastic.solvers.base import Action, Context, Report, Solver, Trainer, Verdict
from chicle_elastic.solvers.model_vector import ModelLayout, Place
from chicle_elastic.solvers.network import Network, name_of
from chicle_elastic.solvers.optimizers import CustomOptimizer, Optimizer

if TYPE_CHECKING:
    from chicle_elastic.solvers.engines.eager import EagerEngine

LEARNING_RATE = "learning_rate"
LOCAL_STEPS = "local_steps"
LR_SCALINGS = ("sqrt", "linear", "none")
SCHEDULES = ("linear", "cosine")
PRECISIONS = ("float32", "bf16")
OUTER_RATE = 0.7
"""Outer learning rate where none is given; DiLoCo's."""
OUTER_GROWTH = 0.7
MOST_OUTER_MOMENTUM = 0.9
"""An average moves the model by K^0.7 times itself in all, up to 16 tasks; found on three data sets (docs/cnn.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterStep:
    """How an averaged change d moves the model: u <- momentum u + d, then w changes by rate (d + momentum u)."""

    rate: float = 1.0
    momentum: float = 0.0

    @classmethod
    def of_tasks(cls, num_tasks: int, rate: float = OUTER_RATE) -> "OuterStep":
        """Return the "auto" step, which is nothing for one task.

        For K of them an average moves the model by rate / (1 - momentum) = K^0.7 times itself in all, and the momentum
        is 0.9 at most, as for 16 tasks: 0.57 for 2, 0.73 for 4, 0.84 for 8.
        """
        if num_tasks <= 1:
            return cls()
        return cls(rate=rate, momentum=min(max(1.0 - rate * num_tasks**-OUTER_GROWTH, 0.0), MOST_OUTER_MOMENTUM))


@dataclass(frozen=True, kw_only=True)
class LocalSGDTrainer(Trainer):
    """Trains a network by local SGD: on the cross-entropy of its logits, or on another loss.

    Attributes:
        network: What is trained.
        batch_size: Samples of a step, L.
        local_steps: Steps between two averages, H; 1 for mini-batch SGD.
        learning_rate: For one task.
        momentum: Of each step of "sgd".
        optimizer: "sgd", a class of torch.optim, or a function that makes one of a module; see
            `engines.torch_optimizer`.
        optimizer_settings: More arguments of that class or function.
        weight_decay: Of each step of "sgd".
        lr_scaling: The learning rate grows with sqrt(K), K, or not at all.
        decay: Part of the training, at its end, over which the learning rate falls to zero; 0 for a constant one, which
            is the paper's.
        schedule: How it falls: "linear", or "cosine" (Loshchilov and Hutter 2017, "SGDR", equation 5). Or a class of
            torch.optim.lr_scheduler, or a function that makes one of an optimizer; then `decay` means nothing.
        schedule_settings: More arguments of that class or function.
        schedule_steps: Steps of that scheduler in the whole training.
        outer_momentum: Nesterov momentum of the averaged changes, not in the paper; 0 for none, "auto" for what
            `OuterStep.of_tasks` says.
        outer_learning_rate: Their learning rate, used together with `outer_momentum`.
        max_epochs: Epochs after which the training ends.
        seed: Of first weights, order of samples and dropout.
        class_weights: Factor of the loss per class code; None for 1.
        mean_weight: Mean factor of all samples, which the learning rate is for.
        device: "cpu", "cuda" or "cuda:N", or several devices of each node: "cuda:0,cuda:1".
        kernels: "auto", "fused", "onednn" or "native"; see `engines.eager`.
        augment: Takes the images of each step and a generator, and returns what the network gets; see
            `engines.augment`. None for the images themselves.
        num_threads: Most threads of a step by torch's kernels.
        loss: Takes outputs and targets, returns the mean loss; None for the cross-entropy. See `engines.loss`.
        max_grad_norm: Gradients of a step with a larger norm are scaled down to it.
        precision: "float32" or "bf16"; see `engines.eager`.
        compile: Whether the module is compiled by torch, or the name of the backend that does so.
    """

    network: Network
    batch_size: int = 8
    local_steps: int = 16
    learning_rate: float = 5e-4
    momentum: float = 0.9
    lr_scaling: Literal["sqrt", "linear", "none"] = "sqrt"
    decay: float = 0.0
    outer_momentum: float | Literal["auto"] = "auto"
    outer_learning_rate: float = OUTER_RATE
    optimizer: Any = "sgd"
    optimizer_settings: Mapping[str, Any] = field(default_factory=dict)
    weight_decay: float = 0.0
    schedule: Any = "linear"
    schedule_settings: Mapping[str, Any] = field(default_factory=dict)
    schedule_steps: int = 1
    max_epochs: int = 10
    seed: int = 0
    class_weights: tuple[float, ...] | None = None
    mean_weight: float = 1.0
    device: str = "cpu"
    kernels: str = "auto"
    augment: Callable[..., Any] | None = None
    num_threads: int = 1
    loss: Callable[..., Any] | None = None
    max_grad_norm: float = math.inf
    precision: Literal["float32", "bf16"] = "float32"
    compile: bool | str = False
    uses_blas_threads: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (
            self.batch_size >= 1
            and self.local_steps >= 1
            and self.max_epochs >= 1
            and self.learning_rate > 0
            and 0 <= self.momentum < 1
            and (self.outer_momentum == "auto" or 0 <= self.outer_momentum < 1)
            and self.outer_learning_rate > 0
            and self.mean_weight > 0
            and self.lr_scaling in LR_SCALINGS
            and 0 <= self.decay <= 1
            and (self.optimizer == "sgd" or callable(self.optimizer))
            and 0 <= self.weight_decay < math.inf
            and (self.schedule in SCHEDULES or callable(self.schedule))
            and self.max_grad_norm > 0
            and self.precision in PRECISIONS
        ):
            raise UsageError(
                "local SGD needs batch_size, local_steps and max_epochs >= 1, learning rates and mean_weight > 0, "
                "momenta in [0, 1) (outer_momentum may be 'auto'), decay in [0, 1], weight_decay >= 0, "
                f"max_grad_norm > 0, lr_scaling of {LR_SCALINGS}, schedule of {SCHEDULES}, precision of {PRECISIONS} "
                f"and the optimizer 'sgd' or one of torch, got {dict(self.identity())}"
            )

    def engine(self) -> "EagerEngine":
        """A new engine; torch is imported here and not before.

        Raises:
            UsageError: The network cannot be used, or the device is not there.
        """
        from chicle_elastic.solvers.engines.eager import EagerEngine

        return EagerEngine(
            self.network,
            seed=self.seed,
            device=self.device,
            kernels=self.kernels,
            optimizer=optimizer_of(self),
            augment=self.augment,
            num_threads=self.num_threads,
            loss=self.loss,
            max_grad_norm=self.max_grad_norm,
            precision=self.precision,
            compile=self.compile,
        )

    def layout(self, layout: ModelLayout) -> ModelLayout:
        """Of the model, from that of the engine."""
        return replace(layout, has_outer=self.has_outer_momentum)

    def init(self, schema: DataSchema, rng: np.random.Generator) -> Array:
        """The network's first weights, which depend on `seed` only; see `model_vector`, float32."""
        _require_data(self.network, schema)
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
        """Sum of the "loss" of the samples used, samples "unused" in this epoch after it, and a "bad_step"."""
        return ("loss", "unused", "bad_step")

    def identity(self) -> Mapping[str, Any]:
        """Everything but when to stop and what does not change the meaning of a model."""
        left_out = ["network", "max_epochs", "device", "kernels", "augment", "num_threads", "precision", "compile"]
        left_out += [] if callable(self.schedule) else ["schedule_steps"]
        settings = {each.name: _told(getattr(self, each.name)) for each in fields(self) if each.name not in left_out}
        network = {
            "module": self.network.name,
            "input_shape": list(self.network.input_shape),
            "num_classes": self.network.num_classes,
            "scaling": None if self.network.scaling is None else asdict(self.network.scaling),
        }
        if self.network.target_shape is not None:
            network["target_shape"] = list(self.network.target_shape)
        return {
            "trainer": "local SGD",
            "model_version": model_vector.VERSION,
            "network": network,
            **settings,
        }

    def may_be_cut(self, progress: Array) -> bool:
        """Always: an update weighs as much as it has samples, and the epoch ends when all are used."""
        return True

    @property
    def takes_parts(self) -> bool:
        """A share of the samples in each iteration, and all of them in an epoch."""
        return True

    @property
    def update_device(self) -> str:
        """That of the engine."""
        return self.device

    def tunables(self, schema: DataSchema) -> Mapping[str, float]:
        """The learning rate for one task, and the steps between two averages, which are rounded, and 1 at least."""
        return {LEARNING_RATE: self.learning_rate, LOCAL_STEPS: float(self.local_steps)}

    def steps(self, parameters: Mapping[str, float]) -> int:
        """Steps between two averages, H.

        Args:
            parameters: What policies have set of `tunables`.
        """
        return max(1, round(parameters.get(LOCAL_STEPS, self.local_steps)))

    def scaled_rate(
        self, num_tasks: int, progress: float = 0.0, parameters: Mapping[str, float] = MappingProxyType({})
    ) -> float:
        """Learning rate of a step with K tasks, when so much of the training is done (`Place.progress`).

        Args:
            num_tasks: K.
            progress: From 0 to 1.
            parameters: What policies have set of `tunables`.
        """
        factor = {"sqrt": math.sqrt(num_tasks), "linear": float(num_tasks), "none": 1.0}[self.lr_scaling]
        if callable(self.schedule):
            step = min(int(round(progress * self.schedule_steps, 6)), self.schedule_steps - 1)
            factor *= self._rates[step] / self.learning_rate
        return parameters.get(LEARNING_RATE, self.learning_rate) * factor * _part_left(self, progress)

    @property
    def has_outer_momentum(self) -> bool:
        """Say whether there may be one; with "auto" not for mini-batch SGD, which has one local step."""
        return self._outer_share > 0 if self.outer_momentum == "auto" else self.outer_momentum > 0

    @property
    def _outer_share(self) -> float:
        """Return the share of the outer step of "auto", from 0 to 1, that the length of an iteration leaves.

        The averaged momentum goes on into the next iteration: x = m^(H - 1) of an iteration's first momentum is left at
        its last step, and x^2 after two iterations. The share is what two iterations forget, 1 - x^2. Above x = 2/3 the
        two momenta swing together, so there is none, and a line leads there. With m = 0.9 it is 0.96, 0.88, 0.81, 0.68,
        0.05 and 0 for H of 16, 11, 9, 7, 5 and 4. Iterations of 16 tasks converge then on quadratics with up to two
        thirds of the largest stable learning rate, m from 0 to 0.975.
        """
        left = self.momentum ** (self.local_steps - 1)
        return max(min((2.0 - 3.0 * left) / 0.6, 1.0 - left**2), 0.0)

    def outer_step(self, num_tasks: int, left: float = 1.0) -> OuterStep:
        """How the average of K tasks moves the model; "auto" is a share of `OuterStep.of_tasks`.

        Its momentum falls at the end, until averages are taken as they are; `left` is the part of the learning rate
        that `decay` leaves.
        """
        if not self.has_outer_momentum:
            return OuterStep()
        if self.outer_momentum != "auto":
            return OuterStep(rate=self.outer_learning_rate, momentum=self.outer_momentum)
        step, share = OuterStep.of_tasks(num_tasks, self.outer_learning_rate), left * self._outer_share
        return OuterStep(rate=1.0 - share * (1.0 - step.rate), momentum=share * step.momentum)

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
            if self.has_outer_momentum:
                num_tasks = round(float(change[model_vector.TASKS] / total_weight))
                left = _part_left(self, Place.of(place).progress(self.max_epochs))
                _add_outer(model, merged, self.outer_step(num_tasks, left), self._num_weights)
            merged[: -model_vector.PLACE] += model[: -model_vector.PLACE]
        else:
            merged[: -model_vector.PLACE] = model[: -model_vector.PLACE]
        merged[-model_vector.PLACE :] = _next_place(place, change, total_weight)
        return merged

    def verdict(self, model: Array, report: Report) -> Verdict:
        """Stop after `max_epochs`, or when the loss is no number any more."""
        loss = report.metrics.get("loss", 0.0)
        if not math.isfinite(loss) and not report.is_certificate:
            return Verdict(action=Action.STOP, reason=self.divergence(report))
        done = Place.of(model[-model_vector.PLACE :]).epoch - 1
        if done >= self.max_epochs:
            return Verdict(action=Action.STOP, reason=f"all {self.max_epochs} epochs done")
        return Verdict(action=Action.GO_ON)

    def divergence(self, report: Report) -> str:
        """Say that the loss is no number any more, and why; of one task also in which step."""
        rate, num_tasks = self.scaled_rate(self.parallelism(report.num_tasks)), report.num_tasks
        of_step = f"step {report.metrics.get('bad_step', 0.0):.0f} of " if num_tasks == 1 else ""
        return (
            f"the loss is not a finite number in {of_step}iteration {report.iteration} at a learning rate of {rate:g} "
            f"(learning_rate={self.learning_rate:g}, {num_tasks} tasks); lower it, or scale features and targets"
        )

    def figures(self, model: Array, report: Report) -> Mapping[str, float]:
        """Mean "loss" of the iteration and "learning_rate"; at the end of an epoch its number and "epoch_loss"."""
        if report.is_certificate:
            return {}
        place = Place.of(model[-model_vector.PLACE :])
        before = max(0.0, place.progress(self.max_epochs) - report.samples / place.num_rows / self.max_epochs)
        figures = {LEARNING_RATE: self.scaled_rate(self.parallelism(report.num_tasks), before, report.parameters)}
        if report.samples:
            figures["loss"] = report.metrics["loss"] / report.samples
        if report.metrics["unused"] == 0 and report.is_complete:
            figures |= {"epoch": place.epoch - 1, "epoch_loss": place.last_loss}
        return figures

    @cached_property
    def _rates(self) -> list[float]:
        """The learning rate before each step of a scheduler."""
        from chicle_elastic.solvers.engines.rates import rates_of

        settings, rate = self.schedule_settings, self.learning_rate
        return rates_of(self.schedule, settings, rate, self.schedule_steps, min(self.max_epochs, self.schedule_steps))

    @cached_property
    def _num_weights(self) -> int:
        """Weights of the network; an engine is made to find out, once per process."""
        return self.engine().layout.num_weights


def _part_left(trainer: LocalSGDTrainer, progress: float) -> float:
    """Return the part of the learning rate that `decay` leaves; with a scheduler of torch that is all of it."""
    if callable(trainer.schedule) or progress <= 1.0 - trainer.decay:
        return 1.0
    left = (1.0 - progress) / trainer.decay
    return left if trainer.schedule == "linear" else 0.5 * (1.0 - math.cos(math.pi * left))


def _add_outer(model: Array, change: Array, outer_step: OuterStep, num_weights: int) -> None:
    """Let `OuterStep` act on the averaged change of w, which `change` begins with; u lies before the place."""
    rate, beta = outer_step.rate, outer_step.momentum
    outer = slice(len(model) - model_vector.PLACE - num_weights, len(model) - model_vector.PLACE)
    if beta == 0:  # one task, or no momentum: nothing is remembered
        np.negative(model[outer], out=change[outer])
        change[:num_weights] *= rate
        return
    step = change[:num_weights]
    new_outer = beta * model[outer] + step
    change[outer] = new_outer - model[outer]
    step += beta * new_outer
    step *= rate


def optimizer_of(trainer: LocalSGDTrainer) -> Optimizer | CustomOptimizer:
    """Return the optimizer of an engine."""
    if trainer.optimizer == "sgd":
        return Optimizer(weight_decay=trainer.weight_decay)
    settings, rate = trainer.optimizer_settings, trainer.learning_rate
    return CustomOptimizer(make=trainer.optimizer, settings=settings, rate=rate)


def _require_data(network: Network, schema: DataSchema) -> None:
    """Refuse data that the network is not for."""
    num_values = math.prod(network.input_shape)
    if network.target_shape is not None and schema.num_classes:
        raise UsageError(f"the network is for numbers, and the data has {schema.num_classes} classes")
    if network.target_shape is None and (schema.target_dtype != "int32" or schema.num_classes != network.num_classes):
        raise UsageError(
            f"the network is for {network.num_classes} classes, and the data has {schema.num_classes} "
            f"(targets of dtype {schema.target_dtype})"
        )
    num_features = schema.num_features - network.target_columns(schema.dtype)
    if schema.kind != "dense" or not 0 < num_features <= num_values:
        raise UsageError(
            f"the network takes samples of shape {network.input_shape}, dense and of at most {num_values} "
            f"values, and the data is {schema.kind} with {num_features} features"
        )


def _told(value: Any) -> Any:
    """Return a setting as JSON has it: of code its name."""
    if isinstance(value, Mapping):
        return {name: _told(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_told(each) for each in value]
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not value < math.inf:
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if hasattr(value, "named_parameters"):  # a module of torch, whose repr need not have all of its settings
        settings = {name: each for name, each in vars(value).items() if type(each) in (str, int, float)}
        return f"{value!r} {settings}"
    return name_of(value)


def _next_place(place: Array, change: Array, total_weight: float) -> Array:
    """The place after an iteration, from the summed figures of all tasks; see `local_sgd_solver`."""
    new = place.copy()
    new[model_vector.MERGED] += np.rint(change[model_vector.MERGED] / total_weight)
    new[model_vector.SAMPLES] += np.rint(change[model_vector.SAMPLES])
    new[model_vector.LOSS] += change[model_vector.LOSS]
    new[model_vector.TASKS] = np.rint(change[model_vector.TASKS] / total_weight)
    if change[model_vector.EPOCH] == 0 and new[model_vector.SAMPLES] > 0:  # no task has an unused sample
        new[model_vector.LAST_LOSS] = new[model_vector.LOSS] / new[model_vector.SAMPLES]
        new[model_vector.EPOCH] += 1
        new[model_vector.FIRST] = new[model_vector.MERGED] + 1
        new[model_vector.SAMPLES] = new[model_vector.LOSS] = 0
    return new
