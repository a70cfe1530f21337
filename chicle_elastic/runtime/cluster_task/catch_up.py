"""How a task that is behind gets the newest model: a joiner, or a survivor that missed the last merge.

Every member of a new group tells its position: (last merged iteration, last certificate, version of the model). The
farthest member, of several the one of lowest rank, then sends those that are behind its model, the certificate's
rebuilt model, the trainer's progress, the latest records, and all missing records as text (`history_text`). Members at
the same position wait for nothing.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.checkpoint.training_state import adopt, describe
from chicle_elastic.runtime.collectives.backend_choice import DeviceOffer
from chicle_elastic.runtime.collectives.process_group import ProcessGroup
from chicle_elastic.runtime.training.training import Training
from chicle_elastic.values import StateVersion

NO_VERSION = StateVersion()
NUM_LATEST = 16  # number of latest records that are sent parsed, not as text


class TaskPosition(NamedTuple):
    """The progress of a task, and its properties for the round."""

    merged: int  # last merged iteration, 0 for none
    last_certificate: int  # iteration of the last certificate, 0 for none
    must_recover: bool  # its state may not match its model
    has_caller: bool  # its job has a callback that may end the job
    device: DeviceOffer  # where its solver leaves updates
    # round and iteration in which its model was merged. Two tasks whose models are of one iteration but of different
    # rounds have different models: one was taken for lost while the others repeated the iteration
    version: StateVersion = NO_VERSION

    @property
    def progress(self) -> tuple[int, int, StateVersion]:
        """What positions are compared by; members for which it is equal have equal models."""
        return self.merged, self.last_certificate, self.version


def gather(group: ProcessGroup, own: TaskPosition) -> list[TaskPosition]:
    """The positions of all members, by rank. Raises PeerLostError when a member was lost."""
    numbers = (*own[:4], own.version.round, own.version.iteration)
    rows = group.all_gather(np.concatenate([np.array(numbers, dtype=np.float64), own.device.row()]))
    return [
        TaskPosition(
            merged=int(row[0]),
            last_certificate=int(row[1]),
            must_recover=bool(row[2]),
            has_caller=bool(row[3]),
            device=DeviceOffer.from_row(row[6:]),
            version=StateVersion(int(row[4]), int(row[5])),
        )
        for row in rows
    ]


def catch_up(group: ProcessGroup, training: Training, positions: Sequence[TaskPosition], elapsed_s: float) -> float:
    """Bring all members to the position of the farthest. All members call it. Raises PeerLostError when a member was
    lost; the training is as before. Returns seconds since the start of the job, as a member has it that is not behind.
    """
    progresses = [position.progress for position in positions]
    newest = max(progresses)
    root = progresses.index(newest)
    behind = [rank for rank, progress in enumerate(progresses) if progress != newest]
    if not behind or group.rank not in (root, *behind):
        return elapsed_s
    # A member that missed a certificate has another record of that iteration, so that record is sent again.
    first = max(1, min(place[0] for place in progresses if place != newest))
    size = len(training.model)
    num_models = 2 if newest[1] else 1
    head, text = b"", b""
    lengths = np.zeros(3)
    vectors = np.zeros(0)
    if group.rank == root:
        vectors = np.concatenate([np.zeros(size * num_models), training.progress])
        vectors[:size] = training.model
        if training.certificate is not None and training.certificate.rebuilt is not None:
            vectors[size : 2 * size] = training.certificate.rebuilt
        training.history_text.keep(training.history)
        head = json.dumps(describe(training, _latest(training, first), elapsed_s)).encode()
        text = training.history_text.text(first)
        lengths[:] = len(head), len(text), len(vectors)
    group.broadcast(lengths, root=root, to=behind)
    both = np.zeros(int(lengths[:2].sum()), dtype=np.uint8)
    if group.rank == root:
        both[:] = np.frombuffer(head + text, dtype=np.uint8)
    else:
        vectors = np.zeros(int(lengths[2]))
    group.broadcast(vectors, root=root, to=behind)
    group.broadcast(both, root=root, to=behind)
    head, text = both[: int(lengths[0])].tobytes(), both[int(lengths[0]) :].tobytes()
    data = json.loads(head)
    if group.rank != root:
        end = size * num_models
        adopt(training, first, vectors[:size], vectors[end - size : end], vectors[end:], data)
        training.history_text.take(text)
    return float(data["elapsed_s"])


def _latest(training: Training, first: int) -> list[IterationRecord]:
    """The records that a task behind needs at once: the last ones, and that of the last certificate."""
    start = len(training.history) - NUM_LATEST
    return [
        record
        for position, record in enumerate(training.history)
        if record.iteration >= first and (position >= start or record.iteration == training.last_certificate)
    ]
