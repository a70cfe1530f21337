"""Multinomial (softmax) logistic regression as a problem of `newton`: its sums, steps and gap."""
