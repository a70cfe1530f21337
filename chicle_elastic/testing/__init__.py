"""Tests of a user's own trainers and solvers use this: a contract that each solver passes, and a clock."""
