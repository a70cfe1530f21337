"""`python -m estimators.submitted.task`: a task of a job that fits what was staged; the anchor's members start it."""

import argparse
import json
import os
import socket
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from chicle_elastic.errors import ChicleError
from chicle_elastic.runtime.cluster_task.runtime import cluster_runtime
from chicle_elastic.surroundings import prepare_command
from estimators.fit_task import imported, imported_class, save_model
from estimators.submitted.fit import CATEGORIES, ERROR_NAME, WARNINGS_NAME
from estimators.submitted.staging import Staged, kind_of


def main(argv: Sequence[str] | None = None) -> int:
    """Be a task of the fit; returns the exit code."""
    prepare_command()
    parser = argparse.ArgumentParser(prog="python -m estimators.submitted.task", description=__doc__)
    parser.add_argument("--train", type=Path, required=True, help="folder that TorchXRuntime has written")
    parser.add_argument("--out", type=Path, required=True, help="folder of the job")
    arguments = parser.parse_args(argv)
    try:
        staged = Staged(arguments.train)
        params = staged.params
        if params.get("module") is not None:
            params["module"] = imported_class(params["module"])
        if params.get("augment") is not None:
            params["augment"] = imported("augment", params["augment"])
        model = kind_of(staged.name, arguments.train)(runtime=cluster_runtime(), **params)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            model.fit(*staged.data())
        if staged.feature_names is not None:
            model.feature_names_in_ = staged.feature_names
        _write_warnings(caught, arguments.out)
        save_model(model, arguments.out)
    except Exception as error:  # the user sees the folder, and not this process
        _write_whole(arguments.out / ERROR_NAME, f"{type(error).__name__} on {socket.gethostname()}: {error}")
        if not isinstance(error, ChicleError):
            raise
        print(f"task: {error}", file=sys.stderr)
        return 1
    return 0


def _write_warnings(caught: Sequence[warnings.WarningMessage], out: Path) -> None:
    """Keep the warnings that the user of `fit` would see; every task has the same."""
    said = [
        {"category": each.category.__name__, "text": str(each.message)}
        for each in caught
        if each.category.__name__ in CATEGORIES
    ]
    for each in said:
        print(f"{each['category']}: {each['text']}", file=sys.stderr)
    if said:
        _write_whole(out / WARNINGS_NAME, json.dumps(said))


def _write_whole(path: Path, text: str) -> None:
    """Replace a file that tasks of several hosts may write at the same time."""
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


if __name__ == "__main__":
    sys.exit(main())
