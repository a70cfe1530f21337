"""A working set, of little data and for the hinge on wide data: the tasks gather undecided rows, and one solves for them.

`steps` says how it goes on, `state` what all tasks have in common, `passes` what each of them does, `solution` what one
of them does for all.
"""
