"""Checkpoints of a loop, for the case that no node is left.

    FOLDER/000001200-5f3a9c21/loop.safetensors    the whole state, as any reader of that format takes it (`state`)
                              manifest.json       written last: size and checksum of the file

They are those of every job (`runtime.checkpoint`): the first member copies its state, and a thread writes it.
"""

import threading
import time
from collections.abc import Callable

from chicle_elastic.chunks.places import Place, place_of
from chicle_elastic.chunks.views import NO_STATE
from chicle_elastic.errors import DataError
from chicle_elastic.runtime.checkpoint import format as checkpoint
from chicle_elastic.runtime.checkpoint.files import read_bytes
from chicle_elastic.runtime.checkpoint.format import JobIdentity
from chicle_elastic.runtime.checkpoint.writer import CheckpointWriter, Draft
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.torch.state import TrainingState, bytes_of

FILE = "loop.safetensors"
IDENTITY = JobIdentity(num_rows=0, num_parameters=0, state=NO_STATE, trainer={"trainer": "loop of torch"})
"""Only that of the kind of job: the state itself says which model it is of."""


class LoopCheckpoints:
    """The checkpoints of a job. `who`: node that logs what is wrong; `tell`: as of `CheckpointWriter`."""

    def __init__(
        self,
        settings: CheckpointSettings,
        state: TrainingState,
        who: str,
        tell: Callable[[int, int, float], object] = lambda *_: None,
    ) -> None:
        self._settings, self._state = settings, state
        self._writer = CheckpointWriter(settings, IDENTITY, tell, f"node {who}")
        self._saved_s, self._saved_step = time.monotonic(), 0

    def newest(self, most: float = float("inf")) -> int:
        """Return the step of the newest checkpoint of the folder, up to a step; 0 for none."""
        return max((step for step in self._whole() if step <= most), default=0)

    def restore(self, step: int) -> bool:
        """Read the checkpoint of a step; False where there is none. Raises DataError when it cannot be used."""
        path = self._whole().get(step)
        if path is None:
            return False
        try:
            files = checkpoint.read_manifest(path / checkpoint.MANIFEST)["files"]
            content = memoryview(read_bytes(path / FILE, files.get(FILE)))
        except DataError as error:
            raise DataError(f"{error}; remove {path} to resume from the checkpoint before it") from error
        begin = 8 + int.from_bytes(content[:8], "little")
        head = bytes(content[8:begin])
        tensors = self._state.room(head)
        for view in map(bytes_of, tensors.values()):
            view[:] = content[begin : begin + len(view)]
            begin += len(view)
        self._state.adopt(head, tensors)
        self._state.is_stopped = False  # who resumes a training that was stopped wants it to go on
        return True

    def committed(self, *, is_last: bool) -> None:
        """Save the state if it is time, or the training ends."""
        every, interval_s = self._settings.every_iterations, self._settings.interval_s
        is_due = bool(every) and self._state.position.step % every == 0
        if is_last or is_due or (interval_s and time.monotonic() - self._saved_s >= interval_s):
            self.save()
        self._writer.look()
        if is_last:
            self._writer.flush(threading.TIMEOUT_MAX)

    def save(self) -> None:
        """Begin to write a checkpoint, which waits for the one before. A disk that does not take it is logged, once."""
        step = self._state.position.step
        if step == self._saved_step:
            return
        self._saved_s, self._saved_step = time.monotonic(), step
        head, tensors = self._state.describe()
        head += b" " * (-len(head) % 8)
        content = b"".join([len(head).to_bytes(8, "little"), head, *map(bytes_of, tensors.values())])
        self._writer.begin(Draft(iteration=step, time_s=time.time(), shared=lambda: {FILE: content}))

    def close(self) -> None:
        """Finish what was begun; waits a few seconds at most."""
        self._writer.close()

    def _whole(self) -> dict[int, Place]:
        """Return the complete checkpoints, by step."""
        paths = checkpoint.attempts(place_of(self._settings.folder, purpose="a folder of checkpoints"))
        return {checkpoint.iteration_of(path): path for path in paths if checkpoint.is_complete(path)}
