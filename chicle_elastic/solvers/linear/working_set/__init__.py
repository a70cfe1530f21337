"""A working set, of few rows or for the hinge on wide data: tasks gather undecided rows, and one of them solves.

`steps` says how it goes on, `state` what all tasks have in common, `passes` what each of them does, `solution` what one
of them does for all.
"""
