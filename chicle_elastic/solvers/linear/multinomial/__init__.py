"""Multinomial (softmax) logistic regression by Newton's method with conjugate gradients over the rows of all tasks.

In: rows and class codes of chunks. Out: sums of a pass, and what the trainer makes of them. Chunks have no state for
it: the duals of a sample follow from its probabilities.
"""
