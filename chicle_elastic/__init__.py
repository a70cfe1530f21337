"""Chicle: elastic training that moves the data, not the tasks.

The public names are here, those of `estimators` as well; a name is loaded when it is asked for. Importing this package
loads no torch and no NumPy, opens nothing and sets no variable (docs/style 15).

    estimators  ChicleSVM, ChicleLogisticRegression, ChicleRidge, ChicleLasso, ChicleElasticNet, ChicleSVR,
                ChicleHuber, ChiclePoisson; ChicleCNNClassifier, ChicleRegressor, of networks; ChicleSearchCV;
                ElasticEstimator, around a Trainer of your own
    algorithm   Trainer, Solver, Update, Budget, Context, StateSpec; Report, Verdict, Action; LinearTrainer,
                RegressionTrainer, RegressionLoss
    data        ArraySource, ChunkFolder
    job         Job, CheckpointSettings; Outcome, History, IterationRecord
    runtime     InProcess, LocalCluster, TorchXRuntime, cluster_runtime
    policy      Policy, Observations, Happening, Message, Decision; MoveChunks, RedrawOwnership, RequestNodes,
                ReleaseNode, SetParameter, SendMessage, Remember; Rebalance, Scale, Shuffle, Straggler, Tune
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
    from chicle_elastic.policies.base import Policy
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
    from chicle_elastic.solvers.linear.losses import RegressionLoss
    from chicle_elastic.solvers.linear.newton.trainer import RegressionTrainer
    from chicle_elastic.solvers.linear.trainer import LinearTrainer
    from chicle_elastic.values import (
        Decision,
        Happening,
        Message,
        MoveChunks,
        Observations,
        RedrawOwnership,
        ReleaseNode,
        Remember,
        RequestNodes,
        ResourceOffer,
        SendMessage,
        SetParameter,
    )
    from estimators import (
        ChicleCNNClassifier,
        ChicleElasticNet,
        ChicleHuber,
        ChicleLasso,
        ChicleLogisticRegression,
        ChiclePoisson,
        ChicleRegressor,
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
    "ChicleRegressor",
    "ChicleRidge",
    "ChicleSVM",
    "ChicleSVR",
    "ChicleSearchCV",
    "ChunkFolder",
    "Context",
    "DataError",
    "Decision",
    "ElasticEstimator",
    "Happening",
    "History",
    "InProcess",
    "IterationRecord",
    "Job",
    "JobFailedError",
    "LinearTrainer",
    "LocalCluster",
    "Message",
    "MoveChunks",
    "Observations",
    "Outcome",
    "Policy",
    "Rebalance",
    "RedrawOwnership",
    "RegressionLoss",
    "RegressionTrainer",
    "ReleaseNode",
    "Remember",
    "Report",
    "RequestNodes",
    "ResourceManager",
    "ResourceOffer",
    "Revoked",
    "Scale",
    "Schedule",
    "SendMessage",
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

_NAMES = {
    "chicle_elastic.chunks.folder": "ChunkFolder",
    "chicle_elastic.chunks.sources": "ArraySource",
    "chicle_elastic.chunks.views": "StateSpec",
    "chicle_elastic.cluster.local.local_cluster": "LocalCluster",
    "chicle_elastic.errors": "ChicleError DataError JobFailedError UsageError",
    "chicle_elastic.monitoring.history": "History",
    "chicle_elastic.monitoring.records": "IterationRecord",
    "chicle_elastic.policies.base": "Policy",
    "chicle_elastic.policies.rebalance": "Rebalance",
    "chicle_elastic.policies.scale": "Scale",
    "chicle_elastic.policies.shuffle": "Shuffle",
    "chicle_elastic.policies.straggler": "Straggler",
    "chicle_elastic.policies.tune": "Tune",
    "chicle_elastic.resources.managers": "Assigned ResourceManager Revoked",
    "chicle_elastic.resources.schedule": "Schedule",
    "chicle_elastic.runtime.cluster_task.runtime": "cluster_runtime",
    "chicle_elastic.runtime.in_process": "InProcess",
    "chicle_elastic.runtime.training.checkpoint_settings": "CheckpointSettings",
    "chicle_elastic.runtime.training.job": "Job Outcome",
    "chicle_elastic.solvers.base": "Action Budget Context Report Solver Trainer Update Verdict",
    "chicle_elastic.solvers.linear.losses": "RegressionLoss",
    "chicle_elastic.solvers.linear.newton.trainer": "RegressionTrainer",
    "chicle_elastic.solvers.linear.trainer": "LinearTrainer",
    "chicle_elastic.values": (
        "Decision Happening Message MoveChunks Observations RedrawOwnership ReleaseNode Remember RequestNodes "
        "ResourceOffer SendMessage SetParameter"
    ),
    "estimators": (
        "ChicleCNNClassifier ChicleElasticNet ChicleHuber ChicleLasso ChicleLogisticRegression ChiclePoisson "
        "ChicleRegressor ChicleRidge ChicleSVM ChicleSVR ChicleSearchCV ElasticEstimator"
    ),
    "torchx_components.torchx_runtime": "TorchXRuntime",
}
"""Public names by the module that has them."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


if not TYPE_CHECKING:  # so that mypy refuses a name that is not here

    def __getattr__(name: str) -> Any:
        """Load a public name when it is asked for (PEP 562)."""
        if name not in _MODULES:
            raise AttributeError(f"module 'chicle_elastic' has no attribute {name!r}; it has {', '.join(__all__)}")
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
