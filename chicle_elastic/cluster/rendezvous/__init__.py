"""The store that lies outside of the nodes, and the signed values in it: whether a job is open, what it wants.

In: the state that other nodes have written, the job secret; from plain torchrun, nodes that want to join or leave.
Out: the address of the store; whether the job is over; for plain torchrun, the members and ranks of a round.
It may not know: the log, the scheduler, chunks, tasks.
"""
