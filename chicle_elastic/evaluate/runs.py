"""Runs of CoCoA in one process, certified after each iteration; a run that is in the cache is not made again."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import scipy.sparse as sp
from joblib import Parallel, delayed

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array
from chicle_elastic.clock import VirtualClock
from chicle_elastic.evaluate.bars import Row
from chicle_elastic.evaluate.cocoa import CertifiedCocoa
from chicle_elastic.evaluate.datasets import DataSet
from chicle_elastic.evaluate.image_data import ImageData
from chicle_elastic.evaluate.throttled import ODD, Pace, ThrottledCocoa
from chicle_elastic.policies.base import Policy
from chicle_elastic.runtime.in_process import InProcess
from chicle_elastic.runtime.training.job import Job

NUM_CHUNKS = 4000
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Settings:
    """What the command line says.

    Attributes:
        seeds: Seeds of the runs.
        is_quick: Fewer rows, larger gaps: nothing is judged.
        cache: Folder for the results of runs.
        rows: Data sets for CoCoA.
        images: Data sets for local SGD, by title.
    """

    seeds: tuple[int, ...]
    is_quick: bool
    cache: Path
    rows: tuple[DataSet, ...]
    images: tuple[tuple[str, ImageData], ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """A data set, and how far it is trained.

    Attributes:
        data: The rows.
        gaps: Relative duality gaps that are looked for, falling.
        most: Iterations at most.
    """

    data: DataSet
    gaps: tuple[float, ...]
    most: int

    @property
    def penalty(self) -> float:
        """C of lambda = 0.01 n."""
        return 100.0 / self.data.num_samples


def data_rows(settings: Settings, notes: list[str]) -> list[Row]:
    """Table 1 of the paper: what the data sets are."""
    sizes = {data.title: (data.X.shape, sum(part.nbytes for part in data.parts())) for data in settings.rows}
    sizes |= {title: (data.X_train.shape, data.X_train.nbytes) for title, data in settings.images}
    return [
        Row(
            part="table1",
            what=title,
            tol=None,
            measured=f"{' x '.join(map(str, shape))}, {num_bytes / 2**20:.1f} MiB",
            against="",
            details={"num_rows": shape[0]},
        )
        for title, (shape, num_bytes) in sizes.items()
    ]


def problems(settings: Settings, notes: list[str]) -> list[Problem]:
    """Each data set, to gaps that 500 iterations of many tasks reach: smaller ones of few dense columns."""
    if not settings.rows:
        notes.append("CoCoA was not run: no file has rows of two classes")
    if settings.is_quick:
        return [Problem(data, (1e-1,), 60) for data in settings.rows]
    return [Problem(data, (1e-3,) if data.is_sparse else (1e-3, 1e-4, 1e-5), 500) for data in settings.rows]


def gaps(
    settings: Settings, problem: Problem, *, num_tasks: int, changes: Sequence[tuple[int, int]] = ()
) -> list[list[float]]:
    """Certified relative duality gap of each seed after each iteration, until the smallest one that is looked for."""
    names = "-".join(f"{iteration}.{count}" for iteration, count in changes)

    def run(seed: int) -> list[float]:
        outcome = InProcess(num_tasks=num_tasks, changes=tuple(changes)).run(_job(problem, seed, (), num_tasks))
        return outcome.history.column("duality_gap").tolist()

    return by_seed(settings, f"cocoa_{problem.data.key}_{problem.gaps[-1]:.0e}_{num_tasks}_{names}", run)


def mixed_gaps(
    settings: Settings, problem: Problem, *, slowdown: float, policies: Sequence[Policy]
) -> list[tuple[list[float], list[float]]]:
    """The same with 16 tasks, half of them slower, and the units that each iteration takes: those of the slowest."""
    names = "+".join(policy.name for policy in policies)

    def run(seed: int) -> tuple[list[float], list[float]]:
        job, clock = _job(problem, seed, policies, 16, slowdown=slowdown), VirtualClock()
        history = InProcess(num_tasks=16).run(job, clock=clock).history
        return history.column("duality_gap").tolist(), [max(record.seconds.values()) for record in history]

    return by_seed(settings, f"mixed_{problem.data.key}_{problem.gaps[-1]:.0e}_{slowdown:g}_{names}", run)


def _job(
    problem: Problem, seed: int, policies: Sequence[Policy], num_tasks: int, *, slowdown: float | None = None
) -> Job:
    data, tol = problem.data, problem.gaps[-1]
    y: Array = data.y.astype(np.int32)
    trainer = CertifiedCocoa(C=problem.penalty, tol=tol)
    chunk_bytes = None
    if slowdown is not None:
        chunk_bytes = _chunk_bytes(data)
        unit_rows = data.num_samples / 16
        pace = Pace(row_s=1.0 / unit_rows, slow=ODD, factor=slowdown, until=math.inf)
        trainer = ThrottledCocoa(C=problem.penalty, tol=tol, pace=pace)
    source = ArraySource(data.X, y, max_tasks=max(64, num_tasks), chunk_bytes=chunk_bytes, seed=seed)
    return Job(trainer=trainer, source=source, max_iterations=problem.most, seed=seed, policies=tuple(policies))


def _chunk_bytes(data: DataSet) -> int:
    """Bytes of rows in a chunk, for some 4,000 chunks where there are enough rows."""
    X = data.X
    num_bytes = X.data.nbytes + X.indices.nbytes if sp.issparse(X) else X.nbytes
    return max(25 * num_bytes // len(data.y), num_bytes // NUM_CHUNKS)


def by_seed(settings: Settings, key: str, run: Callable[[int], T]) -> list[T]:
    """Return what the run of each seed gave. Those that are not in the cache are made side by side, one on a core."""
    runs = [(settings.cache / f"{key}_{seed}.json", partial(run, seed)) for seed in settings.seeds]
    missing = [(path, make) for path, make in runs if not path.exists()]
    if len(missing) > 1:
        Parallel(n_jobs=-1, max_nbytes=None)(delayed(cached)(path, make) for path, make in missing)
    return [cached(path, make) for path, make in runs]


def cached(path: Path, run: Callable[[], T]) -> T:
    """Return what a run gave, values of JSON, from its file if it was made before; files are written whole or not at
    all."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(run()), encoding="utf-8")
        part.replace(path)
    found: T = json.loads(path.read_text(encoding="utf-8"))
    return found
