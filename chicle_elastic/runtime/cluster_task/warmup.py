"""The warm-up of a task before it reports that it is ready, so that its first iteration is as fast as the others.

Kernels are loaded or compiled at their first use, which takes a few hundred milliseconds or seconds. In the first
iteration of a node that joins, all others would wait for that.

Warm-up validates nothing and must have no side effects: it ends after a moment, with partial work, and ignores errors.
The first real iteration, which has the parties and the chunks that a solver may use, raises them again.
"""

import contextlib

import numpy as np

from chicle_elastic.chunks.views import StateSpec
from chicle_elastic.clock import Clock
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.training.job import Job
from chicle_elastic.runtime.training.uni_task import LocalContext, Mailboxes, UniTask
from chicle_elastic.solvers.base import NO_PROGRESS, Budget

NAME = NodeId("practice")
NUM_TASKS = 2  # a solver of several tasks may use other kernels than an only one, for which no other task would wait
WARMUP_S = 1.0  # deadline of the solver; kernels are loaded by then
WARMUP_BYTES = 4 << 20  # of rows; on fewer a solver may not use the kernels that it will use on its real chunks


def warm_up(job: Job, state: StateSpec, clock: Clock) -> None:
    """One iteration and one evaluation on copies of the first chunks, by a solver that is then discarded."""
    rng = np.random.default_rng(job.seed)
    mailboxes = Mailboxes()
    mailboxes.add(NAME)
    task = UniTask(NAME, job.trainer, LocalContext(NAME, rng, mailboxes), clock)
    with contextlib.suppress(Exception), contextlib.closing(task):
        chunks: list[ChunkId] = []
        num_bytes = 0
        for info in job.source.infos(state):
            task.hold(job.source.load(info.id, state))
            chunks.append(info.id)
            num_bytes += info.size_bytes
            if num_bytes >= WARMUP_BYTES:
                break
        task.attach(chunks, [])
        schema = job.source.schema
        model = job.trainer.init(schema, rng)
        progress = job.trainer.begin(schema, model, NO_PROGRESS, NUM_TASKS)
        budget = Budget(
            clock=clock, num_tasks=NUM_TASKS, iteration=1, deadline_s=clock.now() + WARMUP_S, progress=progress
        )
        task.solve(model, budget)
        task.evaluate(model, progress)
