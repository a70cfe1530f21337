"""Floor 5: the command line, one file per command; `main` finds and runs them."""
