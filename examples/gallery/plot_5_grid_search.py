"""
Pipelines and grid search
=========================

The estimators are scikit-learn's in every respect: they clone, pickle, go through pipelines and searches, and take
sparse matrices, sample weights and data frames.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from estimators import ChicleSVM

X, y = load_digits(return_X_y=True)
pipeline = make_pipeline(StandardScaler(), ChicleSVM(random_state=0, n_threads=1))
grid = {"chiclesvm__C": np.logspace(-4, 0, 5), "chiclesvm__loss": ["hinge", "squared_hinge"]}
search = GridSearchCV(pipeline, grid, cv=3, n_jobs=2).fit(X, y)
print(f"best {search.best_params_}: accuracy {search.best_score_:.3f}")

# %%
# Mean accuracy of three folds. With ``n_workers=2`` in :class:`~estimators.ChicleSVM` each of these fits would run on
# the same two nodes, one after the other.

results = search.cv_results_
fig, ax = plt.subplots(figsize=(6, 3))
for loss in grid["chiclesvm__loss"]:
    chosen = results["param_chiclesvm__loss"] == loss
    ax.semilogx(results["param_chiclesvm__C"][chosen], results["mean_test_score"][chosen], "o-", label=loss)
ax.set(xlabel="C", ylabel="accuracy")
ax.legend()
fig.tight_layout()
