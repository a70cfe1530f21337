"""Writes one task's part of each checkpoint in a thread of its own: an iteration waits for a copy in memory only.

A checkpoint that is due waits for the previous one: where the disk is slower than the checkpoint interval, training is
as slow as the disk, and memory holds one copy of the state at most.

The task of rank 0 completes a checkpoint when all its parts exist, which it checks after each iteration, and at times
while the job pauses. It abandons a checkpoint that is incomplete when a later one is complete: a node was lost while it
wrote, for example.

A task without room for its part removes the whole attempt, which can never be complete. The task of rank 0 finds its
files gone, forgets the attempt, and removes what slower tasks have written there since.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from chicle_elastic.chunks.places import Place, flush_place, make_folder, place_of, remove_folder
from chicle_elastic.chunks.views import Array
from chicle_elastic.disk_watch import asking
from chicle_elastic.errors import DataError
from chicle_elastic.runtime.checkpoint import format as checkpoint
from chicle_elastic.runtime.checkpoint.files import write_file, write_json
from chicle_elastic.runtime.checkpoint.format import JobIdentity
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings

FLUSH_S = 20.0  # how long the end of a job waits for the disk
POLL_S = 0.5  # how often the task of rank 0 looks for parts while no iteration ends
CLOSE_S = 4.0  # how long a node that leaves waits for the disk: grace periods are short

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class Draft:
    """A checkpoint that is being written."""

    iteration: int  # last merged iteration
    time_s: float  # seconds since the start of the job, the same in every task
    rank: int = 0
    ranks: Sequence[int] = ()  # that write parts; each of them has rows
    rows: Array = field(default_factory=lambda: np.zeros(0))  # of the samples of this task; copies, like the state
    state: Array = field(default_factory=lambda: np.zeros(0))
    # makes the files that all tasks share, by name: arrays, bytes or JSON values; None except in rank 0
    shared: Callable[[], Mapping[str, Any]] | None
    mark: str = ""  # for `format.attempt_name`: empty, but for the checkpoint of a job that pauses
    files: dict[str, Any] = field(default_factory=dict)
    parts: dict[int, dict[str, Any]] = field(default_factory=dict)
    started_s: float = field(default_factory=time.monotonic)


class CheckpointWriter:
    """Writes checkpoints of one task. `tell`: called for each complete one, in the thread: iteration, size in bytes,
    seconds."""

    def __init__(
        self,
        settings: CheckpointSettings,
        identity: JobIdentity,
        tell: Callable[[int, int, float], object],
        who: str = "this process",
    ) -> None:
        self._settings, self._identity, self._on_saved = settings, identity, tell
        self._who = who
        self._folder = place_of(settings.folder, purpose="a folder of checkpoints")
        self._orders: SimpleQueue[Draft | threading.Event | None] = SimpleQueue()
        self._incomplete: list[Draft] = []
        self._abandoned: list[Place] = []
        self._is_written = threading.Event()
        self._is_written.set()
        self._look: threading.Event | None = None
        self._fault: object = None
        # A daemon: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._work, name="chicle-checkpoint", daemon=True)

    def begin(self, draft: Draft) -> None:
        """Write this task's part; returns at once, unless the thread still writes the previous one."""
        if self._thread.ident is None:  # a job that is refused has no thread that would have to end
            self._thread.start()
        self._is_written.wait()
        self._is_written.clear()
        self._orders.put(draft)

    def look(self) -> None:
        """Have the thread complete what is ready; to be called after each iteration."""
        # One at a time: an iteration may take less than a request to a store of objects.
        if self._incomplete and (self._look is None or self._look.is_set()):
            self._look = threading.Event()
            self._orders.put(self._look)

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until this task's part is on the disk, and what is ready is complete."""
        done = threading.Event()
        self._orders.put(done)
        if self._thread.ident is not None:
            done.wait(timeout_s)

    def close(self) -> None:
        """Finish what was begun; waits `CLOSE_S` at most."""
        self._orders.put(None)
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)

    def _work(self) -> None:
        while (order := self._next_order()) is not None:
            try:
                with asking(self._folder):
                    if isinstance(order, Draft):
                        self._attempt(order)
                    self._complete()
            except Exception as error:  # a full disk, say: training goes on, and the previous checkpoint is kept
                self._report(error)
            finally:
                if isinstance(order, Draft):
                    self._is_written.set()
                else:
                    order.set()

        self._await_parts()
        self._remove_abandoned()

    def _next_order(self) -> Draft | threading.Event | None:
        """Look for the parts of other tasks at times: a job that pauses has no iterations that would order it."""
        try:
            return self._orders.get(timeout=POLL_S if self._is_paused else None)
        except Empty:
            return threading.Event()

    @property
    def _is_paused(self) -> bool:
        return any(draft.mark for draft in self._incomplete)

    def _await_parts(self) -> None:
        """This task ends, and others may still write their parts of the checkpoint of a job that pauses."""
        until_s = time.monotonic() + CLOSE_S
        while self._is_paused:
            try:
                self._complete()
            except Exception as error:
                self._report(error)
            if time.monotonic() > until_s:
                return
            threading.Event().wait(POLL_S)

    def _report(self, error: Exception) -> None:
        """Log why no checkpoint is written, once until one is."""
        fault = getattr(error, "errno", None) or str(error)  # an OSError names the file of this attempt
        if fault != self._fault:
            logger.error(
                "%s cannot write a checkpoint to %s: %s; training goes on, and each next one is tried when it is due",
                self._who,
                self._folder,
                f"{type(error).__name__}: {error}",
            )
        self._fault = fault

    def _attempt(self, draft: Draft) -> None:
        self._remove_abandoned()
        self._abandoned.clear()
        try:
            self._write(draft)
        except Exception:
            self._abandon(draft)
            raise
        self._fault = None

    def _abandon(self, draft: Draft) -> None:
        """Give an attempt up, and the room that it takes on a disk that is full."""
        self._incomplete = [other for other in self._incomplete if other is not draft]
        self._abandoned.append(self._path(draft))
        self._remove_abandoned()

    def _remove_abandoned(self) -> None:
        """Remove attempts that were given up, and what slower tasks have written to them since."""
        with contextlib.suppress(OSError, DataError):  # whatever refuses this has refused the attempt, with a line
            for path in self._abandoned:
                if not checkpoint.is_complete(path):
                    remove_folder(path)

    def _write(self, draft: Draft) -> None:
        path = self._path(draft)
        make_folder(path)
        if draft.rank in draft.ranks:
            names = [checkpoint.part_name(draft.rank, suffix) for suffix in ("rows.npy", "state.npy", "json")]
            files = {
                names[0]: write_file(path / names[0], draft.rows),
                names[1]: write_file(path / names[1], draft.state),
            }
            write_json(path / names[2], files)
            flush_place(path)
        draft.rows = draft.state = draft.rows[:0]  # their memory is not needed any more
        if draft.shared is not None:
            for name, content in draft.shared().items():
                write = write_file if isinstance(content, bytes | np.ndarray) else write_json
                draft.files[name] = write(path / name, content)
            draft.shared = None
            self._incomplete.append(draft)

    def _complete(self) -> None:
        """Write the manifest of each checkpoint that has all its parts."""
        for draft in list(self._incomplete):
            path = self._path(draft)
            for rank in draft.ranks:
                if rank not in draft.parts and (part := checkpoint.read_part(path, rank)) is not None:
                    draft.parts[rank] = part
            if len(draft.parts) < len(draft.ranks):
                if not (path / checkpoint.TRAINING).exists():
                    self._abandon(draft)
                continue
            for part in draft.parts.values():
                draft.files |= part
            try:
                checkpoint.write_manifest(path, iteration=draft.iteration, identity=self._identity, files=draft.files)
            except OSError:
                self._abandon(draft)
                raise
            flush_place(self._folder)
            self._incomplete = [other for other in self._incomplete if other.iteration > draft.iteration]
            try:
                self._prune(draft.iteration)
            except (OSError, DataError) as error:
                logger.warning("%s cannot remove old checkpoints, which cost space only: %s", self._who, error)
            size_bytes = sum(entry["bytes"] for entry in draft.files.values())
            self._on_saved(draft.iteration, size_bytes, time.monotonic() - draft.started_s)

    def _prune(self, iteration: int) -> None:
        """Remove the checkpoints beyond those that are kept, and older ones that no task will complete."""
        older = [path for path in checkpoint.attempts(self._folder) if checkpoint.iteration_of(path) <= iteration]
        whole = [path for path in older if checkpoint.is_complete(path)]
        for path in set(older) - set(whole[-self._settings.keep :]):
            if not checkpoint.is_newer(path):
                # The manifest first: a folder that is half gone must not look like a checkpoint.
                (path / checkpoint.MANIFEST).unlink(missing_ok=True)
                remove_folder(path)

    def _path(self, draft: Draft) -> Place:
        return self._folder / checkpoint.attempt_name(draft.iteration, draft.time_s, draft.mark)
