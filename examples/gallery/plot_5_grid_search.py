"""
Pipelines and grid search
=========================

The estimators are scikit-learn's in every respect: they clone, pickle, go through pipelines and searches, and take
sparse matrices, sample weights and data frames. A search of their own is used like ``GridSearchCV``; its fits share one
copy of the data, and a larger C goes on from a smaller one.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from estimators import ChicleSearchCV, ChicleSVM

X, y = load_digits(return_X_y=True)
grid = {"C": np.logspace(-4, 0, 5), "loss": ["hinge", "squared_hinge"]}
search = ChicleSearchCV(ChicleSVM(random_state=0), grid, cv=3).fit(X / 16, y)
print(*search.sharing_, sep="\n")
print(f"best {search.best_params_}: accuracy {search.best_score_:.3f}")

# %%
# Mean accuracy of three folds. With ``n_workers=2`` in :class:`~estimators.ChicleSVM` all of these fits would be one
# job on two nodes.

results = search.cv_results_
fig, ax = plt.subplots(figsize=(6, 3))
for loss in grid["loss"]:
    chosen = results["param_loss"] == loss
    ax.semilogx(results["param_C"][chosen], results["mean_test_score"][chosen], "o-", label=loss)
ax.set(xlabel="C", ylabel="accuracy")
ax.legend()
fig.tight_layout()

# %%
# A pipeline transforms each fold in another way, so its fits share nothing. It goes through scikit-learn's tools as any
# other does.

pipeline = make_pipeline(StandardScaler(), ChicleSVM(C=search.best_params_["C"], random_state=0, n_threads=1))
print(f"scaled: accuracy {cross_val_score(pipeline, X, y, cv=3, n_jobs=2).mean():.3f}")
