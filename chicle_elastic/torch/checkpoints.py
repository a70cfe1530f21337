"""Checkpoints of a loop, for the case that no node is left: one file of the format of safetensors.

    chicle-loop-000001200.safetensors    all of it: parameters and buffers by name, the rest as state/N

The file is an 8-byte length, a JSON header and raw bytes; the text of the state (`state`) is in its metadata, so any
reader of safetensors finds the model, and nothing is unpickled. It appears under its name when it is complete.
"""

import contextlib
import json
import logging
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from chicle_elastic.chunks.places import is_url
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.runtime.training.checkpoint_settings import DEFAULT_EVERY_S, CheckpointSettings
from chicle_elastic.torch.state import DTYPES, TrainingState, bytes_of

logger = logging.getLogger(__name__)

PATTERN = "chicle-loop-*.safetensors"
NAMES = {
    **{
        "float64": "F64",
        "complex128": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "complex64": "C64",
    },
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"},
}
"""dtypes as the format names them."""


class LoopCheckpoints:
    """The checkpoints of a job.

    Args:
        settings: Where and when; None for nowhere. Raises UsageError for a URL.
    """

    def __init__(self, settings: CheckpointSettings | None, state: TrainingState) -> None:
        if settings is not None and is_url(settings.folder):
            raise UsageError(
                f"--checkpoint {settings.folder}: checkpoints of a loop need a folder that all nodes share"
            )
        self._settings, self._state = settings, state
        self._saved_s = time.monotonic()
        self._num_committed = 0
        self._has_failed = False

    def find(self) -> int:
        """Return the step of the newest checkpoint, if the job is to resume; 0 for none."""
        return self.newest() if self._settings is not None and self._settings.resume else 0

    def newest(self, most: float = math.inf) -> int:
        """Return the step of the newest checkpoint of the folder, up to a step; 0 for none."""
        if self._settings is None:
            return 0
        steps = map(_step_of, Path(self._settings.folder).glob(PATTERN))
        return max((step for step in steps if step <= most), default=0)

    def restore(self, step: int) -> bool:
        """Read the checkpoint of a step; False where there is none. Raises DataError when it cannot be used."""
        path = None if self._settings is None else self._path(step)
        if path is None or not path.exists():
            return False
        text, tensors = read(path)
        self._state.empty_tensors(text, in_place=False)  # refuses that of another model
        self._state.adopt(text, tensors)
        self._state.is_stopped = False  # who resumes a training that was stopped wants it to go on
        return True

    def committed(self, *, is_last: bool) -> None:
        """Save the state if it is time, or the training ends."""
        settings = self._settings
        if settings is None:
            return
        self._num_committed += 1
        every, every_s = settings.every_iterations, settings.every_s
        every_s = every_s if every_s or every else DEFAULT_EVERY_S
        is_due = bool(every) and self._state.position.step % every == 0
        if is_last or is_due or (every_s and time.monotonic() - self._saved_s >= every_s):
            self.save()

    def save(self) -> None:
        """Write a checkpoint, and remove those that are too many. A disk that does not take it is logged, once."""
        settings = self._settings
        if settings is None or not self._state.position.step:
            return
        self._saved_s = time.monotonic()
        folder = Path(settings.folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write(self._path(self._state.position.step), self._state)
        except OSError as error:  # a full disk, for example: the training needs no file
            if not self._has_failed:
                logger.warning("the training goes on without this checkpoint: %s", error)
            self._has_failed = True
            return
        self._has_failed = False
        for path in sorted(folder.glob(PATTERN), key=_step_of)[: -settings.keep]:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _path(self, step: int) -> Path:
        assert self._settings is not None
        return Path(self._settings.folder) / f"chicle-loop-{step:09d}.safetensors"


def write(path: Path, state: TrainingState) -> None:
    """Write the state into a file, whole or not at all."""
    head, tensors = state.describe()
    names = [name for name, _ in state.named_tensors()]
    names += [f"state/{number}" for number in range(len(names), len(tensors))]
    header: dict[str, Any] = {"__metadata__": {"chicle": head.decode()}}
    views = [bytes_of(tensor.cpu().contiguous()) for tensor in tensors]
    position = 0
    for name, tensor, view in zip(names, tensors, views, strict=True):
        end = position + len(view)
        dtype, shape = NAMES[str(tensor.dtype).removeprefix("torch.")], list(tensor.shape)
        if tensor.dtype == torch.complex128:
            shape.append(2)  # the format has no such kind: real and imaginary parts
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    draft = path.with_suffix(f".{os.getpid()}.partial")
    try:
        with draft.open("wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for view in views:
                file.write(view)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def read(path: Path) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """Return the text and the tensors of a checkpoint. Raises DataError when the file is none, or is cut off."""
    try:
        content = np.fromfile(path, dtype=np.uint8)
        size = int.from_bytes(content[:8].tobytes(), "little")
        header = json.loads(content[8 : 8 + size].tobytes())
        text: dict[str, Any] = json.loads(header.pop("__metadata__")["chicle"])
        tensors = []
        for entry, (dtype, shape) in zip(header.values(), text["tensors"], strict=True):
            start, stop = entry["data_offsets"]
            values = torch.from_numpy(content[8 + size + start : 8 + size + stop].copy())
            tensors.append(values.view(DTYPES[dtype]).reshape(shape))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise DataError(
            f"{path} is no whole checkpoint of a loop ({error}); remove it to resume from another"
        ) from error
    return text, tensors


def _step_of(path: Path) -> int:
    digits = path.name.removeprefix("chicle-loop-").removesuffix(".safetensors")
    return int(digits) if digits.isdecimal() else 0
