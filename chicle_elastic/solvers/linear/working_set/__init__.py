"""A working set, of few rows or for the hinge on wide data: tasks gather undecided rows, and one of them solves."""
