"""Ridge regression by conjugate gradients on centred rows, which second derivatives precondition where there is room.

In: rows and real targets of chunks. Out: sums of a pass, and what the trainer makes of them. Chunks have no state for
it: the dual of a sample is its weighted residual, which follows from the model.
"""
