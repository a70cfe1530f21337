"""Make the model files that tests read.

    python tests/golden/models/make.py FOLDER

Files of a version that was released are never made anew: that they can still be read is the point.
"""

import json
import sys
from pathlib import Path

import numpy as np

from estimators import ChicleLogisticRegression, ChicleSVM
from estimators.persistence import VERSION

MODELS = (
    (ChicleSVM, ["no"] * 4 + ["yes"] * 4),
    (ChicleLogisticRegression, ["no"] * 3 + ["perhaps"] + ["yes"] * 4),
)


def main(folder: Path) -> None:
    """Fit eight samples, save, and write down what the model says about them."""
    X = np.array([[0, 0], [0, 1], [1, 0], [0.2, 0.1], [2, 2], [2, 3], [3, 2], [2.5, 2.1]], dtype=np.float64)
    for estimator_class, labels in MODELS:
        y = np.array(labels)
        model = estimator_class(C=0.5, class_weight={"no": 2.0, "yes": 1.0}, random_state=0, store_duals=True).fit(X, y)
        stem = f"{estimator_class.__name__}-v{VERSION}"
        model.save(folder / f"{stem}.npz")
        expected = {
            "X": X.tolist(),
            "predictions": model.predict(X).tolist(),
            "scores": model.decision_function(X).tolist(),
        }
        (folder / f"{stem}.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
