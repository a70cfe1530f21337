"""A working set for the hinge on wide data: the tasks gather undecided rows, and one task solves for their duals.

`steps` says how it goes on, `state` what all tasks have in common, `passes` what each of them does.
"""
