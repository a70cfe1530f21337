"""The backend that sums updates on CUDA devices: NCCL from device to device, or sockets over the hosts.

Every member of a round tells the others, in the gather that the round begins with anyway (`catch_up`), which device its
solver leaves updates on. All members read the same offers, so all decide the same. NCCL is for rounds in which every
member has a device of its own; if one member has none, all use the hosts.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.base import Trainer

OFFER = 5  # numbers that an offer travels as
PART_BYTES = 6  # of a digest in one number, so that it is exact as a float64
DIGEST_BYTES = 3 * PART_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceOffer:
    """A member's description of the device that its solver leaves updates on."""

    digest: bytes = b""  # of the device's UUID, `DIGEST_BYTES` long; empty where updates lie in host memory
    nccl: int = 0  # version of NCCL as one number; 0 for none, or for one that has failed in this process

    @classmethod
    def of(cls, device: Any, *, may_use_nccl: bool) -> "DeviceOffer":
        """The offer of this process."""
        if device is None:
            return cls()
        import torch
        from torch.distributed import is_nccl_available

        # Not the number of the device: what is cuda:0 in one process may be cuda:1 in another one of the same host.
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        digest = hashlib.blake2b(uuid.encode(), digest_size=DIGEST_BYTES).digest()
        nccl = _as_number(torch.cuda.nccl.version()) if may_use_nccl and is_nccl_available() else 0
        return cls(digest=digest, nccl=nccl)

    @classmethod
    def from_row(cls, row: Array) -> "DeviceOffer":
        """The reverse of `row`."""
        has_device, nccl, *parts = (int(value) for value in row.tolist())
        digest = b"".join(part.to_bytes(PART_BYTES, "little") for part in parts)
        return cls(digest=digest if has_device else b"", nccl=nccl)

    def row(self) -> Array:
        """Encoded as ndarray of shape (OFFER,), float64; zeros for updates in host memory."""
        digest = self.digest.ljust(DIGEST_BYTES, b"\0")
        starts = range(0, DIGEST_BYTES, PART_BYTES)
        parts = [int.from_bytes(digest[start : start + PART_BYTES], "little") for start in starts]
        return np.array([bool(self.digest), self.nccl, *parts], dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """A decision, with its reason."""

    is_by_nccl: bool  # NCCL sums from device to device; otherwise sockets over the hosts
    reason: str


def device_of_updates(trainer: Trainer) -> Any:
    """The `torch.device` that solvers of this trainer can leave updates on, with its number; None for host memory.
    Raises UsageError when this host has no such device."""
    if trainer.update_device == "cpu":
        return None
    import torch

    from chicle_elastic.solvers.engines.eager import device_of

    device = device_of(trainer.update_device)
    if device.type != "cuda":
        return None
    # The present device is that of a thread, and other threads will use this one.
    return torch.device(device.type, torch.cuda.current_device()) if device.index is None else device


def choose_backend(offers: Sequence[DeviceOffer]) -> Backend:
    """The backend that all members use."""
    size = len(offers)
    without = [rank for rank, offer in enumerate(offers) if not offer.digest]
    if size == 1:
        return Backend(is_by_nccl=False, reason="one member has nothing to add up")
    if len(without) == size:
        return Backend(is_by_nccl=False, reason="all updates lie in host memory")
    if without:
        return Backend(is_by_nccl=False, reason=f"rank {without[0]} of {size} has no CUDA device for its updates")
    for rank, offer in enumerate(offers):
        if not offer.nccl:
            return Backend(is_by_nccl=False, reason=f"rank {rank} of {size} has no NCCL, or it has failed before")
        if offer.nccl != offers[0].nccl:
            return Backend(
                is_by_nccl=False, reason=f"rank 0 of {size} has NCCL {offers[0].nccl} and rank {rank} has {offer.nccl}"
            )
    ranks: dict[bytes, int] = {}
    for rank, offer in enumerate(offers):
        if offer.digest in ranks:
            return Backend(
                is_by_nccl=False,
                reason=f"ranks {ranks[offer.digest]} and {rank} of {size} share one GPU, which NCCL refuses",
            )
        ranks[offer.digest] = rank
    return Backend(is_by_nccl=True, reason=f"each of the {size} members has a GPU of its own")


def _as_number(version: tuple[Any, ...]) -> int:
    """(2, 28, 9) becomes 22809, as NCCL writes it."""
    major, minor, patch = (int(part) for part in version[:3])
    return major * 10000 + minor * 100 + patch
