"""Hashed categories beside counts with long tails, as in click logs: rows on which coordinate descent crawls."""

from typing import Any

import numpy as np
import scipy.sparse as sp

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job, Outcome
from chicle_elastic.solvers.linear.rows import NewtonRows
from chicle_elastic.solvers.linear.trainer import LinearTrainer
from chicle_elastic.solvers.linear.wide.rows import WideRows, with_columns
from chicle_elastic.solvers.local_chunk import Gate

INTERCEPT = 0.5
OPEN = Gate("the test")
OPEN.open(1)


def click_like(num_rows: int = 400, num_columns: int = 5000, *, scale: float = 300.0) -> tuple[Any, Array]:
    """Counts with long tails beside hashed categories: CSR float64, and class codes."""
    rng = np.random.default_rng(0)
    counts = np.floor(rng.pareto(1.2, size=(num_rows, 3)) * scale)
    columns = 3 + (rng.zipf(1.3, size=(num_rows, 12)) * np.arange(1, 13) * 7919) % (num_columns - 3)
    rows = np.repeat(np.arange(num_rows), 15)
    places = np.hstack([np.tile(np.arange(3), (num_rows, 1)), columns])
    values = np.hstack([counts, np.ones(columns.shape)])
    X = sp.csr_matrix((values.ravel(), (rows, places.ravel())), shape=(num_rows, num_columns))
    X.eliminate_zeros()
    score = np.log1p(counts).sum(axis=1) + 3.0 * np.sin(columns).sum(axis=1) + rng.logistic(size=num_rows)
    return X, (score > np.median(score)).astype(np.int32)


def whole_of(X: Any) -> Array:
    """An array with the intercept column."""
    return np.column_stack([X.toarray(), np.full(X.shape[0], INTERCEPT)])


def copied(whole: Array) -> tuple[WideRows, Array]:
    """Rows as Newton steps copy them, and which columns of `whole` these have."""
    matrix, columns = with_columns(sp.csr_array(whole), np.any(whole != 0, axis=0, keepdims=True)[0])
    return WideRows(NewtonRows(matrix), matrix.nnz, is_exact=False), columns


def fit(trainer: LinearTrainer, runtime: InProcess, X: Any, y: Array, max_iterations: int) -> Outcome:
    """A job on arrays."""
    source = ArraySource(X, y, max_tasks=runtime.most_tasks())
    return runtime.run(Job(trainer=trainer, source=source, max_iterations=max_iterations, keep_state=True))
