"""Floor 3: shells that perform what the scheduler orders, and the uni-task that computes."""
