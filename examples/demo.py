"""The main job on real data: a pipeline, a grid search, and tasks that join and leave while a model trains.

Run it with `make demo`, or with a folder to write to: `python -m examples.demo FOLDER`.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from chicle_elastic.monitoring import swimlane, swimlane_text
from chicle_elastic.runtime.in_process import InProcess
from estimators import ChicleSVM

TOL = 1e-4
ELASTIC = InProcess(num_tasks=2, changes=((15, 4), (35, 3), (60, 1)))
"""Two tasks; two join after iteration 15, one leaves after 35, two after 60."""


def main(folder: Path) -> int:
    """Run the demo; 0 when every gap is certified and every accuracy is that of LinearSVC within two points."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, load, C in (("breast_cancer", load_breast_cancer, 0.1), ("digits", load_digits, 0.01)):
        X, y = load(return_X_y=True)
        data = train_test_split(X, y, test_size=0.25, random_state=0, stratify=y)
        peer = LinearSVC(C=C, loss="hinge", tol=1e-6, max_iter=100_000)
        rows.append(measure(name, "LinearSVC", peer, data))
        rows.append(measure(name, "ChicleSVM", ChicleSVM(C=C, tol=TOL, random_state=0), data))
        elastic = ChicleSVM(C=C, tol=TOL, random_state=0, runtime=ELASTIC)
        rows.append(measure(name, "ChicleSVM, 2 > 4 > 3 > 1 tasks", elastic, data))
        if name == "digits":
            history = elastic.history_
    print(format_table(rows))

    X, y = load_digits(return_X_y=True)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), ChicleSVM(random_state=0)),
        {"chiclesvm__C": [1e-3, 1e-2], "chiclesvm__loss": ["hinge", "squared_hinge"]},
        n_jobs=2,
        cv=3,
    )
    started = time.perf_counter()
    search.fit(X, y)
    print(
        f"\nGridSearchCV(n_jobs=2) over a pipeline: best {search.best_params_}, accuracy {search.best_score_:.3f}, "
        f"{time.perf_counter() - started:.1f} s"
    )

    print("\nHow the chunks of digits moved:\n")
    print(swimlane_text.render(history))
    picture = folder / "demo.png"
    swimlane.draw(history, title="digits: chunks move as tasks join and leave").savefig(picture, dpi=110)
    print(f"\nThe same as a picture: {picture}")

    chicle = [row for row in rows if row["gap"] is not None]
    is_certified = all(row["gap"] <= TOL for row in chicle)
    is_accurate = all(
        abs(row["accuracy"] - peer["accuracy"]) <= 0.02
        for row in chicle
        for peer in rows
        if peer["data"] == row["data"]
    )
    return 0 if is_certified and is_accurate else 1


def measure(name: str, method: str, model: ChicleSVM | LinearSVC, data: list[np.ndarray]) -> dict:
    """Fit on scaled data; what came out and how long the second fit took (the first one may compile kernels)."""
    X_train, X_test, y_train, y_test = data
    scaler = StandardScaler().fit(X_train)
    X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
    model.fit(X_train, y_train)
    started = time.perf_counter()
    model.fit(X_train, y_train)
    return {
        "data": name,
        "method": method,
        "accuracy": model.score(X_test, y_test),
        "objective": primal_objective(model, X_train, y_train),
        "gap": getattr(model, "duality_gap_", None),
        "iterations": int(np.max(model.n_iter_)),
        "ms": 1000 * (time.perf_counter() - started),
    }


def primal_objective(model: ChicleSVM | LinearSVC, X: np.ndarray, y: np.ndarray) -> float:
    """1/2 |w|^2 + C sum of hinge losses, summed over the outputs, from the model's own coefficients."""
    w = np.column_stack([model.coef_, model.intercept_])
    positives = model.classes_ if len(w) > 1 else model.classes_[1:]
    signs = np.where(y[:, None] == positives, 1.0, -1.0)
    margins = signs * (np.column_stack([X, np.ones(len(X))]) @ w.T)
    return float(0.5 * np.sum(w**2) + model.C * np.maximum(0.0, 1.0 - margins).sum())


def format_table(rows: list[dict]) -> str:
    """The rows as a Markdown table, so that it can be pasted."""
    columns: dict[str, Callable[[dict], str]] = {
        "data": lambda row: row["data"],
        "method": lambda row: row["method"],
        "test accuracy": lambda row: f"{row['accuracy']:.3f}",
        "objective": lambda row: f"{row['objective']:.4f}",
        "certified gap": lambda row: "none" if row["gap"] is None else f"{row['gap']:.1e}",
        "iterations": lambda row: str(row["iterations"]),
        "fit, ms": lambda row: f"{row['ms']:.1f}",
    }
    cells = [list(columns), *[[cell(row) for cell in columns.values()] for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo-output")))
