"""Jobs on disk: each checkpoint is a folder that is complete or does not count.

In: the model, the trainer's progress, the history, and per task the state of its samples.
Out: the newest complete checkpoint that fits a job.
It may not know: its callers, processes, agents.
"""

from typing import TYPE_CHECKING

from chicle_elastic.moved import attribute_of

if not TYPE_CHECKING:  # so that mypy refuses a name that is not here
    __getattr__ = attribute_of(__name__)
