"""Newton steps of one task on wide sparse data, whose second derivatives fit nowhere.

In: rows, C_i and duals of one output. Out: better duals, and w(alpha) of them. `rows` finds directions by conjugate
gradients, `finish` has the steps, and `hinge` and `smooth` what they are for each kind of loss. A task that has all
rows takes them where coordinate descent crawls, and one of several over a working set.
"""
