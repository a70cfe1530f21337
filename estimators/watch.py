"""What looks on while a job runs: scikit-learn callbacks, a bar or lines on stdout, TensorBoard."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from chicle_elastic.clock import MonotonicClock
from chicle_elastic.monitoring.progress import FitProgress
from chicle_elastic.monitoring.records import IterationRecord, Transition

Array: TypeAlias = npt.NDArray[Any]
Listener: TypeAlias = Callable[[IterationRecord], None]


class Watcher(NamedTuple):
    """What is to be told while a job runs, as the fields of a `Job`; None when nobody wants to know."""

    on_iteration: Listener | None
    on_transition: Callable[[Transition], None] | None


class CallbackBridge:
    """Opens one subcontext of the fit's callback context per iteration.

    Parameters
    ----------
    estimator : estimator instance
        Being fitted, with callbacks.
    context : sklearn.callback.CallbackContext
        Of the fit.
    max_iter : int
        Iterations at most.
    tol : float
        A certified gap up to this ends the job.
    arguments : dict
        `X`, `y` and `metadata` for the hooks.
    attributes : callable
        Makes the attributes of an estimator that can predict from (model, number of iterations); called only when a
        callback asks for `fitted_estimator`.
    task_name : str, default="iteration"
        Of the subcontexts.
    """

    def __init__(
        self,
        estimator: Any,
        context: Any,
        *,
        max_iter: int,
        tol: float,
        arguments: dict[str, Any],
        attributes: Callable[[Array, int], dict[str, Any]],
        task_name: str = "iteration",
    ) -> None:
        self._estimator = estimator
        self._context = context
        self._max_iter = max_iter
        self._tol = tol
        self._arguments = arguments
        self._attributes = attributes
        self._task_name = task_name
        self._iteration: Any = None

    def begin(self, model: Array | None = None, iteration: int = 0) -> None:
        """Open the subcontext of the next iteration; `model` is what it begins with."""
        attributes = None if model is None else partial(self._attributes, model, iteration)
        self._iteration = self._context.subcontext(task_name=self._task_name)
        self._iteration.call_on_fit_task_begin(
            estimator=self._estimator, reconstruction_attributes=attributes, **self._arguments
        )

    def on_model(self, record: IterationRecord, model: Array) -> bool:
        """Close the subcontext of an iteration, and open the next one when there will be one.

        Returns
        -------
        stop : bool
            A callback asks to end the fit here.
        """
        ended, self._iteration = self._iteration, None
        stop: bool = ended.call_on_fit_task_end(
            estimator=self._estimator,
            reconstruction_attributes=partial(self._attributes, model, record.iteration),
            **self._arguments,
        )
        is_certified = record.figures.get("duality_gap", np.inf) <= self._tol
        if not (stop or is_certified or record.iteration >= self._max_iter):
            self.begin(model, record.iteration)
        return stop

    def close(self) -> None:
        """Close the subcontext of an iteration that never ended, so that every begin has its end."""
        if self._iteration is not None:
            self._iteration.call_on_fit_task_end(estimator=self._estimator)
            self._iteration = None


@contextmanager
def watcher(name: str, *, verbose: int, logdir: Any, max_iter: int = 1, tol: float = 0.0) -> Iterator[Watcher]:
    """What is to be told of each iteration and of each change of the membership.

    Parameters
    ----------
    name : str
        Name of the estimator, begins every line.
    verbose : int
        0 silent; 1 a bar on a terminal, and a line per certificate elsewhere; 2 a line per iteration.
    logdir : str, path-like or None
        Folder for TensorBoard.
    max_iter : int
        Iterations at most, for the bar.
    tol : float
        Gap at which the fit ends, for the bar.

    Yields
    ------
    watcher : Watcher
        Callables that take an `IterationRecord` and a `Transition`.

    Raises
    ------
    MissingExtraError
        `logdir` is given and tensorboard is not installed.
    """
    told: list[Listener] = []
    changes: list[Callable[[Transition], None]] = []
    with ExitStack() as stack:
        if int(verbose) == 1 and sys.stdout.isatty():
            bar = FitProgress(sys.stdout, MonotonicClock(), label=name, max_iterations=max_iter, tol=tol)
            stack.callback(bar.close)
            told.append(bar.update)
            changes.append(bar.note)
        elif verbose:
            told.append(partial(_print_line, name, int(verbose)))
            changes.append(partial(_print_transition, name))
        if logdir is not None:
            from chicle_elastic.monitoring.tensorboard import TensorBoardWriter

            writer = stack.enter_context(TensorBoardWriter(logdir))
            told.append(writer.write)
            changes.append(writer.write_transition)
        yield Watcher(partial(_tell, told), partial(_tell, changes)) if told else Watcher(None, None)


def _tell(told: list[Callable[[Any], None]], news: Any) -> None:
    for tell in told:
        tell(news)


def _print_transition(name: str, transition: Transition) -> None:
    print(f"[{name}] {transition.words()}", flush=True)


def _print_line(name: str, verbose: int, record: IterationRecord) -> None:
    line = line_of(record)
    if verbose >= 2 or "duality_gap" in record.figures or "epoch" in record.figures:
        print(f"[{name}] {line}", flush=True)


def line_of(record: IterationRecord) -> str:
    """One iteration in words, e.g. "iteration 12: relative duality gap 8.3e-04, objective 31.73, 0.021 s"."""
    figures = record.figures
    if "epoch" in figures:
        what = f"epoch {figures['epoch']:.0f} done, mean loss {figures['epoch_loss']:.4g}"
    elif "loss" in figures:
        what = f"loss {figures['loss']:.4g}"
    elif "duality_gap" in figures:
        what = f"relative duality gap {figures['duality_gap']:.1e}, objective {figures['objective']:.6g}"
    else:
        what = f"estimated relative duality gap {figures.get('duality_gap_estimate', np.nan):.1e}"
    return f"iteration {record.iteration}: {what}, {record.time_s:.3f} s"
