"""Chunks on their way: memory for them, copies between nodes, immutable parts ahead of their boundary.

In: effects of the scheduler about the chunks of this node; requests of peers for chunks that it holds.
Out: filled slots, acknowledgements for the log, placements for the task.
It may not know: elections, rendezvous, how a task computes, which plan a copy belongs to.
"""
