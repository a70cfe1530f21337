"""Fashion-MNIST for the benchmarks of ChicleCNNClassifier."""

import argparse
from pathlib import Path

import numpy as np

from chicle_elastic.chunks.readers.base import ReadOptions
from chicle_elastic.chunks.readers.images import read_idx

DEFAULT = Path(__file__).parents[1] / "../shared/data/fashion-mnist"
FILES = {"train": "train-images-idx3-ubyte.gz", "test": "t10k-images-idx3-ubyte.gz"}


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """--data: where the four files of Fashion-MNIST are."""
    parser.add_argument(
        "--data",
        type=Path,
        default=DEFAULT,
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
