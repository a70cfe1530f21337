"""Searches over parameters in which all fits share one copy of the data.

In come the calls by which scikit-learn's model selection fits and scores a candidate on a split (`calls`); a joblib
backend collects them (`backend`). Those of Chicle's linear estimators are made into few jobs (`plan`, `classifiers`,
`regressors`), in which a split is a set of rows that count and a larger C goes on from a smaller one. Scores are
scikit-learn's own, of models that those jobs found. Any other call runs as it is.

`search_cv` is the face: `GridSearchCV` within that backend. Nothing here knows how a model is found.
"""
