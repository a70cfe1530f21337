"""Fashion-MNIST from OpenML with the default network: about 0.90 on the test images after six epochs.

    python -m examples.fashion_mnist [N_WORKERS]

Downloads 30 MB the first time (scikit-learn keeps them). With a number of workers it trains on a local cluster.
"""

import sys

import numpy as np
from sklearn.datasets import fetch_openml

from estimators import ChicleCNNClassifier

if __name__ == "__main__":
    n_workers = int(sys.argv[1]) if len(sys.argv) > 1 else None
    X, y = fetch_openml("Fashion-MNIST", version=1, as_frame=False, return_X_y=True)
    X = X.astype(np.uint8).reshape(-1, 28, 28)
    model = ChicleCNNClassifier(max_epochs=6, random_state=0, verbose=1, n_workers=n_workers)
    model.fit(X[:60_000], y[:60_000])
    print(f"accuracy on the test images: {model.score(X[60_000:], y[60_000:]):.4f}")
