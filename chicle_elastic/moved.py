"""Old import paths: where a name is now that code written for an earlier 0.x imports from somewhere else.

An old module does not exist any more, so `from chicle_elastic.runtime.job import Job` asks every finder of Python and
ends at `MovedFinder`, the last one; it says the new place. Where a package has the name of an old module
(`chicle_elastic.cluster.local`), Python asks the package for the name first, and then the finders for a module of that
name: `attribute_of` answers in the words of the same table. A module that is no package and has lost a name raises
`moved_error` itself.

The table has what code of a user plausibly imports and not every file that has moved.
"""

from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

FACE = "from chicle_elastic import {}".format

MOVED: dict[str, str] = {
    "runtime.job": FACE("Job, Outcome"),
    "runtime.checkpoint_settings": FACE("CheckpointSettings"),
    "runtime.cluster_runtime": FACE("cluster_runtime"),
    "runtime.task": "from chicle_elastic.runtime.training.uni_task import UniTask, LocalContext",
    "runtime.training.Training": "from chicle_elastic.runtime.training.training import Training",
    "runtime.checkpoint.Checkpoint": "from chicle_elastic.runtime.checkpoint.format import Checkpoint",
    "runtime.checkpoint.newest": "from chicle_elastic.runtime.checkpoint.format import newest",
    "runtime.checkpoint.read": "from chicle_elastic.runtime.checkpoint.format import read",
    "runtime.cluster_task.ClusterTask": "from chicle_elastic.runtime.cluster_task.task import ClusterTask",
    "monitoring.records.History": FACE("History"),
    "cluster.local.LocalCluster": FACE("LocalCluster"),
    "cluster.local.shared_cluster": "from chicle_elastic.cluster.local.local_cluster import shared_cluster",
    "cluster.agent.ElasticAgent": "from chicle_elastic.cluster.agent.agent import ElasticAgent",
    "cluster.rendezvous.ChicleRendezvousHandler": (
        "from chicle_elastic.cluster.rendezvous.handler import ChicleRendezvousHandler"
    ),
    "cluster.rendezvous.create_handler": "from chicle_elastic.cluster.rendezvous.handler import create_handler",
    "cluster.store_host": "from chicle_elastic.cluster.rendezvous.store import StoreServer",
    # Named by the entry point of an installation that is older than its sources.
    "cluster.torchrun_plugin": "chicle_elastic.cluster.rendezvous.torchrun_plugin; install chicle-elastic anew",
    "scheduling.machine": "from chicle_elastic.scheduling.scheduler import Scheduler",
    "scheduling.story": "from chicle_elastic.scheduling.replaying import replay",
}
"""What to write instead, by the old module, or old module and name, below `chicle_elastic`."""


class MovedFinder:
    """Finds no module; raises where the table knows the new place of one."""

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Say where a module is that Python finds nowhere.

        Raises:
            ImportError: The module, or the name in it, has moved.
        """
        package, _, old = name.partition(".")
        if package == "chicle_elastic" and old in MOVED:
            raise moved_error(name)
        return None


def moved_error(name: str) -> ImportError:
    """What to raise for a name that the table has."""
    return ImportError(_text(name), name=name)


def attribute_of(module: str) -> Callable[[str], Any]:
    """A `__getattr__` for a package that stands where a module stood.

    It raises AttributeError, so that `hasattr` stays true to its word; after that, `from package import name` asks the
    finders.

    Args:
        module: Dotted name of the package.
    """

    def find(name: str) -> Any:
        """Say where the name is now."""
        full = f"{module}.{name}"
        is_known = full.removeprefix("chicle_elastic.") in MOVED
        raise AttributeError(_text(full) if is_known else f"module {module!r} has no attribute {name!r}", name=name)

    return find


def _text(name: str) -> str:
    return f"{name} has moved; write: {MOVED[name.removeprefix('chicle_elastic.')]}"
