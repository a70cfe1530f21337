"""Newton steps of one task, over narrow rows and over wide sparse ones.

In: rows, C_i and duals of one output. Out: better duals, and w(alpha) of them. `rows` finds directions, exact ones
where second derivatives fit into a matrix, and else by conjugate gradients. `finish` has the steps, and `hinge` what is
special in those of the hinge. A task takes them where coordinate descent crawls, over all rows if it has these, and
else over a working set.
"""
