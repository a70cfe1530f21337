"""Dense rows of 16 and 8 bits: models are those of the float32 copy, and nothing copies the rows."""

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_digits

from chicle_elastic import InProcess
from chicle_elastic.chunks import layout
from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.chunks.rows import as_floats
from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import BFLOAT16, NO_STATE
from chicle_elastic.errors import DataError, UsageError
from estimators import ChicleLogisticRegression, ChicleRidge, ChicleSVM
from estimators.checks import validated_features, validated_samples
from tests.estimators.test_every_linear import EVERY, MODELS

HALVES = ["float16", "bfloat16"]
DTYPES = [*HALVES, "uint8", "int8", "bool"]


def cast(X, dtype):
    """Values that the dtype can hold, in this dtype."""
    if dtype == "bfloat16":
        return (X.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(BFLOAT16)
    return X > 7 if dtype == "bool" else X.astype(dtype)


def digits(model, dtype):
    """Some digits in a dtype, the same as float32, and labels."""
    X, y = load_digits(return_X_y=True)
    rows = cast(X[:400], dtype)
    return rows, as_floats(rows).astype(np.float32), y[:400] if is_classifier(model) else y[:400] / 10


def folder_of(tmp_path, X, y, *, is_real):
    """What `chicle convert` makes of an .npy file."""
    for name, array in (("X", X), ("y", y)):
        np.save(tmp_path / f"{name}.npy", array)
    read = ReadOptions(targets=tmp_path / "y.npy")
    return convert([tmp_path / "X.npy"], tmp_path / "folder", ConvertOptions(read=read, are_targets_real=is_real))


@pytest.mark.parametrize(
    ("model", "dtype"),
    [(model, DTYPES[number % len(DTYPES)]) for number, model in enumerate(MODELS)],
    ids=str,
)
def test_models_are_those_of_the_float32_copy(model, dtype, tmp_path):
    """Of an array, of several tasks and of a folder; predictions of all are the same. Each model has one dtype."""
    X, copy, y = digits(model, dtype)
    folder = folder_of(tmp_path, X, y, is_real=not is_classifier(model))
    assert folder.schema.dtype == ("int8" if dtype == "bool" else dtype)
    for runtime, given in ((None, X), (InProcess(num_tasks=3), X), (None, folder)):
        fine = clone(model).set_params(tol=1e-7, runtime=runtime)
        expected, found = clone(fine).fit(copy, y), fine.fit(given) if given is folder else fine.fit(given, y)
        np.testing.assert_allclose(found.objective_, expected.objective_, rtol=2e-7)
        assert found.coef_.dtype == np.float64
    for rows in (X, folder):
        np.testing.assert_allclose(found.predict(rows), found.predict(copy), rtol=1e-12)
    assert found.score(X, y) == pytest.approx(found.score(copy, y)) == pytest.approx(found.score(folder))


@EVERY
@pytest.mark.parametrize("dtype", HALVES)
def test_kernels_and_blocks_of_large_rows_read_halves(model, dtype, monkeypatch):
    """With every table taken for a large one, whose rows stay where they are."""
    monkeypatch.setattr("chicle_elastic.solvers.linear.rows.SMALL_VALUES", 0)
    X, copy, y = digits(model, dtype)
    found, expected = (clone(model).set_params(tol=1e-7).fit(rows, y) for rows in (X, copy))
    np.testing.assert_allclose(found.objective_, expected.objective_, rtol=2e-7)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_becomes_the_float32_that_it_is(dtype):
    """All 65,536 of them, by NumPy in a block with infinity and without, and by a kernel."""
    from chicle_elastic.solvers.kernels.products import scale_rows

    bits = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    half = bits.view(BFLOAT16 if dtype == "bfloat16" else np.float16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else half.astype(np.float32)
    by_kernel = np.empty((256, 256), np.float32)
    scale_rows(half, np.ones(256, np.float32), 0.0, 0, by_kernel)
    for found in (as_floats(half), by_kernel):
        np.testing.assert_array_equal(found, wide)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wide))
    finite = np.isfinite(wide)
    np.testing.assert_array_equal(as_floats(half[finite]), wide[finite])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_neither_copied_nor_widened(dtype):
    """From the caller to the chunk; and the bytes of a chunk are decoded as they were."""
    X, _, y = digits(ChicleSVM(), dtype)
    model = ChicleSVM().fit(X, y)
    assert np.shares_memory(validated_features(model, X), X)
    rows, _ = validated_samples(ChicleSVM(), X, y)
    assert np.shares_memory(rows, X)
    chunk = ArraySource(X, y).load(0, NO_STATE)
    assert np.shares_memory(chunk.rows, X)
    buffer = layout.empty_buffer(layout.encoded_bytes(chunk))
    layout.encode(chunk, buffer)
    decoded = layout.decode(buffer, where="here")
    assert decoded.rows.dtype == chunk.rows.dtype
    assert decoded.rows.tobytes() == chunk.rows.tobytes()


@pytest.mark.parametrize("rows", [0, 20_000], ids=["small", "large"])
@pytest.mark.parametrize("model", [ChicleSVM(), ChicleLogisticRegression(), ChicleRidge()], ids=str)
@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_half_that_is_not_finite_is_refused_with_its_column(model, dtype, value, rows):
    """Before a small fit, and after the first look at a large X."""
    _, copy, y = digits(model, dtype)
    copy = np.resize(copy, (max(rows, len(copy)), copy.shape[1]))
    copy[-1, 5] = value
    with pytest.raises(DataError, match="column 5"):
        clone(model).fit(cast(copy, dtype), np.resize(y, len(copy)))


def test_tensors_are_looked_at_where_they_are():
    """A fit takes float32, float16 and bfloat16 from memory of torch."""
    torch = pytest.importorskip("torch")
    _, copy, y = digits(ChicleSVM(), "float16")
    expected = ChicleSVM(random_state=0).fit(copy, y)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.uint8):
        X = torch.from_numpy(copy).to(dtype)
        found = ChicleSVM(random_state=0).fit(X, y)
        np.testing.assert_array_equal(found.predict(X), expected.predict(copy))
        assert np.shares_memory(validated_features(found, X), X.view(torch.uint8).numpy())
        assert found.objective_ == pytest.approx(expected.objective_, rel=1e-12)


@pytest.mark.parametrize("fault", ["requires grad", "is sparse", "is on the device meta"])
def test_other_tensors_are_refused_by_name(fault):
    """With what to call."""
    torch = pytest.importorskip("torch")
    X = torch.ones((4, 2))
    made = {"requires grad": X.requires_grad_, "is sparse": X.to_sparse, "is on the device meta": lambda: X.to("meta")}
    with pytest.raises(UsageError, match=f"{fault}.*pass X"):
        ChicleSVM().fit(made[fault](), [0, 1, 0, 1])
