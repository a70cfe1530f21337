"""Multinomial (softmax) logistic regression as a problem of `newton`: what is special in its sums, steps and gap.

In: rows and class codes of chunks. Out: sums of a pass, and a problem for `newton.steps`. Chunks have no state for it:
the duals of a sample follow from its probabilities.
"""
