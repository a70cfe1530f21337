"""Floor 3: the uni-task and the runtimes that run it.

Rooms, from the lowest to the highest:

    training      what every runtime does with an iteration: job, uni-task, merge, pages of the ledger
    collectives   sums between the tasks of a round: process group, small all-reduce, NCCL
    checkpoint    jobs on disk: format, files, writer, when to save, resuming
    control       messages and channel between an agent and the task of its node
    cluster_task  the task of a node in a cluster
    in_process    all tasks of a job in this process
    simulate      virtual nodes on a virtual clock
"""
