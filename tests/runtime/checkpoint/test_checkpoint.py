"""Checkpoints on the disk: whole or refused, whoever wrote which part; the one before is used."""

import contextlib
import copy
import dataclasses
import functools
import json
import logging
import operator
import random
import resource
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import StateSpec
from chicle_elastic.errors import DataError, UsageError
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.checkpoint import format as checkpoint
from chicle_elastic.runtime.checkpoint.files import write_file, write_json
from chicle_elastic.runtime.checkpoint.format import JobIdentity
from chicle_elastic.runtime.checkpoint.writer import CheckpointWriter, Draft
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from tests.mounts import run_mounted
from tests.timeouts import comes

NUM_ROWS, NUM_TASKS = 40, 3
SPEC = StateSpec(outputs=2, width=1)
IDENTITY = JobIdentity(num_rows=NUM_ROWS, num_parameters=5, state=SPEC, trainer={"trainer": "test", "C": 1.0})
TRAINING = {"samples": 7, "records": []}


def state_of(rows: np.ndarray, iteration: int) -> np.ndarray:
    """State that tells row, output and iteration."""
    return (rows[:, None, None] + 1000.0 * iteration + np.arange(2)[None, :, None] / 10).astype(np.float64)


def drafts(iteration: int, *, seed: int = 0, time_s: float = 1.5) -> list[Draft]:
    """What each of three tasks has, the rows dealt at random."""
    rows = np.array_split(np.random.default_rng(seed).permutation(NUM_ROWS), NUM_TASKS)
    return [
        Draft(
            iteration=iteration,
            time_s=time_s * iteration,
            rank=rank,
            ranks=range(NUM_TASKS),
            rows=rows[rank],
            state=state_of(rows[rank], iteration),
            shared=(lambda: {"model.npy": np.full(5, float(iteration)), "training.json": TRAINING})
            if rank == 0
            else None,
        )
        for rank in range(NUM_TASKS)
    ]


class Tasks:
    """The writers of three tasks."""

    def __init__(self, folder: Path | str, *, keep: int = 2) -> None:
        settings = CheckpointSettings(folder=str(folder), keep=keep)
        self.complete: list[int] = []
        self.writers = [
            CheckpointWriter(settings, IDENTITY, lambda iteration, *_: self.complete.append(iteration))
            for _ in range(NUM_TASKS)
        ]

    def write(self, iteration: int, *, ranks: tuple[int, ...] = (2, 1, 0)) -> None:
        """Let tasks write, one after the other; rank 0 completes it when it comes last."""
        parts = drafts(iteration)
        for rank in ranks:
            self.writers[rank].begin(parts[rank])
            self.writers[rank].flush()

    def look(self) -> None:
        """The next iteration of all tasks."""
        for writer in self.writers:
            writer.look()
            writer.flush()

    def close(self) -> None:
        """End the threads."""
        for writer in self.writers:
            writer.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """For checkpoints; made by the first."""
    return tmp_path / "checkpoints"


@pytest.fixture
def tasks(folder: Path):
    """Three tasks at work."""
    tasks = Tasks(folder)
    yield tasks
    tasks.close()


def test_what_three_tasks_wrote_is_read_as_one(tasks: Tasks, folder: Path) -> None:
    """By row, whoever held it; the shared files come from rank 0."""
    tasks.write(7)
    found = checkpoint.newest(folder, IDENTITY)
    assert found is not None
    assert tasks.complete == [7]
    assert found.iteration == 7
    assert np.array_equal(found.state, state_of(np.arange(NUM_ROWS), 7))
    assert np.array_equal(found.model, np.full(5, 7.0))
    assert found.training == TRAINING
    assert found.rebuilt is None


def test_a_checkpoint_is_complete_when_the_last_part_is_there(tasks: Tasks, folder: Path) -> None:
    """Rank 0 was first, and looks again after the next iteration; until then there is none."""
    tasks.write(7, ranks=(0, 1))
    tasks.look()
    assert checkpoint.newest(folder, IDENTITY) is None
    tasks.write(7, ranks=(2,))
    assert tasks.complete == []
    tasks.look()
    assert tasks.complete == [7]
    assert checkpoint.newest(folder, IDENTITY) is not None


def test_the_checkpoint_of_a_job_that_pauses_is_completed_without_another_iteration(tasks: Tasks, folder: Path) -> None:
    """Rank 0 was first and looks by itself; the checkpoint of the same iteration by other owners is another one."""
    tasks.write(7)
    parts = drafts(7, seed=1)
    for rank in range(NUM_TASKS):
        parts[rank].mark = "paused in round 2: n0, n1, n2"
        tasks.writers[rank].begin(parts[rank])
    assert comes(lambda: tasks.complete == [7, 7], 30)
    assert len(checkpoint.attempts(folder)) == 2
    assert all(
        np.array_equal(checkpoint.read(path, IDENTITY).state, state_of(np.arange(NUM_ROWS), 7))
        for path in checkpoint.attempts(folder)
    )


def test_a_task_that_ends_completes_the_checkpoint_of_a_job_that_pauses(folder: Path) -> None:
    """Rank 0 wrote first, and is taken as soon as the others have written."""
    tasks = Tasks(folder)
    parts = drafts(7)
    for rank in range(NUM_TASKS):
        parts[rank].mark = "paused in round 1: n0, n1, n2"
        tasks.writers[rank].begin(parts[rank])
        tasks.writers[rank].flush()
    tasks.close()
    assert comes(lambda: tasks.complete == [7], 30)


def test_what_nobody_completes_is_given_up_for_the_next_one(tasks: Tasks, folder: Path) -> None:
    """A task was lost before it had written its part; its folder goes with the next checkpoint."""
    tasks.write(7, ranks=(0, 1))
    tasks.write(9)
    assert tasks.complete == [9]
    assert [checkpoint.iteration_of(path) for path in checkpoint.attempts(folder)] == [9]


def test_the_newest_ones_are_kept(tasks: Tasks, folder: Path) -> None:
    """Two of them, so that there is one to go back to."""
    for iteration in (3, 5, 7, 9):
        tasks.write(iteration)
    assert [checkpoint.iteration_of(path) for path in checkpoint.attempts(folder)] == [7, 9]


def cut(path: Path) -> None:
    """Half of it is gone."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """The last byte but two is another one."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name", ["manifest.json", "model.npy", "training.json", "part-001.rows.npy", "part-002.state.npy"]
)
@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(
    tasks: Tasks, folder: Path, name: str, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is wrong with which file; the log names it."""
    for iteration in (5, 7):
        tasks.write(iteration)
    damaged = checkpoint.attempts(folder)[-1] / name
    damage(damaged)
    with caplog.at_level(logging.WARNING):
        found = checkpoint.newest(folder, IDENTITY)
    assert found is not None
    assert found.iteration == 5
    assert np.array_equal(found.state, state_of(np.arange(NUM_ROWS), 5))
    assert str(damaged.parent) in caplog.text
    assert "resuming from the previous checkpoint, of iteration 5" in caplog.text or "never completed" in caplog.text


def test_when_none_is_whole_the_error_says_what_is_wrong_with_each(tasks: Tasks, folder: Path) -> None:
    """The job must not start anew by itself: the user may still have the files."""
    for iteration in (5, 7):
        tasks.write(iteration)
    for path in checkpoint.attempts(folder):
        cut(path / "part-000.state.npy")
    with pytest.raises(DataError, match=r"000000007.*damaged.*000000005.*damaged.*start anew in an empty folder"):
        checkpoint.newest(folder, IDENTITY)


def seal(path: Path, content: object) -> None:
    """Give a checkpoint another manifest, whose checksum is right."""
    sealed = content | {"crc32": checkpoint._crc_of(content)} if isinstance(content, dict) else content
    (path / "manifest.json").write_text(json.dumps(sealed))


def manifest_of(path: Path) -> dict[str, Any]:
    """Return the manifest without its checksum."""
    content = json.loads((path / "manifest.json").read_text())
    del content["crc32"]
    return dict(content)


@pytest.mark.parametrize("changes", [{}, {"files": ["laid out", "in another way"]}])
def test_a_checkpoint_of_a_later_release_is_neither_passed_over_nor_removed(
    tasks: Tasks, folder: Path, changes: dict[str, Any]
) -> None:
    """It is sound, and holds more work than the one before it; only its release knows what its files mean."""
    for iteration in (3, 5):
        tasks.write(iteration)
    path = checkpoint.attempts(folder)[-1]
    seal(path, manifest_of(path) | {"version": checkpoint.VERSION + 1} | changes)
    with pytest.raises(UsageError, match=path.name):
        checkpoint.newest(folder, IDENTITY)
    for iteration in (7, 9, 11, 13):
        tasks.write(iteration)
    assert [checkpoint.iteration_of(path) for path in checkpoint.attempts(folder)] == [5, 11, 13]


def test_a_manifest_that_cannot_be_read_is_no_end_of_the_job(
    tasks: Tasks, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder in its place: an OSError that root gets, too. The checkpoint before it is used, with a line."""
    for iteration in (5, 7):
        tasks.write(iteration)
    older, newer = (path / "manifest.json" for path in checkpoint.attempts(folder))
    newer.unlink()
    newer.mkdir()
    found = checkpoint.newest(folder, IDENTITY)
    assert found is not None
    assert found.iteration == 5
    assert str(newer) in caplog.text
    older.unlink()
    older.mkdir()
    with pytest.raises(DataError, match=str(older)):
        checkpoint.newest(folder, IDENTITY)


WRONG = [None, True, -1, 2**70, 1e300, "", "../model.npy", [], {}, [[1]], {"bytes": 1, "crc32": "00000000"}, "9" * 5000]


def places_in(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the ways to all values inside of a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, part in inside for place in [(*at, key), *places_in(part, (*at, key))]]


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a JSON value of which one or two values are others, have gone, or have another name."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2))):
        *way, last = rng.choice(places_in(value))
        inside = functools.reduce(operator.getitem, way, value)
        match rng.choice(("replace", "replace", "remove", "rename")):
            case "remove":
                del inside[last]
            case "rename" if isinstance(inside, dict):
                inside[rng.choice(("x", "a/b", "part-000.rows.npy"))] = inside.pop(last)
            case _:
                inside[last] = rng.choice(WRONG)
    return value


def test_a_sealed_manifest_of_a_wrong_structure_is_refused(tasks: Tasks, folder: Path) -> None:
    """By an error of this package, whatever stands where."""
    tasks.write(5)
    [path] = checkpoint.attempts(folder)
    sound, rng, num_refused = manifest_of(path), random.Random(0), 0
    for content in [*WRONG, *(mutated(sound, rng) for _ in range(1500))]:
        seal(path, content)
        try:
            checkpoint.newest(folder, IDENTITY)
        except (DataError, UsageError) as error:
            num_refused += path.name in str(error)
    assert num_refused > 1400  # another iteration is possible, say


@pytest.mark.parametrize("name", ["model.npy", "part-001.rows.npy", "part-002.state.npy"])
def test_an_array_with_a_wrong_header_is_refused(tasks: Tasks, folder: Path, name: str) -> None:
    """numpy reads the header as Python, and raises whatever that raises."""
    tasks.write(5)
    [path] = checkpoint.attempts(folder)
    sound, rng, manifest = (path / name).read_bytes(), random.Random(0), manifest_of(path)
    for _ in range(150):
        content = bytearray(sound)
        for _ in range(3):
            content[rng.randrange(128)] = rng.randrange(256)
        seal(path, manifest | {"files": manifest["files"] | {name: write_file(path / name, bytes(content))}})
        with contextlib.suppress(DataError):
            checkpoint.newest(folder, IDENTITY)


@pytest.mark.parametrize("where", [(), ("records", 0), ("certificate",)], ids=["whole", "record", "certificate"])
def test_a_history_of_a_wrong_structure_is_refused(tmp_path: Path, where: tuple[Any, ...]) -> None:
    """A file that a release between two versions wrote."""
    X = np.random.default_rng(0).normal(size=(60, 3))
    settings = CheckpointSettings(folder=str(tmp_path / "sound"), every_iterations=1, keep=1)
    job = Job(
        trainer=LinearTrainer(C=1.0, tol=1e-9),
        source=ArraySource(X, (X[:, 0] > 0).astype(np.int32), max_tasks=1),
        max_iterations=2,
        checkpoint=settings,
    )
    InProcess().run(job)
    [source] = checkpoint.attempts(tmp_path / "sound")
    sound, manifest = json.loads((source / "training.json").read_text()), manifest_of(source)
    settings = dataclasses.replace(settings, folder=str(tmp_path / "wrong"), resume=True)
    part, rng = functools.reduce(operator.getitem, where, sound), random.Random(0)
    for key in part:
        for wrong in rng.sample(WRONG, 4):
            path = shutil.copytree(source, tmp_path / "wrong" / source.name)
            content = copy.deepcopy(sound)
            functools.reduce(operator.getitem, where, content)[key] = wrong
            files = manifest["files"] | {"training.json": write_json(path / "training.json", content)}
            seal(path, manifest | {"files": files})
            with contextlib.suppress(DataError):
                InProcess().run(dataclasses.replace(job, checkpoint=settings))
            shutil.rmtree(tmp_path / "wrong")


def rewrite(path: Path, name: str, content: np.ndarray) -> None:
    """Put another array into a checkpoint, with a manifest that agrees with it."""
    manifest = json.loads((path / "manifest.json").read_text())
    files = manifest["files"] | {name: write_file(path / name, content)}
    checkpoint.write_manifest(path, iteration=manifest["iteration"], identity=IDENTITY, files=files)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (np.arange(13), "in two"),
        (np.arange(13) + NUM_ROWS, "beyond the data set"),
        (np.arange(13) - 1, "beyond the data set"),
        (np.zeros(13, dtype=np.int64), r"the state of \d+ is in no part"),
    ],
)
def test_parts_that_do_not_make_up_the_data_set_are_refused(
    tasks: Tasks, folder: Path, rows: np.ndarray, words: str
) -> None:
    """Also when every checksum is right: a row would have the state of another one, or none."""
    tasks.write(5)
    [path] = checkpoint.attempts(folder)
    rewrite(path, "part-002.rows.npy", rows)
    with pytest.raises(DataError, match=words):
        checkpoint.read(path, IDENTITY)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_rows": 41}, "num_rows: 40"),
        ({"num_parameters": 6}, "num_parameters: 5"),
        ({"state": StateSpec(outputs=1, width=1)}, "state"),
        ({"trainer": {"trainer": "test", "C": 2.0}}, "'C': 1.0"),
    ],
)
def test_a_checkpoint_of_another_job_is_an_error(
    tasks: Tasks, folder: Path, change: dict[str, Any], words: str
) -> None:
    """And not skipped for one before it: the folder belongs to somebody else."""
    tasks.write(5)
    with pytest.raises(UsageError, match=words):
        checkpoint.newest(folder, dataclasses.replace(IDENTITY, **change))


def test_a_model_that_was_laid_out_in_another_way_is_refused_with_both_versions(tasks: Tasks, folder: Path) -> None:
    """A trainer that says no version has the first; one of another algorithm is refused as before."""
    tasks.write(5)
    newer = {"trainer": "test", "model_version": 2, "C": 1.0}
    with pytest.raises(
        UsageError, match=r"model of version 1 of the trainer 'test', and this release .* version 2 only"
    ):
        checkpoint.newest(folder, dataclasses.replace(IDENTITY, trainer=newer, num_parameters=6))
    with pytest.raises(UsageError, match="of another job"):
        checkpoint.newest(folder, dataclasses.replace(IDENTITY, trainer=newer | {"trainer": "other"}))


def test_a_disk_that_fails_costs_the_checkpoint_and_not_the_job(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """There is a file where the folder should be; writing goes on once it is away."""
    folder.write_text("in the way")
    tasks = Tasks(folder)
    try:
        tasks.write(4)
        tasks.write(5)
        assert tasks.complete == []
        assert caplog.text.count("cannot write a checkpoint to") == NUM_TASKS, "each task says so once"
        folder.unlink()
        tasks.write(7)
        assert tasks.complete == [7]
    finally:
        tasks.close()


FULL_DISK = """
import itertools, os, sys
from pathlib import Path
from tests.runtime.checkpoint.test_checkpoint import NUM_TASKS, Tasks

disk = Path("disk").absolute()
tasks = Tasks(disk / "job")
tasks.write(3)
tasks.write(5)
found = {{path: path.stat().st_mtime_ns for path in (disk / "job").rglob("*")}}
iteration = 7
for num_free, ranks in itertools.product({num_free}, itertools.permutations(range(NUM_TASKS))):
    with open(disk / "fill", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
        file.truncate(file.tell() - 1024 * num_free)
    tasks.write(iteration, ranks=ranks)
    tasks.look()
    tasks.writers[0]._remove_abandoned()
    assert {{path: path.stat().st_mtime_ns for path in (disk / "job").rglob("*")}}.items() >= found.items()
    left = [path.name for path in (disk / "job").iterdir() if not (path / "manifest.json").exists()]
    assert not left, (num_free, ranks, left)
    iteration += 1
assert tasks.complete == [3, 5]
(disk / "fill").unlink()
tasks.write(iteration)
print(tasks.complete[2:] == [iteration])
tasks.close()
"""


@pytest.mark.parametrize(("num_free", "num_lines"), [((0,), (NUM_TASKS,)), ((4, 8, 16, 32, 44), range(1, 90))])
def test_a_full_disk_keeps_nothing_of_an_attempt(
    tmp_path: Path, num_free: tuple[int, ...], num_lines: Sequence[int]
) -> None:
    """Wherever the room ends, and whichever task is last. While no task has room, each says so once."""
    (tmp_path / "disk").mkdir()
    run = run_mounted(
        "mount -t tmpfs -o size=1m tmpfs $folder/disk", FULL_DISK.format(num_free=num_free), folder=tmp_path
    )
    assert (run.returncode, run.stdout) == (0, "True\n"), run.stderr
    assert run.stderr.count("No space left on device") in num_lines


def record(iteration: int, time_s: float) -> IterationRecord:
    """A record."""
    return IterationRecord(iteration=iteration, epochs=0.0, time_s=time_s, num_tasks=1, samples=1)


def test_a_file_that_does_not_fit_leaves_nothing_behind(tmp_path: Path) -> None:
    """Neither under its name nor beside it, and what was there before stays; the limit is one of the kernel."""
    write_file(tmp_path / "state.npy", np.zeros(3))
    before = (tmp_path / "state.npy").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            write_file(tmp_path / "state.npy", np.zeros(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["state.npy"]
    assert (tmp_path / "state.npy").read_bytes() == before


def test_by_iterations_every_nth_is_due() -> None:
    """Whatever the clock says."""
    settings = CheckpointSettings(folder="x", every_iterations=10)
    due = [n for n in range(1, 41) if settings.is_due(record(n, 1e3 * n), record(n - 1, 1e3 * (n - 1)))]
    assert due == [10, 20, 30, 40]


def test_by_seconds_one_is_due_when_the_next_interval_has_begun() -> None:
    """Each interval once, however long an iteration takes, and without a word between tasks."""
    settings = CheckpointSettings(folder="x", every_s=10.0)
    times = [0.0, 3.0, 9.9, 10.1, 11.0, 35.0, 36.0, 40.0]
    due = [times[n] for n in range(1, len(times)) if settings.is_due(record(n + 1, times[n]), record(n, times[n - 1]))]
    assert due == [10.1, 35.0, 40.0]


def test_the_folder_of_checkpoints_may_be_a_path(tmp_path: Path) -> None:
    """It is text in the settings, which travel to nodes as JSON."""
    folder: Any = tmp_path
    settings = CheckpointSettings(folder=folder)
    assert json.loads(json.dumps(dataclasses.asdict(settings)))["folder"] == str(tmp_path)


def test_settings_that_cannot_be_are_refused() -> None:
    """With all their values."""
    for wrong in ({"every_iterations": -1}, {"every_s": -1.0}, {"every_s": float("inf")}, {"keep": 0}):
        with pytest.raises(UsageError, match="is invalid"):
            CheckpointSettings(folder="x", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is invalid"):
        CheckpointSettings(folder="")
