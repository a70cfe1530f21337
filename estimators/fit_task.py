"""`python -m estimators.fit_task`: fit a ChicleSVM as a task of a cluster, started on every node by its agent.

    python -m chicle_elastic.launch ... -m estimators.fit_task --train FOLDER --out FOLDER --C 0.1

All tasks run the same fit and come to the same model; each writes it, whole, to the same file. The folder may be a URL,
such as s3://bucket/model, so that nodes need not share a folder.
"""

import argparse
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.errors import ChicleError
from chicle_elastic.runtime.checkpoint.files import write_file
from chicle_elastic.runtime.checkpoint.places import Place, place_of, require_writable
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from estimators.svm import ChicleSVM

MODEL_NAME = "model.npz"


def parser() -> argparse.ArgumentParser:
    """Options that are parameters of the estimator have its names and defaults."""
    defaults = ChicleSVM().get_params()
    parser = argparse.ArgumentParser(prog="python -m estimators.fit_task", description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="chunk folder")
    parser.add_argument("--out", required=True, help=f"folder for {MODEL_NAME}, or a URL, e.g. s3://BUCKET/MODEL")
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
    train = params.pop("train")
    try:
        out = place_of(params.pop("out"), purpose="a model")
        require_writable(out, who=f"the task on {socket.gethostname()}")  # now, and not after hours of training
        model = ChicleSVM(runtime=cluster_runtime(), **params).fit(ChunkFolder(train))
        save_model(model, out)
    except ChicleError as error:
        print(f"fit_task: {error}", file=sys.stderr)
        return 1
    print(f"{out / MODEL_NAME}: relative duality gap {model.duality_gap_:.1e} after {model.n_iter_} iterations")
    return 0


def save_model(model: ChicleSVM, out: Place) -> None:
    """Write the model file into a folder, which is made, or to a URL."""
    if isinstance(out, Path):
        out.mkdir(parents=True, exist_ok=True)
        model.save(out / MODEL_NAME)
        return
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / MODEL_NAME)
        write_file(out / MODEL_NAME, (Path(folder) / MODEL_NAME).read_bytes())


if __name__ == "__main__":
    sys.exit(main())
