"""Chunk folders in place of X and y: the same models and predictions as from arrays, one chunk at a time."""

import numpy as np
import pytest
from scipy import sparse

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.folder_writer import ChunkFolderWriter
from chicle_elastic.chunks.views import NO_STATE, lie_in_file
from chicle_elastic.cluster.local.local_cluster import LocalCluster
from chicle_elastic.errors import ChunkCorruptError, DataError
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleHuber, ChicleLogisticRegression, ChicleSVM
from tests.control_group import run_with_memory
from tests.estimators import problems
from tests.estimators.problems import write

__all__ = ["run_with_memory"]


def digits_folder(path, form=np.asarray, **kwargs):
    """Digits as a folder, and as arrays."""
    X, y = problems.digits()
    X = form(X.astype(np.float32))
    return write(path, X, y, classes=tuple(range(10)), **kwargs), X, y


def test_scores_compare_labels_and_not_their_codes(tmp_path):
    """A folder with a subset of the classes, coded otherwise; or with none of them."""
    X, y = problems.digits()
    model = ChicleSVM(C=0.01).fit(X, y)
    chosen = np.isin(y, [4, 7])
    part = write(tmp_path / "part", X[chosen], (y[chosen] == 7).astype(int), classes=(4, 7))
    assert model.score(part) == pytest.approx(model.score(X[chosen], y[chosen]), rel=1e-12)
    other = write(tmp_path / "other", X[chosen], (y[chosen] == 7).astype(int), classes=("four", "seven"))
    with pytest.raises(DataError, match=r"has the classes \['four', 'seven'\].* none in common"):
        model.score(other)


@pytest.mark.parametrize("method", ["predict", "decision_function", "score"])
def test_another_number_of_features_is_refused(method, tmp_path):
    """With both numbers, the folder and what to do."""
    folder, X, y = digits_folder(tmp_path / "digits")
    model = ChicleSVM(C=0.01).fit(X[:, :60], y)
    with pytest.raises(DataError, match=r"digits has 64 features, but ChicleSVM was fitted with 60; convert"):
        getattr(model, method)(folder)


def test_one_class_is_refused(tmp_path):
    """Where it is the weights that leave only one, the answer is that one."""
    X, y = problems.cancer()
    folder = write(tmp_path / "one", X, np.zeros(len(y)), classes=("a",))
    with pytest.raises(ValueError, match="only one class: 'a'"):
        ChicleSVM().fit(folder)
    folder = write(tmp_path / "weightless", X, y, classes=("a", "b"), weights=(y == 1).astype(float))
    assert (ChicleSVM().fit(folder).predict(X[y == 1]) == "b").all()


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
@pytest.mark.parametrize("algorithm", ["newton", "cocoa"])
def test_rows_that_stay_in_their_files_give_the_model_of_rows_in_memory(algorithm, form, tmp_path):
    """Each has a certificate of the same objective; the folder itself still takes memory."""
    folder, _, _ = digits_folder(tmp_path / "digits", form)
    mapped = folder.mapped()
    assert folder.copies_rows
    assert not mapped.copies_rows
    assert lie_in_file(mapped.load(0, NO_STATE).rows)
    models = [ChicleSVM(C=0.01, tol=1e-5, algorithm=algorithm, random_state=0).fit(data) for data in (folder, mapped)]
    for model in models:
        assert np.max(model.duality_gap_) <= 1e-5
    first, second = (model.history_[-1].figures["objective"] for model in models)
    assert second == pytest.approx(first, rel=1e-5)


@pytest.mark.parametrize("how", ["changed", "copied"])
@pytest.mark.parametrize("kind", [ChicleSVM, ChicleLogisticRegression, ChicleHuber])
def test_a_memmap_of_the_user_is_data_as_it_is_in_memory(kind, how, tmp_path):
    """Keep what was changed in a copy-on-write map, and is not in its file: the pages are never given back."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "X.npy", rng.normal(size=(3000, 5)).astype(np.float32))
    X = np.load(tmp_path / "X.npy", mmap_mode="c")
    X[:] = rng.normal(size=X.shape)
    X = X.copy() if how == "copied" else X
    before = np.array(X)
    y = (before[:, 0] > 0).astype(np.float64)
    model, other = (kind(random_state=0).fit(rows, y) for rows in (X, before))
    np.testing.assert_array_equal(X, before)
    np.testing.assert_allclose(model.coef_, other.coef_, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_workers", "rows", "columns"), [(None, 10_000, 256), (2, 10_000, 256), (None, 60_000, 8)], ids=str
)
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_data_larger_than_memory_are_trained_on(loss, n_workers, rows, columns, tmp_path, run_with_memory):
    """To the certificate that is asked for, by processes that may take less than the data. With few columns that is
    because of what methods keep per row.
    """
    rng = np.random.default_rng(0)
    w = rng.normal(size=columns)
    with ChunkFolderWriter(tmp_path / "large", kind="dense", dtype="float32", num_features=columns) as writer:
        for _ in range(60):
            X = rng.standard_normal((rows, columns), dtype=np.float32)
            writer.add(X, (X @ w > rng.normal(size=rows) * 10).astype(np.float64))
        writer.finish(classes=(0, 1))
    run = run_with_memory(
        450 if n_workers else 280 if columns == 256 else 400,
        "from chicle_elastic.chunks.folder import ChunkFolder\nfrom estimators import ChicleSVM\n"
        f"model = ChicleSVM(C=1e-4, loss={loss!r}, tol=1e-2, n_workers={n_workers})"
        f".fit(ChunkFolder({str(tmp_path / 'large')!r}))\n"
        "print(model.duality_gap_, '|', model.history_.method)",
    )
    assert run.returncode == 0, run.stderr
    gap, method = run.stdout.split("|")
    assert float(gap.strip("[] ")) <= 1e-2
    assert "coordinate descent" not in method  # it reads rows in any order


@pytest.mark.parametrize("is_mapped", [False, True])
def test_a_file_that_is_damaged_replaced_or_gone_is_named(is_mapped, tmp_path):
    """In fit and predict, also where the folder is the same object; nothing is trained on bytes that changed."""
    folder, *_ = digits_folder(tmp_path / "digits", sparse.csr_matrix)
    data = folder.mapped() if is_mapped else folder
    model = ChicleSVM(C=0.01).fit(data)
    path = folder.file(1)
    content = bytearray(path.read_bytes())
    content[-3000] ^= 1
    path.with_suffix(".new").write_bytes(content)
    path.with_suffix(".new").replace(path)
    for use in (ChicleSVM(C=0.01).fit, model.predict):
        with pytest.raises(ChunkCorruptError, match=path.name):
            use(data if is_mapped else ChunkFolder(folder.path))
    path.unlink()
    with pytest.raises(DataError, match=path.name):
        ChicleSVM().fit(data if is_mapped else ChunkFolder(folder.path))


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_a_warm_start_works_on_a_folder(loss, tmp_path):
    """On tasks that come and go, with labels that are text; another folder starts afresh."""
    X, y = problems.cancer()
    folder = write(tmp_path / "cancer", X, y, classes=("benign", "malign"))
    runtime = InProcess(num_tasks=3, changes=((2, 5),))
    model = ChicleSVM(C=0.01, loss=loss, warm_start=True, store_duals=True, runtime=runtime, max_iter=5000).fit(folder)
    assert problems.recomputed_gaps(model, X, np.array(["benign", "malign"])[y]).max() <= 1e-3
    assert model.score(folder) == model.score(X, np.array(["benign", "malign"])[y]) > 0.97
    assert model.fit(ChunkFolder(folder.path)).n_iter_ == 1
    other = write(tmp_path / "other", X[:300], y[:300], classes=("benign", "malign"))
    assert model.fit(other).duals_.shape == (300, 1)


@pytest.mark.slow
def test_agents_share_rows_that_stay_in_their_files(tmp_path):
    """Their slots hold state alone, while one joins and one leaves; the model has the certificate."""
    folder, _, _ = digits_folder(tmp_path / "digits")
    with LocalCluster((1, 3), start_nodes=2) as cluster:
        model = ChicleSVM(C=0.01, tol=1e-4, loss="squared_hinge", runtime=cluster).fit(folder.mapped())
    assert np.max(model.duality_gap_) <= 1e-4
