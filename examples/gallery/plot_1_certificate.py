"""
A linear SVM, and how far it is from the best one
=================================================

:class:`~estimators.ChicleSVM` is used like :class:`sklearn.svm.LinearSVC`, and minimises the same function. What it
adds is a *certificate*: ``tol`` bounds the relative distance of the objective to the optimum, and the fit ends when
that is certain.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from chicle_elastic import InProcess
from estimators import ChicleSVM

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
model = make_pipeline(StandardScaler(), ChicleSVM(tol=1e-6, random_state=0)).fit(X_train, y_train)
svm = model[-1]
print(f"test accuracy {model.score(X_test, y_test):.3f} after {svm.n_iter_} iterations")
print(f"objective {svm.objective_[0]:.6f}, at most {svm.duality_gap_:.1e} of it above the best possible one")

# %%
# What a fit did
# --------------
# ``history_`` has a record per iteration, and says which method found the model, and why.

print(svm.history_.method)
gaps = svm.history_.column("duality_gap_estimate")
fig, ax = plt.subplots(figsize=(6, 3))
ax.semilogy(range(1, len(gaps) + 1), gaps, "o-")
ax.axhline(svm.tol, color="grey", linestyle="--", label="tol")
ax.set(xlabel="iteration", ylabel="relative duality gap")
ax.legend()
fig.tight_layout()

# %%
# Several tasks
# -------------
# The same with tasks that join while it trains: two more after the first iteration, then four. They take turns in this
# process, so the figure shows iterations and chunks of a cluster, not its times.

tasks = InProcess(num_tasks=2, changes=((1, 4), (3, 8)))
elastic = ChicleSVM(tol=1e-6, random_state=0, runtime=tasks).fit(model[0].transform(X_train), y_train)
print(f"{elastic.n_iter_} iterations; the same objective: {elastic.objective_[0]:.6f}")
elastic.history_.plot(title="chunks move to the tasks that join")
