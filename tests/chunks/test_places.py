"""Checkpoints and models at URLs: the same as in a folder, and a message that helps where a URL cannot be used."""

import contextlib
import importlib.util
import logging
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from chicle_elastic import ArraySource, CheckpointSettings, InProcess, Job
from chicle_elastic.chunks.places import Place, UrlPath, absolute_place, folders_in, place_of, require_writable
from chicle_elastic.errors import DataError, MissingExtraError, UnreachablePlaceError, UsageError
from chicle_elastic.runtime.checkpoint import format as checkpoint
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from estimators import ChicleSVM
from estimators.fit_task import MODEL_NAME, save_model
from tests.runtime.checkpoint import s3_server as s3
from tests.runtime.checkpoint.test_checkpoint import IDENTITY, NUM_ROWS, Tasks, state_of

PURPOSE = "a folder of checkpoints"


@pytest.fixture(scope="module", autouse=True)
def started_once() -> Iterator[s3.S3Server | None]:
    """A server of S3 with the bucket "jobs", where that is installed; and the thread that fsspec starts and keeps."""
    with contextlib.ExitStack() as stack:
        server = None
        if importlib.util.find_spec("fsspec"):
            from fsspec.asyn import get_loop

            get_loop()
        if s3.is_installed():
            server = stack.enter_context(s3.s3_server())
            server.make_bucket("jobs")
        yield server


@pytest.fixture
def fsspec() -> ModuleType:
    """The package."""
    return pytest.importorskip("fsspec", reason="needs fsspec: pip install 'chicle-elastic[url]'")


@pytest.fixture
def server(started_once: s3.S3Server | None) -> s3.S3Server:
    """The server."""
    if started_once is None:
        pytest.skip(s3.NEEDS)
    return started_once


@pytest.fixture
def bucket(server: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """URL of a folder of its own in a bucket, for this process."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://jobs/{uuid.uuid4().hex}"


@pytest.fixture(params=["file", "memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder that does not exist yet, at a URL of each kind."""
    if request.param == "file":
        return f"file://{tmp_path}/checkpoints"
    if request.param == "s3":
        return request.getfixturevalue("bucket")
    request.getfixturevalue("fsspec")
    return f"memory://{uuid.uuid4().hex}"


def iterations_at(place: Place) -> list[int]:
    """Iterations of the checkpoints, complete or not."""
    return [checkpoint.iteration_of(path) for path in checkpoint.attempts(place)]


def test_three_tasks_write_to_a_url_and_the_newest_whole_ones_are_kept(url: str) -> None:
    """The manifest comes last: until the last part is there, the one before counts."""
    tasks, place = Tasks(url), place_of(url, purpose=PURPOSE)
    try:
        assert checkpoint.newest(place, IDENTITY) is None
        for iteration in (3, 5, 7):
            tasks.write(iteration)
        tasks.write(9, ranks=(0, 1))
        tasks.look()
        assert tasks.complete == [3, 5, 7]
        found = checkpoint.newest(place, IDENTITY)
        assert found is not None
        assert found.iteration == 7
        assert np.array_equal(found.state, state_of(np.arange(NUM_ROWS), 7))
        assert iterations_at(place) == [5, 7, 9]
        tasks.write(11)
        assert iterations_at(place) == [7, 11]
    finally:
        tasks.close()


@pytest.mark.parametrize("name", ["manifest.json", "model.npy", "part-001.state.npy"])
def test_a_damaged_checkpoint_at_a_url_is_refused_and_the_one_before_is_used(url: str, name: str) -> None:
    """A file system that shows half a file is no danger: the checksum of the manifest, and its own, are wrong."""
    tasks, place = Tasks(url), place_of(url, purpose=PURPOSE)
    try:
        for iteration in (5, 7):
            tasks.write(iteration)
    finally:
        tasks.close()
    damaged = checkpoint.attempts(place)[-1] / name
    damaged.write_bytes(damaged.read_bytes()[:50])
    found = checkpoint.newest(place, IDENTITY)
    assert found is not None
    assert found.iteration == 5


def test_a_file_system_with_folders_gets_them(fsspec: ModuleType, tmp_path: Path) -> None:
    """Not so an object store, where that would make the bucket."""
    from fsspec.implementations.local import LocalFileSystem

    place = UrlPath(f"nfs://host{tmp_path}", str(tmp_path), LocalFileSystem())
    (place / "a" / "b").write_bytes(b"content")
    assert (tmp_path / "a" / "b").read_bytes() == b"content"
    assert folders_in(place) == [place / "a"]
    (place / "a").remove()
    assert folders_in(place) == []


def test_a_job_is_saved_to_a_url_and_resumes_from_it(url: str) -> None:
    """In one process; the numbers of its iterations count on."""
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)

    def run(max_iterations: int, *, resume: bool = False) -> int:
        job = Job(
            trainer=LinearTrainer(C=1.0, tol=0.0),
            source=ArraySource(X, y.astype(np.int32), max_tasks=2),
            max_iterations=max_iterations,
            checkpoint=CheckpointSettings(folder=url, every_iterations=2, resume=resume),
        )
        return InProcess(num_tasks=2).run(job).history[-1].iteration

    assert run(4) == 4
    with pytest.raises(UsageError, match=r"holds checkpoints of an earlier run, up to iteration [24]"):
        run(8)
    assert run(8, resume=True) == 8


def test_a_model_is_written_to_a_url(url: str, tmp_path: Path) -> None:
    """Whole, by every task to the same name."""
    X, y = load_breast_cancer(return_X_y=True)
    model = ChicleSVM(C=0.1, max_iter=5, tol=1e9).fit(X, y)
    out = place_of(url, purpose="a model")
    for _ in range(2):
        save_model(model, out)
    copy = tmp_path / "copy.npz"
    copy.write_bytes((out / MODEL_NAME).read_bytes())
    assert np.array_equal(ChicleSVM.load(copy).coef_, model.coef_)


def test_a_bucket_without_the_right_to_write_is_refused_before_the_job_begins(server: s3.S3Server, bucket: str) -> None:
    """With the node, the reason of the store, and what to look at; and as an answer, not as "no checkpoint yet"."""
    place = place_of(bucket, purpose=PURPOSE)
    server.refuse_all()
    try:
        with pytest.raises(UnreachablePlaceError, match=rf"node n3 cannot write to {bucket} .*PermissionError.*check"):
            require_writable(place, who="node n3")
        with pytest.raises(UnreachablePlaceError, match="PermissionError"):
            checkpoint.newest(place, IDENTITY)
    finally:
        server.refuse_none()
    require_writable(place, who="node n3")
    assert folders_in(place) == []


def test_a_bucket_that_does_not_exist_is_not_made(bucket: str) -> None:
    """It belongs to its owner, with its rights and its bill."""
    for _ in range(2):
        with pytest.raises(UnreachablePlaceError, match="there is no such bucket"):
            require_writable(place_of("s3://no-such-bucket/job", purpose=PURPOSE), who="node n0")


def test_a_store_that_refuses_costs_a_checkpoint_and_not_the_job(
    server: s3.S3Server, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the place and the reason; once the store takes files again, so does the next checkpoint."""
    tasks = Tasks(bucket)
    try:
        tasks.write(5)
        server.refuse_all()
        tasks.write(7)
        assert tasks.complete == [5]
        assert f"cannot write a checkpoint to {bucket}: UnreachablePlaceError" in caplog.text
        server.refuse_none()
        tasks.write(9)
        assert tasks.complete == [5, 9]
    finally:
        server.refuse_none()
        tasks.close()


def test_a_manifest_that_was_refused_is_written_later_and_reported_once(
    server: s3.S3Server, bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    """All parts are there; iterations go by, and each would try."""
    tasks = Tasks(bucket)
    try:
        tasks.write(5, ranks=(0, 1, 2))
        assert tasks.complete == []
        server.refuse_all()
        with caplog.at_level(logging.ERROR):
            for _ in range(3):
                tasks.look()
        assert len(caplog.records) == 1
        server.refuse_none()
        tasks.look()
        assert tasks.complete == [5]
    finally:
        server.refuse_none()
        tasks.close()


def test_a_server_that_is_away_is_named(server: s3.S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port is closed."""
    for name, value in s3.S3Server("http://127.0.0.1:9").environment.items():
        monkeypatch.setenv(name, value)
    place = place_of("s3://jobs/job", purpose=PURPOSE)
    with pytest.raises(UnreachablePlaceError, match=r"node n1 cannot write to s3://jobs/job .*127\.0\.0\.1:9"):
        require_writable(place, who="node n1")


def test_a_scheme_without_its_package_or_without_meaning_is_refused(fsspec: ModuleType) -> None:
    """With the package, or with an example."""
    from fsspec.registry import known_implementations

    known_implementations["chicletest"] = {"class": "no_such_package_of_chicle.FS", "err": "Please install nosuch"}
    try:
        with pytest.raises(MissingExtraError, match=r"at chicletest://b/x needs one more package.*install nosuch"):
            place_of("chicletest://b/x", purpose=PURPOSE)
    finally:
        del known_implementations["chicletest"]
    with pytest.raises(UsageError, match="Protocol not known: nosuch"):
        place_of("nosuch://b/x", purpose=PURPOSE)


def test_without_fsspec_paths_work_and_a_url_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing but a URL needs the package."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "fsspec"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    tasks = Tasks(tmp_path / "checkpoints")
    tasks.write(3)
    tasks.close()
    assert place_of(f"file://{tmp_path}", purpose=PURPOSE) == tmp_path
    with pytest.raises(MissingExtraError, match=r"chicle-elastic\[url\]"):
        place_of("s3://bucket/job", purpose=PURPOSE)


def test_a_place_means_the_same_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents and tasks may have different working folders."""
    monkeypatch.chdir(tmp_path)
    assert absolute_place("job") == str(tmp_path / "job")
    assert absolute_place("file:///shared/job") == "/shared/job"
    assert absolute_place("s3://bucket/job/") == "s3://bucket/job"
    with pytest.raises(UsageError, match="no absolute path"):
        absolute_place("file://job")


def test_two_names_of_a_place_are_one(fsspec: ModuleType) -> None:
    """Checkpoints are compared when old ones are removed; a failure to read is no missing file."""
    first, second = (place_of("memory://job/a", purpose=PURPOSE) for _ in range(2))
    assert first == second
    assert len({first / "x", second / "x"}) == 1
    assert (first / "x").parent == second
    with pytest.raises(FileNotFoundError):
        (first / "none").read_bytes()
    assert issubclass(UnreachablePlaceError, DataError)
