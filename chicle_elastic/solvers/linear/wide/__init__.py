"""Newton steps of one task, over narrow rows and over wide sparse ones: better duals of one output, and their w(alpha).

`rows` finds directions, and `finish` has the steps. A task takes them where coordinate descent crawls, over all rows if
it has these, and else over a working set.
"""
