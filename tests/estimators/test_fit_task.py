"""The command line of tasks: every parameter of an estimator that a task can have is an option."""

import pytest

import estimators
from chicle_elastic.errors import UsageError
from estimators.fit_task import ESTIMATORS, NO_OPTIONS, imported_class, parse

PLACES = ["--train", "chunks", "--out", "model"]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_defaults_are_those_of_the_estimator(estimator: str) -> None:
    """But for random_state, which has to be equal on all tasks."""
    params = parse(["--estimator", estimator, *PLACES])
    expected = getattr(estimators, ESTIMATORS[estimator])().get_params()
    assert params.pop("random_state") == 0
    own = {"estimator", "train", "out", "rows_in_files"}
    given = {name: value for name, value in params.items() if name not in own}
    assert given == {name: expected[name] for name in expected if name not in NO_OPTIONS | {"random_state"}}


def test_values_are_read_as_the_parameter_has_them() -> None:
    """Numbers, words, flags, shapes, None, and arguments of the module."""
    options = ["--estimator", "cnn", "--learning_rate", "auto", "--outer_momentum", "0.5", "--image_shape", "1,28,28"]
    options += ["--standardize", "true", "--early_stopping", "--max_epochs", "3", "--chunk_size", "none"]
    options += ["--compile", "true"]
    params = parse([*PLACES, *options, "--module", "net:Net", "--module__width", "32", "--module__kind", "wide"])
    assert params["learning_rate"] == "auto"
    assert params["outer_momentum"] == 0.5
    assert params["image_shape"] == (1, 28, 28)
    assert params["standardize"] is True
    assert params["compile"] is True
    assert params["early_stopping"] is True
    assert params["max_epochs"] == 3
    assert params["chunk_size"] is None
    assert params["module"] == "net:Net"
    assert params["module__width"] == 32
    assert params["module__kind"] == "wide"


def test_options_may_be_spelled_as_options_are() -> None:
    """With dashes; arguments of a module stay as they are."""
    params = parse([*PLACES, "--max-iter=5", "--no-fit-intercept", "--intercept-scaling", "2"])
    assert (params["max_iter"], params["fit_intercept"], params["intercept_scaling"]) == (5, False, 2.0)
    params = parse([*PLACES, "--estimator", "cnn", "--max-epochs", "2", "--module", "net:Net", "--module__a_b", "1"])
    assert (params["max_epochs"], params["module__a_b"]) == (2, 1)
    given = ["--optimizer__alpha=0.9", "--optimizer__weight-decay", "0.1", "--module__x=1", "--loss", "none"]
    params = parse([*PLACES, "--estimator", "cnn", *given, "--schedule", "net:falls"])
    found = [params[name] for name in ("optimizer__alpha", "optimizer__weight_decay", "module__x", "loss", "schedule")]
    assert found == [0.9, 0.1, 1, None, "net:falls"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--loss", "huber"], "'huber' is none of hinge, modified_huber, squared_hinge"),
        (["--estimator", "cnn", "--loss", "foo"], "'foo' is none of PACKAGE.MODULE:NAME"),
        (["--max_iter", "many"], "invalid number value: 'many'"),
        (["--max_epochs", "3"], "unrecognized arguments of svm: --max_epochs 3"),
        (["--estimator", "forest"], "invalid choice: 'forest'"),
        (["--n_workers", "3"], "unrecognized arguments of svm: --n_workers 3"),
        (["--train", "s3://bucket/chunks", "--rows-in-files"], "s3://bucket/chunks is a URL"),
    ],
)
def test_what_cannot_be_is_said(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """By argparse, with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        parse([*PLACES, *options])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["torch.nn:Nothing", "no_such_module:Net", "torch.nn", "math:pi"])
def test_a_module_has_to_be_a_class_that_can_be_imported(name: str) -> None:
    """The message names what was written."""
    with pytest.raises(UsageError, match=name):
        imported_class(name)
    assert imported_class("torch.nn:Linear").__name__ == "Linear"
