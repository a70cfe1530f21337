"""`python -m estimators.fit_task`: fit a ChicleSVM as a task of a cluster, started on every node by its agent.

    python -m chicle_elastic.launch ... -m estimators.fit_task --train FOLDER --out FOLDER --C 0.1

All tasks run the same fit and come to the same model; each writes it, whole, to the same file.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.errors import ChicleError
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from estimators.svm import ChicleSVM

MODEL_NAME = "model.npz"


def parser() -> argparse.ArgumentParser:
    """Options that are parameters of the estimator have its names and defaults."""
    defaults = ChicleSVM().get_params()
    parser = argparse.ArgumentParser(prog="python -m estimators.fit_task", description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="chunk folder")
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {MODEL_NAME}")
    for name in ("C", "tol", "intercept_scaling"):
        parser.add_argument(f"--{name}", type=float, default=defaults[name])
    parser.add_argument("--max_iter", type=int, default=defaults["max_iter"])
    parser.add_argument("--n_threads", type=int, default=None)
    parser.add_argument("--random_state", type=int, default=0)
    parser.add_argument("--loss", choices=("hinge", "squared_hinge"), default=defaults["loss"])
    parser.add_argument("--class_weight", choices=("balanced",), default=None)
    parser.add_argument("--fit_intercept", action=argparse.BooleanOptionalAction, default=True)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    params = vars(parser().parse_args(argv))
    train, out = params.pop("train"), params.pop("out")
    try:
        model = ChicleSVM(runtime=cluster_runtime(), **params).fit(ChunkFolder(train))
        out.mkdir(parents=True, exist_ok=True)
        model.save(out / MODEL_NAME)
    except ChicleError as error:
        print(f"fit_task: {error}", file=sys.stderr)
        return 1
    print(f"{out / MODEL_NAME}: relative duality gap {model.duality_gap_:.1e} after {model.n_iter_} iterations")
    return 0


if __name__ == "__main__":
    sys.exit(main())
