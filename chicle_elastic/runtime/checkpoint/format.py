"""A checkpoint of a job: model, history and the state of every sample, in a folder, independent of the placement.

    FOLDER/000000120-5f3a9c21/      iteration 120; the second half tells two attempts at one iteration apart
        part-002.rows.npy           row ids of the samples that the task of rank 2 held, int64
        part-002.state.npy          their state, shape (rows, outputs, width)
        part-002.json               size and CRC-32 of the two; written last of a part, so the part is whole
        model.npy  rebuilt.npy      the model, and the one that belongs to the last certificate, if there is one
        progress.npy                the trainer's progress; missing for a trainer that keeps none
        training.json               history, certificate, samples and seconds so far
        manifest.json               written last of all: the identity of the job, size and CRC-32 of every other file

Rules. Every task writes its own part; the task of rank 0 also the rest, and the manifest once all parts exist. A folder
without a manifest is no checkpoint. With one, it is a checkpoint if every file matches the manifest and every row of
the data set is in one part. State is stored by row and not by chunk: so any number of nodes can resume from it, also
when the data set is cut into other chunks. Every file appears under its name atomically (written beside, synced to the
disk, renamed; at a URL by one upload, see `places`). Nothing is pickled.

A damaged checkpoint is refused with the reason, and the job resumes from the previous one. A checkpoint of another job
is an error: its state would fit, and be wrong. One of a later format is an error, too, and is never removed: it is
sound, and holds more work than the one before it. In every format the manifest is an object with `format`, `version`
and, as `_crc_of` computes it, `crc32`.
"""

import dataclasses
import json
import logging
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from chicle_elastic import __version__
from chicle_elastic.chunks.json_fields import Fields
from chicle_elastic.chunks.places import Place, flush_place, folders_in
from chicle_elastic.chunks.views import Array, DataSchema, StateSpec
from chicle_elastic.errors import DataError, ProtocolError, UnreachablePlaceError, UsageError
from chicle_elastic.monitoring.records import PARAMETERS_PREFIX
from chicle_elastic.runtime.checkpoint.files import (
    DAMAGED,
    parse_entries,
    parse_json,
    read_array,
    read_bytes,
    write_json,
)
from chicle_elastic.runtime.checkpoint.training_state import adopt
from chicle_elastic.runtime.training.training import Training
from chicle_elastic.solvers.base import NO_PROGRESS, Trainer

FORMAT = "chicle checkpoint"
VERSION = 1
MANIFEST = "manifest.json"
TRAINING = "training.json"
MODEL = "model.npy"
REBUILT = "rebuilt.npy"
PROGRESS = "progress.npy"
NAME = re.compile(r"(\d{9})-[0-9a-f]{8}")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdentity:
    """The properties of a job that have to be the same in its checkpoints."""

    num_rows: int
    num_parameters: int
    state: StateSpec  # shape of the state of a sample
    trainer: Mapping[str, Any]

    @classmethod
    def of(cls, trainer: Trainer, schema: DataSchema, *, num_parameters: int) -> "JobIdentity":
        """Of a job with this trainer on such data."""
        return cls(
            num_rows=schema.num_rows,
            num_parameters=num_parameters,
            state=trainer.state(schema).without_notes(),
            trainer=trainer.identity(),
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))  # tuples become lists, as in what was read


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that was read, and is complete."""

    path: Place
    iteration: int
    model: Array  # ndarray of shape (num_parameters,)
    rebuilt: Array | None  # the model rebuilt from state at the last certificate; None without one
    progress: Array  # the trainer's progress; empty for none
    training: dict[str, Any]
    state: Array  # by global row id, shape (num_rows, outputs, width)

    @property
    def parameters(self) -> dict[str, float]:
        """What policies had set in its last iteration, by name. Raises DataError when the file of the history is from
        another release."""
        try:
            records = self.training["records"]
            figures = dict(records[-1]["figures"]) if records else {}
            return {
                name.removeprefix(PARAMETERS_PREFIX): float(value)
                for name, value in figures.items()
                if name.startswith(PARAMETERS_PREFIX)
            }
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise DataError(f"{self.path / TRAINING}: its last record has no figures ({error!r})") from error

    def restore(self, training: Training) -> float:
        """Make a training resume from this checkpoint. Raises DataError when the file of the history is from another
        release, or malformed. Returns seconds since the start of the job."""
        rebuilt = self.model if self.rebuilt is None else self.rebuilt
        try:
            adopt(training, 1, self.model, rebuilt, self.progress, self.training)
            return float(self.training["elapsed_s"])
        except (ProtocolError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{self.path / TRAINING}: {error}") from error


def attempt_name(iteration: int, time_s: float, mark: str = "") -> str:
    """Name of the folder of a checkpoint.

    Args:
        iteration: Last merged iteration.
        time_s: Two runs that reach one iteration reach it at different times.
        mark: Tells apart checkpoints of one iteration in one run.
    """
    return f"{iteration:09d}-{zlib.crc32((float(time_s).hex() + mark).encode()):08x}"


def attempts(folder: Place) -> list[Place]:
    """Return all folders of checkpoints, complete or not, oldest first. Raises DataError when the folder cannot be
    read."""
    try:
        found = folders_in(folder)
    except OSError as error:
        raise DataError(f"{folder}: it cannot be read ({error.strerror}); let this user read it") from error
    return sorted((path for path in found if NAME.fullmatch(path.name)), key=lambda path: path.name)


def is_complete(path: Place) -> bool:
    """Whether the manifest exists; the files may still not match it."""
    return (path / MANIFEST).exists()


def is_newer(path: Place) -> bool:
    """Say whether a later release wrote this checkpoint, which it alone can read."""
    try:
        read_manifest(path / MANIFEST)
    except UsageError:
        return True
    except (DataError, OSError):
        return False
    return False


def iteration_of(path: Place) -> int:
    """Iteration of a checkpoint, by its name."""
    return int(path.name.partition("-")[0])


def newest(folder: Place, identity: JobIdentity, *, iteration: int | None = None) -> Checkpoint | None:
    """The newest complete checkpoint. Returns None when none was ever completed. Raises DataError when there are some,
    but none is complete; the message has what is wrong with each, UnreachablePlaceError when they are at a URL that
    does not answer, UsageError when the newest one is of another job, or of a later format."""
    problems = []
    for path in reversed(attempts(folder)):
        if iteration is not None and iteration_of(path) != iteration:
            continue
        try:
            if not is_complete(path):
                logger.warning("%s has no %s: it was never completed; skipping it", path, MANIFEST)
                continue
            found = read(path, identity)
        except UnreachablePlaceError:
            raise  # the checkpoint may be sound: an older one would throw work away
        except (DataError, OSError) as error:
            problems.append(str(error))
            continue
        for problem in problems:
            logger.warning("%s; resuming from the previous checkpoint, of iteration %d", problem, found.iteration)
        return found
    if problems:
        raise DataError(
            f"no checkpoint in {folder} can be used: {'; '.join(problems)}; restore the files, or start anew in an "
            "empty folder"
        )
    return None


def read(path: Place, identity: JobIdentity) -> Checkpoint:
    """Read a checkpoint, and check all of it. Raises DataError when it is damaged, OSError when its manifest cannot be
    read, UsageError when it is of another job, or of a later format."""
    manifest = read_manifest(path / MANIFEST)
    _require_model_version(path, manifest["job"], identity)
    if manifest["job"] != identity.to_json():
        differences = [
            f"{name}: {manifest['job'].get(name)!r}, but the job has {value!r}"
            for name, value in identity.to_json().items()
            if manifest["job"].get(name) != value
        ]
        raise UsageError(
            f"the checkpoint {path} is of another job ({'; '.join(differences)}); name the folder of this job, or "
            "start anew in an empty one"
        )
    files = manifest["files"]
    contents = {name: read_array(path / name, entry) for name, entry in files.items() if name.endswith(".npy")}
    training = parse_json(path / TRAINING, read_bytes(path / TRAINING, files.get(TRAINING)))
    model = contents.get(MODEL, np.zeros(0))
    rebuilt = contents.get(REBUILT)
    if not model.shape == (model if rebuilt is None else rebuilt).shape == (identity.num_parameters,):
        raise DataError(f"{path}: its model does not have the job's {identity.num_parameters} parameters")
    return Checkpoint(
        path=path,
        iteration=manifest["iteration"],
        model=model,
        rebuilt=rebuilt,
        progress=contents.get(PROGRESS, NO_PROGRESS),
        training=training,
        state=_join(path, contents, identity),
    )


def write_manifest(path: Place, *, iteration: int, identity: JobIdentity, files: Mapping[str, Any]) -> None:
    """Complete a checkpoint."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "iteration": iteration,
        "job": identity.to_json(),
        "files": dict(sorted(files.items())),
    }
    write_json(path / MANIFEST, content | {"crc32": _crc_of(content)})
    flush_place(path)


def part_name(rank: int, suffix: str) -> str:
    """Name of a file of a part: "part-002.state.npy"."""
    return f"part-{rank:03d}.{suffix}"


def read_part(path: Place, rank: int) -> dict[str, Any] | None:
    """Files of a part with size and checksum; None while it is not whole. Raises DataError when the file is damaged."""
    name = path / part_name(rank, "json")
    try:
        content = name.read_bytes()
    except FileNotFoundError:
        return None
    return parse_entries(name, parse_json(name, content))


def _require_model_version(path: Place, job: Mapping[str, Any], identity: JobIdentity) -> None:
    """Refuse a model that the same trainer laid out in another way; a trainer without a version has version 1. Raises
    UsageError with both versions."""
    theirs, ours = job.get("trainer", {}), identity.trainer
    found, needed = (trainer.get("model_version", 1) for trainer in (theirs, ours))
    if theirs.get("trainer") == ours.get("trainer") and found != needed:
        raise UsageError(
            f"the checkpoint {path} has a model of version {found} of the trainer {ours.get('trainer')!r}, and this "
            f"release of Chicle ({__version__}) resumes from version {needed} only; finish that job with the release "
            "that began it, or start anew in an empty folder"
        )


def read_manifest(path: Place) -> dict[str, Any]:
    """Read a manifest that `write_manifest` wrote, and check it. Raises DataError when it is damaged, OSError when it
    cannot be read, UsageError when it is of a later format."""
    content = parse_json(path, path.read_bytes())
    crc = content.pop("crc32", None) if isinstance(content, dict) else None
    if crc is None or crc != _crc_of(content):
        raise DataError(f"{path}: its checksum is wrong; {DAMAGED}")
    fields = Fields(content, str(path), advice=DAMAGED)
    fields.one_of("format", [FORMAT])
    if (version := fields.number("version", at_least=1)) > VERSION:
        raise UsageError(
            f"the checkpoint {path.parent} has format version {version}, and this release of Chicle ({__version__}) "
            f"reads up to version {VERSION}; resume with the release that wrote it, or start anew in an empty folder"
        )
    fields.number("iteration", at_least=0)
    Fields(fields.get("job", dict, "an object"), str(path), "job.", advice=DAMAGED).get("trainer", dict, "an object")
    parse_entries(path, fields.get("files", dict, "an object"))
    return dict(content)


def _join(path: Place, contents: Mapping[str, Array], identity: JobIdentity) -> Array:
    state = identity.state.zeros(identity.num_rows)
    if not state.size:
        return state
    seen = np.zeros(identity.num_rows, dtype=bool)
    num_seen = 0
    for rows, values in _parts(contents):
        is_sound = (
            rows.dtype == np.int64
            and rows.ndim == 1
            and values.shape == identity.state.shape(len(rows))
            and values.dtype == state.dtype
            and (not len(rows) or (rows.min() >= 0 and rows.max() < identity.num_rows))
        )
        if not is_sound:
            raise DataError(f"{path}: its parts have rows beyond the data set, or state of another shape")
        state[rows], seen[rows] = values, True
        num_seen += len(rows)
    num_missing = identity.num_rows - int(np.count_nonzero(seen))
    if num_missing or num_seen > identity.num_rows:
        raise DataError(
            f"{path}: of {identity.num_rows} rows the state of {num_missing} is in no part, and that of "
            f"{num_seen + num_missing - identity.num_rows} in two"
        )
    return state


def _parts(contents: Mapping[str, Array]) -> Iterator[tuple[Array, Array]]:
    for name in contents:
        if name.endswith(".rows.npy"):
            yield contents[name], contents.get(name.removesuffix("rows.npy") + "state.npy", np.zeros(0))


def _crc_of(content: Mapping[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode()):08x}"
