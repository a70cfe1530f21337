"""Writes one task's part of each checkpoint in a thread of its own: an iteration waits for a copy in memory only.

A checkpoint that is due waits for the previous one: where the disk is slower than the checkpoint interval, training is
as slow as the disk, and memory holds one copy of the state at most.

The task of rank 0 completes a checkpoint when all its parts exist, which it checks after each iteration. It abandons a
checkpoint that is incomplete when a later one is complete: a node was lost while it wrote, for example.
"""

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from chicle_elastic.chunks.target_folder import flush_folder
from chicle_elastic.chunks.views import Array
from chicle_elastic.runtime.checkpoint import format as checkpoint
from chicle_elastic.runtime.checkpoint.files import write_file, write_json
from chicle_elastic.runtime.checkpoint.format import JobIdentity
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings

FLUSH_S = 20.0
"""How long the end of a job waits for the disk."""
CLOSE_S = 4.0
"""How long a node that leaves waits for the disk: grace periods are short."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Draft:
    """A checkpoint that is being written.

    Attributes:
        iteration: Last merged iteration.
        time_s: Seconds since the start of the job, the same in every task.
        rank: Of this task.
        ranks: Tasks that have samples with state, and so write a part.
        rows: Row ids of the samples of this task; copies, like the state.
        state: Their state.
        shared: Makes the files that all tasks share, by name, arrays or JSON values; None except in rank 0.
    """

    iteration: int
    time_s: float
    rank: int
    ranks: Sequence[int]
    rows: Array
    state: Array
    shared: Callable[[], Mapping[str, Any]] | None
    files: dict[str, Any] = field(default_factory=dict)
    started_s: float = field(default_factory=time.monotonic)


class CheckpointWriter:
    """Of one task.

    Args:
        settings: Where, and how many are kept.
        identity: Of the job.
        tell: Called for each complete checkpoint, in the thread: iteration, size in bytes, seconds.
    """

    def __init__(
        self, settings: CheckpointSettings, identity: JobIdentity, tell: Callable[[int, int, float], object]
    ) -> None:
        self._settings, self._identity, self._on_saved = settings, identity, tell
        self._folder = Path(settings.folder)
        self._orders: SimpleQueue[Draft | threading.Event | None] = SimpleQueue()
        self._incomplete: list[Draft] = []
        self._is_written = threading.Event()
        self._is_written.set()
        self._has_failed = False
        # A daemon: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="chicle-checkpoint", daemon=True)
        self._thread.start()

    def begin(self, draft: Draft) -> None:
        """Write this task's part; returns at once, unless the thread still writes the previous one."""
        self._is_written.wait()
        self._is_written.clear()
        self._orders.put(draft)

    def look(self) -> None:
        """Have the thread complete what is ready; to be called after each iteration."""
        if self._incomplete:
            self._orders.put(threading.Event())

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until this task's part is on the disk, and what is ready is complete."""
        done = threading.Event()
        self._orders.put(done)
        done.wait(timeout_s)

    def close(self) -> None:
        """Finish what was begun; waits `CLOSE_S` at most."""
        self._orders.put(None)
        self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                if isinstance(order, Draft):
                    self._write(order)
                self._complete()
            except Exception as error:  # a full disk, say: training goes on, and the previous checkpoint is kept
                logger.error("cannot write a checkpoint to %s: %s: %s", self._folder, type(error).__name__, error)
            finally:
                if isinstance(order, Draft):
                    self._is_written.set()
                else:
                    order.set()

    def _write(self, draft: Draft) -> None:
        path = self._path(draft)
        path.mkdir(parents=True, exist_ok=True)
        if draft.rank in draft.ranks:
            names = [checkpoint.part_name(draft.rank, suffix) for suffix in ("rows.npy", "state.npy", "json")]
            files = {
                names[0]: write_file(path / names[0], draft.rows),
                names[1]: write_file(path / names[1], draft.state),
            }
            write_json(path / names[2], files)
            flush_folder(path)
        draft.rows = draft.state = draft.rows[:0]  # their memory is not needed any more
        if draft.shared is not None:
            for name, content in draft.shared().items():
                write = write_file if name.endswith(".npy") else write_json
                draft.files[name] = write(path / name, content)
            draft.shared = None
            self._incomplete.append(draft)

    def _complete(self) -> None:
        """Write the manifest of each checkpoint that has all its parts."""
        for draft in list(self._incomplete):
            path = self._path(draft)
            parts = [checkpoint.read_part(path, rank) for rank in draft.ranks]
            if any(part is None for part in parts):
                continue
            for part in parts:
                draft.files |= part or {}
            checkpoint.write_manifest(path, iteration=draft.iteration, identity=self._identity, files=draft.files)
            flush_folder(self._folder)
            self._incomplete = [other for other in self._incomplete if other.iteration > draft.iteration]
            self._prune(draft.iteration)
            size_bytes = sum(entry["bytes"] for entry in draft.files.values())
            self._on_saved(draft.iteration, size_bytes, time.monotonic() - draft.started_s)

    def _prune(self, iteration: int) -> None:
        """Remove the checkpoints beyond those that are kept, and older ones that no task will complete."""
        older = [path for path in checkpoint.attempts(self._folder) if checkpoint.iteration_of(path) <= iteration]
        whole = [path for path in older if checkpoint.is_complete(path)]
        for path in set(older) - set(whole[-self._settings.keep :]):
            # The manifest first: a folder that is half gone must not look like a checkpoint.
            (path / checkpoint.MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)

    def _path(self, draft: Draft) -> Path:
        return self._folder / checkpoint.attempt_name(draft.iteration, draft.time_s)
