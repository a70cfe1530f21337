"""Floor 1: policies. Pure functions from what was observed to what should move, with a reason."""
