"""Torch elastic's rendezvous for Chicle: which nodes form a round, agreed by signed values in the store.

In: nodes that want to join or leave, the state that other nodes have written, the job secret.
Out: the members and ranks of a round; the address of the store; errors that torch's agents know.
It may not know: the log, the scheduler, chunks, tasks.
"""
