"""Smooth losses with an l1 penalty, with or without l2: a proximal Newton method over columns."""
