"""Sums and broadcasts between the tasks of one round.

In: a round's members and store; vectors of float64 on the host, or tensors on CUDA devices.
Out: their sums, the same bits in every task; an error soon after a member is gone.
It may not know: what is summed, chunks, the scheduler, agents.
"""
