"""A job on its way from the driver of a local cluster to the tasks: JSON, and sealed memory files.

The files have the data (`staging`), and the first one the trainer and the policies as pickles (`user_code`); JSON says
where what lies, and the rest.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from chicle_elastic.chunks.views import Array
from chicle_elastic.cluster.local import user_code
from chicle_elastic.cluster.local.staging import (
    MappedFiles,
    StagedFiles,
    describe_array,
    describe_source,
    open_array,
    open_source,
)
from chicle_elastic.monitoring.records import IterationRecord, Transition
from chicle_elastic.runtime.training.checkpoint_settings import CheckpointSettings
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.base import Trainer
from chicle_elastic.surroundings import is_folder_gone


def stage(job: Job, files: StagedFiles) -> dict[str, Any]:
    """Write trainer and policies of a job and some data to the first of `files`, have `fill` write the others, and say
    the rest in JSON. Raises UsageError when the trainer or a policy cannot be pickled, CapacityError when there is no
    memory for the data."""
    began_s = time.monotonic()
    parts: dict[str, Any] = {"trainer": job.trainer}
    for number, policy in enumerate(job.policies or ()):
        parts[f"policy {number}"] = policy
    pickles, has_code = user_code.dump(parts)
    described: dict[str, Any] = {
        "pickles": describe_array(np.frombuffer(pickles, dtype=np.uint8), files),
        "has_code": has_code,
        "uses_torch": _uses_torch(job.trainer),
        "began_s": began_s,
        "num_policies": None if job.policies is None else len(job.policies),
        "source": describe_source(job.source, files),
        "max_iterations": job.max_iterations,
        "seed": job.seed,
        "keep_state": job.keep_state,
        "checkpoint": None if job.checkpoint is None else asdict(job.checkpoint),
        "tells": job.on_iteration is not None or job.tell is not None,
        "asks": job.on_model is not None,
        "sys_path": sys.path,
        "folder": None if is_folder_gone() else os.getcwd(),
    }
    if job.initial_state is not None:
        described["initial_state"] = describe_array(job.initial_state, files)
    if job.initial_model is not None:
        described["initial_model"] = describe_array(job.initial_model, files)
    files.seal(0)
    return described


def _uses_torch(trainer: Trainer) -> bool:
    """Whether tasks will import torch: a trainer that does so has done it here, and linear models never do."""
    if "torch" not in sys.modules:
        return False
    from chicle_elastic.solvers.linear.trainer import LinearTrainer

    return not isinstance(trainer, LinearTrainer)


def build(
    described: Mapping[str, Any],
    memory: MappedFiles,
    *,
    tell: Callable[[IterationRecord], None],
    keep: Callable[[IterationRecord, Array], None],
    ask: Callable[[IterationRecord, Array], bool],
    on_transition: Callable[[Transition], None],
) -> Job:
    """The job again, in a task. Raises UsageError when the trainer or a policy cannot be made here, DataError when the
    chunk folder is not there any more, or damaged.

    Args:
        tell: Takes records, if the driver wants to be told.
        ask: Asks whether the job ends, if the driver wants to be asked.
    """
    initial, checkpoint = described.get("initial_state"), described["checkpoint"]
    model = described.get("initial_model")
    num_policies = described["num_policies"]
    pickles = open_array(described["pickles"], memory).tobytes()
    trainer, *policies = user_code.load(pickles, 1 + (num_policies or 0))
    return Job(
        trainer=trainer,
        policies=None if num_policies is None else policies,
        source=open_source(described["source"], memory),
        max_iterations=described["max_iterations"],
        seed=described["seed"],
        initial_state=None if initial is None else open_array(initial, memory),
        initial_model=None if model is None else open_array(model, memory),
        keep_state=described["keep_state"],
        checkpoint=None if checkpoint is None else CheckpointSettings(**checkpoint),
        tell=tell if described["tells"] else None,
        keep=keep,
        on_model=ask if described["asks"] else None,
        on_transition=on_transition,
    )
