"""Smooth losses with an l1 penalty, with or without l2: a proximal Newton method over columns.

In: rows of chunks with class codes (squared hinge, modified Huber, logistic loss) or with real targets (squared loss:
lasso and elastic net). Out: sums of a pass, and what the trainer makes of them. Chunks have no state for it: the dual
of a sample is the slope of its loss, scaled until it is feasible. `steps` has the theory of operation.
"""
