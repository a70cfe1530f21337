"""Estimators that are fitted by the tasks of a job, which see a folder and nothing else; no TorchX is needed."""

import json
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning

from chicle_elastic import JobFailedError, Rebalance, TorchXRuntime, UsageError
from chicle_elastic.cli.main import main as chicle
from chicle_elastic.errors import DataError, PeerLostError
from estimators import ChicleCNNClassifier, ChicleLasso, ChicleLogisticRegression, ChicleRidge, ChicleSVM
from estimators.submitted.fit import attach
from estimators.submitted.staging import Staged, stage
from tests.chunks.folders import write_folder
from tests.mounts import run_mounted
from tests.timeouts import comes, timeout_s
from tests.torchx.anchor_runtime import AnchorRuntime
from torchx_components import job_state
from torchx_components.job_state import JobState, StateWriter


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[AnchorRuntime]:
    """One node."""
    with AnchorRuntime(tmp_path) as runtime:
        yield runtime


def overlapping() -> tuple[Any, Any]:
    """Rows that two classes overlap in, so that a fit with a small tolerance lasts."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20_000, 50))
    return X, np.where(X[:, 0] + 2.0 * rng.normal(size=len(X)) > 0, 1, -1)


@pytest.mark.slow
def test_names_words_and_weights_go_along(runtime: AnchorRuntime, tmp_path: Path) -> None:
    """The model is that of a fit here, up to the gap; the data does not stay; who attaches later gets the same."""
    frame = load_iris(as_frame=True)
    words = np.array(["setosa", "versicolor", "virginica"], dtype=object)[frame.target]
    weights = np.linspace(0.5, 2.0, len(words))
    given: dict[str, Any] = {"class_weight": {"setosa": 2.0, "versicolor": 1.0, "virginica": 1.0}, "random_state": 0}
    given |= {"tol": 1e-6, "loss": "squared_hinge"}
    model = ChicleSVM(runtime=runtime, **given).fit(frame.data, words, weights)
    here = ChicleSVM(**given).fit(frame.data, words, weights)
    np.testing.assert_allclose(model.objective_, here.objective_, rtol=2e-6)
    assert model.classes_.tolist() == here.classes_.tolist()
    assert model.classes_.dtype == object
    assert model.predict(frame.data).tolist() == here.predict(frame.data).tolist()
    assert model.runtime is runtime
    assert not (tmp_path / "job0" / "data").exists()
    attached = attach(tmp_path / "job0", runtime.wait, verbose=0)
    assert attached.feature_names_in_.tolist() == list(frame.data.columns)
    np.testing.assert_array_equal(attached.coef_, model.coef_)


@pytest.mark.slow
def test_sparse_rows_go_along_and_warnings_come_back(runtime: AnchorRuntime) -> None:
    """As the user would see them here."""
    X, y = load_iris(return_X_y=True)
    with pytest.warns(ConvergenceWarning, match="after max_iter=1 iterations"):
        model = ChicleLogisticRegression(max_iter=1, tol=0.0, runtime=runtime).fit(sparse.csr_matrix(X), y)
    assert model.n_iter_ == 1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "form"), [(ChicleRidge, np.asarray), (ChicleLasso, sparse.csr_matrix)])
def test_real_targets_go_along(runtime: AnchorRuntime, kind: Any, form: Callable[[Any], Any]) -> None:
    """As they are, with weights, to the model of a fit here."""
    X, y = load_diabetes(return_X_y=True)
    weights = np.linspace(0.5, 2.0, len(y))
    model = kind(alpha=0.5, runtime=runtime).fit(form(X), y, weights)
    here = kind(alpha=0.5).fit(X, y, weights)
    np.testing.assert_allclose(model.coef_, here.coef_, rtol=1e-8)
    assert model.intercept_ == pytest.approx(here.intercept_)
    assert model.duality_gap_ <= 1e-6


@pytest.mark.slow
def test_a_network_is_trained(runtime: AnchorRuntime) -> None:
    """With what `fit` sets."""
    digits = load_digits()
    X, y = digits.images.repeat(2, axis=1).repeat(2, axis=2)[:600], digits.target[:600]
    with pytest.raises(UsageError, match="too small for the default network"):
        ChicleCNNClassifier(image_shape=(8, 8), runtime=runtime).fit(digits.data, digits.target)
    assert not runtime.anchors
    model = ChicleCNNClassifier(max_epochs=2, random_state=0, runtime=runtime).fit(X, y)
    assert model.n_epochs_ == 2
    assert model.image_shape_ == (1, 16, 16)
    assert model.score(X, y) > 0.5
    with pytest.raises(UsageError, match="partial_fit cannot run as a job"):
        model.partial_fit(X, y)


@pytest.mark.slow
def test_a_job_is_looked_at_and_changed_while_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """status, scale, drain and logs; it is attached from a thread, cancelled, and says so."""
    with AnchorRuntime(tmp_path, "1:2") as runtime:
        X, y = overlapping()
        job = runtime.new_folder()
        stage(ChicleSVM(tol=0.0, max_iter=10_000_000, random_state=0), X, y, None, job / "data")
        runtime.submit(job, job / "data")

        def has_members(count: int, gone: str = "") -> Callable[[], bool]:
            def is_so() -> bool:
                state = JobState.read(job)
                names = [] if state is None else [each.name for each in state.members]
                return len(names) == count and gone not in names and " iteration " in said("status", str(job))

            return is_so

        def said(*command: str) -> str:
            assert chicle(command) == 0
            return capsys.readouterr().out

        assert comes(has_members(2)), "two members"
        said("scale", str(job), "1")
        assert comes(has_members(1)), "one member"
        state = JobState.read(job)
        assert state is not None
        [left] = state.members
        assert f"{left.name} on process" in said("status", str(job))
        assert chicle(["drain", str(job), "node-77"]) == 2
        assert "'node-77' is no member" in capsys.readouterr().err
        said("drain", str(job), left.name)
        assert comes(has_members(1, gone=left.name)), "another member"
        assert "gets notice, from outside" in said("logs", str(job), "--lines", "1000")
        assert chicle(["scale", str(job), "0"]) == 2

        codes: list[int] = []
        follower = threading.Thread(target=lambda: codes.append(chicle(["attach", str(job)])))
        follower.start()
        runtime.anchors[0].terminate()
        follower.join(timeout_s(60))
        assert codes == [1]
        assert "cancelled: the anchor was told to end" in capsys.readouterr().err
        assert "cancelled" in said("status", str(job))
        assert chicle(["scale", str(job), "2"]) == 2
        assert "is over (cancelled" in capsys.readouterr().err


@pytest.mark.slow
def test_an_anchor_that_was_killed_is_missed(
    runtime: AnchorRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has written nothing for long; the state does not change any more."""
    monkeypatch.setattr(job_state, "SILENT_S", 8.0)
    X, y = overlapping()
    job = runtime.new_folder()
    stage(ChicleSVM(tol=0.0, max_iter=10_000_000), X, y, None, job / "data")
    runtime.submit(job, job / "data")
    assert comes(lambda: bool((state := JobState.read(job)) and state.members)), "a member"
    runtime.anchors[0].send_signal(signal.SIGKILL)
    with pytest.raises(PeerLostError, match="it was killed, or the shared folder hangs"):
        runtime.wait(job)


@pytest.mark.slow
def test_a_task_that_fails_ends_the_fit(runtime: AnchorRuntime, tmp_path: Path) -> None:
    """With its reason: here the folder of the data is none of chunks."""
    folder = tmp_path / "chunks"
    chunks = write_folder(folder, is_sparse=False)
    job = runtime.new_folder()
    stage(ChicleSVM(), chunks, None, None, job / "data")
    (folder / "manifest.json").write_text("{}")
    runtime.submit(job, job / "data")
    with pytest.raises(JobFailedError, match=r"(?s)failed: .*A task said: DataError on .*manifest"):
        attach(job, runtime.wait, verbose=0)
    assert not list(job.glob(".run-*"))
    with pytest.raises(JobFailedError, match=r"(?s)failed: "):  # once more, without its data
        attach(job, runtime.wait, verbose=0)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"policy": Rebalance()}, "policy of ChicleSVM cannot go"),
        ({"warm_start": True}, "warm_start of ChicleSVM cannot go"),
    ],
)
def test_what_cannot_go_along_is_refused(
    runtime: AnchorRuntime, tmp_path: Path, params: dict[str, Any], said: str
) -> None:
    """Before anything is submitted, and nothing is left."""
    with pytest.raises(UsageError, match=said):
        ChicleSVM(runtime=runtime, **params).fit(*load_iris(return_X_y=True))
    assert not list(tmp_path.iterdir())


def test_a_class_of_the_notebook_is_refused(tmp_path: Path) -> None:
    """It says where to write it."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Linear):  # type: ignore[misc, name-defined]
        """Only here."""

    with pytest.raises(UsageError, match=r"say net\.py, and give module=net\.Net"):
        stage(ChicleCNNClassifier(Net), np.zeros((4, 8, 8)), np.arange(4) % 2, None, tmp_path / "data")


def test_data_that_the_disk_has_no_room_for_is_refused_before_it_is_written(tmp_path: Path) -> None:
    """With both figures; nothing is left."""
    (tmp_path / "disk").mkdir()
    program = """
import os, numpy as np
from chicle_elastic.errors import CapacityError
from pathlib import Path
from estimators import ChicleSVM
from estimators.submitted.staging import stage
try:
    stage(ChicleSVM(), np.zeros((40_000, 10)), np.arange(40_000) % 2, None, Path("disk/fit"))
except CapacityError as error:
    print(error)
print(os.listdir("disk"))
"""
    run = run_mounted("mount -t tmpfs -o size=2m tmpfs $folder/disk", program, folder=tmp_path)
    said, left = run.stdout.splitlines()
    assert "takes 3.2 MiB, and disk has 2.0 MiB left" in said
    assert left == "[]"


def test_nothing_is_left_of_data_when_the_disk_fills_meanwhile(tmp_path: Path) -> None:
    """The check before has found room; a limit of the size of files stands for the disk. Another folder is kept."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(UsageError, match="cannot be written to"):
            stage(ChicleSVM(), np.zeros((40_000, 10)), np.arange(40_000) % 2, None, tmp_path / "fit")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "fit").mkdir()
    with pytest.raises(UsageError, match="cannot be written to"):
        stage(ChicleSVM(), np.zeros((40, 10)), np.arange(40) % 2, None, tmp_path / "fit")
    assert (tmp_path / "fit").is_dir()


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    """Missing, damaged, of a version to come."""
    with pytest.raises(UsageError, match="does not see it"):
        Staged(tmp_path)
    (tmp_path / "fit.json").write_text("{")
    with pytest.raises(DataError, match="is damaged"):
        Staged(tmp_path)
    (tmp_path / "fit.json").write_text(json.dumps({"format": "chicle-fit", "version": 9}))
    with pytest.raises(DataError, match="is of version 9"):
        Staged(tmp_path)
    assert chicle(["status", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"scheduler": "pbs"}, "it submits to 'slurm'"),
        ({"nodes": (3, 2)}, "at least 2 and at most 8"),
        ({"nodes": "two"}, "at least 2 and at most 8"),
        ({"nodes": (1, 2), "start_nodes": 3}, "a job begins with 1 to 2 nodes"),
        ({"grace_s": -1.0}, "finite and >= 0"),
        ({"cpu": 0}, "at least 1"),
        ({"member_options": "--sbatch=-p gold"}, "a tuple of options"),
    ],
)
def test_arguments_of_the_runtime_that_cannot_be_are_refused(arguments: dict[str, Any], said: str) -> None:
    """With what to say instead."""
    with pytest.raises(UsageError, match=said):
        TorchXRuntime(**arguments)


def test_a_state_that_cannot_be_written_for_a_while_is_no_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line each time, and the next one that can be written is."""
    job = tmp_path / "job"
    with pytest.raises(FileNotFoundError):
        StateWriter(job, JobState(phase="preparing"))
    job.mkdir()
    writer = StateWriter(job, JobState(phase="preparing"))
    job.rename(tmp_path / "gone")
    writer.change("running")
    assert "cannot be written" in capsys.readouterr().out
    (tmp_path / "gone").rename(job)
    writer.change("succeeded", "done")
    state = JobState.read(job)
    assert state is not None
    assert (state.phase, state.reason) == ("succeeded", "done")
