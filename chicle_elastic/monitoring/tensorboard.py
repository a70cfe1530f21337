"""Records of iterations as TensorBoard scalars, written by the tensorboard package alone (no torch, no TensorFlow).

    model/FIGURE                  what the trainer says of the model: objective, duality gap, loss
    parameters/NAME               what policies have set
    job/epochs, samples, num_tasks, iteration_s
    chunks/TASK, seconds/TASK     chunks that the task held, and what it computed; 0 after it has left
    transition/PHASE_ms           each change of the membership: detect, ahead, pause, rendezvous, move, group, first,
                                  stall, and time to whole after a loss
    events                        reasons of decisions, in their own words (the Text tab)

Steps are iterations. TensorBoard shows one text per step, the one that was written last, and forgets texts when steps
go back: so a text is written with all that its step had before it, and never at an earlier step (`StepTexts`).
"""

import os
import time
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from chicle_elastic.errors import MissingExtraError, UsageError
from chicle_elastic.monitoring.records import PARAMETERS_PREFIX, IterationRecord, Transition

__all__ = ["StepTexts", "TensorBoardWriter", "require_tensorboard", "tag_of"]

PHASES_MS = ("detect_ms", "ahead_ms", "pause_ms", "rendezvous_ms", "move_ms", "group_ms", "first_ms", "stall_ms")

# TensorBoard can show an iteration after this long; its own reload interval comes on top.
FLUSH_INTERVAL_S = 2


class StepTexts:
    """The texts of the latest step, so that the next one of that step does not hide them."""

    def __init__(self) -> None:
        self._step = 0
        self._texts: tuple[str, ...] = ()

    def add(self, step: int, texts: Sequence[str]) -> tuple[int, tuple[str, ...]]:
        """Take texts.

        Args:
            step: Of these texts.
            texts: At least one.

        Returns:
            The step to write at, which is never before the latest one, and all texts of that step.
        """
        if step > self._step:
            self._step, self._texts = step, ()
        self._texts = (*self._texts, *texts)
        return self._step, self._texts


class TensorBoardWriter:
    """Writes one event file; a context manager that closes it. `Job(on_iteration=writer.write)` is all it takes.

    Args:
        logdir: Folder of this run; it is created. `tensorboard --logdir PARENT` compares the runs below one folder.
        started_unix_s: When the job began, on the wall clock; by default now.
        texts: The texts that another writer to the same folder has written at the latest step.

    Raises:
        MissingExtraError: The package tensorboard is not installed.
        UsageError: The folder cannot be made.
    """

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        *,
        started_unix_s: float | None = None,
        texts: StepTexts | None = None,
    ) -> None:
        self._protos = require_tensorboard()
        self._started_unix_s = time.time() if started_unix_s is None else started_unix_s
        self._previous_s = 0.0
        self._texts = StepTexts() if texts is None else texts
        self._tasks: dict[str, None] = {}  # an ordered set
        path = os.fspath(logdir)
        if "://" not in path:
            # The package would raise in a thread of its own, where no caller sees the error.
            try:
                os.makedirs(path, exist_ok=True)
            except OSError as error:
                raise UsageError(f"logdir={path!r} cannot be made ({error.strerror}); name another folder") from error
        self._writer = self._protos.EventFileWriter(path, flush_secs=FLUSH_INTERVAL_S)

    def write(self, record: IterationRecord) -> None:
        """Add one iteration; it is on disk about two seconds later, or after `close`."""
        self._tasks |= dict.fromkeys(record.num_chunks)
        scalars = {tag_of(name): figure for name, figure in record.figures.items()}
        scalars |= {
            "job/epochs": record.epochs,
            "job/samples": record.samples,
            "job/num_tasks": record.num_tasks,
            "job/iteration_s": record.time_s - self._previous_s,
        }
        scalars |= {f"chunks/{task}": record.num_chunks.get(task, 0) for task in self._tasks}
        if record.seconds:
            scalars |= {f"seconds/{task}": record.seconds.get(task, 0.0) for task in self._tasks}
        self._previous_s = record.time_s
        self.add(record.iteration, scalars, unix_s=self._started_unix_s + record.time_s, texts=record.events)

    def write_transition(self, transition: Transition) -> None:
        """Add a change of the membership: `Job(on_transition=writer.write_transition)`."""
        self.add(
            transition.iteration,
            scalars_of(transition),
            unix_s=self._started_unix_s + self._previous_s,
            texts=[transition.words()],
        )

    def add(self, step: int, scalars: Mapping[str, float], *, unix_s: float, texts: Sequence[str] = ()) -> None:
        """Add scalars of any tags.

        Args:
            step: Iteration that they belong to.
            scalars: Values by tag.
            unix_s: When that was, on the wall clock.
            texts: Reasons, for the tag `events`.
        """
        values = [self._protos.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        if values:
            self._write(step, unix_s, values)
        if texts:
            text_step, lines = self._texts.add(step, texts)
            self._write(text_step, unix_s, [self._text("events", "\n".join(f"- {line}" for line in lines))])

    def close(self) -> None:
        """Write everything to disk. May be called again."""
        self._writer.close()

    def __enter__(self) -> "TensorBoardWriter":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _write(self, step: int, unix_s: float, values: list[Any]) -> None:
        summary = self._protos.Summary(value=values)
        self._writer.add_event(self._protos.Event(wall_time=unix_s, step=step, summary=summary))

    def _text(self, tag: str, markdown: str) -> Any:
        """A value of the Text tab."""
        protos = self._protos
        return protos.Summary.Value(
            tag=tag,
            metadata=protos.SummaryMetadata(plugin_data=protos.SummaryMetadata.PluginData(plugin_name="text")),
            tensor=protos.TensorProto(
                dtype="DT_STRING",
                string_val=[markdown.encode()],
                tensor_shape=protos.TensorShapeProto(dim=[protos.TensorShapeProto.Dim(size=1)]),
            ),
        )


def scalars_of(transition: Transition) -> dict[str, float]:
    """Its phases by tag; of a time to whole that alone, because the rest was told before."""
    names = PHASES_MS if transition.whole_ms is None else ("whole_ms",)
    phases = {name: getattr(transition, name) for name in names}
    return {f"transition/{name}": value for name, value in phases.items() if value is not None}


def require_tensorboard() -> SimpleNamespace:
    """The names of the package that are used here; imported now, so that the first writer costs nothing.

    Raises:
        MissingExtraError: The package tensorboard is not installed.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise MissingExtraError.for_package("tensorboard", extra="tensorboard", purpose="logdir=") from error
    return SimpleNamespace(
        Event=Event,
        Summary=Summary,
        SummaryMetadata=SummaryMetadata,
        TensorProto=TensorProto,
        TensorShapeProto=TensorShapeProto,
        EventFileWriter=EventFileWriter,
    )


def tag_of(figure: str) -> str:
    """Where TensorBoard shows a figure of a record: those of the trainer under "model", parameters apart."""
    is_set = figure.startswith(PARAMETERS_PREFIX)
    return f"parameters/{figure.removeprefix(PARAMETERS_PREFIX)}" if is_set else f"model/{figure}"
