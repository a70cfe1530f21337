"""Floor 1: decisions. A pure machine: events in, effects out; no I/O, no clock, no torch."""
