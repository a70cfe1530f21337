"""Make the model files that tests read.

    python tests/golden/models/make.py FOLDER

A file that is there is never made anew: that it can still be read is the point.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import estimators
from estimators.persistence import VERSION

WEIGHTS = {"no": 2.0, "yes": 1.0}
TWO, THREE = ["no"] * 4 + ["yes"] * 4, ["no"] * 3 + ["perhaps"] + ["yes"] * 4
COUNTS = [1.0, 0.0, 2.0, 1.0, 4.0, 5.0, 6.0, 4.0]
CLASSIFIER: dict[str, Any] = {"C": 0.5, "class_weight": WEIGHTS, "random_state": 0, "store_duals": True}
MODELS: dict[str, tuple[dict[str, Any], Any]] = {
    "ChicleSVM": (CLASSIFIER, TWO),
    "ChicleLogisticRegression": (CLASSIFIER, THREE),
    "ChicleRidgeClassifier": ({"class_weight": WEIGHTS}, THREE),
    "ChicleRidge": ({"alpha": 0.5}, np.column_stack([COUNTS, COUNTS[::-1]])),
    "ChicleRidgeCV": ({"alphas": np.array([0.1, 1.0]), "store_cv_results": True}, COUNTS),
    "ChicleLasso": ({"alpha": 0.1}, COUNTS),
    "ChicleElasticNet": ({"alpha": 0.1, "l1_ratio": 0.8}, COUNTS),
    "ChicleSVR": ({"C": 0.5, "epsilon": 0.1}, COUNTS),
    "ChicleHuber": ({"alpha": 0.1}, COUNTS),
    "ChiclePoisson": ({"alpha": 0.1}, COUNTS),
}


def main(folder: Path) -> None:
    """Fit eight samples, save, and write down what the model says about them."""
    X = np.array([[0, 0], [0, 1], [1, 0], [0.2, 0.1], [2, 2], [2, 3], [3, 2], [2.5, 2.1]], dtype=np.float64)
    for name, (params, y) in MODELS.items():
        stem = f"{name}-v{VERSION}"
        if (folder / f"{stem}.npz").exists():
            continue
        model = getattr(estimators, name)(**params).fit(X, np.array(y))
        model.save(folder / f"{stem}.npz")
        expected = {
            "X": X.tolist(),
            "params": {name: value for name, value in params.items() if name != "alphas"},
            "predictions": model.predict(X).tolist(),
        }
        if hasattr(model, "decision_function"):
            expected["scores"] = model.decision_function(X).tolist()
        (folder / f"{stem}.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
