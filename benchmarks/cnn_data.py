"""Images for the benchmarks of ChicleCNNClassifier: those of `chicle_elastic.evaluate.image_data`."""

import argparse
from pathlib import Path

from benchmarks.real import FOLDER
from chicle_elastic.evaluate.image_data import FILES, NUM_MADE, EpochScores, ImageData, fashion, image_data, time_to

__all__ = ["FILES", "NUM_MADE", "EpochScores", "ImageData", "add_data_argument", "fashion", "image_data", "time_to"]


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """--data: where the four files of Fashion-MNIST are."""
    parser.add_argument(
        "--data",
        type=Path,
        default=FOLDER / "fashion-mnist",
        help="folder with the four idx-ubyte.gz files of Fashion-MNIST (default: ../shared/data/fashion-mnist)",
    )
