"""Every kernel against the NumPy form in its own docstring, on random chunks of every kind and dtype."""

import inspect
import textwrap

import numpy as np
import pytest
import scipy.sparse

from chicle_elastic.chunks.views import CsrRows
from chicle_elastic.solvers import objectives
from chicle_elastic.solvers.kernels import scd, tables
from chicle_elastic.solvers.local_chunk import RowBlock
from chicle_elastic.solvers.objectives import Loss

KINDS = ["dense-float32", "dense-float64", "dense-uint8", "csr-float32-int32", "csr-float64-int64"]
INTERCEPT = 0.5


class Case:
    """Three random chunks of 11, 8 and 1 rows, their tables, and dense float64 copies for the reference."""

    def __init__(self, kind, outputs, loss, seed=0):
        rng = np.random.default_rng(seed)
        self.loss = loss
        self.positives = np.arange(outputs, dtype=np.int32) if outputs > 1 else np.ones(1, dtype=np.int32)
        self.blocks, dense, self.uppers = [], [], []
        for num_rows in (11, 8, 1):
            matrix = rng.integers(0, 4, size=(num_rows, 5)).astype(np.float64)
            matrix[rng.random(matrix.shape) < 0.4] = 0
            dense.append(matrix)
            state = rng.uniform(0, 0.5, size=(num_rows, outputs, 1))
            targets = rng.integers(0, max(outputs, 2), size=num_rows, dtype=np.int32)
            rows = make_rows(matrix, kind)
            self.blocks.append(RowBlock(rows=rows, targets=targets, weights=None, row_ids=None, state=state))
            self.uppers.append(rng.uniform(0.5, 2.0, size=num_rows))
        self.uppers[1] = None  # a chunk without weights: its samples share one C
        self.rows = tables.row_table(self.blocks)
        self.lengths = np.array([11, 8, 1])
        self.matrix = np.column_stack([np.vstack(dense), np.full(20, INTERCEPT)])
        self.norms = [np.einsum("ij,ij->i", part, part) + INTERCEPT**2 for part in dense]
        self.samples = scd.SampleTable(
            lengths=self.lengths,
            targets=tables.addresses([block.targets for block in self.blocks]),
            duals=tables.addresses([block.state for block in self.blocks]),
            norms=tables.addresses(self.norms),
            upper=np.array([0 if upper is None else upper.ctypes.data for upper in self.uppers], dtype=np.uint64),
            uniform_upper=1.25,
            like_code=np.empty(0, np.int32),
            like_real=np.empty(0, np.float64),
        )
        self.vectors = rng.normal(scale=0.1, size=(outputs, 6))

    def reference(self, kernel, visited, **names):
        """Run the NumPy text of a kernel's docstring; returns its namespace."""
        targets = np.concatenate([block.targets for block in self.blocks])
        upper = np.concatenate([np.full(8, 1.25) if u is None else u for u in self.uppers])
        space = {
            **{name: getattr(objectives, name) for name in ("primal_losses", "dual_values", "coordinate_steps")},
            "loss": self.loss,
            "visited": visited,
            "outputs": len(self.positives),
            "x": lambda i: self.matrix[i],
            "y": np.where(targets[:, None] == self.positives, 1.0, -1.0),
            "a": np.concatenate([block.state for block in self.blocks])[:, :, 0].copy(),
            "norm": np.concatenate(self.norms),
            "upper": upper,
            "v": self.vectors.copy(),
            **names,
        }
        text = inspect.getdoc(kernel.py_func).split("NumPy equivalent::")[1]
        exec(textwrap.dedent(text), space)
        return space

    def duals(self):
        """Duals as the kernels left them, shape (20, outputs)."""
        return np.concatenate([block.state for block in self.blocks])[:, :, 0]


def make_rows(matrix, kind):
    """`matrix` as the rows of a chunk; CSR starts at an offset, as in a slice of a caller's matrix."""
    layout, dtype, *index = kind.split("-")
    if layout == "dense":
        return np.ascontiguousarray(matrix, dtype=dtype)
    csr = scipy.sparse.csr_matrix(matrix)
    pad = 3
    return CsrRows(
        (csr.indptr + pad).astype(index[0]),
        np.concatenate([np.zeros(pad), csr.indices]).astype(index[0]),
        np.concatenate([np.full(pad, np.nan), csr.data]).astype(dtype),
        matrix.shape[1],
    )


@pytest.fixture(params=KINDS)
def kind(request):
    """Kind and dtypes of the chunks."""
    return request.param


@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("outputs", [1, 3])
def test_scd_pass_equals_its_numpy_form(kind, outputs, loss):
    """Duals, vectors, sums and counts after two passes in a random order of buckets."""
    case = Case(kind, outputs, loss)
    bucket_chunk, bucket_row = np.array([0, 0, 1, 2]), np.array([0, 8, 0, 0])
    starts = np.array([0, 8, 11, 19])
    order = np.array([2, 0, 3, 1, 1, 3, 0, 2])
    sizes = [8, 3, 8, 1]
    visited = [i for bucket in order for i in range(starts[bucket], starts[bucket] + sizes[bucket])]
    stats = np.zeros((outputs, 2))
    before = case.duals()
    expected = case.reference(scd.scd_pass, visited, stats=stats.copy(), sigma=2.0)
    vectors, processed = case.vectors.copy(), np.zeros(3, dtype=np.int64)
    scd.scd_pass(
        int(loss), case.rows, case.samples, bucket_chunk, bucket_row, order, case.positives, INTERCEPT, 2.0,
        np.zeros(1, np.uint8), vectors, processed, stats,
    )  # fmt: skip
    np.testing.assert_allclose(case.duals(), expected["a"], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(vectors, expected["v"], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(stats, expected["stats"], rtol=1e-6, atol=1e-9)
    assert processed.tolist() == [22, 16, 2]
    assert not np.allclose(case.duals(), before), "the case must make steps, or it proves nothing"


@pytest.mark.parametrize("outputs", [1, 3])
def test_dual_vectors_equals_its_numpy_form(kind, outputs):
    """w(alpha) summed over two ranges of chunks."""
    case = Case(kind, outputs, Loss.HINGE)
    vectors = np.zeros((outputs, 6))
    expected = case.reference(scd.dual_vectors, range(20), v=vectors.copy())
    for begin, end in [(0, 1), (1, 3)]:
        scd.dual_vectors(case.rows, case.samples, begin, end, case.positives, INTERCEPT, vectors)
    np.testing.assert_allclose(vectors, expected["v"], rtol=1e-12)


@pytest.mark.parametrize("loss", list(Loss))
def test_objective_sums_equals_its_numpy_form(kind, loss):
    """Primal losses and dual values at fixed vectors."""
    case = Case(kind, 3, loss)
    stats = np.zeros((3, 2))
    expected = case.reference(scd.objective_sums, range(20), stats=stats.copy())
    scd.objective_sums(int(loss), case.rows, case.samples, 0, 3, case.positives, INTERCEPT, case.vectors, stats)
    np.testing.assert_allclose(stats, expected["stats"], rtol=1e-12)


def test_squared_norms_equals_its_numpy_form(kind):
    """|x|^2 with the intercept column."""
    case = Case(kind, 1, Loss.HINGE)
    norms = np.zeros(11)
    expected = case.reference(scd.squared_norms, range(11), norms=norms.copy())
    scd.squared_norms(case.rows, 0, INTERCEPT, norms)
    np.testing.assert_allclose(norms, expected["norms"], rtol=1e-12)


def test_a_set_stop_flag_leaves_everything_as_it_was():
    """The flag is looked at before the first block."""
    case = Case("dense-float64", 1, Loss.HINGE)
    before = case.duals()
    vectors, processed = case.vectors.copy(), np.zeros(3, dtype=np.int64)
    scd.scd_pass(
        0, case.rows, case.samples, np.array([0]), np.array([0]), np.array([0]), case.positives, INTERCEPT, 1.0,
        np.ones(1, np.uint8), vectors, processed, np.zeros((1, 2)),
    )  # fmt: skip
    assert processed.sum() == 0
    np.testing.assert_array_equal(case.duals(), before)
    np.testing.assert_array_equal(vectors, case.vectors)
