"""What a task does once before it says that it is hot, so that its first iteration takes no longer than the others.

Kernels are loaded or compiled at their first use, which takes a few hundred milliseconds or seconds. In the first
iteration of a node that joins, all others would wait for that.

Practice proves nothing and must break nothing: it ends after a moment, with partial work, and what goes wrong in it is
told by the first real iteration, which has the parties and the chunks that a solver may ask for.
"""

import contextlib

import numpy as np

from chicle_elastic.chunks.views import StateSpec
from chicle_elastic.clock import Clock
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.runtime.job import Job
from chicle_elastic.runtime.task import LocalContext, Mailboxes, UniTask
from chicle_elastic.solvers.base import Budget

NAME = NodeId("practice")
PRACTICE_S = 1.0
"""After this long the solver is asked to return; kernels are loaded by then."""
PRACTICE_BYTES = 4 << 20
"""Of rows; a solver may do without its kernels on less, and need them on what it will really be given."""


def practise(job: Job, state: StateSpec, clock: Clock) -> None:
    """One iteration and one evaluation on copies of the first chunks, by a solver that is thrown away.

    Args:
        job: The job; nothing of it is changed.
        state: Shape of the state of its chunks.
        clock: Of this process.
    """
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
            if num_bytes >= PRACTICE_BYTES:
                break
        task.attach(chunks, [])
        model = job.trainer.init(job.source.schema, rng)
        budget = Budget(clock=clock, num_tasks=1, iteration=1, deadline_s=clock.now() + PRACTICE_S)
        task.solve(model, budget)
        task.evaluate(model)
