"""`python -m estimators.fit_task`: fit an estimator as a task of a cluster, started on every node by its agent.

    python -m chicle_elastic.launch ... -m estimators.fit_task --train FOLDER --out FOLDER --C 0.1
    python -m chicle_elastic.launch ... -m estimators.fit_task --estimator cnn --train FOLDER --out FOLDER

All tasks run the same fit and come to the same model; each writes it, whole, to the same file. The folder may be a URL,
such as s3://bucket/model, so that nodes need not share a folder.
"""

import argparse
import ast
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from sklearn.utils._param_validation import Interval, StrOptions

import estimators
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.places import Place, absolute_place, is_url, place_of, require_writable
from chicle_elastic.errors import ChicleError, UsageError
from chicle_elastic.runtime.checkpoint.files import write_file
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from chicle_elastic.solvers.network import imported
from chicle_elastic.surroundings import prepare_command
from estimators.cnn_params import PREFIXES

MODEL_NAME = "model.npz"
ESTIMATORS = {
    "svm": "ChicleSVM",
    "logistic": "ChicleLogisticRegression",
    "ridge": "ChicleRidge",
    "lasso": "ChicleLasso",
    "elastic_net": "ChicleElasticNet",
    "svr": "ChicleSVR",
    "huber": "ChicleHuber",
    "poisson": "ChiclePoisson",
    "cnn": "ChicleCNNClassifier",
    "regressor": "ChicleRegressor",
}
# Where and how it runs is the business of agents and of this module; what is not here is an option.
NO_OPTIONS = {"runtime", "n_workers", "policy", "logdir", "verbose", "warm_start", "store_duals"}
OPTIONS = tuple(f"--{prefix}" for prefix in PREFIXES)


def parser(estimator: str = "svm") -> argparse.ArgumentParser:
    """Options that are parameters of the estimator have its names, values and defaults.

    Args:
        estimator: A key of `ESTIMATORS`.
    """
    kind = getattr(estimators, ESTIMATORS[estimator])
    parser = argparse.ArgumentParser(
        prog="python -m estimators.fit_task", description=__doc__.split("\n\n")[0], allow_abbrev=False
    )
    parser.add_argument("--estimator", choices=ESTIMATORS, default="svm", help="default: %(default)s")
    parser.add_argument("--train", required=True, help="chunk folder, or its URL")
    parser.add_argument("--out", required=True, help=f"folder for {MODEL_NAME}, or a URL, e.g. s3://BUCKET/MODEL")
    parser.add_argument(
        "--rows_in_files",
        action="store_true",
        help="leave rows in the files of the folder, which all nodes can read, for data larger than their memory",
    )
    for name, default in kind().get_params().items():
        if name not in NO_OPTIONS:
            _add_option(parser, name, default, kind._parameter_constraints.get(name))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    prepare_command()
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        params = parse(arguments)
        if params.get("module") is not None:
            params["module"] = imported_class(params["module"])
        if params.get("augment") is not None:
            params["augment"] = imported(params["augment"], f"--augment {params['augment']}")
        out = place_of(params.pop("out"), purpose="a model")
        kind = getattr(estimators, ESTIMATORS[params.pop("estimator")])
        require_writable(out, who=f"the task on {socket.gethostname()}")  # now, and not after hours of training
        folder = ChunkFolder(params.pop("train"))
        data = folder.mapped() if params.pop("rows_in_files") else folder  # `parse` has refused URLs
        model = kind(runtime=cluster_runtime(), **params).fit(data)
        save_model(model, out)
    except ChicleError as error:
        print(f"fit_task: {error}", file=sys.stderr)
        return 1
    gap = getattr(model, "duality_gap_", None)
    quality = f"training loss {model.history_[-1].train_loss:.4f}" if gap is None else f"relative duality gap {gap:.1e}"
    print(f"{out / MODEL_NAME}: {quality} after {model.n_iter_} iterations")
    return 0


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Parameters of the estimator, and `estimator`, `train` and `out`; argparse ends the process at what cannot be.

    Nothing is imported or looked at, so that the host that submits a job can judge the options of its tasks.
    """
    arguments = [part for argument in arguments for part in _spelled(argument)]
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--estimator", choices=ESTIMATORS, default="svm")
    chosen = first.parse_known_args(arguments)[0].estimator
    whole = parser(chosen)
    found, rest = whole.parse_known_args(arguments)
    params = vars(found)
    if chosen in ("cnn", "regressor"):
        while len(rest) >= 2 and rest[0].startswith(OPTIONS):
            params[rest[0].removeprefix("--")] = literal(rest[1])
            rest = rest[2:]
    if rest:
        whole.error(f"unrecognized arguments of {chosen}: {' '.join(rest)}")
    if params["rows_in_files"] and is_url(absolute_place(params["train"])):
        needs = "--rows-in-files needs a folder that every node can map"
        whole.error(f"{needs}, and {params['train']} is a URL; copy it first")
    return params


def _spelled(argument: str) -> list[str]:
    """Spell an option as its parameter: --max-iter is --max_iter, and --module__a-b=1 is --module__a_b 1."""
    if not argument.startswith("--"):
        return [argument]
    name, equals, value = argument.partition("=")
    head = "--no-" if name.startswith("--no-") else "--"
    name = head + name.removeprefix(head).replace("-", "_")
    return [name, value] if equals and name.startswith(OPTIONS) else [name + equals + value]


def imported_class(name: str) -> type:
    """The class of "package.module:Class". Raises UsageError when there is none; every node has to be able to import
    it."""
    found: Any = imported(name, f"--module {name}")
    if not isinstance(found, type):
        raise UsageError(f"--module {name} is no class, but {type(found).__name__}")
    return found


def literal(text: str) -> Any:
    """A number, tuple, bool or None as Python writes it; anything else is a string."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def save_model(model: Any, out: Place) -> None:
    """Write the model file into a folder, which is made, or to a URL."""
    if isinstance(out, Path):
        out.mkdir(parents=True, exist_ok=True)
        model.save(out / MODEL_NAME)
        return
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / MODEL_NAME)
        write_file(out / MODEL_NAME, (Path(folder) / MODEL_NAME).read_bytes())


# Options from the constraints that scikit-learn checks.


def _add_option(parser: argparse.ArgumentParser, name: str, default: Any, constraints: Any) -> None:
    option = f"--{name}"
    if name == "random_state":
        # All tasks have to draw the same, so None cannot be.
        parser.add_argument(option, type=int, default=0, help="default: %(default)s")
    elif name == "module":
        parser.add_argument(option, metavar="PACKAGE.MODULE:CLASS", default=None, help="default: that of the paper")
    elif name == "augment":
        parser.add_argument(option, metavar="PACKAGE.MODULE:FUNCTION", default=None, help="default: images as they are")
    elif name == "image_shape":
        parser.add_argument(option, type=shape, metavar="HEIGHT,WIDTH", default=None, help="or CHANNELS,HEIGHT,WIDTH")
    elif constraints == ["boolean"]:
        parser.add_argument(option, action=argparse.BooleanOptionalAction, default=default)
    else:
        parser.add_argument(option, type=_reader(constraints or []), default=default, help="default: %(default)s")


def _reader(constraints: Sequence[Any]) -> Callable[[str], Any]:
    """Reads a value that the constraints allow; the estimator judges its range."""
    words = {word for each in constraints if isinstance(each, StrOptions) for word in each.options}
    numbers = [each.type for each in constraints if isinstance(each, Interval)]
    has_flag, is_named = "boolean" in constraints, str in constraints and not numbers
    is_free = not words and callable not in constraints

    def read(text: str) -> Any:
        if text.lower() == "none" and None in constraints and text not in words:
            return None
        if has_flag and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if text in words or (is_named and (is_free or ":" in text)):
            return text
        if numbers:
            return int(text) if numbers[0] is Integral else float(text)
        known = sorted(words) + ["PACKAGE.MODULE:NAME"] * is_named
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(known)}")

    read.__name__ = "number" if numbers else "word"  # argparse says "invalid number value"
    return read


def shape(text: str) -> tuple[int, ...]:
    """Numbers with commas between them."""
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
