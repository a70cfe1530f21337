"""Generators of data like those that people bring to linear models. None of the sets is real; all come from a seed.

HIGGS-shaped: 28 dense columns, of which 7 are functions of the others. MNIST-shaped: 784 pixels between 0 and 1 that
are mostly 0. Click logs: counts over three orders of magnitude beside hashed categories. Texts: columns of which most
are almost empty. Few binary columns: rows that occur many times.
"""

from functools import cache

import numpy as np
import scipy.sparse as sp

from chicle_elastic.evaluate.datasets import BLOCK_ROWS, DataSet

NUM_COUNTS, NUM_LOG_COUNTS, NUM_CATEGORIES = 8, 5, 26  # 13 and 26 as in the Criteo challenge
NUM_HEAVY_COUNTS, MOST_COUNTS = 3, 5000
TERNARY_ATTRIBUTES, BINARY_ATTRIBUTES = 8, 22
NUM_WORDS, NUM_TOPICS = 50_000, 12


def higgs_shaped(num_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """28 standardised float32 features; two classes of equal size that overlap much."""
    rng = np.random.default_rng(0)
    mixing = 0.25 * rng.standard_normal((21, 21)) + np.eye(21)
    X = np.empty((num_samples, 28), dtype=np.float32)
    for start in range(0, num_samples, BLOCK_ROWS):
        block = X[start : start + BLOCK_ROWS]
        low = rng.standard_normal((len(block), 21)) @ mixing
        low[:, ::4] = np.exp(0.5 * low[:, ::4])  # skewed, like momenta
        block[:, :21] = low
        block[:, 21] = np.hypot(low[:, 0], low[:, 1])
        block[:, 22] = np.hypot(low[:, 2], low[:, 3])
        block[:, 23] = low[:, 4] * low[:, 5]
        block[:, 24] = np.abs(low[:, 6] - low[:, 7])
        block[:, 25] = np.sqrt(np.abs(low[:, 8] * low[:, 9]))
        block[:, 26] = np.maximum(low[:, 10], low[:, 11])
        block[:, 27] = low[:, 12] ** 2
    X -= X.mean(axis=0, dtype=np.float64).astype(np.float32)
    X /= X.std(axis=0, dtype=np.float64).astype(np.float32)
    linear = X @ (0.12 * rng.standard_normal(28)).astype(np.float32)
    score = linear + 0.5 * X[:, 1] * X[:, 2] - 0.4 * np.abs(X[:, 24]) + 0.4 * X[:, 5] * X[:, 21]
    noisy = score - np.median(score) + 1.2 * rng.logistic(size=num_samples)
    return X, (noisy > 0).astype(np.int64)


@cache
def higgs(num_samples: int) -> DataSet:
    """Return the same as a data set, made once."""
    X, y = higgs_shaped(num_samples)
    return DataSet(f"higgs-{num_samples}", f"HIGGS-shaped, {num_samples} rows", X, y)


@cache
def click_data(num_samples: int) -> DataSet:
    """Return a click log as a data set, made once."""
    X, y = click_log(num_samples, 1 << 18)
    return DataSet(f"clicks-{num_samples}", f"Criteo-shaped, {num_samples} rows", X, y)


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


def zipf_values(rng: np.random.Generator, num_samples: int, vocabulary: int, exponent: float) -> np.ndarray:
    """Numbers from 0 to `vocabulary` - 1, small ones more often: a bounded Pareto distribution, cut to integers.

    Args:
        rng: Source of chance.
        num_samples: How many.
        vocabulary: Different values at most.
        exponent: Not 0; frequencies fall about as rank ** (exponent - 1).

    Returns:
        ndarray of shape (num_samples,), int64.
    """
    uniform = rng.random(num_samples)
    rank = (1 - uniform * (1 - (vocabulary + 1.0) ** exponent)) ** (1 / exponent)
    return np.minimum(rank.astype(np.int64) - 1, vocabulary - 1)


def hashed(value: np.ndarray, field: int, num_columns: int) -> np.ndarray:
    """Column of each value (int64) of a categorical field: the hashing trick, in which values and fields collide."""
    code = value * 2654435761 + (field + 1) * 40503 * 65537
    code ^= code >> 15
    code *= 2246822519  # wraps around
    code ^= code >> 13
    return code % num_columns


def click_log(num_samples: int, num_features: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """CSR float32: 8 raw counts, 5 counts as log(1 + count), 26 hashed categories; 15% clicks.

    Counts come first, and nothing is scaled, which is the point: three raw counts have tails that reach hundreds and
    thousands, one of them Pareto's, and five stay below a hundred. About a third of all counts are 0 and not stored.
    The true weights are sparse, and a click depends on the logarithms of all counts.
    """
    rng = np.random.default_rng(3)
    activity = rng.standard_normal(num_samples)
    num_numeric = NUM_COUNTS + NUM_LOG_COUNTS
    counts = np.empty((num_samples, num_numeric))
    for column in range(num_numeric):
        noise = 0.5 * activity + np.sqrt(0.75) * rng.standard_normal(num_samples)
        is_heavy = column < NUM_HEAVY_COUNTS or column >= NUM_COUNTS
        if column % 5 == 1:  # Pareto
            counts[:, column] = np.floor((1 - rng.random(num_samples)) ** (-1 / 1.2) * np.exp(0.3 * noise))
        else:  # log-normal
            spread = rng.uniform(1, 1.7) if is_heavy else rng.uniform(0.4, 0.8)
            counts[:, column] = np.floor(np.exp(rng.uniform(0.5, 2) + spread * noise))
        counts[:, column] = np.minimum(counts[:, column], MOST_COUNTS if is_heavy else 100)
    counts[rng.random(counts.shape) < rng.uniform(0, 0.3, num_numeric)] = 0  # missing
    logs = np.log1p(counts)
    numeric = counts.astype(np.float32)
    numeric[:, NUM_COUNTS:] = logs[:, NUM_COUNTS:]

    columns = np.empty((num_samples, NUM_CATEGORIES), dtype=np.int32)
    for field in range(NUM_CATEGORIES):
        vocabulary = round(3 * 1e5 ** (field / (NUM_CATEGORIES - 1)))  # 3 to 300,000 values
        value = zipf_values(rng, num_samples, vocabulary, exponent=-0.2)
        columns[:, field] = num_numeric + hashed(value, field, num_features - num_numeric)
    weights = rng.standard_normal(num_features) * (rng.random(num_features) < 0.2)
    score = logs @ (0.3 * rng.standard_normal(num_numeric)) + weights[columns].sum(axis=1)
    noisy = score + rng.logistic(size=num_samples)

    rows = np.repeat(np.arange(num_samples), num_numeric + NUM_CATEGORIES)
    places = np.hstack([np.tile(np.arange(num_numeric, dtype=np.int32), (num_samples, 1)), columns])
    values = np.hstack([numeric, np.ones(columns.shape, dtype=np.float32)])
    X = sp.csr_matrix((values.ravel(), (rows, places.ravel())), shape=(num_samples, num_features))
    X.eliminate_zeros()
    return X, (noisy > np.quantile(noisy, 0.85)).astype(np.int64)


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
