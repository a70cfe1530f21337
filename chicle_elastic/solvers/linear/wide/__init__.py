"""Newton steps of one task, over narrow rows and over wide sparse ones.

In: rows, C_i and duals of one output. Out: better duals, and w(alpha) of them. `exact` finds directions where second
derivatives fit into a matrix, and `rows` by conjugate gradients where they do not. `finish` has the steps, and `hinge`
and `smooth` what they are for each kind of loss. A task that has all rows takes them where coordinate descent crawls,
and one of several over a working set.
"""
