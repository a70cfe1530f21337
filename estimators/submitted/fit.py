"""Has a job of a cluster fit an estimator, and waits for it: from the process that calls `fit`, or from another one."""

import json
import math
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from chicle_elastic import waits
from chicle_elastic.errors import ChicleError, DataError, JobFailedError
from estimators.cnn_defaults import LEAST_LOCAL_STEPS
from estimators.submitted.staging import FIT_NAME, Staged, kind_of, stage
from estimators.watch import watcher

DATA, MODEL_NAME, WARNINGS_NAME, ERROR_NAME = "data", "model.npz", "warnings.json", "error.txt"
CATEGORIES: dict[str, type[Warning]] = {
    kind.__name__: kind for kind in (ConvergenceWarning, RuntimeWarning, UserWarning, FutureWarning)
}


class SubmittingRuntime(Protocol):
    """A runtime whose tasks run in jobs of a cluster, which see folders and no objects of this process."""

    def new_folder(self) -> Path:
        """A new folder, which the nodes see."""
        ...

    def submit(self, job: Path, train: Path) -> None:
        """Submit the job with this folder; its tasks run `submitted.task` with `train`."""
        ...

    def wait(self, job: Path, **observers: Any) -> Any:
        """Follow the job to its end; observers are on_iteration and on_transition. Raises where it has failed."""
        ...


def fit_elsewhere(estimator: Any, runtime: Any, X: Any, y: Any, sample_weight: Any) -> Any:
    """Fit in a job of a cluster. Returns the estimator, with the attributes of the fit. Raises UsageError when
    something of the estimator cannot go along, or the job is refused, JobFailedError when the job failed or was
    cancelled (its folder stays), KeyboardInterrupt for Ctrl-C, also while the job goes on.

    Args:
        estimator: Validated parameters.
        runtime: Where; a `SubmittingRuntime`.
        X, y, sample_weight: Validated arguments of `fit`.
    """
    name = type(estimator).__name__
    job = runtime.new_folder()
    try:
        stage(estimator, X, y, sample_weight, job / DATA)
        runtime.submit(job, job / DATA)
    except BaseException:
        shutil.rmtree(job, ignore_errors=True)
        raise
    waits.tell(f"the fit is the job {job}; chicle status {job} says how it stands")
    fitted = _result(name, estimator.get_params(deep=False), job, runtime.wait)
    for attribute, value in vars(fitted).items():
        if attribute not in estimator.get_params(deep=False) and attribute != "feature_names_in_":
            setattr(estimator, attribute, value)
    return estimator


def attach(job: Path, wait: Callable[..., Any], *, verbose: int) -> Any:
    """Follow a job that another process has submitted. Returns the fitted estimator. Raises UsageError when there is no
    such job, JobFailedError when it failed or was cancelled.

    Args:
        job: Its folder.
        wait: `SubmittingRuntime.wait`.
        verbose: As of the estimators.
    """
    if not (job / DATA / FIT_NAME).exists():  # it is over, and its data is gone
        if not (job / MODEL_NAME).exists():
            wait(job)  # raises, and says why there is none
        return _load(job)
    staged = Staged(job / DATA)
    return _result(staged.name, {**staged.params, "verbose": verbose}, job, wait)


def _result(name: str, params: Mapping[str, Any], job: Path, wait: Callable[..., Any]) -> Any:
    """Wait for the fit, read it, and remove its data."""
    try:
        with watcher(
            name,
            verbose=params["verbose"],
            logdir=params["logdir"],
            max_iter=_most_iterations(params, job),
            max_epochs=params.get("max_epochs"),
            tol=float(params["tol"]),
            params=params,
        ) as told:
            wait(job, on_iteration=told.on_iteration, on_transition=told.on_transition)
    except KeyboardInterrupt:
        waits.tell(
            f"the job {job} goes on: TorchXRuntime.attach({str(job)!r}) waits for it again, and TorchXRuntime.cancel "
            "ends it"
        )
        raise
    except ChicleError as error:
        shutil.rmtree(job / DATA, ignore_errors=True)
        if not (job / ERROR_NAME).exists():
            raise
        raise JobFailedError(f"{error}\nA task said: {(job / ERROR_NAME).read_text()}") from error
    fitted = _load(job)
    shutil.rmtree(job / DATA, ignore_errors=True)
    for said in json.loads((job / WARNINGS_NAME).read_text()) if (job / WARNINGS_NAME).exists() else ():
        warnings.warn(said["text"], CATEGORIES.get(said["category"], UserWarning), stacklevel=4)
    return fitted


def _load(job: Path) -> Any:
    path = job / MODEL_NAME
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            name = json.loads(str(content["header"]))["estimator"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"the job {job} is over, and {path} is not what it should have written ({error})") from error
    return kind_of(name, path).load(path)


def _most_iterations(params: Mapping[str, Any], job: Path) -> int:
    """For the bar."""
    if "max_iter" in params:
        return int(params["max_iter"])
    rows = Staged(job / DATA).num_rows
    local_steps = LEAST_LOCAL_STEPS if params["local_steps"] == "auto" else int(params["local_steps"])
    return int(params["max_epochs"]) * math.ceil(rows / (params["batch_size"] * local_steps) + 1)
