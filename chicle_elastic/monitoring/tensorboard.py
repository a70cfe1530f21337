"""A run on TensorBoard, written by the tensorboard package alone (no torch, no TensorFlow); `board_pages` has the tags.

The package's own writer is not used: it ends at the first write that a full disk refuses, and opens a relative path
again for each one. A `LineWriter` writes the file here.

Beside scalars and texts: pictures at intervals and at the end, where matplotlib is installed (`pictures`); the layout
of the tab Custom Scalars, so that all nodes are in one chart; hyper-parameters with the last figures as their result.
"""

import functools
import io
import itertools
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chicle_elastic.errors import UsageError
from chicle_elastic.monitoring.board_pages import Page, RunPages
from chicle_elastic.monitoring.board_values import Values, layout_of, plain_parameters, require_tensorboard
from chicle_elastic.monitoring.line_writer import LineWriter
from chicle_elastic.monitoring.pictures import Draw, can_draw, draw_pictures
from chicle_elastic.monitoring.records import IterationRecord, Transition
from chicle_elastic.surroundings import absolute

__all__ = ["TensorBoardWriter", "require_tensorboard"]

_files = itertools.count()


class TensorBoardWriter:
    """Writes one event file; a context manager that closes it. `Job(on_iteration=writer.write)` is all it takes. Raises
    MissingExtraError when the package tensorboard is not installed, UsageError when the folder cannot be made.

    Args:
        logdir: Folder of this run; it is created. `tensorboard --logdir PARENT` compares the runs below one folder.
        started_unix_s: When the job began, on the wall clock; by default now.
        hyper_parameters: For the tab HParams: numbers, strings and bools by name. The last value of each figure of the
            model, and the time, are their result.
        pages: What other writers to the same folder have written; by default nothing.
        draw: Draws the pictures; None for a run without pictures.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        *,
        started_unix_s: float | None = None,
        hyper_parameters: Mapping[str, Any] | None = None,
        pages: RunPages | None = None,
        draw: Draw | None = draw_pictures,
        draws_from_s: float = 0.0,
    ) -> None:
        protos = require_tensorboard()
        self._protos, self._values = protos, Values(protos)
        self._started_unix_s = time.time() if started_unix_s is None else started_unix_s
        self._pages = RunPages(started_unix_s=self._started_unix_s) if pages is None else pages
        self._pages.repeat_texts()
        self._unix_s = self._started_unix_s
        self._step = 0
        self._draw = draw if can_draw() else None
        self._draws_from_s = draws_from_s
        self._drawn_step = 0
        self._layout: Any = {}
        self._num_tags = 0
        self._params = plain_parameters(hyper_parameters or {})
        self._is_finished = False
        folder = absolute(Path(logdir))
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_files)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = LineWriter(
                folder / name, told_of_drops=lambda _: b"", max_file_bytes=None, thread_name="chicle-tensorboard"
            )
        except OSError as error:
            problem = f"logdir={str(folder)!r} cannot be made ({error.strerror}); name another folder"
            raise UsageError(problem) from error
        self._add(protos.Event(wall_time=time.time(), file_version="brain.Event:2"))
        if self._params:
            begun = self._values.hyper_parameters(folder.name, self._params, self._started_unix_s)
            self._write(0, self._started_unix_s, [begun])

    def write(self, record: IterationRecord) -> None:
        """Add one iteration; it is on disk soon, and after `close`."""
        unix_s = self._started_unix_s + record.time_s
        self.put(self._pages.iteration(record, unix_s=unix_s, besides={"job/time_s": record.time_s}))

    def write_transition(self, transition: Transition) -> None:
        """Add a change of the membership: `Job(on_transition=writer.write_transition)`."""
        self.put(self._pages.transition(transition, step=transition.iteration, unix_s=self._unix_s))

    def add(self, step: int, scalars: Mapping[str, float], *, unix_s: float, texts: Sequence[str] = ()) -> None:
        """Add scalars of any tags."""
        page = self._pages.texts(step, texts, unix_s=unix_s)
        page.scalars = dict(scalars)
        self.put(page)

    def put(self, page: Page) -> None:
        """Write a page, and a picture when it is time for one."""
        self._step, self._unix_s = max(self._step, page.step), page.unix_s
        scalars = [self._values.scalar(tag, value) for tag, value in page.scalars.items()]
        if len(self._pages.tags) > self._num_tags:
            self._num_tags = len(self._pages.tags)
            self._write_layout(page)
        if scalars:
            self._write(page.step, page.unix_s, scalars)
        if page.by_samples:
            values = [self._values.scalar(tag, value) for tag, value in page.by_samples.items()]
            self._write(page.num_samples, page.unix_s, values)
        for tag, step, markdown in page.texts:
            self._write(step, page.unix_s, [self._values.text(tag, markdown)])
        if self._pages.pictures.is_due(page.unix_s):
            self._draw_now()

    def finish(self, *, is_success: bool = True) -> None:
        """The run has ended: write the last texts; and of one that has succeeded the last picture and the results."""
        if self._is_finished:
            return
        self._is_finished = True
        self.put(self._pages.texts(self._step, (), unix_s=self._unix_s, is_last=True))
        if not is_success:
            return
        pictures = self._pages.pictures
        if pictures.records and self._drawn_step != self._step and pictures.last_s >= self._draws_from_s:
            self._draw_now()
        if self._params:
            results = sorted(tag for tag in self._pages.tags if tag.startswith("model/"))
            results += [tag for tag in ("job/epochs", "job/time_s") if tag in self._pages.tags]
            values = [
                self._values.experiment(self._params, results),
                self._values.hyper_parameters_end(self._unix_s),
            ]
            self._write(self._step, self._unix_s, values)

    def close(self) -> None:
        """Write everything to disk. May be called again."""
        self._writer.close()

    def __enter__(self) -> "TensorBoardWriter":
        return self

    def __exit__(self, kind: object, *exc_info: object) -> None:
        try:
            self.finish(is_success=kind is None)
        finally:
            self.close()

    def _write_layout(self, page: Page) -> None:
        layout = layout_of(self._pages.tags)
        if layout != self._layout:
            self._layout = layout
            self._write(page.step, page.unix_s, [self._values.layout(layout)])

    def _draw_now(self) -> None:
        pictures = self._pages.pictures
        before_s = time.perf_counter()
        found = {} if self._draw is None else self._draw(pictures.records)
        pictures.drawn(self._unix_s, duration_s=time.perf_counter() - before_s)
        self._drawn_step = self._step
        if found:
            values = [self._values.picture(tag, png) for tag, png in found.items()]
            self._write(self._step, self._unix_s, values)

    def _write(self, step: int, unix_s: float, values: list[Any]) -> None:
        self._add(self._protos.Event(wall_time=unix_s, step=step, summary=self._protos.Summary(value=values)))

    def _add(self, event: Any) -> None:
        """Hand an event to the thread that writes; where too many wait for the disk, TensorBoard lacks this one."""
        self._writer.offer(functools.partial(self._record, event), num_bytes=event.ByteSize())

    def _record(self, event: Any) -> bytes:
        buffer = io.BytesIO()
        self._protos.RecordWriter(buffer).write(event.SerializeToString())
        return buffer.getvalue()
