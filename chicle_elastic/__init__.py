"""Chicle: elastic training that moves the data, not the tasks.

The public names are here, those of `estimators` as well; a name is loaded when it is asked for. Importing this package
loads no torch and no NumPy, opens nothing and sets no variable (docs/style 15).

    estimators  ChicleSVM, ChicleLogisticRegression, ChicleRidge, ChicleLasso, ChicleElasticNet, ChicleSVR,
                ChicleHuber, ChiclePoisson, ChicleCNNClassifier; ChicleSearchCV; ElasticEstimator, around a
                Trainer of your own
    algorithm   Trainer, Solver, Update, Budget, Context, StateSpec; Report, Verdict, Action; LinearTrainer,
                RegressionTrainer, RegressionLoss
    data        ArraySource, ChunkFolder
    job         Job, CheckpointSettings; Outcome, History, IterationRecord
    runtime     InProcess, LocalCluster, TorchXRuntime, cluster_runtime
    policy      Policy, Observations, Decision; MoveChunks, RedrawOwnership, RequestNodes, ReleaseNode, SetParameter;
                Rebalance, Scale, Shuffle, Straggler, Tune
    resources   Schedule; ResourceManager, Assigned, Revoked, ResourceOffer
    errors      ChicleError; UsageError, DataError, JobFailedError
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chicle_elastic.chunks.folder import ChunkFolder
    from chicle_elastic.chunks.sources import ArraySource
    from chicle_elastic.chunks.views import StateSpec
    from chicle_elastic.cluster.local.local_cluster import LocalCluster
    from chicle_elastic.errors import ChicleError, DataError, JobFailedError, UsageError
    from chicle_elastic.monitoring.history import History
    from chicle_elastic.monitoring.records import IterationRecord
    from chicle_elastic.policies.base import (
        Decision,
        MoveChunks,
        Observations,
        Policy,
        RedrawOwnership,
        ReleaseNode,
        RequestNodes,
        SetParameter,
    )
    from chicle_elastic.policies.rebalance import Rebalance
    from chicle_elastic.policies.scale import Scale
    from chicle_elastic.policies.shuffle import Shuffle
    from chicle_elastic.policies.straggler import Straggler
    from chicle_elastic.policies.tune import Tune
    from chicle_elastic.resources.managers import Assigned, ResourceManager, Revoked
    from chicle_elastic.resources.schedule import Schedule
    from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
    from chicle_elastic.runtime.in_process import InProcess
    from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
    from chicle_elastic.runtime.training.job import Job, Outcome
    from chicle_elastic.solvers.base import Action, Budget, Context, Report, Solver, Trainer, Update, Verdict
    from chicle_elastic.solvers.linear.regression.losses import RegressionLoss
    from chicle_elastic.solvers.linear.regression.trainer import RegressionTrainer
    from chicle_elastic.solvers.linear.trainer import LinearTrainer
    from chicle_elastic.values import ResourceOffer
    from estimators import (
        ChicleCNNClassifier,
        ChicleElasticNet,
        ChicleHuber,
        ChicleLasso,
        ChicleLogisticRegression,
        ChiclePoisson,
        ChicleRidge,
        ChicleSearchCV,
        ChicleSVM,
        ChicleSVR,
        ElasticEstimator,
    )
    from torchx_components.torchx_runtime import TorchXRuntime

__version__ = "0.1.0"

__all__ = [
    "Action",
    "ArraySource",
    "Assigned",
    "Budget",
    "CheckpointSettings",
    "ChicleCNNClassifier",
    "ChicleElasticNet",
    "ChicleError",
    "ChicleHuber",
    "ChicleLasso",
    "ChicleLogisticRegression",
    "ChiclePoisson",
    "ChicleRidge",
    "ChicleSVM",
    "ChicleSVR",
    "ChicleSearchCV",
    "ChunkFolder",
    "Context",
    "DataError",
    "Decision",
    "ElasticEstimator",
    "History",
    "InProcess",
    "IterationRecord",
    "Job",
    "JobFailedError",
    "LinearTrainer",
    "LocalCluster",
    "MoveChunks",
    "Observations",
    "Outcome",
    "Policy",
    "Rebalance",
    "RedrawOwnership",
    "RegressionLoss",
    "RegressionTrainer",
    "ReleaseNode",
    "Report",
    "RequestNodes",
    "ResourceManager",
    "ResourceOffer",
    "Revoked",
    "Scale",
    "Schedule",
    "SetParameter",
    "Shuffle",
    "Solver",
    "StateSpec",
    "Straggler",
    "TorchXRuntime",
    "Trainer",
    "Tune",
    "Update",
    "UsageError",
    "Verdict",
    "__version__",
    "cluster_runtime",
]

_MODULES = {
    "Action": "chicle_elastic.solvers.base",
    "ArraySource": "chicle_elastic.chunks.sources",
    "Budget": "chicle_elastic.solvers.base",
    "CheckpointSettings": "chicle_elastic.runtime.training.checkpoint_settings",
    "ChicleCNNClassifier": "estimators",
    "ChicleElasticNet": "estimators",
    "ChicleError": "chicle_elastic.errors",
    "ChicleHuber": "estimators",
    "ChicleLasso": "estimators",
    "ChicleLogisticRegression": "estimators",
    "ChiclePoisson": "estimators",
    "ChicleRidge": "estimators",
    "ChicleSVM": "estimators",
    "ChicleSVR": "estimators",
    "ChicleSearchCV": "estimators",
    "ChunkFolder": "chicle_elastic.chunks.folder",
    "Context": "chicle_elastic.solvers.base",
    "DataError": "chicle_elastic.errors",
    "ElasticEstimator": "estimators",
    "Decision": "chicle_elastic.policies.base",
    "History": "chicle_elastic.monitoring.history",
    "InProcess": "chicle_elastic.runtime.in_process",
    "IterationRecord": "chicle_elastic.monitoring.records",
    "Job": "chicle_elastic.runtime.training.job",
    "JobFailedError": "chicle_elastic.errors",
    "LinearTrainer": "chicle_elastic.solvers.linear.trainer",
    "LocalCluster": "chicle_elastic.cluster.local.local_cluster",
    "MoveChunks": "chicle_elastic.policies.base",
    "Observations": "chicle_elastic.policies.base",
    "Outcome": "chicle_elastic.runtime.training.job",
    "Policy": "chicle_elastic.policies.base",
    "Rebalance": "chicle_elastic.policies.rebalance",
    "RegressionLoss": "chicle_elastic.solvers.linear.regression.losses",
    "RegressionTrainer": "chicle_elastic.solvers.linear.regression.trainer",
    "RedrawOwnership": "chicle_elastic.policies.base",
    "ReleaseNode": "chicle_elastic.policies.base",
    "RequestNodes": "chicle_elastic.policies.base",
    "Report": "chicle_elastic.solvers.base",
    "SetParameter": "chicle_elastic.policies.base",
    "Scale": "chicle_elastic.policies.scale",
    "Shuffle": "chicle_elastic.policies.shuffle",
    "Straggler": "chicle_elastic.policies.straggler",
    "Tune": "chicle_elastic.policies.tune",
    "Solver": "chicle_elastic.solvers.base",
    "StateSpec": "chicle_elastic.chunks.views",
    "TorchXRuntime": "torchx_components.torchx_runtime",
    "Trainer": "chicle_elastic.solvers.base",
    "Update": "chicle_elastic.solvers.base",
    "UsageError": "chicle_elastic.errors",
    "Verdict": "chicle_elastic.solvers.base",
    "ResourceOffer": "chicle_elastic.values",
    "Schedule": "chicle_elastic.resources.schedule",
    "Revoked": "chicle_elastic.resources.managers",
    "ResourceManager": "chicle_elastic.resources.managers",
    "Assigned": "chicle_elastic.resources.managers",
    "cluster_runtime": "chicle_elastic.runtime.cluster_task.runtime",
}


if not TYPE_CHECKING:  # so that mypy refuses a name that is not here

    def __getattr__(name: str) -> Any:
        """Load a public name when it is asked for (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module 'chicle_elastic' has no attribute {name!r}; it has {', '.join(__all__)}")
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
