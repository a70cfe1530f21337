"""Three generators of data like those that people bring to linear models: click logs, texts, and a few binary columns.

None of the sets is real. Each has what makes the real ones hard: counts over three orders of magnitude beside hashed
categories, columns of which most are almost empty, and rows that occur many times.
"""

import numpy as np
import scipy.sparse as sp

from benchmarks.svm_data import hashed, zipf_values

NUM_COUNTS, NUM_LOG_COUNTS, NUM_CATEGORIES = 8, 5, 26  # 13 and 26 as in the Criteo challenge
NUM_HEAVY_COUNTS, MOST_COUNTS = 3, 5000
TERNARY_ATTRIBUTES, BINARY_ATTRIBUTES = 8, 22
NUM_WORDS = 50_000


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


def tfidf_text(num_samples: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """CSR float64 as of `TfidfVectorizer(sublinear_tf=True)`: 50,000 words by Zipf, two topics that share them.

    A document draws each word from one topic or the other, with odds of its own; its label is the likelier topic.
    """
    rng = np.random.default_rng(4)
    common = 1 / (np.arange(NUM_WORDS) + 2.7) ** 1.05
    tells_topics = (rng.random(NUM_WORDS) < 0.2) & (np.arange(NUM_WORDS) >= 100)
    tilt = np.where(tells_topics, rng.standard_normal(NUM_WORDS), 0.0)
    likelihood = [np.cumsum(common * np.exp(sign * tilt)) for sign in (-1, 1)]
    leaning = rng.beta(0.15, 0.15, num_samples)
    lengths = np.clip(np.exp(rng.normal(np.log(120), 0.7, num_samples)), 8, 3000).astype(np.int64)
    document = np.repeat(np.arange(num_samples), lengths)
    topic = rng.random(len(document)) < leaning[document]
    uniform = rng.random(len(document))
    word = np.empty(len(document), dtype=np.int64)
    for which, sums in enumerate(likelihood):
        drawn = topic == bool(which)
        word[drawn] = np.searchsorted(sums, uniform[drawn] * sums[-1])
    ones = np.ones(len(document))
    X = sp.csr_matrix((ones, (document, word)), shape=(num_samples, NUM_WORDS))
    X.sum_duplicates()
    document_frequency = np.bincount(X.indices, minlength=NUM_WORDS)
    idf = np.log((1 + num_samples) / (1 + document_frequency)) + 1
    X.data = (1 + np.log(X.data)) * idf[X.indices]
    squares = np.add.reduceat(X.data**2, X.indptr[:-1])
    X.data /= np.repeat(np.sqrt(squares), np.diff(X.indptr))
    return X, (leaning > 0.5).astype(np.int64)


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
