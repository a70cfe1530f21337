"""What a training has come to but for its vectors, as JSON values: for a task that is behind, and for a checkpoint."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import ProtocolError
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.training import Training
from chicle_elastic.solvers.base import Report


def describe(training: Training, records: Iterable[IterationRecord], elapsed_s: float) -> dict[str, Any]:
    """What a training has come to, but for the vectors; JSON values once they are dumped.

    Args:
        training: The training.
        records: The records that are wanted.
        elapsed_s: Seconds since the start of the job.
    """
    certificate = training.certificate
    return {
        "samples": training.samples,
        "elapsed_s": elapsed_s,
        "last_certificate": training.last_certificate,
        "certificate": None if certificate is None else _fields(certificate, without="rebuilt"),
        "records": [_fields(record) for record in records],
    }


def _fields(value: Any, *, without: str = "") -> dict[str, Any]:
    names = (field.name for field in dataclasses.fields(value))
    return {name: getattr(value, name) for name in names if name != without}


def adopt(training: Training, first: int, model: Array, rebuilt: Array, data: dict[str, Any]) -> None:
    """Go on from what another training has come to.

    Args:
        training: Changed in place.
        first: Iteration of the first record in `data`.
        model: Its model.
        rebuilt: The model rebuilt at its last certificate; of no account without one.
        data: As `describe` made it.

    Raises:
        ProtocolError: It is none.
    """
    try:
        certificate = data["certificate"]
        rebuilt = rebuilt.astype(training.model.dtype)
        report = None if certificate is None else Report(**certificate, rebuilt=rebuilt)
        records = [IterationRecord(**record) for record in data["records"]]
        training.go_on_from(
            model=model,
            certificate=report,
            last_certificate=int(data["last_certificate"]),
            samples=int(data["samples"]),
            records=records,
            first=first,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(
            f"what another task came to cannot be used ({error}); all need the same release of chicle-elastic"
        ) from error
