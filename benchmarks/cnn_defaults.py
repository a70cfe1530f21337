"""What the defaults of ChicleCNNClassifier reach, against the best of a sweep over learning rates; no parameter given.

Ten epochs of one task on four data sets. The defaults fit the images as bytes, from 0 to 1 and from 0 to 16; the sweep
fits them as bytes. A fit of each has the same seed, so a difference is that of the learning rate or of the range.

    python -m benchmarks.cnn_defaults [--seeds 1] [--sets digits,letters,textures,fashion] [--data FOLDER]

Exit code 1 when, on some set and in some range, the mean test accuracy is more than 1 % below the best of the sweep.
"""

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np

from benchmarks.cnn_data import ImageData, add_data_argument, image_data
from benchmarks.machine import machine
from estimators import ChicleCNNClassifier

RATES = (0.0005, 0.001, 0.002, 0.004, 0.007, 0.01)
MOST_BELOW = 0.01
SETS = "digits,letters,textures,fashion"
RANGES = {"bytes": None, "0 to 1": 1.0, "0 to 16": 16.0}


def in_range(data: ImageData, name: str) -> ImageData:
    """The images as bytes, or as float32 up to the most of a range."""
    most = RANGES[name]
    if most is None:
        return data._replace(X_train=data.X_train.astype(np.uint8), X_test=data.X_test.astype(np.uint8))
    factor = np.float32(most / data.X_train.max())
    return data._replace(X_train=data.X_train * factor, X_test=data.X_test * factor)


def scores(data: ImageData, num_seeds: int, **params: Any) -> list[float]:
    """Test accuracy of a fit per seed."""
    models = (ChicleCNNClassifier(random_state=seed, **params) for seed in range(num_seeds))
    return [float(model.fit(data.X_train, data.y_train).score(data.X_test, data.y_test)) for model in models]


def table(name: str, data: ImageData, num_seeds: int) -> bool:
    """Fit a data set, print a row for each fit as it is done; returns whether the defaults are good enough."""
    print(f"\n{name}: {data.X_train.shape}\n\n| fit | test accuracy | each seed | s |")
    print("| --- | --- | --- | --- |", flush=True)

    def row(label: str, form: ImageData, **params: Any) -> float:
        start = time.perf_counter()
        found = scores(form, num_seeds, **params)
        seconds = (time.perf_counter() - start) / num_seeds
        mean = statistics.fmean(found)
        print(f"| {label} | {mean:.4f} | {', '.join(f'{score:.4f}' for score in found)} | {seconds:.0f} |", flush=True)
        return mean

    of_defaults = {form: row(f"defaults, {form}", in_range(data, form)) for form in RANGES}
    best = max(row(f"learning_rate={rate}", in_range(data, "bytes"), learning_rate=rate) for rate in RATES)
    least = min(of_defaults.values())
    is_good = least >= best - MOST_BELOW
    print(f"\n{'ok    ' if is_good else 'MISSED'} {name}: {least:.4f} >= {best:.4f} - {MOST_BELOW}", flush=True)
    return is_good


def main() -> int:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="fits of each case (default: 1)")
    parser.add_argument("--sets", default=SETS, help=f"data sets (default: {SETS})")
    add_data_argument(parser)
    arguments = parser.parse_args()
    print(machine())
    found = [table(name, image_data(name, arguments.data), arguments.seeds) for name in arguments.sets.split(",")]
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
