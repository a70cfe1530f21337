"""What TensorBoard shows of a run, without writing it: scalars and texts of an iteration or of a transition.

    model/FIGURE                  what the trainer says of the model: objective, duality gap, loss, validation score
    model_by_samples/FIGURE       the same; its steps are the samples that were processed so far
    log10/FIGURE                  the exponent of each gap: TensorBoard's axes are linear
    parameters/NAME               what policies have set
    job/epochs, samples, num_tasks, iteration_s, boundary_ms
    chunks/NODE, seconds/NODE     of each node, up to 16 of them; a curve ends when its node leaves
    nodes/chunks_QUANTILE, nodes/seconds_QUANTILE    min, median and max of all nodes
    transition/PHASE_ms           each change of the membership: detect, ahead, pause, rendezvous, move, group, first,
                                  stall, and time to whole after a loss
    events                        reasons of decisions, in their own words, at their step
    journal/PAGE                  all of these and all transitions, none lost
    members                       which node was there from when to when

Steps are iterations, but for `model_by_samples`.

TensorBoard shows one text per step, the one that was written last, and forgets texts when steps go back; and of a tag
it keeps the texts of 100 steps at most, drawn at random. So a text is written with all that its step had before it,
and never at an earlier step (`StepTexts`); and all texts of a job are pages of a journal, each under its own tag.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chicle_elastic.monitoring.node_curves import NodeCurves
from chicle_elastic.monitoring.pictures import PictureBook
from chicle_elastic.monitoring.records import PARAMETERS_PREFIX, IterationRecord, Transition
from chicle_elastic.scheduling.text import boundary_ms_of, is_boundary_text

PAGE_LINES = 50
WRITTEN_EVERY_S = 2.0  # a page is written again when it has grown, but not more often than this: it is written whole
PHASES_MS = ("detect_ms", "ahead_ms", "pause_ms", "rendezvous_ms", "move_ms", "group_ms", "first_ms", "stall_ms")


class StepTexts:
    """The texts of the latest step, so that the next one of that step does not hide them."""

    def __init__(self) -> None:
        self._step = 0
        self._texts: tuple[str, ...] = ()

    def add(self, step: int, texts: Sequence[str]) -> tuple[int, tuple[str, ...]]:
        """Take texts. Returns the step to write at, which is never before the latest one, and all texts of that
        step."""
        if step > self._step:
            self._step, self._texts = step, ()
        self._texts = (*self._texts, *texts)
        return self._step, self._texts


class Journal:
    """Keep what happened, in pages."""

    def __init__(self) -> None:
        self._page = 1
        self._lines: list[str] = []
        self._step = 0
        self._written_s = float("-inf")
        self._full: list[tuple[str, int, str]] = []
        self._num_written = 0  # of these
        self._has_news = False

    def add(self, step: int, texts: Sequence[str]) -> None:
        """Take texts of a step."""
        self._step = max(step, self._step)
        for text in texts:
            if len(self._lines) >= PAGE_LINES:
                self._full.append(self._text())
                self._page, self._lines = self._page + 1, []
            cell = text.replace("|", "\\|").replace("\n", "<br>")
            self._lines.append(f"| {step} | {cell} |")
            self._has_news = True

    def pages(self, unix_s: float, *, is_last: bool = False) -> list[tuple[str, int, str]]:
        """Return what has to be written now, as pages: tag, step and Markdown."""
        full, self._num_written = self._full[self._num_written :], len(self._full)
        if self._has_news and (is_last or unix_s - self._written_s >= WRITTEN_EVERY_S):
            self._has_news, self._written_s = False, unix_s
            full.append(self._text())
        return full

    def repeat(self) -> None:
        """Another writer goes on: it writes every page again, because the last one may not have come to it."""
        self._num_written, self._has_news, self._written_s = 0, bool(self._lines), float("-inf")

    def _text(self) -> tuple[str, int, str]:
        table = "\n".join(["| iteration | what happened |", "| --- | --- |", *self._lines])
        return f"journal/page_{self._page:03d}", self._step, table


@dataclass(slots=True)
class Page:
    """What to write."""

    step: int
    unix_s: float  # when that was, on the wall clock
    scalars: dict[str, float] = field(default_factory=dict)  # by tag
    texts: list[tuple[str, int, str]] = field(default_factory=list)
    by_samples: dict[str, float] = field(default_factory=dict)
    num_samples: int = 0


class RunPages:
    """Makes the pages of a run; holds what a page depends on, so that another writer of the same run can go on."""

    def __init__(self, *, started_unix_s: float | None = None) -> None:
        self._before_s = started_unix_s
        self._texts, self._journal, self._curves = StepTexts(), Journal(), NodeCurves()
        self._epochs = 0.0
        self._rows: float | None = None  # of the data set
        self._knows_epochs = False
        self.pictures = PictureBook()
        self.tags: set[str] = set()

    def iteration(self, record: IterationRecord, *, unix_s: float, besides: Mapping[str, float] | None = None) -> Page:
        """The page of an iteration."""
        self.pictures.add(record, unix_s)
        figures = {tag_of(name): figure for name, figure in record.figures.items()}
        # TensorBoard's axes are linear until a button is pressed, and a gap falls by orders of magnitude.
        logs = {
            f"log10/{name}": math.log10(figure)
            for name, figure in record.figures.items()
            if "gap" in name and 0 < figure < math.inf
        }
        scalars = figures | logs
        scalars |= {
            "job/epochs": record.epochs,
            "job/samples": record.samples,
            "job/num_tasks": record.num_tasks,
        }
        if self._before_s is not None:
            scalars["job/iteration_s"] = unix_s - self._before_s
        self._before_s = unix_s
        boundaries_ms = [found for line in record.events if (found := boundary_ms_of(line)) is not None]
        if boundaries_ms:
            scalars["job/boundary_ms"] = sum(boundaries_ms)
        were_present = self._curves.present
        scalars |= self._curves.scalars(record.iteration, record.num_chunks, record.seconds)
        scalars |= besides or {}
        page = self.texts(record.iteration, record.events, unix_s=unix_s)
        page.scalars = scalars
        if self._curves.present != were_present:
            page.texts.append(("members", record.iteration, self._curves.members_text))
        self._by_samples(page, record, figures)
        self.tags |= {*scalars, *page.by_samples}
        return page

    def transition(self, transition: Transition, *, step: int, unix_s: float) -> Page:
        """The page of a change of the membership, at the step of the latest iteration."""
        page = self.texts(step, [transition.words()], unix_s=unix_s)
        page.scalars = scalars_of(transition)
        self.tags |= page.scalars.keys()
        return page

    def texts(self, step: int, texts: Sequence[str], *, unix_s: float, is_last: bool = False) -> Page:
        """The page of texts."""
        page = Page(step, unix_s)
        told = [text for text in texts if not is_boundary_text(text)]
        if told:
            text_step, lines = self._texts.add(step, told)
            page.texts.append(("events", text_step, "\n".join(f"- {line}" for line in lines)))
            self._journal.add(step, told)
        page.texts += self._journal.pages(unix_s, is_last=is_last)
        return page

    def repeat_texts(self) -> None:
        """Another writer of the run goes on: it writes all texts again, with its next page."""
        self._journal.repeat()

    def _by_samples(self, page: Page, record: IterationRecord, figures: Mapping[str, float]) -> None:
        """An agent that has joined late was not told of all samples, but epochs count from the beginning."""
        epochs, self._epochs = record.epochs - self._epochs, record.epochs
        if self._rows is None and epochs > 0 and (self._knows_epochs or record.iteration == 1):
            self._rows = record.samples / epochs
        self._knows_epochs = True
        if self._rows:
            page.num_samples = round(record.epochs * self._rows)
            page.by_samples = {
                f"model_by_samples/{tag.removeprefix('model/')}": value
                for tag, value in figures.items()
                if tag.startswith("model/")
            }


def scalars_of(transition: Transition) -> dict[str, float]:
    """Its phases by tag; of a time to whole that alone, because the rest was told before."""
    names = PHASES_MS if transition.whole_ms is None else ("whole_ms",)
    phases = {name: getattr(transition, name) for name in names}
    return {f"transition/{name}": value for name, value in phases.items() if value is not None}


def tag_of(figure: str) -> str:
    """Where TensorBoard shows a figure of a record: those of the trainer under "model", parameters apart."""
    is_set = figure.startswith(PARAMETERS_PREFIX)
    return f"parameters/{figure.removeprefix(PARAMETERS_PREFIX)}" if is_set else f"model/{figure}"
