"""How a task that is behind gets the newest model: a joiner, or a survivor that missed the last merge.

Every member of a new group tells how far it is: (last merged iteration, last certificate). The farthest, lowest rank
first, then broadcasts its model, the certificate's rebuilt model, the latest records, and all that are lacking as text
(`archive`); those who are as far as it is only take part. When all are equally far nothing is sent.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.device_ways import DeviceOffer
from chicle_elastic.runtime.group import Group
from chicle_elastic.runtime.training import Training
from chicle_elastic.runtime.transcript import adopt, describe

NUM_LATEST = 16
"""Records that are sent as such."""


class Standing(NamedTuple):
    """How far a task is, and what it knows of its round. Two standings compare by the first two.

    Attributes:
        merged: Last merged iteration, 0 for none.
        last_certificate: Iteration of the last certificate, 0 for none.
        must_recover: Its state and its model may not belong together.
        has_caller: The caller of its job wants to be told of each iteration.
        device: Where its solver leaves updates.
    """

    merged: int
    last_certificate: int
    must_recover: bool
    has_caller: bool
    device: DeviceOffer


def gather(group: Group, own: Standing) -> list[Standing]:
    """The standings of all members, by rank.

    Raises:
        PeerLostError: A member was lost.
    """
    rows = group.all_gather(np.concatenate([np.array(own[:-1], dtype=np.float64), own.device.row()]))
    return [
        Standing(int(row[0]), int(row[1]), bool(row[2]), bool(row[3]), DeviceOffer.from_row(row[4:])) for row in rows
    ]


def catch_up(group: Group, training: Training, standings: Sequence[Standing], elapsed_s: float) -> float:
    """Bring everybody to where the farthest is. All members call it.

    Args:
        group: Of the round.
        training: Of this task; it is changed in place if it is behind.
        standings: Of all members, by rank.
        elapsed_s: Seconds since the start of the job, as this task has it.

    Returns:
        Seconds since the start of the job, as the farthest has it.

    Raises:
        PeerLostError: A member was lost; the training is as before.
    """
    places = [standing[:2] for standing in standings]
    newest = max(places)
    if min(places) == newest:
        return elapsed_s
    root = places.index(newest)
    # The record of an iteration may differ where its certificate was missed, so that one is sent again.
    first = max(1, min(place[0] for place in places if place != newest))
    size = len(training.model)
    vectors = np.zeros(size * (2 if newest[1] else 1))
    head, text = b"", b""
    if group.rank == root:
        vectors[:size] = training.model
        if training.certificate is not None and training.certificate.rebuilt is not None:
            vectors[size:] = training.certificate.rebuilt
        training.archive.keep(training.history)
        head = json.dumps(describe(training, _latest(training, first), elapsed_s)).encode()
        text = training.archive.text(first)
    lengths = np.array([len(head), len(text)], dtype=np.float64)
    group.broadcast(lengths, root=root)
    both = np.zeros(int(lengths.sum()), dtype=np.uint8)
    if group.rank == root:
        both[:] = np.frombuffer(head + text, dtype=np.uint8)
    group.broadcast(vectors, root=root)
    group.broadcast(both, root=root)
    head, text = both[: int(lengths[0])].tobytes(), both[int(lengths[0]) :].tobytes()
    data = json.loads(head)
    if places[group.rank] != newest:
        adopt(training, first, vectors[:size], vectors[size:], data)
        training.archive.take(text)
    return float(data["elapsed_s"])


def _latest(training: Training, first: int) -> list[IterationRecord]:
    """The records that whoever is behind needs at once: the last ones, and that of the last certificate."""
    start = len(training.history) - NUM_LATEST
    return [
        record
        for position, record in enumerate(training.history)
        if record.iteration >= first and (position >= start or record.iteration == training.last_certificate)
    ]
