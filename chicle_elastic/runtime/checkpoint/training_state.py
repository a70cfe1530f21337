"""The training state without its vectors, as JSON values: for a task that catches up, and for a checkpoint."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import ProtocolError
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.training.training import Training
from chicle_elastic.solvers.base import Report


def describe(training: Training, records: Iterable[IterationRecord], elapsed_s: float) -> dict[str, Any]:
    """The training state without its vectors, as values that JSON can hold."""
    certificate = training.certificate
    return {
        "samples": training.samples,
        "elapsed_s": elapsed_s,
        "last_certificate": training.last_certificate,
        "certificate": None if certificate is None else _fields(certificate, without=("rebuilt", "progress")),
        "records": [_fields(record) for record in records],
    }


def _fields(value: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(value))
    return {name: getattr(value, name) for name in names if name not in without}


def adopt(training: Training, first: int, model: Array, rebuilt: Array, progress: Array, data: dict[str, Any]) -> None:
    """Continue from the state of another training. Raises ProtocolError when `data` is malformed."""
    try:
        certificate = data["certificate"]
        rebuilt = rebuilt.astype(training.model.dtype)
        report = None if certificate is None else Report(**certificate, rebuilt=rebuilt)
        records = [IterationRecord(**record) for record in data["records"]]
        training.go_on_from(
            model=model,
            progress=progress,
            certificate=report,
            last_certificate=int(data["last_certificate"]),
            samples=int(data["samples"]),
            records=records,
            first=first,
        )
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ProtocolError(
            f"the training state of another task is malformed ({error}); install the same release of chicle-elastic "
            "on all nodes"
        ) from error
