"""Real data sets: four small ones of scikit-learn, a9a, Fashion-MNIST and a sample of HIGGS in their own file formats.

The last three are read from a folder that a user of the project need not have, with
`a9a/a9a.gz` (svmlight), `fashion-mnist/train-*-ubyte.gz` (idx) and `higgs/HIGGS_lgb_train7000.csv.gz` (label first).
"""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_svmlight_file, load_wine
from sklearn.preprocessing import scale

from benchmarks.datasets import DataSet

FOLDER = Path(os.environ.get("CHICLE_DATA") or Path(__file__).resolve().parents[1] / "data")
"""Where the files are, unless the command line says otherwise: CHICLE_DATA, or `data` in the repository."""
TOPS = (0, 2, 4, 6)
"""T-shirt, pullover, coat and shirt: hard to tell from each other, and as one class against the rest a fair problem."""
PIXELS = ("fashion-mnist/train-images-idx3-ubyte.gz", "fashion-mnist/train-labels-idx1-ubyte.gz")
FILES = {
    "a9a": ("a9a/a9a.gz",),
    "fashion": PIXELS,
    "fashion-ten": PIXELS,
    "higgs-real": ("higgs/HIGGS_lgb_train7000.csv.gz",),
}
QUICK_ROWS = {"a9a": 2000, "fashion": 1000, "fashion-ten": 500, "higgs-real": 2000, "digits": 600}


def missing(name: str, folder: Path) -> list[Path]:
    """The files of a set that are not there."""
    return [folder / file for file in FILES.get(name, ()) if not (folder / file).exists()]


def load_real(name: str, folder: Path, *, quick: bool) -> DataSet:
    """One of `REAL`; in a quick run the first rows of it."""
    title, X, y = REAL[name](folder)
    if quick and name in QUICK_ROWS:
        X, y = X[: QUICK_ROWS[name]], y[: QUICK_ROWS[name]]
    return DataSet(f"{name}-{len(y)}", f"{title}, {len(y)} rows", X, y)


def a9a(folder: Path) -> tuple[str, sp.csr_matrix, np.ndarray]:
    """Adult: 123 binary columns, CSR float64 as `load_svmlight_file` gives it, but with int32, which all sides take."""
    X, y = load_svmlight_file(str(folder / FILES["a9a"][0]), n_features=123)
    X = sp.csr_matrix((X.data, X.indices.astype(np.int32), X.indptr.astype(np.int32)), shape=X.shape)
    return "a9a, 123 sparse", X, (y > 0).astype(np.int64)


def clothes(folder: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """Fashion-MNIST: ten kinds of clothes, pixels between 0 and 1, dense float32."""
    images, labels = (gzip.decompress((folder / file).read_bytes()) for file in PIXELS)
    label = np.frombuffer(labels, dtype=np.uint8, offset=8).astype(np.int64)
    pixels = np.frombuffer(images, dtype=np.uint8, offset=16).reshape(len(label), -1)
    return "Fashion-MNIST, ten classes, 784 dense", pixels.astype(np.float32) / np.float32(255), label


def fashion(folder: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """Tops against the rest."""
    _, X, label = clothes(folder)
    return "Fashion-MNIST, tops or not, 784 dense", X, np.isin(label, TOPS).astype(np.int64)


def higgs(folder: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """HIGGS: 28 columns, standardised, dense float64."""
    with gzip.open(folder / FILES["higgs-real"][0], "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return "HIGGS, 28 dense", scale(table[:, 1:]), table[:, 0].astype(np.int64)


def digits(_: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """Digits of 8 x 8 pixels between 0 and 1, dense float64; ten classes, one against the rest."""
    X, y = load_digits(return_X_y=True)
    return "digits, ten classes, 64 dense", X / 16, y.astype(np.int64)


def cancer(_: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """Columns that differ by five orders of magnitude, as they come."""
    X, y = load_breast_cancer(return_X_y=True)
    return "breast_cancer as it is, 30 dense", X, y


def scaled_cancer(_: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """Standardised."""
    X, y = load_breast_cancer(return_X_y=True)
    return "breast_cancer, 30 dense", scale(X), y


def wine(_: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """Three classes, standardised."""
    X, y = load_wine(return_X_y=True)
    return "wine, three classes, 13 dense", scale(X), y


REAL: dict[str, Callable[[Path], tuple[str, Any, np.ndarray]]] = {
    "a9a": a9a,
    "fashion": fashion,
    "fashion-ten": clothes,
    "higgs-real": higgs,
    "digits": digits,
    "cancer-raw": cancer,
    "cancer": scaled_cancer,
    "wine": wine,
    "iris": lambda _: ("iris, three classes, 4 dense", *load_iris(return_X_y=True)),
    "diabetes": lambda _: ("diabetes, 10 dense", *load_diabetes(return_X_y=True)),
}
