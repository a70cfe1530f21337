"""Images for the benchmarks of ChicleCNNClassifier: Fashion-MNIST, digits, and two sets that are made.

`letters` are those of `chicle_elastic.evaluate.image_data`. `textures` are waves in colour, in a disc at a random
place: five directions times two lengths.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from benchmarks.real import FOLDER
from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.chunks.readers.images import read_idx
from chicle_elastic.evaluate.image_data import NUM_MADE, NUM_TEST, EpochScores, ImageData, letters, time_to

__all__ = ["FILES", "NUM_MADE", "EpochScores", "ImageData", "add_data_argument", "fashion", "image_data", "time_to"]

FILES = {"train": "train-images-idx3-ubyte.gz", "test": "t10k-images-idx3-ubyte.gz"}


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """--data: where the four files of Fashion-MNIST are."""
    parser.add_argument(
        "--data",
        type=Path,
        default=FOLDER / "fashion-mnist",
        help="folder with the four idx-ubyte.gz files of Fashion-MNIST (default: ../shared/data/fashion-mnist)",
    )


def fashion(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Images of shape (n, 28, 28), uint8, and labels, of "train" or "test"."""
    path = folder / FILES[part]
    if not path.is_file():
        raise SystemExit(f"{path} is not there; get Fashion-MNIST's files and name their folder with --data")
    blocks = list(read_idx(path, ReadOptions(block_bytes=1 << 22)))
    X = np.concatenate([block.rows for block in blocks])
    return X.reshape(-1, 28, 28), np.concatenate([block.targets for block in blocks])


def digits() -> ImageData:
    """scikit-learn's digits, 8 x 8, from 0 to 16, in an order of our own; the last 360 are for the test."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = X[order].reshape(-1, 64), y[order]
    return ImageData(X[:-360], y[:-360], X[-360:], y[-360:])


def textures() -> ImageData:
    """See the top of the module; 3 x 32 x 32, uint8."""
    rng = np.random.default_rng(0)
    count = NUM_MADE + NUM_TEST
    X, y = np.empty((count, 3, 32, 32), np.uint8), rng.integers(0, 10, count)
    rows, columns = np.mgrid[:32, :32]
    for index in range(count):
        angle = np.pi * (y[index] % 5) / 5 + rng.normal(0, 0.12)
        length = (4.5, 7.5)[y[index] // 5] * np.exp(rng.normal(0, 0.12))
        along = columns * np.cos(angle) + rows * np.sin(angle)
        wave = np.sin(2 * np.pi / length * along + rng.uniform(0, 2 * np.pi))
        colour, ground = rng.normal(0, 35, (3, 1, 1)), rng.uniform(60, 190, (3, 1, 1))
        x, y_, radius = *rng.uniform(9, 23, 2), rng.uniform(7, 12)
        disc = (columns - x) ** 2 + (rows - y_) ** 2 < radius**2
        X[index] = np.clip(ground + colour * wave * disc + rng.normal(0, 16, (3, 32, 32)), 0, 255)
    return ImageData(X[:NUM_MADE], y[:NUM_MADE], X[NUM_MADE:], y[NUM_MADE:])


def image_data(name: str, folder: Path) -> ImageData:
    """The data set of this name; `folder` is Fashion-MNIST's."""
    if name == "fashion":
        return ImageData(*fashion(folder, "train"), *fashion(folder, "test"))
    return {"digits": digits, "letters": letters, "textures": textures}[name]()
