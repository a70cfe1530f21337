"""The compiled inner loops. The only place that imports numba; importing this package does not (see `jit`)."""
