"""Data sets, and an oracle: objective and duality gap in plain NumPy, from X, y and the duals alone."""

from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import entr, logsumexp, softmax
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_svmlight_file
from sklearn.preprocessing import scale

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.folder_writer import ChunkFolderWriter
from chicle_elastic.chunks.views import Array, CsrRows
from estimators.base import LinearClassifier
from tests.real_data import real_data


def cancer() -> tuple[Array, Array]:
    """Scaled breast_cancer: 569 samples, 30 features, 2 classes."""
    X, y = load_breast_cancer(return_X_y=True)
    return scale(X), y


def digits() -> tuple[Array, Array]:
    """Scaled digits: 1797 samples, 64 features, 10 classes."""
    X, y = load_digits(return_X_y=True)
    return scale(X), y


def diabetes() -> tuple[Array, Array]:
    """442 samples, 10 features, real targets of mean 152."""
    return load_diabetes(return_X_y=True)


def wide() -> tuple[sparse.csr_matrix, Array]:
    """200 samples, 3000 features, mostly zeros, real targets: no second derivatives of all columns."""
    rng = np.random.default_rng(3)
    X = sparse.random(200, 3000, density=0.02, format="csr", random_state=3)
    return X, X @ rng.normal(size=3000) + rng.normal(size=200) + 5.0


def write(
    path: Path, X: Any, y: Array, *, classes: tuple[Any, ...] = (), weights: Array | None = None, blocks: int = 3
) -> ChunkFolder:
    """Write X and class codes (or real targets) y to a folder of small chunks, whose rows the writer shuffles."""
    kind: Any = "csr" if sparse.issparse(X) else "dense"
    has_weights = weights is not None
    with ChunkFolderWriter(
        path, kind=kind, dtype=str(X.dtype), num_features=X.shape[1], has_weights=has_weights, chunk_bytes=9_000
    ) as writer:
        for rows in np.array_split(np.arange(X.shape[0]), blocks):
            part = X[rows]
            part = CsrRows(part.indptr, part.indices, part.data, part.shape[1]) if kind == "csr" else part
            writer.add(part, y[rows].astype(np.float64), None if weights is None else weights[rows])
        return writer.finish(classes=classes)


def widened(X: Array, num_columns: int) -> sparse.csr_matrix:
    """Append columns that have one explicit zero each, because a fit leaves out columns without values."""
    columns = np.arange(num_columns)
    zeros = sparse.csr_matrix((np.zeros(num_columns), (columns % len(X), columns)), shape=(len(X), num_columns))
    return sparse.hstack([sparse.csr_matrix(X), zeros]).tocsr()


def a9a() -> tuple[sparse.csr_matrix, Array]:
    """The real a9a: 32561 samples, 123 features, 2 classes, CSR with int64 indices."""
    X, y = load_svmlight_file(str(real_data("a9a/a9a.gz")))
    return X, y


def loss_of(estimator: LinearClassifier) -> str:
    """Name of the loss of one of our estimators."""
    return getattr(estimator, "loss", "logistic")


def primal(loss: str, margins: Array, bounds: Array) -> float:
    """Sum of C_i * loss(m_i)."""
    slack = np.maximum(0.0, 1.0 - margins)
    values = {"hinge": slack, "squared_hinge": slack**2, "logistic": np.logaddexp(0.0, -margins)}
    return float(bounds @ values[loss])


def dual(loss: str, alpha: Array, bounds: Array) -> float:
    """Sum of the conjugates, -C_i * loss*(-alpha_i / C_i); all C_i > 0."""
    if loss == "hinge":
        return float(alpha.sum())
    if loss == "squared_hinge":
        return float((alpha - alpha**2 / (4.0 * bounds)).sum())
    share = alpha / bounds
    entropy = sum(-s[s > 0] @ (np.log(s[s > 0]) * bounds[s > 0]) for s in (share, 1.0 - share))
    return float(entropy)


def is_intercept_free(estimator: LinearClassifier) -> bool:
    """Say whether the intercept is not penalised, as scikit-learn's namesakes have it."""
    return bool(loss_of(estimator) == "logistic" and estimator.fit_intercept and estimator.algorithm != "cocoa")


def recomputed_gaps(
    estimator: LinearClassifier, X: Any, y: Array, weights: Array | None = None, *, is_converged: bool = True
) -> Array:
    """(P - D) / P of each output from X, y and the duals, shape (outputs,).

    A fit that has converged has w = w(alpha); before that, Newton's method has not, and P is that of `coef_`. Of a
    multinomial model there is one, and no duals are needed.
    """
    if getattr(estimator, "multi_class_", "") == "multinomial":
        return np.array([multinomial_gap(estimator, X, y, weights)])
    X = X.toarray() if sparse.issparse(X) else np.asarray(X, dtype=np.float64)
    scaling, is_free = estimator.intercept_scaling if estimator.fit_intercept else 0.0, is_intercept_free(estimator)
    X = np.column_stack([X, np.full(len(X), scaling)])
    bounds = estimator.C * (np.ones(len(X)) if weights is None else weights)
    loss, classes, gaps = loss_of(estimator), estimator.classes_, []
    for k, label in enumerate(classes[1:] if len(classes) == 2 else classes):
        signs = np.where(y == label, 1.0, -1.0)
        alpha = estimator.duals_[:, k]
        assert alpha.min() >= 0
        assert loss == "squared_hinge" or np.all(alpha <= bounds * (1 + 1e-12))
        w = X.T @ (alpha * signs)
        D = dual(loss, alpha, bounds) - 0.5 * w[:-1] @ w[:-1]
        # What is left of the sum of signed duals is worth so much to intercepts up to twice the present one and 1.
        D -= abs(w[-1]) * (2 * abs(estimator.intercept_[k]) + 1) if is_free else 0.5 * w[-1] ** 2
        if is_converged:
            np.testing.assert_allclose(estimator.coef_[k], w[:-1], atol=1e-9 * np.abs(w).max())
        if is_free or not is_converged:
            w = np.append(estimator.coef_[k], estimator.intercept_[k] / scaling if scaling else 0.0)
        P = 0.5 * w @ w - (0.5 * w[-1] ** 2 if is_free else 0.0) + primal(loss, signs * (X @ w), bounds)
        gaps.append((P - D) / P)
    return np.array(gaps)


def multinomial_bounds(
    estimator: LinearClassifier, X: Any, y: Array, weights: Array | None = None
) -> tuple[float, float]:
    """P and D of a multinomial model from X, y, `coef_` and `intercept_` alone, with probabilities in rows.

    Duals are C_i (y_i - p_i), whose sums have to be 0 where there are intercepts. Probabilities are mixed with one
    distribution until they are, and the entropy of the mixture is at least the mean of both.
    """
    X = X.toarray() if sparse.issparse(X) else np.asarray(X, dtype=np.float64)
    bounds = estimator.C * (np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64))
    scores = X @ estimator.coef_.T + estimator.intercept_
    targets = (np.asarray(y)[:, None] == estimator.classes_).astype(float)
    losses = logsumexp(scores, axis=1) - (targets * np.maximum(scores, -1e29)).sum(axis=1)
    P = 0.5 * (estimator.coef_**2).sum() + bounds @ losses
    p = softmax(scores, axis=1)
    entropies = entr(p).sum(axis=1) @ bounds
    if estimator.fit_intercept:
        totals, surplus = bounds @ targets, bounds @ (p - targets)
        is_there = totals > 0
        ratio = max((surplus[is_there] / totals[is_there]).max(), 0.0)
        share = ratio / (1.0 + ratio)
        common = totals / bounds.sum() - (surplus / bounds.sum() / ratio if ratio > 0 else 0.0)
        assert common.min() >= -1e-9
        p = (1.0 - share) * p + share * common
        assert np.abs(bounds @ (p - targets)).max() <= 1e-9 * bounds.sum()
        entropies = (1.0 - share) * entropies + share * bounds.sum() * entr(np.maximum(common, 0.0)).sum()
        assert entropies <= entr(np.maximum(p, 0.0)).sum(axis=1) @ bounds * (1 + 1e-12) + 1e-300
    duals = bounds[:, None] * (targets - p)
    return P, entropies - 0.5 * ((duals.T @ X) ** 2).sum()


def multinomial_gap(estimator: LinearClassifier, X: Any, y: Array, weights: Array | None = None) -> float:
    """(P - D) / P of a multinomial model; what `store_duals` keeps is feasible, and its D at least as large."""
    P, D = multinomial_bounds(estimator, X, y, weights)
    if hasattr(estimator, "duals_"):
        X = X.toarray() if sparse.issparse(X) else np.asarray(X, dtype=np.float64)
        bounds = estimator.C * (np.ones(len(X)) if weights is None else np.asarray(weights, dtype=np.float64))
        kept = estimator.duals_[: len(X)]
        counts = bounds > 0
        targets = (np.asarray(y)[:, None] == estimator.classes_).astype(float)
        p = targets[counts] - kept[counts] / bounds[counts, None]
        assert not kept[~counts].any()
        assert p.min() >= -1e-9
        np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-9)
        if estimator.fit_intercept:
            assert np.abs(kept.sum(axis=0)).max() <= 1e-9 * bounds.sum()
        value = entr(np.maximum(p, 0.0)).sum(axis=1) @ bounds[counts] - 0.5 * ((kept.T @ X) ** 2).sum()
        assert D - 1e-9 * abs(P) <= value <= P * (1 + 1e-9)
    return (P - D) / P
