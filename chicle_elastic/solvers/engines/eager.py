"""The engine for any module: torch's eager mode on flat buffers, on a CPU or a CUDA device.

A step is computed as a plain loop of torch computes it, by oneDNN and with images as they are, on as many threads as
its counted work is worth (`threads_for`). So equal fits go equal ways, whatever else the machine does. The default
network has kernels of its own, which are faster (`engines.fused`).
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import nn

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.engines.augment import Augmentation
from chicle_elastic.solvers.engines.loss import Loss
from chicle_elastic.solvers.engines.modules import build_module, check_module, flops_of
from chicle_elastic.solvers.engines.replicas import Replicas
from chicle_elastic.solvers.flat import FlatModule
from chicle_elastic.solvers.model_vector import ModelLayout
from chicle_elastic.solvers.network import AS_THEY_ARE, GatheredSamples, Network, Scaling, is_fusible
from chicle_elastic.solvers.optimizers import CustomOptimizer, Optimizer

if TYPE_CHECKING:
    from chicle_elastic.solvers.engines.fused import FusedSteps

AT_ONCE_VALUES = 1 << 20
"""Values of an iteration's samples up to which all are scaled at once; more would leave the cache before their step."""
FLOPS_PER_THREAD = 1 << 30
"""Operations of a step that are worth a thread: some 50 ms of a core, beside which it costs little to wake threads. On
two busy cores a second thread took 80 times the processor time of one with 1.4e7 operations a step (LeNet, 8 images),
and 30 times with 1.1e8. With a quarter of it a ResNet of 16 channels gets two threads from 8 images a step on, with
four times as much from 128 on."""
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class EagerEngine:
    """Takes steps of an optimizer on one replica of a network. Used by one thread at a time.

    Which samples, in which order, and what becomes of the result is the solver's business.

    Args:
        network: What to train.
        seed: Of its first weights.
        device: "cpu", "cuda" or "cuda:N"; several are joined by commas, see `engines.replicas`.
        kernels: "auto" (our own where there are some, else oneDNN's), "fused" (our own, `engines.fused`, for the
            default network on a CPU), "onednn" or "native".
        optimizer: What a step does; None for SGD with momentum.
        augment: See `Augmentation`; None for nothing.
        num_threads: Most intra-op threads of a step on a CPU.
        loss: See `Loss`; None for the cross-entropy.
        max_grad_norm: Gradients with a larger norm are scaled down to it.
        precision: "float32", or "bf16": products of a step are computed in bfloat16 (`torch.autocast`), and weights,
            outputs, loss and optimizer stay float32.
        compile: Whether the module is compiled by `torch.compile`, or the name of the backend that does so.

    Attributes:
        bad_step: Step of the last run, from 1, in which the loss was not finite for the first time; 0 for none.

    Raises:
        UsageError: The network cannot be made or used, or the device is not there.
    """

    def __init__(
        self,
        network: Network,
        *,
        seed: int,
        device: str = "cpu",
        kernels: str = "auto",
        optimizer: Optimizer | CustomOptimizer | None = None,
        augment: Callable[..., Any] | None = None,
        num_threads: int = 1,
        loss: Callable[..., Any] | None = None,
        max_grad_norm: float = math.inf,
        precision: Literal["float32", "bf16"] = "float32",
        compile: bool | str = False,
    ) -> None:
        devices = devices_of(device)
        self._device, self._has_bf16 = devices[0], precision == "bf16"
        self._augmentation = None if augment is None else Augmentation(augment, self._device)
        self._network = network
        with threads_on(self._device):
            module = build_module(network, seed)
            check_module(module, network)
            self._flat = FlatModule(module, self._device, optimizer)
            self._flops = flops_of(module, network.input_shape) if num_threads > 1 else 0
        self._num_threads, self._has_onednn = num_threads, kernels != "native"
        self._loss, self._max_grad_norm = Loss(loss, self._device), max_grad_norm
        is_plain = optimizer in (None, Optimizer()) and loss is None and max_grad_norm == math.inf
        is_plain = is_plain and network.target_shape is None and not self._has_bf16 and not compile
        can_fuse = is_fusible(network) and self._device.type == "cpu" and is_plain and len(devices) == 1
        if kernels == "fused" and not can_fuse:
            raise UsageError(
                "kernels='fused' is for the default network on a CPU by SGD without weight decay, and this is "
                f"{network.name} on {device}{'' if is_plain else ' with other steps, loss or precision'}; say "
                "kernels='auto'"
            )
        self._is_fused = can_fuse and kernels in ("auto", "fused")
        self._fused: FusedSteps | None = None
        self.bad_step = 0
        self._compile = compile
        self._loaded: torch.Tensor | None = None
        # Batch norm cannot train on one sample; a batch that would be left with one is joined to the one before.
        self._joins_last = any(isinstance(part, BATCH_NORMS) for part in module.modules())
        self._replicas: Replicas | None = None
        if len(devices) > 1:
            flats = [self._flat, *(FlatModule(build_module(network, seed), other) for other in devices[1:])]
            losses = [self._loss, *(Loss(loss, other) for other in devices[1:])]
            self._replicas = Replicas(flats, losses, self._outputs, least=2 if self._joins_last else 1)

    @property
    def rate(self) -> float | None:
        """Learning rate of a custom optimizer's first group, which its own function may have set."""
        return None if self._flat.custom is None else self._flat.custom.rate

    @property
    def module(self) -> nn.Module:
        """The replica; its parameters are views of one vector."""
        return self._flat.module

    @property
    def layout(self) -> ModelLayout:
        """Of the models that it takes, without outer momentum."""
        flat = self._flat
        return ModelLayout(num_weights=flat.num_weights, num_buffers=flat.num_buffers, num_state=len(flat.v))

    def initial(self) -> tuple[Array, Array]:
        """Weights and buffers at present, float32."""
        return self._flat.w.cpu().numpy().copy(), self._flat.read_buffers().cpu().numpy()

    def load(self, w: Array, buffers: Array, v: Array, *, for_change: bool = False) -> None:
        """Set the replica, and where `for_change` keep a copy of what it was set to beside it."""
        flat = self._flat
        with threads_on(self._device), torch.no_grad():
            w_, buffers_, v_ = (_tensor(part).to(self._device) for part in (w, buffers, v))
            flat.w.copy_(w_)
            flat.write_state(v_)
            flat.drop_gradients()
            if len(buffers):
                flat.write_buffers(buffers_)
            # Not read from the replica, which rounds its counters.
            self._loaded = torch.cat([w_, buffers_, v_]) if for_change else None

    def parts(self) -> tuple[Array, Array, Array]:
        """Return weights, buffers and state of the replica, float32, which may lie where the next step writes."""
        flat = self._flat
        with threads_on(self._device):
            w, buffers, v = (part.cpu().numpy() for part in (flat.w, flat.read_buffers(), flat.read_state()))
        return w, buffers, v

    def change(self, end: Array, size: int) -> torch.Tensor:
        """What has become of the replica since `load(..., for_change=True)`, left where the replica lives.

        Args:
            end: What the last values are to be, ndarray of shape (m,), float32.
            size: Length of the whole.

        Returns:
            Tensor of shape (size,), float32: the changes of w, of the buffers and of v, zeros, `end`.
        """
        flat, before = self._flat, self._loaded
        assert before is not None
        with torch.no_grad():
            change = torch.zeros(size, device=self._device)
            torch.cat([flat.w, flat.read_buffers(), flat.read_state()], out=change[: len(before)])
            change[: len(before)] -= before
            change[size - len(end) :] = _tensor(end).to(self._device)
        return change

    def run(
        self,
        samples: GatheredSamples,
        *,
        batch_size: int,
        lr: float,
        momentum: float,
        seed: int,
        is_spent: Callable[[], bool],
    ) -> tuple[int, float]:
        """Steps over all samples in batches; the gradient of the last, shorter one is divided by its true size.

        Args:
            samples: At least one.
            batch_size: Samples per step.
            lr: Learning rate.
            momentum: As of `Optimizer.step`.
            seed: Of what is drawn on the way (dropout, augmentation).
            is_spent: Asked before each step; True ends the run.

        Returns:
            Samples used, and the sum of their losses.
        """
        augmentation = self._augmentation
        losses: Any
        if augmentation is not None:
            augmentation.seed(seed)
        if self._is_fused:
            fused = self._fused_steps()
            # A function that draws from torch's own generator is seeded as well.
            with contextlib.nullcontext() if augmentation is None else _for_augmentation(self._device, seed):
                done, losses = fused.run(
                    samples,
                    batch_size=batch_size,
                    lr=lr,
                    momentum=momentum,
                    is_spent=is_spent,
                    augmentation=augmentation,
                )
        else:
            num_threads = threads_for(self._flops * batch_size, self._num_threads)
            with threads_on(self._device, num_threads), self._onednn(), _seeded(seed):
                done, losses = self._run(samples, batch_size, lr, momentum, is_spent, augmentation)
        is_bad = ~np.isfinite(losses)
        self.bad_step = int(np.argmax(is_bad)) + 1 if is_bad.any() else 0
        return done, float(np.sum(losses))

    def try_augmentation(self, samples: GatheredSamples) -> None:
        """Augment these images, and forget them.

        Raises:
            UsageError: The function cannot be used.
        """
        if self._augmentation is None:
            return
        self._augmentation.seed(0)
        scaling = self._network.scaling_of(is_byte=samples.rows.dtype == np.uint8)
        images = scaled(torch.from_numpy(samples.rows).to(self._device), scaling)
        with _for_augmentation(self._device, 0):
            self._augmentation(images.view(-1, *self._network.input_shape))

    def _fused_steps(self) -> "FusedSteps":
        if self._fused is None:
            from chicle_elastic.solvers.engines.fused import FusedSteps  # loads numba

            self._fused = FusedSteps(self._network, self._flat.w.numpy(), self._flat.v.numpy())
        return self._fused

    def _run(
        self,
        samples: GatheredSamples,
        batch_size: int,
        lr: float,
        momentum: float,
        is_spent: Callable[[], bool],
        augmentation: Augmentation | None,
    ) -> tuple[int, Array]:
        flat, shape, device = self._flat, (-1, *self._network.input_shape), self._device
        module = flat.module.train()
        if self._compile:
            self._compile_module()
        rows, targets = torch.from_numpy(samples.rows).to(device), torch.from_numpy(samples.targets).to(device)
        weights = None if samples.weights is None else torch.from_numpy(samples.weights).to(device)
        scaling = self._network.scaling_of(is_byte=rows.dtype == torch.uint8)
        is_scaled = scaling == AS_THEY_ARE and rows.dtype == torch.float32
        is_scaled = is_scaled and augmentation is None  # which may write to what it gets
        if not is_scaled and rows.numel() <= AT_ONCE_VALUES:
            rows, is_scaled = scaled(rows, scaling), True
        losses: list[torch.Tensor] = []
        done, count = 0, len(targets)
        while done < count and not is_spent():
            stop = min(done + batch_size, count)
            if self._joins_last and count - stop == 1:
                stop = count
            batch = rows[done:stop] if is_scaled else scaled(rows[done:stop], scaling)
            images = batch.view(shape)
            if augmentation is not None:
                images = augmentation(images)
            labels, factors = targets[done:stop], None if weights is None else weights[done:stop]
            if self._replicas is not None:
                loss = self._replicas.backward(images, labels, factors)
            else:
                loss = self._loss(self._outputs(module, images), labels, factors)
                loss.backward()
            if done == 0:
                self._check_parameters()
            with torch.no_grad():
                flat.step(lr, momentum, self._max_grad_norm)
                losses.append(loss.detach() * (stop - done))
            done = stop
        return done, torch.stack(losses).cpu().numpy() if losses else np.empty(0, np.float32)

    def _outputs(self, module: nn.Module, images: torch.Tensor) -> Any:
        """Return what a module gives, its products computed in bfloat16 where that is wanted."""
        if not self._has_bf16:
            return module(images)
        with torch.autocast(images.device.type, torch.bfloat16):
            outputs = module(images)
        return outputs.float() if isinstance(outputs, torch.Tensor) else outputs

    def _compile_module(self) -> None:
        """Have torch compile the module when it is called for the first time in a step."""
        settings: dict[str, Any] = {} if self._compile is True else {"backend": self._compile}
        try:
            for flat in [self._flat] if self._replicas is None else self._replicas.flats:
                flat.module.compile(**settings)
        except Exception as error:
            raise UsageError(
                f"compile={self._compile!r} cannot be used: {error}; give True, or a backend of torch.compile"
            ) from error
        self._compile = False

    def _check_parameters(self) -> None:
        """After the first step of a run: whether the module has the parameters that are averaged."""
        new = self._flat.new_parameters()
        if new:
            raise UsageError(
                f"{self._network.name} has the parameters {', '.join(new)} since it was used; tasks average those that "
                "it had before, so register all parameters in the constructor, and set requires_grad there"
            )

    @contextlib.contextmanager
    def _onednn(self) -> Iterator[None]:
        before = torch.backends.mkldnn.enabled
        torch.backends.mkldnn.enabled = self._has_onednn  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.backends.mkldnn.enabled = before


def threads_for(flops: float, most: int) -> int:
    """Return how many of at most so many threads a step of so many operations is worth."""
    return int(min(max(flops // FLOPS_PER_THREAD, 1), most))


def scaled(rows: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    """What a module gets for these rows of the data: in memory of its own, float32."""
    return rows.to(torch.float32, copy=True).mul_(scaling.scale).add_(scaling.shift)


def device_of(name: str) -> torch.device:
    """The device of this name, of several the first one, where the model lives. Raises UsageError as `devices_of`."""
    return devices_of(name)[0]


def devices_of(names: str) -> list[torch.device]:
    """The devices of names that are joined by commas.

    Raises:
        UsageError: One of them is not here.
    """
    return [_device_of(name.strip()) for name in names.split(",")]


def _device_of(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"device={name!r} is no device; say 'cpu', 'cuda' or 'cuda:N'") from error
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"device={name!r} is not supported; say 'cpu', 'cuda' or 'cuda:N'")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise UsageError(
                f"device={name!r} was asked for, and torch {torch.__version__} sees {count} CUDA devices here; say "
                "device='cpu', or install a torch with CUDA on a machine that has such a device"
            )
    return device


@contextlib.contextmanager
def threads_on(device: torch.device, count: int = 1) -> Iterator[None]:
    """Intra-op threads of steps on a CPU; the number of before comes back."""
    before = torch.get_num_threads()
    if device.type != "cpu" or before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _for_augmentation(device: torch.device, seed: int) -> Iterator[None]:
    """What a function of the user's finds as it does in a step of torch's kernels."""
    with threads_on(device), _seeded(seed):
        yield


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """What is drawn inside depends on `seed` only, and nothing outside depends on what was drawn."""
    # torch.manual_seed keeps a stack trace per kind of device that is not there: 3 ms, and memory, each time.
    has_cuda = torch.cuda.is_available()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count()) if has_cuda else []):
        torch.default_generator.manual_seed(seed)
        if has_cuda:
            torch.cuda.manual_seed_all(seed)
        yield


def _tensor(array: Array) -> torch.Tensor:
    """The array as a tensor to read from; models may be read-only, and torch would warn of that."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
