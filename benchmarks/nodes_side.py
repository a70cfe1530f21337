"""One side of `benchmarks.nodes`: fits twice, and prints what it took as JSON.

python -m benchmarks.nodes_side SIDE LOSS FOLDER
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.datasets import DataSet
from benchmarks.objectives import Objective

C = 1.0
L1_C = 0.01


def load(folder: Path) -> tuple[Any, np.ndarray]:
    """Read rows and labels into memory."""
    dense = folder / "X.npy"
    return (np.load(dense) if dense.exists() else sp.load_npz(folder / "X.npz")), np.load(folder / "y.npy")


def objective(loss: str, X: Any, y: np.ndarray, model: Any) -> float:
    """Evaluate what all sides minimise, the penalty of the intercept aside."""
    if loss == "ridge":
        least = Objective("squares", intercept="free")
    elif loss == "l1":
        least = Objective("logistic", L1_C, 1.0, 0.0, intercept="free")
    else:
        least = Objective(loss.replace("_", " "), C, intercept="free")
    return least.of(model, DataSet("", "", X, y))


def ours(loss: str, workers: int) -> Callable[[Any, Any], Any]:
    """Return what fits with Chicle, as typed."""
    import estimators as chicle

    more: dict[str, Any] = {"n_workers": workers} if workers else {}
    makes: dict[str, Callable[[], Any]] = {
        "hinge": lambda: chicle.ChicleSVM(C=C, loss="hinge", random_state=0, **more),
        "squared_hinge": lambda: chicle.ChicleSVM(C=C, loss="squared_hinge", random_state=0, **more),
        "logistic": lambda: chicle.ChicleLogisticRegression(C=C, random_state=0, **more),
        "l1": lambda: chicle.ChicleLogisticRegression(C=L1_C, l1_ratio=1.0, random_state=0, **more),
        "ridge": lambda: chicle.ChicleRidge(alpha=1.0, **more),
    }
    return lambda X, y: makes[loss]().fit(X, y)


def fit_ours(loss: str, workers: int, folder: Path) -> dict[str, Any]:
    """Fit cold and warm."""
    X, y = load(folder)
    y = y.astype(float) if loss == "ridge" else y
    fit, times = ours(loss, workers), []
    for _ in range(2):
        start_s = time.perf_counter()
        model = fit(X, y)
        times.append(time.perf_counter() - start_s)
    return {
        "cold_s": times[0],
        "warm_s": times[1],
        "objective": objective(loss, X, y, model),
        "iterations": int(np.max(model.n_iter_)),
        "method": model.history_.method,
    }


def stage(folder: Path) -> dict[str, Any]:
    """Measure how long data take to four warm agents: until the first iteration has ended, less its computing.

    It is not the last one, which a certificate would follow: another pass over all rows before its record.
    """
    from chicle_elastic.chunks.sources import ArraySource
    from chicle_elastic.cluster.local.local_cluster import LocalCluster
    from chicle_elastic.runtime.training.job import Job
    from chicle_elastic.solvers.linear.trainer import LinearTrainer

    X, y = load(folder)
    ends: list[float] = []

    def note(record: Any) -> bool:
        if record.iteration == 1:
            ends.append(time.perf_counter() - start_s - max(record.seconds.values()))
        return True

    with LocalCluster(4) as cluster:
        for rows in (1000, len(y)):
            start_s = time.perf_counter()
            source = ArraySource(X[:rows], y[:rows].astype(np.int32), max_tasks=cluster.most_tasks())
            cluster.run(Job(trainer=LinearTrainer(C=C), source=source, max_iterations=9, on_iteration=note))
    return {"staging_s": ends[1]}


def fit_spark(loss: str, folder: Path) -> dict[str, Any]:
    """Fit with Spark MLlib on the cores of this machine: session, Parquet, assembly, cache, fit."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.ml.classification import LinearSVC, LogisticRegression
    from pyspark.ml.functions import array_to_vector
    from pyspark.ml.regression import LinearRegression
    from pyspark.sql import SparkSession

    X, y = load(folder)
    if sp.issparse(X):
        raise SystemExit("not measured: rows of 2^20 columns as vectors of Parquet")
    n = len(y)
    makes: dict[str, Callable[[], Any]] = {
        "hinge": lambda: LinearSVC(regParam=1 / (C * n), standardization=False),
        "logistic": lambda: LogisticRegression(regParam=1 / (C * n), standardization=False),
        "l1": lambda: LogisticRegression(regParam=1 / (L1_C * n), elasticNetParam=1.0, standardization=False),
        "ridge": lambda: LinearRegression(regParam=1 / n, standardization=False),
    }
    if loss not in makes:
        raise SystemExit("it has no such loss")
    flat = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    table = pa.table({"x": flat.cast(pa.list_(pa.float32())), "label": pa.array(y.astype(float))})
    pq.write_table(table, folder / "rows.parquet", row_group_size=1 << 17)
    del table, flat
    start_s = time.perf_counter()
    session = (
        SparkSession.builder.master("local[*]").config("spark.driver.memory", "10g").config("spark.ui.enabled", "false")
    ).getOrCreate()
    frame = session.read.parquet(str(folder / "rows.parquet"))
    frame = frame.select(array_to_vector(frame["x"]).alias("features"), "label").cache()
    times = []
    for _ in range(2):
        model = makes[loss]().fit(frame)
        times.append(time.perf_counter() - start_s)
        start_s = time.perf_counter()
    found = SimpleNamespace(coef_=model.coefficients.toArray(), intercept_=float(model.intercept))
    history = getattr(getattr(model, "summary", None), "objectiveHistory", None)
    iterations = len(history) if history is not None else -1
    session.stop()
    return {
        "cold_s": times[0],
        "warm_s": times[1],
        "objective": objective(loss, X, y, found),
        "iterations": iterations,
    }


def fit_dask(loss: str, folder: Path) -> dict[str, Any]:
    """Fit with Dask-ML on two workers of this machine."""
    if loss not in ("logistic", "l1"):
        raise SystemExit("it has no such loss, or only without a penalty")
    import dask.array as da
    from dask_ml.linear_model import LogisticRegression
    from distributed import Client

    X, y = load(folder)
    if sp.issparse(X):
        raise SystemExit("it takes no CSR rows")
    start_s, times = time.perf_counter(), []
    with Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        blocks = (max(1, len(y) // 8), X.shape[1])
        rows, labels = da.from_array(X, chunks=blocks).persist(), da.from_array(y, chunks=blocks[0]).persist()
        for _ in range(2):
            penalty, strength = ("l2", C) if loss == "logistic" else ("l1", L1_C)
            model = LogisticRegression(C=strength, penalty=penalty).fit(rows, labels)
            times.append(time.perf_counter() - start_s)
            start_s = time.perf_counter()
    return {"cold_s": times[0], "warm_s": times[1], "objective": objective(loss, X, y, model), "iterations": -1}


def main() -> None:
    """Run the side that the arguments name."""
    side, loss, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if side == "stage":
        result = stage(folder)
    elif side == "Spark MLlib":
        result = fit_spark(loss, folder)
    elif side == "Dask-ML":
        result = fit_dask(loss, folder)
    else:
        result = fit_ours(loss, 0 if side == "one process" else int(side.split()[0]), folder)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
