"""Generators of data like those that people bring to linear models. None of the sets is real; all come from a seed.

Those of `chicle_elastic.evaluate.shapes`, which the wheel has, and: MNIST-shaped: 784 pixels between 0 and 1 that are
mostly 0. Texts: columns of which most are almost empty. Few binary columns: rows that occur many times.
"""

import numpy as np
import scipy.sparse as sp

from chicle_elastic.evaluate.datasets import BLOCK_ROWS
from chicle_elastic.evaluate.shapes import NUM_COUNTS, click_log, higgs, higgs_shaped, zipf_values

__all__ = [
    "NUM_COUNTS",
    "click_log",
    "few_binary",
    "grades",
    "higgs",
    "higgs_shaped",
    "mnist_shaped",
    "tfidf_text",
    "topics",
]

TERNARY_ATTRIBUTES, BINARY_ATTRIBUTES = 8, 22
NUM_WORDS, NUM_TOPICS = 50_000, 12


def mnist_shaped(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """784 float32 features between 0 and 1 around ten prototypes; even against odd, 3% of the labels flipped."""
    rng = np.random.default_rng(2)
    prototypes = np.maximum(rng.standard_normal((10, 24)) @ rng.standard_normal((24, 784)) * 0.3, 0)
    digit = rng.integers(0, 10, num_samples)
    common = 0.12 * rng.standard_normal((30, 784))
    X = np.empty((num_samples, 784), dtype=np.float32)
    for start in range(0, num_samples, BLOCK_ROWS):
        block = X[start : start + BLOCK_ROWS]
        rows = len(block)
        ink = prototypes[digit[start : start + rows]] * rng.gamma(4, 0.25, (rows, 1))
        strokes = rng.standard_normal((rows, 30)) @ common
        block[...] = np.clip(ink + strokes + 0.1 * rng.standard_normal((rows, 784)) - 0.3, 0, 1)
    is_even = digit % 2 == 0
    return X, (is_even ^ (rng.random(num_samples) < 0.03)).astype(np.int64)


def words(
    likelihoods: list[np.ndarray], kind: np.ndarray, document: np.ndarray, num_words: int, rng: np.random.Generator
) -> sp.csr_matrix:
    """Draw a word for each entry of `document`; CSR float64 as of `TfidfVectorizer(sublinear_tf=True)`.

    Args:
        likelihoods: Cumulative odds of the words, for each kind, each ndarray of shape (num_words,).
        kind: ndarray of shape (number of words drawn,), index of likelihoods.
        document: ndarray of the same shape, row of each word, rising.
        num_words: Columns.
        rng: Source of chance.
    """
    uniform = rng.random(len(document))
    word = np.empty(len(document), dtype=np.int64)
    for which, sums in enumerate(likelihoods):
        drawn = kind == which
        word[drawn] = np.searchsorted(sums, uniform[drawn] * sums[-1])
    num_documents = int(document[-1]) + 1
    X = sp.csr_matrix((np.ones(len(document)), (document, word)), shape=(num_documents, num_words))
    X.sum_duplicates()
    idf = np.log((1 + num_documents) / (1 + np.bincount(X.indices, minlength=num_words))) + 1
    X.data = (1 + np.log(X.data)) * idf[X.indices]
    X.data /= np.repeat(np.sqrt(np.add.reduceat(X.data**2, X.indptr[:-1])), np.diff(X.indptr))
    return X


def tfidf_text(num_samples: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """CSR float64: 50,000 words by Zipf, two topics that share them.

    A document draws each word from one topic or the other, with odds of its own; its label is the likelier topic.
    """
    rng = np.random.default_rng(4)
    common = 1 / (np.arange(NUM_WORDS) + 2.7) ** 1.05
    tells_topics = (rng.random(NUM_WORDS) < 0.2) & (np.arange(NUM_WORDS) >= 100)
    tilt = np.where(tells_topics, rng.standard_normal(NUM_WORDS), 0.0)
    likelihoods = [np.cumsum(common * np.exp(sign * tilt)) for sign in (-1, 1)]
    leaning = rng.beta(0.15, 0.15, num_samples)
    lengths = np.clip(np.exp(rng.normal(np.log(120), 0.7, num_samples)), 8, 3000).astype(np.int64)
    document = np.repeat(np.arange(num_samples), lengths)
    topic = rng.random(len(document)) < leaning[document]
    return words(likelihoods, topic, document, NUM_WORDS, rng), (leaning > 0.5).astype(np.int64)


def topics(num_samples: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """CSR float64: 20,000 words by Zipf, and twelve topics of falling frequency, one of which a document has."""
    rng = np.random.default_rng(6)
    num_words = 20_000
    common = 1 / (np.arange(num_words) + 2.7) ** 1.05
    tells = (rng.random(num_words) < 0.2) & (np.arange(num_words) >= 50)
    tilts = np.where(tells, rng.standard_normal((NUM_TOPICS, num_words)), 0.0)
    y = np.minimum(rng.geometric(0.15, num_samples) - 1, NUM_TOPICS - 1)
    lengths = np.clip(np.exp(rng.normal(np.log(80), 0.6, num_samples)), 8, 1000).astype(np.int64)
    document = np.repeat(np.arange(num_samples), lengths)
    likelihoods = [np.cumsum(common * np.exp(0.5 * tilt)) for tilt in tilts]
    return words(likelihoods, y[document], document, num_words, rng), y


def grades(X: sp.csr_matrix | np.ndarray) -> np.ndarray:
    """A target of numbers that a tenth of the columns move (at least five), with as much noise as signal."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal(X.shape[1]) * (rng.random(X.shape[1]) < max(0.1, 5 / X.shape[1]))
    signal = np.asarray(X @ w, dtype=np.float64)
    return np.asarray(3.0 + signal / signal.std() + rng.standard_normal(X.shape[0]))


def few_binary(num_samples: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """CSR float64: 8 ternary and 22 binary attributes one-hot in 68 columns; half of the rows occur more than once.

    Rows are drawn from a pool by Zipf, like web sites made with the same kit; attributes hang together by three
    hidden causes. The label is of the row and not of the kit, so equal rows may differ in it.
    """
    rng = np.random.default_rng(5)
    levels = np.array([3] * TERNARY_ATTRIBUTES + [2] * BINARY_ATTRIBUTES)
    pool = num_samples
    causes = rng.standard_normal((pool, 3))
    latent = causes @ rng.standard_normal((3, len(levels))) + rng.standard_normal((pool, len(levels)))
    cuts = np.sort(rng.normal(0, 0.8, (2, len(levels))), axis=0)
    level = (latent > cuts[0]).astype(np.int32) + ((latent > cuts[1]) & (levels == 3))
    kit = zipf_values(rng, num_samples, pool, exponent=0.4)
    starts = np.concatenate([[0], np.cumsum(levels)])
    columns = (starts[:-1] + level[kit]).astype(np.int32)
    weights = 1.5 * rng.standard_normal(starts[-1]) * (rng.random(starts[-1]) < 0.5)
    score = weights[columns].sum(axis=1)
    noisy = score - np.quantile(score, 0.45) + 0.35 * rng.logistic(size=num_samples)
    indptr = np.arange(0, columns.size + 1, len(levels), dtype=np.int32)
    X = sp.csr_matrix((np.ones(columns.size), columns.ravel(), indptr), shape=(num_samples, int(starts[-1])))
    return X, (noisy > 0).astype(np.int64)
