"""Squared loss with an l1 penalty, with or without l2: sums of products of columns, and a solution from these alone.

In: rows and real targets of chunks. Out: sums of a pass, and what the trainer makes of them. Chunks have no state for
it: the dual of a sample is its weighted residual, scaled until it is feasible. `steps` has the theory of operation.
"""
