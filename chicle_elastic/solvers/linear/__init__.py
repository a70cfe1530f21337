"""Linear classifiers with a certified duality gap: one trainer, one solver per task, several methods.

In come chunks with class codes, C and a tolerance; out go w, one row per output, and duals whose gap certifies it.
`trainer` decides, from sums that are the same in every task, which method the tasks follow and when the job may stop
(`methods` has the rule); `solver` does the local part of it: passes of coordinate descent (`coordinates`) or of
Newton's method (`newton`). Nothing here knows tasks of other nodes, and nothing is decided by measured times.
"""
