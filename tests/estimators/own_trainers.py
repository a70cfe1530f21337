"""Algorithms as a user writes them: k-means, a classifier by class means, least squares by gradient steps."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from chicle_elastic.solvers.base import Action, Solver, Trainer, Update, Verdict


@dataclass(frozen=True, kw_only=True)
class KMeans(Trainer):
    """Lloyd's algorithm, as the page has it; predicts the nearest center, and transforms to distances."""

    estimator_type = "clusterer"

    num_clusters: int = 10
    tol: float = 1e-6

    def __post_init__(self) -> None:
        if self.num_clusters < 1:
            raise ValueError(f"num_clusters={self.num_clusters} must be at least 1")

    def metric_names(self, schema):
        return ("inertia",)

    def init(self, schema, rng):
        return rng.uniform(0, 16, self.num_clusters * schema.num_features)

    def solver(self, ctx):
        return KMeansSolver(ctx, self.num_clusters)

    def update_size(self, model, progress):
        return len(model) + self.num_clusters

    def advance(self, model, progress, summed):
        sums, counts = np.split(summed.delta, [len(model)])
        centers = model.reshape(self.num_clusters, -1).copy()
        has_rows = counts > 0
        centers[has_rows] = sums.reshape(centers.shape)[has_rows] / counts[has_rows, None]
        last = progress[-1] if len(progress) else np.inf
        return centers.ravel(), np.array([last, summed.metrics["inertia"]])

    def merge(self, model, weighted_sum, total_weight):
        raise NotImplementedError("advance does it all")

    def verdict(self, model, report):
        before, now = report.progress
        if report.is_complete and before - now <= self.tol * now:
            return Verdict(action=Action.STOP, reason="the inertia rests")
        return Verdict(action=Action.GO_ON)

    def transform(self, model, X):
        centers = model.reshape(self.num_clusters, -1)
        return np.sqrt(((X[:, None, :] - centers) ** 2).sum(axis=2))

    def predict(self, model, X):
        return self.transform(model, X).argmin(axis=1)

    def score(self, model, X, y):
        return -(self.transform(model, X).min(axis=1) ** 2).sum()


class KMeansSolver(Solver):
    """Sums of the rows of each center."""

    def __init__(self, ctx, num_clusters):
        super().__init__(ctx)
        self.num_clusters = num_clusters

    def solve(self, model, budget):
        centers = model.reshape(self.num_clusters, -1)
        sums, counts, inertia = np.zeros_like(centers), np.zeros(self.num_clusters), 0.0
        for chunk in self.chunks.values():
            rows = np.asarray(chunk.read().rows)
            distances = ((rows[:, None, :] - centers) ** 2).sum(axis=2)
            nearest = distances.argmin(axis=1)
            np.add.at(sums, nearest, rows)
            counts += np.bincount(nearest, minlength=self.num_clusters)
            inertia += distances.min(axis=1).sum()
        delta = np.concatenate([sums.ravel(), counts])
        return Update(delta=delta, samples=int(counts.sum()), weight=1.0, metrics={"inertia": inertia})


@dataclass(frozen=True, kw_only=True)
class NearestMean(Trainer):
    """Classifier by the weighted mean of each class; its rule ends it after one iteration."""

    estimator_type = "classifier"

    shrink: float = 0.0
    told: Any = None

    def init(self, schema, rng):
        return np.zeros(schema.num_classes * (schema.num_features + 1))

    def solver(self, ctx):
        return MeanSolver(ctx)

    def merge(self, model, weighted_sum, total_weight):
        return weighted_sum

    def verdict(self, model, report):
        return Verdict(action=Action.STOP, reason="one pass is enough")

    def decision_function(self, model, X):
        table = model.reshape(-1, X.shape[1] + 1)
        means = (1.0 - self.shrink) * table[:, :-1] / table[:, -1:]
        return -((X[:, None, :] - means) ** 2).sum(axis=2)

    def predict(self, model, X):
        return self.decision_function(model, X).argmax(axis=1)


class MeanSolver(Solver):
    """Sums of rows and of weights per class."""

    def solve(self, model, budget):
        samples, total = 0, np.zeros_like(model)
        for chunk in self.chunks.values():
            block = chunk.read()
            weights = np.ones(len(block.targets)) if block.weights is None else block.weights
            rows = np.asarray(block.rows)
            table = total.reshape(-1, rows.shape[1] + 1)
            np.add.at(table, block.targets, np.column_stack([rows, np.ones(len(weights))]) * weights[:, None])
            samples += len(block.targets)
        return Update(delta=total, samples=samples, weight=1.0)


class Steps(Trainer):
    """Regressor by gradient steps, no dataclass; it has no rule of its own and uses all iterations."""

    estimator_type = "regressor"

    def __init__(self, step: float = 0.1) -> None:
        self.step = step

    def metric_names(self, schema):
        return ("squares",)

    def init(self, schema, rng):
        return np.zeros(schema.num_features)

    def solver(self, ctx):
        return StepSolver(ctx)

    def merge(self, model, weighted_sum, total_weight):
        return model - self.step * weighted_sum / total_weight

    def predict(self, model, X):
        return X @ model


class StepSolver(Solver):
    """The gradient of the local rows."""

    def solve(self, model, budget):
        gradient, samples, squares = np.zeros_like(model), 0, 0.0
        for chunk in self.chunks.values():
            block = chunk.read()
            residuals = block.rows @ model - block.targets
            gradient += residuals @ block.rows
            samples += len(residuals)
            squares += float(residuals @ residuals)
        return Update(delta=gradient / samples, samples=samples, weight=samples, metrics={"squares": squares})
