"""The engine for any module: torch's eager mode on flat buffers, on a CPU or a CUDA device.

Kernels and threads that are fastest depend on shapes, processor and load, so `tune` measures them: oneDNN on or off,
images as they are or channels last, one intra-op thread or all that the task may use (at 8 samples a step two threads
take 2.7 to 3 times as long). What it finds is kept for the process, so that equal fits in one process are equal to the
bit. The default network has kernels of its own, which are faster than all of these (`engines.fused`).
"""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import UsageError
from chicle_elastic.solvers.engines.augment import Augmentation
from chicle_elastic.solvers.engines.loss import Loss
from chicle_elastic.solvers.engines.modules import build_module, check_module, takes_channels_last
from chicle_elastic.solvers.engines.samples import GatheredSamples
from chicle_elastic.solvers.engines.tuning import Kernels, candidates_for, fastest, steps_to_find
from chicle_elastic.solvers.flat import FlatModule
from chicle_elastic.solvers.model_vector import ModelLayout
from chicle_elastic.solvers.network import AS_THEY_ARE, Network, Scaling, is_fusible
from chicle_elastic.solvers.optimizers import CustomOptimizer, Optimizer

if TYPE_CHECKING:
    from chicle_elastic.solvers.engines.fused import FusedSteps

TUNING_SHARE = 20
"""Tuning takes at most one step in so many."""
AT_ONCE_VALUES = 1 << 20
"""Values of an iteration's samples up to which all are scaled at once; more would leave the cache before their step."""
KERNELS = {"onednn": Kernels(), "native": Kernels(has_onednn=False)}
"""Kernels by the names that a user may give."""
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_tuned: dict[tuple[str, tuple[int, ...], int, tuple[Kernels, ...]], Kernels] = {}


class EagerEngine:
    """Takes steps of an optimizer on one replica of a network. Used by one thread at a time.

    A pass over a batch is the engine's business, and so is where the replica lives; which samples, in which order, and
    what becomes of the result is the solver's.

    Args:
        network: What to train.
        seed: Of its first weights.
        device: "cpu", "cuda" or "cuda:N".
        kernels: "auto" (what `tune` finds; without it, oneDNN and, if the module takes them, images channels last),
            "fused" (our own, `engines.fused`, for the default network on a CPU), or a key of `KERNELS`.
        optimizer: What a step does; None for SGD with momentum.
        augment: What becomes of the images of a step on their way into the network, see `Augmentation`; None for
            nothing.
        num_threads: Most intra-op threads of a step that "auto" may take.
        loss: See `Loss`; None for the cross-entropy.
        max_grad_norm: Gradients with a larger norm are scaled down to it.

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
    ) -> None:
        self._device = device_of(device)
        self._augmentation = None if augment is None else Augmentation(augment, self._device)
        self._network = network
        with threads_on(self._device):
            module = build_module(network, seed)
            check_module(module, network)
            self._flat = FlatModule(module, self._device, optimizer)
            may_be_last = kernels == "auto" and takes_channels_last(module, network.input_shape)
        self._candidates = candidates_for(may_be_last, num_threads)
        self._kernels = KERNELS.get(kernels, Kernels(is_channels_last=may_be_last))
        self._loss, self._max_grad_norm = Loss(loss, self._device), max_grad_norm
        is_plain = (optimizer is None or optimizer.is_plain) and loss is None and max_grad_norm == math.inf
        can_fuse = is_fusible(network) and self._device.type == "cpu" and is_plain
        if kernels == "fused" and not can_fuse:
            raise UsageError(
                f"kernels='fused' is for the default network on a CPU by SGD without weight decay, and this is "
                f"{network.name} on {device}{'' if is_plain else ' by another optimizer, loss or with clipping'}; say "
                "kernels='auto'"
            )
        self._can_fuse = can_fuse and kernels in ("auto", "fused")
        self._fused: FusedSteps | None = None
        if kernels == "fused":
            self._fuse()
        self._is_tunable = kernels == "auto" and self._device.type == "cpu"
        self._has_checked = False
        self._loaded: torch.Tensor | None = None
        # Batch norm cannot train on one sample; a batch that would be left with one is joined to the one before.
        self._joins_last = any(isinstance(part, BATCH_NORMS) for part in module.modules())

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
        return ModelLayout(
            num_weights=self._flat.num_weights, num_buffers=self._flat.num_buffers, num_state=len(self._flat.v)
        )

    def initial(self) -> tuple[Array, Array]:
        """Weights and buffers at present, float32."""
        return self._flat.w.cpu().numpy().copy(), self._flat.read_buffers().cpu().numpy()

    def load(self, w: Array, buffers: Array, v: Array, *, for_change: bool = False) -> None:
        """Set the replica, and where `for_change` keep a copy of what it was set to beside it."""
        flat = self._flat
        with torch.no_grad():
            w_, buffers_, v_ = (_tensor(part).to(self._device) for part in (w, buffers, v))
            flat.w.copy_(w_)
            flat.write_state(v_)
            flat.g.zero_()
            if len(buffers):
                flat.write_buffers(buffers_)
            # Not read from the replica, which rounds its counters.
            self._loaded = torch.cat([w_, buffers_, v_]) if for_change else None

    def store(self, w: Array, buffers: Array, v: Array) -> None:
        """Copy the replica out."""
        flat = self._flat
        torch.from_numpy(w).copy_(flat.w)
        torch.from_numpy(v).copy_(flat.read_state())
        if len(buffers):
            torch.from_numpy(buffers).copy_(flat.read_buffers())

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
        if augmentation is not None:
            augmentation.seed(seed)
        if self._fused is not None:
            # A function that draws from torch's own generator is seeded as well.
            with contextlib.nullcontext() if augmentation is None else _for_augmentation(self._device, seed):
                return self._fused.run(
                    samples,
                    batch_size=batch_size,
                    lr=lr,
                    momentum=momentum,
                    is_spent=is_spent,
                    augmentation=augmentation,
                )
        with threads_on(self._device, self._kernels.num_threads), self._onednn(self._kernels), _seeded(seed):
            return self._run(samples, batch_size, lr, momentum, is_spent, augmentation)

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

    def tune(self, batch_size: int, num_steps: float = math.inf) -> str:
        """Find the fastest kernels for such batches, once per process.

        Args:
            batch_size: Samples of a step.
            num_steps: Steps that there will be; where they are few, what is known already is taken.

        Returns:
            In words what was found.
        """
        if self._can_fuse:
            self._fuse()
            return f"kernels for {batch_size} samples a step: fused"
        if not self._is_tunable:
            return f"kernels on {self._device}: {self._kernels}"
        key = (repr(self._flat.module), self._network.input_shape, batch_size, tuple(self._candidates))
        if key not in _tuned and num_steps >= TUNING_SHARE * steps_to_find(self._candidates):
            _tuned[key] = self._fastest(self._candidates, batch_size)
        self._kernels = _tuned.get(key, self._kernels)
        return f"kernels for {batch_size} samples a step: {self._kernels}"

    def _fuse(self) -> None:
        if self._fused is None:
            from chicle_elastic.solvers.engines.fused import FusedSteps  # loads numba

            self._fused = FusedSteps(self._network, self._flat.w.numpy(), self._flat.v.numpy())

    def _fastest(self, candidates: list[Kernels], batch_size: int) -> Kernels:
        """Take steps by all candidates; nothing else is changed."""
        rng = np.random.default_rng(0)
        samples = GatheredSamples(
            rows=rng.random((batch_size, math.prod(self._network.input_shape)), dtype=np.float32),
            codes=rng.integers(0, self._network.num_classes, batch_size),
            weights=None,
        )
        flat, before = self._flat, self._kernels
        kept = flat.w.clone(), flat.read_state().clone(), flat.read_buffers()

        def step(kernels: Kernels) -> None:
            self._kernels = kernels
            with threads_on(self._device, kernels.num_threads), self._onednn(kernels), _seeded(0):
                self._run(samples, batch_size, 0.0, 0.0, lambda: False, None)

        found = fastest(candidates, step)
        self._kernels = before
        with torch.no_grad():
            flat.w.copy_(kept[0])
            flat.write_state(kept[1])
            flat.write_buffers(kept[2])
        return found

    def _run(
        self,
        samples: GatheredSamples,
        batch_size: int,
        lr: float,
        momentum: float,
        is_spent: Callable[[], bool],
        augmentation: Augmentation | None,
    ) -> tuple[int, float]:
        flat, shape, device = self._flat, (-1, *self._network.input_shape), self._device
        module = flat.module.train()
        rows, codes = torch.from_numpy(samples.rows).to(device), torch.from_numpy(samples.codes).to(device)
        weights = None if samples.weights is None else torch.from_numpy(samples.weights).to(device)
        scaling = self._network.scaling_of(is_byte=rows.dtype == torch.uint8)
        is_scaled = scaling == AS_THEY_ARE and rows.dtype == torch.float32
        is_scaled = is_scaled and augmentation is None  # which may write to what it gets
        if not is_scaled and rows.numel() <= AT_ONCE_VALUES:
            rows, is_scaled = scaled(rows, scaling), True
        losses: list[torch.Tensor] = []
        done, count = 0, len(codes)
        while done < count and not is_spent():
            stop = min(done + batch_size, count)
            if self._joins_last and count - stop == 1:
                stop = count
            batch = rows[done:stop] if is_scaled else scaled(rows[done:stop], scaling)
            images = batch.view(shape)
            if augmentation is not None:
                images = augmentation(images)
            if self._kernels.is_channels_last:
                images = images.contiguous(memory_format=torch.channels_last)
            logits = module(images)
            loss = self._loss(logits, codes[done:stop], None if weights is None else weights[done:stop])
            loss.backward()
            if not self._has_checked:
                self._check_gradients()
            with torch.no_grad():
                if self._max_grad_norm < math.inf:  # as torch.nn.utils.clip_grad_norm_ does
                    flat.g.mul_((self._max_grad_norm / (flat.g.norm() + 1e-6)).clamp_(max=1.0))
                flat.step(lr, momentum)
                losses.append(loss.detach() * (stop - done))
            done = stop
        return done, float(torch.stack(losses).sum()) if losses else 0.0

    def _check_gradients(self) -> None:
        """After the first step: whether the gradients are where they are looked for."""
        lost = list(self._flat.lost_views())
        if lost:
            raise UsageError(
                f"the gradients of {', '.join(lost)} of {self._network.name} were dropped or replaced while it was "
                "used; leave .grad and zero_grad() to the engine"
            )
        self._has_checked = True

    @contextlib.contextmanager
    def _onednn(self, kernels: Kernels) -> Iterator[None]:
        before = torch.backends.mkldnn.enabled
        torch.backends.mkldnn.enabled = kernels.has_onednn  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.backends.mkldnn.enabled = before


def scaled(rows: torch.Tensor, scaling: Scaling) -> torch.Tensor:
    """What a module gets for these rows of the data: in memory of its own, float32."""
    return rows.to(torch.float32, copy=True).mul_(scaling.scale).add_(scaling.shift)


def device_of(name: str) -> torch.device:
    """The device of this name.

    Raises:
        UsageError: There is none like it here.
    """
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
