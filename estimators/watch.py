"""Observers of a running job: scikit-learn callbacks, a bar or lines on stdout, TensorBoard."""

import itertools
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from chicle_elastic import notebook, waits
from chicle_elastic.chunks.views import Array
from chicle_elastic.clock import MonotonicClock
from chicle_elastic.monitoring.history import History
from chicle_elastic.monitoring.progress import LINE_EVERY_S, FitProgress, NotebookBar
from chicle_elastic.monitoring.records import PARAMETERS_PREFIX, IterationRecord, Transition
from chicle_elastic.scheduling.text import is_disabled_text
from chicle_elastic.surroundings import write

if TYPE_CHECKING:
    from chicle_elastic.runtime.training.job import Outcome

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:  # before scikit-learn 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Estimators without callbacks, where scikit-learn has none."""

        def _init_callback_context(self, **_: Any) -> "NoContext":
            return NoContext()


Listener: TypeAlias = Callable[[IterationRecord], None]

_fits = itertools.count(1)
OWN_PACKAGES = ("estimators", "chicle_elastic", "sklearn")
"""Packages between a listener and the line of the user that called `fit`."""
NO_HYPER_PARAMETERS = frozenset({"runtime", "logdir", "verbose"})
"""Parameters that say where a fit runs and how it is watched."""


class NoContext:
    """A context of callbacks of which there are none."""

    def subcontext(self, **_: Any) -> "NoContext":
        """The same for an iteration."""
        return self

    def call_on_fit_task_begin(self, **_: Any) -> None:
        """No callback is called."""

    def call_on_fit_task_end(self, **_: Any) -> bool:
        """No callback asks to stop."""
        return False


class Watcher(NamedTuple):
    """The callbacks of the observers, as the fields of a `Job`, None when there are no observers; and of the end."""

    on_iteration: Listener | None
    on_transition: Callable[[Transition], None] | None
    on_end: Callable[["Outcome"], None] = lambda outcome: None


NOBODY = Watcher(None, None)


class CallbackBridge:
    """Opens one subcontext of the fit's callback context per iteration; `EpochBridge` does so per epoch.

    Args:
        estimator: Being fitted, with callbacks.
        context: Of the fit.
        max_iter: Iterations (or epochs) at most.
        tol: A certified gap up to this ends the job.
        arguments: `X`, `y` and `metadata` for the hooks.
        attributes: Makes the attributes of an estimator that can predict from (model, number of iterations); called
            only when a callback asks for `fitted_estimator`.
    """

    task_name = "iteration"

    def __init__(
        self,
        estimator: Any,
        context: Any,
        *,
        max_iter: int,
        tol: float,
        arguments: dict[str, Any],
        attributes: Callable[[Array, int], dict[str, Any]],
    ) -> None:
        self._estimator = estimator
        self._context = context
        self._max_iter = max_iter
        self._tol = tol
        self._arguments = arguments
        self._attributes = attributes
        self._iteration: Any = None

    def begin(self, model: Array | None = None, iteration: int = 0) -> None:
        """Open the subcontext of the next iteration; `model` is what it begins with."""
        attributes = None if model is None else partial(self._attributes, model, iteration)
        self._iteration = self._context.subcontext(task_name=self.task_name)
        self._iteration.call_on_fit_task_begin(
            estimator=self._estimator, reconstruction_attributes=attributes, **self._arguments
        )

    def on_model(self, record: IterationRecord, model: Array) -> bool:
        """Close the subcontext of what has ended, and open the next one when there will be one. Returns whether a
        callback asks to end the fit here."""
        number = self._ended(record)
        if number is None or self._iteration is None:
            return False
        ended, self._iteration = self._iteration, None
        stop: bool = ended.call_on_fit_task_end(
            estimator=self._estimator,
            reconstruction_attributes=partial(self._attributes, model, number),
            **self._arguments,
        )
        is_certified = record.figures.get("duality_gap", np.inf) <= self._tol
        if not (stop or is_certified or number >= self._max_iter):
            self.begin(model, number)
        return stop

    def _ended(self, record: IterationRecord) -> int | None:
        """Number of what has ended with this record, if anything has."""
        return record.iteration

    def close(self) -> None:
        """Close the subcontext of an iteration that never ended, so that every begin has its end."""
        if self._iteration is not None:
            self._iteration.call_on_fit_task_end(estimator=self._estimator)
            self._iteration = None


@contextmanager
def watcher(
    name: str,
    *,
    verbose: int,
    logdir: Any,
    max_iter: int = 1,
    tol: float = 0.0,
    max_epochs: int | None = None,
    has_policies: bool = False,
    method_on: Callable[[int], str] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Iterator[Watcher]:
    """The callbacks for each iteration and for each change of the membership. Raises MissingExtraError when `logdir` is
    given and tensorboard is not installed.

    Args:
        name: Name of the estimator, begins every line.
        verbose: 0 silent; 1 a bar on a terminal and in a notebook, and elsewhere a line per certificate or epoch, and
            now and then where none comes; 2 a line per iteration.
        logdir: Folder for TensorBoard, in which this fit gets a folder of its own: a grid search has many.
        max_iter: Iterations at most, for the bar.
        tol: Gap at which the fit ends, for the bar.
        max_epochs: Epochs at which it ends, for the bar.
        has_policies: Whether there are policies that may fail: the user is warned of one that is disabled.
        method_on: How the model is found on a number of tasks, in words; printed with `verbose`.
        params: Parameters of the estimator, which TensorBoard shows with their result.

    Yields:
        Callables that take an `IterationRecord` and a `Transition`.
    """
    told: list[Listener] = []
    changes: list[Callable[[Transition], None]] = []
    ends: list[Callable[[Outcome], None]] = []
    with ExitStack() as stack:
        if int(verbose) == 1 and ((sys.stdout is not None and sys.stdout.isatty()) or notebook.is_here()):
            place = NotebookBar() if notebook.is_here() else None
            bar = FitProgress(
                sys.stdout,
                MonotonicClock(),
                label=name,
                max_iterations=max_iter,
                tol=tol,
                max_epochs=max_epochs,
                place=place,
            )
            stack.callback(bar.finish)
            stack.enter_context(waits.above(bar.clear))
            told.append(bar.update)
            changes.append(bar.note)
            ends.append(lambda outcome: bar.end(outcome.reason, is_interrupted=outcome.is_interrupted))
        elif verbose:
            if method_on is not None:
                told.append(_MethodPrinter(name, method_on))
            told.append(_LinePrinter(name, int(verbose)))
            changes.append(partial(_print_transition, name))
        if logdir is not None:
            from chicle_elastic.monitoring.tensorboard import TensorBoardWriter

            shown = {name: value for name, value in (params or {}).items() if name not in NO_HYPER_PARAMETERS}
            writer = stack.enter_context(TensorBoardWriter(Path(logdir) / _run_name(name), hyper_parameters=shown))
            told.append(writer.write)
            changes.append(writer.write_transition)
        if has_policies:  # the last one, because a warning may be an error
            told.append(_warn_of_policies)
        yield Watcher(partial(_tell, told), partial(_tell, changes), partial(_tell, ends)) if told else NOBODY


def _run_name(name: str) -> str:
    """A name for the folder of a fit: those of one second, and of several processes, differ."""
    return f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_fits)}"


class _MethodPrinter:
    """Prints the method that finds the model, and again when more tasks change the method."""

    def __init__(self, name: str, method_on: Callable[[int], str]) -> None:
        self._name, self._method_on = name, method_on
        self._known, self._most = "", 0

    def __call__(self, record: IterationRecord) -> None:
        self._most = max(self._most, record.num_tasks)
        method = self._method_on(self._most)
        if method != self._known:
            self._known = method
            _print(self._name, f"from iteration {record.iteration}: {method}")


def methods_of(history: History, method_on: Callable[[int], str]) -> dict[int, str]:
    """See `History.methods`. A method that several tasks began with is that of fewer tasks, too."""
    found: dict[int, str] = {}
    most = 0
    for record in history:
        if record.num_tasks <= most:
            continue
        most = record.num_tasks
        method = method_on(most)
        if not found or method != next(reversed(found.values())):
            found[record.iteration] = method
    return found


def _tell(told: list[Callable[[Any], None]], news: Any) -> None:
    for tell in told:
        tell(news)


def _print_transition(name: str, transition: Transition) -> None:
    _print(name, transition.words())


def _print(name: str, text: str) -> None:
    write(f"[{name}] {text}\n", sys.stdout)


def _disabled_in(record: IterationRecord) -> list[str]:
    """Lines about policies that were disabled since the previous iteration."""
    return [f"{line}; the fit goes on without it" for line in record.events if is_disabled_text(line)]


def _warn_of_policies(record: IterationRecord) -> None:
    """Warn at once: the fit may go on for hours without the policy."""
    for line in _disabled_in(record):
        with waits.cleared():
            warnings.warn(line, RuntimeWarning, stacklevel=frames_to_the_user())


def frames_to_the_user() -> int:
    """The `stacklevel` that names the line that called `fit`, with any runtime and decorators in between."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in OWN_PACKAGES:
        frame = frame.f_back
        level += 1
    return level


class _LinePrinter:
    """Prints a line per iteration, or for those that are worth one."""

    def __init__(self, name: str, verbose: int) -> None:
        self._name, self._verbose, self._told_s = name, verbose, 0.0

    def __call__(self, record: IterationRecord) -> None:
        for news in _disabled_in(record):
            _print(self._name, news)
        is_milestone = "duality_gap" in record.figures or "epoch" in record.figures
        if self._verbose >= 2 or is_milestone or record.time_s - self._told_s > LINE_EVERY_S:
            self._told_s = record.time_s
            _print(self._name, line_of(record))


def line_of(record: IterationRecord) -> str:
    """One iteration in words, e.g. "iteration 12: relative duality gap 8.3e-04, objective 31.73, 0.021 s"."""
    figures = record.figures
    if "epoch" in figures:
        what = f"epoch {figures['epoch']:.0f} done, mean loss {figures['epoch_loss']:.4g}"
        if "validation_score" in figures:
            what += f", validation score {figures['validation_score']:.4g}"
    elif "loss" in figures:
        what = f"loss {figures['loss']:.4g}"
    elif "duality_gap" in figures:
        what = f"relative duality gap {figures['duality_gap']:.1e}, objective {figures['objective']:.6g}"
    elif "duality_gap_estimate" in figures:
        what = f"estimated relative duality gap {figures['duality_gap_estimate']:.1e}"
    else:  # of a trainer of the user's
        named = [f"{name} {value:.6g}" for name, value in figures.items() if not name.startswith(PARAMETERS_PREFIX)]
        what = ", ".join(named) or f"{record.samples} samples"
    return f"iteration {record.iteration}: {what}, {record.time_s:.3f} s"
