"""Regression by Newton's method, for any convex loss with an l2 penalty (`losses`).

In: rows and real targets of chunks. Out: sums of a pass, and what the trainer makes of them. Chunks have no state for
it: the dual of a sample follows from its score.
"""
