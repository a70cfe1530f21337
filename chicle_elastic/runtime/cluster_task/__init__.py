"""The task of a node in a cluster: it computes iterations, and executes the orders of its agent at boundaries.

In: messages of the agent, arenas with chunks, the sums of the round.
Out: iterations, votes, pages of the ledger, user messages, the outcome.
It may not know: the log, other agents, how agents move chunks into the arenas.
"""
