"""Newton steps of one task where coordinate descent crawls: over all rows if it has these, else over a working set."""
