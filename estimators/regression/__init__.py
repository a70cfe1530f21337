"""Regressors: in come samples with real targets, out goes an estimator with a certified duality gap.

`common` is for all of them, a file more for each. The mathematics is in `chicle_elastic.solvers`.
"""
