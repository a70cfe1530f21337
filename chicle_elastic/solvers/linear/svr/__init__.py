"""Support vector regression by Newton's method on losses whose corners are rounded off less and less.

In: rows and real targets of chunks. Out: sums of a pass, and what the trainer makes of them. Chunks have no state for
it: the dual of a sample follows from its residual and the width of the corner.
"""
