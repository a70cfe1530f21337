"""The main job on real data: tasks that join while a model trains, a pipeline and a grid search.

Run it with `make demo`, or with a folder to write to: `python -m examples.demo FOLDER`. With `--readme` it also writes
its table and picture into the README and `docs/images`.
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

from chicle_elastic import History, InProcess
from estimators import ChicleSVM

ROOT = Path(__file__).parents[1]
MARKS = "<!-- measured:start -->\n", "<!-- measured:end -->\n"
TOL = 1e-3
NUM_TASKS = (1, 2, 4)
ELASTIC = InProcess(num_tasks=1, changes=((1, 2), (2, 4)))
"""One task; a second one joins after iteration 1, two more after 2. The fit ends on four, which keep the duals."""
METHOD = f"ChicleSVM, {' > '.join(map(str, NUM_TASKS))} tasks"


def main(folder: Path, *, writes_readme: bool = False) -> int:
    """Run the demo; 0 when every gap is certified and every accuracy is that of LinearSVC within two points."""
    folder.mkdir(parents=True, exist_ok=True)
    print("ChicleSVM beside LinearSVC: on one task, and with tasks that join while it trains", flush=True)
    rows, is_elastic = [], True
    for name, load, C in (("breast_cancer", load_breast_cancer, 0.1), ("digits", load_digits, 0.01)):
        X, y = load(return_X_y=True)
        data = train_test_split(X, y, test_size=0.25, random_state=0, stratify=y)
        peer = LinearSVC(C=C, loss="hinge", tol=1e-6, max_iter=100_000)
        rows.append(measure(name, "LinearSVC", peer, data))
        rows.append(measure(name, "ChicleSVM", ChicleSVM(C=C, tol=TOL, random_state=0), data))
        # By itself a task is done with so few rows before others come; Newton's method makes a pass an iteration.
        elastic = ChicleSVM(C=C, tol=TOL, random_state=0, algorithm="newton", runtime=ELASTIC)
        rows.append(measure(name, METHOD, elastic, data))
        history = elastic.history_
        is_elastic &= tuple(dict.fromkeys(history.column("num_tasks").tolist())) == NUM_TASKS
    table = format_table(rows)
    print(
        f"\n{table}\n\n"
        f"A certified gap of 1e-03 means: the objective is at most 0.1 % above the optimum. Each fit ends when that is "
        f"certain (tol={TOL:g}).\n"
        "fit, ms: the second fit of each, so that no kernel is compiled in it. An iteration of one task has many\n"
        "passes; where tasks join, it is one pass of Newton's method. Tasks of one process take turns: their ms say\n"
        "nothing of a cluster.\n"
    )

    print("GridSearchCV(n_jobs=2) over a pipeline of StandardScaler and ChicleSVM ...", flush=True)
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
        f"... best {search.best_params_}, accuracy {search.best_score_:.3f}, {time.perf_counter() - started:.1f} s\n\n"
        "How the chunks of digits moved; the higher a bar, the more chunks the task has:\n"
    )
    print(history.to_text())
    picture = folder / "demo.png"
    draw(history, picture)
    print(f"\nThe same as a picture: {picture}")
    if writes_readme:
        write_readme(ROOT / "README.md", table)
        draw(history, ROOT / "docs" / "images" / "demo.png")
        print("README.md and docs/images/demo.png have this table and this picture now")

    chicle = [row for row in rows if row["gap"] is not None]
    is_certified = all(row["gap"] <= TOL for row in chicle)
    is_accurate = all(
        abs(row["accuracy"] - peer["accuracy"]) <= 0.02
        for row in chicle
        for peer in rows
        if peer["data"] == row["data"]
    )
    return 0 if is_certified and is_accurate and is_elastic else 1


def draw(history: History, path: Path) -> None:
    """The picture of a fit."""
    history.plot(title="digits: chunks move as tasks join").savefig(path, dpi=110)


def write_readme(path: Path, table: str) -> None:
    """Put a table where the last measured one was, under the line that says how it was measured."""
    before, marked = path.read_text(encoding="utf-8").split(MARKS[0])
    measured, after = marked.split(MARKS[1])
    how = measured.partition("\n| ")[0].rstrip("\n")
    path.write_text(f"{before}{MARKS[0]}{how}\n\n{table}\n{MARKS[1]}{after}", encoding="utf-8")


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
    folders = [argument for argument in sys.argv[1:] if argument != "--readme"]
    sys.exit(main(Path(folders[0] if folders else "demo-output"), writes_readme="--readme" in sys.argv))
