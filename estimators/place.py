"""Where a fit runs: `runtime`, or its short form `n_workers`."""

from typing import TYPE_CHECKING, Any

from chicle_elastic import settings
from chicle_elastic.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chicle_elastic.chunks.sources import ChunkSource
    from chicle_elastic.policies.base import Policy
    from chicle_elastic.runtime.training.job import Runtime
    from chicle_elastic.solvers.base import Trainer


def runtime_of(estimator: Any) -> "Runtime":
    """The runtime that an estimator's parameters mean. Returns this process, unless the parameters say otherwise.
    Raises UsageError when both parameters are given, or `n_workers` is no number of nodes.

    Args:
        estimator: With the parameters `runtime` and `n_workers`.
    """
    if estimator.n_workers is None:
        if estimator.runtime is not None:
            runtime: Runtime = estimator.runtime
            return runtime
        from chicle_elastic.runtime.in_process import InProcess

        return InProcess(num_tasks=1)
    if estimator.runtime is not None:
        raise UsageError(
            f"n_workers={estimator.n_workers!r} is short for runtime=LocalCluster({estimator.n_workers!r}), and "
            f"runtime={estimator.runtime!r} was given too; leave one of them out"
        )
    from chicle_elastic.cluster.local.local_cluster import shared_cluster

    # It starts while the data is looked at.
    return shared_cluster(settings.available_cores() if estimator.n_workers == -1 else estimator.n_workers).start()


def source_of(runtime: "Runtime", source: "ChunkSource", trainer: "Trainer") -> "ChunkSource":
    """Return the source that the job will have: this process leaves rows of a folder in their files where memory has
    no room for them, and the method depends on it. Raises CapacityError when not even that helps."""
    from chicle_elastic.chunks.folder import ChunkFolder
    from chicle_elastic.runtime.in_process import InProcess, held_source

    if isinstance(runtime, InProcess) and isinstance(source, ChunkFolder):
        return held_source(source, trainer, runtime.num_tasks)
    return source


def policies_of(estimator: Any) -> "Sequence[Policy] | None":
    """The policies that an estimator's parameter `policy` means; None leaves them to the runtime."""
    policy = estimator.policy
    return policy if policy is None or isinstance(policy, tuple) else (policy,)


def has_policies(estimator: Any, runtime: "Runtime") -> bool:
    """Whether a fit has policies: of the estimator or else of the runtime."""
    policies = policies_of(estimator)
    return bool(getattr(runtime, "policies", ()) if policies is None else policies)


def threads_of(runtime: "Runtime") -> int:
    """Threads per task where the user has not said how many: together, tasks of one machine use its cores once."""
    threads_per_task = getattr(runtime, "threads_per_task", settings.available_cores)
    return int(threads_per_task())
