"""Gates and targets of the SVM benchmark as data."""

from benchmarks.bars import Bar

SPEED: dict[tuple[str, str], dict[float, Bar]] = {
    ("higgs", "liblinear"): {1e-3: Bar(10, 16), 1e-5: Bar(14, 24)},
    ("higgs", "Snap ML"): {1e-3: Bar(2, 2.5), 1e-5: Bar(3.5, 5)},
    ("criteo", "liblinear"): {1e-3: Bar(3.5, 5.4), 1e-5: Bar(4.5, 6.2)},
    ("criteo", "Snap ML"): {1e-3: Bar(1.3, 1.8), 1e-5: Bar(2, 2.9)},
    ("criteo-c1", "liblinear"): {1e-3: Bar(3, 4.6), 1e-5: Bar(2, 3)},
    ("criteo-c1", "Snap ML"): {1e-3: Bar(1.4, 2), 1e-5: Bar(1.6, 2.8)},
    ("mnist", "liblinear"): {1e-3: Bar(5, 8), 1e-5: Bar(2, 4)},
    ("mnist", "Snap ML"): {1e-3: Bar(1.3, 2), 1e-5: Bar(0.9, 1.5)},
}
"""Time of the peer over ours, by case and peer, then by tolerance."""
SMALL_MS = Bar(10, at_most=True)
THREADS = {"higgs": Bar(1.6, 1.8), "criteo": Bar(1.2, 1.4)}
"""Time of one thread over that of two."""
EPOCH = {
    ("higgs", "first"): Bar(8, at_most=True),
    ("higgs", "last"): Bar(3.5, at_most=True),
    ("mnist", "first"): Bar(1.8, at_most=True),
    ("mnist", "last"): Bar(1.8, at_most=True),
    ("criteo", "first"): Bar(13, at_most=True),
    ("criteo", "last"): Bar(9, at_most=True),
}
"""Time of a pass over that of one read of the same bytes."""
MEMORY_BYTES = Bar(24, at_most=True)
"""Per sample, beyond X, y and `MEMORY_VECTORS` float64 vectors of n_features."""
MEMORY_VECTORS = 16
