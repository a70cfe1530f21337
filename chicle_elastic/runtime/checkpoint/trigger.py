"""Triggers checkpoints: collects this process's part of a checkpoint at the boundary at which one is due.

When one is due follows from the records of the job, which are the same in every task, so the tasks need no message to
agree. A task saves nothing while chunks are missing, because no node has their state.
"""

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from chicle_elastic.chunks.places import place_of, require_writable
from chicle_elastic.chunks.views import Chunk
from chicle_elastic.errors import UsageError
from chicle_elastic.monitoring.history import History
from chicle_elastic.runtime.checkpoint import format as checkpoint
from chicle_elastic.runtime.checkpoint.format import JobIdentity
from chicle_elastic.runtime.checkpoint.training_state import describe
from chicle_elastic.runtime.checkpoint.writer import CheckpointWriter, Draft
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.training.training import IterationResult, Training


class CheckpointTrigger:
    """Of one process. Raises MissingExtraError when the folder is a URL, and a package for it is not installed.

    Args:
        tell: Called for each checkpoint that this process has completed: iteration, size in bytes, seconds.
    """

    def __init__(
        self,
        settings: CheckpointSettings,
        identity: JobIdentity,
        training: Training,
        chunks: Callable[[], Iterable[Chunk]],
        tell: Callable[[int, int, float], object],
        who: str = "this process",
    ) -> None:
        self._settings, self._identity, self._who = settings, identity, who
        self._training, self._chunks = training, chunks
        self._folder = place_of(settings.folder, purpose="a folder of checkpoints")
        self._writer = CheckpointWriter(settings, identity, tell, who)
        self._paused = 0, ""

    def require_writable(self) -> None:
        """Try whether this process can write to the URL of its checkpoints. Raises UnreachablePlaceError when it
        cannot."""
        require_writable(self._folder, who=self._who)

    def require_unused(self) -> None:
        """The job begins: require an unused folder, where no checkpoint of another run can be mistaken for one of this.
        Raises UsageError when the folder holds a checkpoint."""
        whole = [path for path in checkpoint.attempts(self._folder) if checkpoint.is_complete(path)]
        if whole:
            raise UsageError(
                f"{self._settings.folder} holds checkpoints of an earlier run, up to iteration "
                f"{checkpoint.iteration_of(whole[-1])}; give --resume (CheckpointSettings(resume=True)) to resume from "
                "there, or name an empty folder"
            )

    def iteration_ended(self, result: IterationResult, *, rank: int, ranks: Sequence[int], has_stopped: bool) -> None:
        """An iteration is merged and judged, and no chunk has moved since."""
        self._writer.look()
        history = self._training.history
        before = history[-2] if len(history) > 1 else None
        is_due = has_stopped or self._settings.is_due(history[-1], before)
        if is_due and result.is_complete:
            self._writer.begin(self._draft(result.iteration, rank, ranks))

    def paused(self, iteration: int, rank: int, nodes: Sequence[str], round: int) -> None:
        """The job pauses, perhaps for good, and all chunks of this process are attached.

        Args:
            round: Current round. Chunks may have moved since an earlier checkpoint of this iteration.
        """
        mark = f"paused in round {round}: {', '.join(nodes)}"
        if (iteration, mark) == self._paused:
            return
        self._paused = iteration, mark
        draft = self._draft(iteration, rank, range(len(nodes)))
        draft.mark = mark
        self._writer.begin(draft)

    def flush(self) -> None:
        """Wait until the part of this process is on the disk, and every checkpoint with all its parts is complete."""
        self._writer.flush()

    def close(self) -> None:
        """Finish the part of this process; wait for it a few seconds at most."""
        self._writer.close()

    def _draft(self, iteration: int, rank: int, ranks: Sequence[int]) -> Draft:
        spec, chunks = self._identity.state, list(self._chunks())
        time_s = self._training.history[-1].time_s
        return Draft(
            iteration=iteration,
            time_s=time_s,
            rank=rank,
            ranks=ranks if spec.size_bytes(1) else (),
            rows=np.concatenate([np.zeros(0, dtype=np.int64), *(chunk.row_ids for chunk in chunks)]),
            state=np.concatenate([spec.zeros(0), *(chunk.state for chunk in chunks)]),
            shared=self._shared(time_s) if rank == 0 else None,
        )

    def _shared(self, time_s: float) -> Callable[[], Mapping[str, Any]]:
        """A snapshot of what is the same in all tasks; the thread of the writer serialises it."""
        frozen = copy.copy(self._training)
        frozen.history = History(list(self._training.history))
        frozen.history_text = self._training.history_text.copy()
        vectors = {checkpoint.MODEL: self._training.model.copy()}
        if frozen.certificate is not None and frozen.certificate.rebuilt is not None:
            vectors[checkpoint.REBUILT] = frozen.certificate.rebuilt.copy()
        progress = np.array(self._training.progress)
        if progress.size:
            vectors[checkpoint.PROGRESS] = progress
        return functools.partial(_shared_files, frozen, vectors, time_s)


def _shared_files(training: Training, vectors: Mapping[str, Any], time_s: float) -> dict[str, Any]:
    return {**vectors, checkpoint.TRAINING: describe(training, training.full_history(), time_s)}
