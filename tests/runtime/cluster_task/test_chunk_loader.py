"""The thread that loads chunks ends with its task, and lets the data go."""

import gc
import weakref

import numpy as np

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import NO_STATE
from chicle_elastic.runtime.checkpoint.format import JobIdentity
from chicle_elastic.runtime.checkpoint.resume import Resumption
from chicle_elastic.runtime.cluster_task.chunk_loader import ChunkLoader
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.solvers.linear.trainer import LinearTrainer


def test_data_is_let_go_with_the_task() -> None:
    """A process of a local cluster is used again, and may not keep the data of the job before."""
    source = ArraySource(np.eye(20), np.arange(20, dtype=np.int32) % 2, max_tasks=2)
    job = Job(trainer=LinearTrainer(), source=source, max_iterations=1)
    resumption = Resumption(job, None, JobIdentity.of(job.trainer, source.schema, num_parameters=21))
    loader = ChunkLoader(source, NO_STATE, resumption, lambda _: None)
    held = weakref.ref(source)
    loader.close()
    del loader, job, resumption, source
    gc.collect()
    assert held() is None
