"""
A small network, and tasks that come and go
===========================================

:class:`~estimators.ChicleCNNClassifier` trains a small convolutional network by local SGD. Its default settings learn
images of any scale. Tasks may join and leave while it trains: weights and momentum are averaged by samples, and each
sample is used once per epoch, whichever task owns it.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from chicle_elastic import InProcess
from estimators import ChicleCNNClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0, stratify=y)
runs = {
    "1 task": InProcess(num_tasks=1),
    "4 tasks": InProcess(num_tasks=4),
    "4 > 2 > 4 tasks": InProcess(num_tasks=4, changes=((10, 2), (40, 4))),
}
fig, ax = plt.subplots(figsize=(6, 3))
for name, runtime in runs.items():
    model = ChicleCNNClassifier(max_epochs=15, random_state=0, runtime=runtime).fit(X_train, y_train)
    print(f"{name}: test accuracy {model.score(X_test, y_test):.3f}")
    loss = model.history_.column("epoch_loss")  # NaN but for the last iteration of each epoch
    ax.plot(np.arange(1, 16), loss[~np.isnan(loss)], label=name)
ax.set(xlabel="epochs", ylabel="training loss", yscale="log")
ax.legend()
fig.tight_layout()
