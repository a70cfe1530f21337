"""Jobs on disk: each checkpoint is a folder that is complete or does not count.

In: the model, the trainer's progress, the history, and per task the state of its samples.
Out: the newest complete checkpoint that fits a job.
It may not know: its callers, processes, agents.
"""
