"""The components of TorchX, and a whole run of one on this machine."""

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_svmlight_file
from sklearn.svm import LinearSVC

from chicle_elastic.cluster.net.event_file import read_events
from estimators import ChicleCNNClassifier, ChicleSVM
from tests.harness.training import write_data
from tests.real_data import real_data
from tests.timeouts import comes, timeout_s
from tests.torchx.command import torchx

torchx_specs = pytest.importorskip("torchx.specs", reason="needs torchx")

COMPONENTS = ("svm", "logistic", "cnn", "app", "script", "join")


def test_the_components_are_sound() -> None:
    """TorchX's own check of what a component may look like."""
    from torchx.specs.file_linter import validate

    import torchx_components.chicle as components

    for component in COMPONENTS:
        assert not validate(str(components.__file__), component)


def test_own_and_other_components_are_listed(environment: dict[str, str], tmp_path: Path) -> None:
    """TorchX hides its own as soon as there are others."""
    listed = torchx(environment, "builtins", cwd=tmp_path)
    assert all(f"chicle.{component}" in listed for component in COMPONENTS)
    assert "dist.ddp" in listed
    assert "utils.echo" in listed


@pytest.mark.parametrize(("j", "expected"), [("2:3", (2, 3)), ("3", (3, 3)), ("2:3x1", (2, 3)), ("1x1", (1, 1))])
def test_nodes_are_read_as_min_and_max(j: str, expected: tuple[int, int]) -> None:
    """Also in TorchX's own way to write them."""
    from torchx_components.node import parse_nodes

    assert parse_nodes(j) == expected


@pytest.mark.parametrize("j", ["", "0", "3:2", "2x4", "two", "-1:2"])
def test_numbers_of_nodes_that_cannot_be_are_refused(j: str) -> None:
    """With what to write instead."""
    from torchx_components.node import parse_nodes

    with pytest.raises(ValueError, match="MIN:MAX"):
        parse_nodes(j)


@pytest.mark.parametrize("component", ["svm", "logistic", "cnn"])
def test_a_component_submits_the_anchor_alone(component: str) -> None:
    """The anchor submits the nodes, so that each of them comes and goes by itself."""
    import torchx_components.chicle as components
    from torchx_components.anchor import parser

    make = getattr(components, component)
    app = make("data", "out", "--tol", "0.1", j="2:3", checkpoint="s3://bucket/job", resume=True, cpu=4, memMB=512)
    [role] = app.roles
    assert role.num_replicas == 1
    assert role.resource.cpu == 4
    arguments = parser().parse_args(role.args[2:])
    assert (arguments.nodes, arguments.checkpoint, arguments.resume) == ("2:3", "s3://bucket/job", True)
    assert arguments.train == str(Path("data").absolute())  # it may be a URL
    assert arguments.sbatch == ["--cpus-per-task=4", "--mem=512"]
    assert arguments.module == "estimators.fit_task"
    assert arguments.arguments == ["--estimator", component, "--tol", "0.1"]


def test_an_own_task_and_further_options_go_along() -> None:
    """Those of the user come last, so that they win."""
    from torchx_components.anchor import parser
    from torchx_components.chicle import app

    made = app(
        "own.task", "data", "out", "--rank", "3", env={"A": "b"}, member_options="--sbatch=--mem=9G --notices aws"
    )
    [role] = made.roles
    assert role.env == {"A": "b"}
    arguments = parser().parse_args(role.args[2:])
    assert (arguments.module, arguments.arguments) == ("own.task", ["--rank", "3"])
    assert arguments.sbatch[-1] == "--mem=9G"
    assert arguments.notices == "aws"


def test_a_script_goes_without_data() -> None:
    """By its own path; what is no Python file is refused."""
    from torchx_components.anchor import parser, task_command
    from torchx_components.chicle import script

    [role] = script("train.py", "--lr", "0.1", out="runs", j="2:4", resume=True, checkpoint="saved").roles
    arguments = parser().parse_args(role.args[2:])
    assert (arguments.train, arguments.resume, arguments.checkpoint) == (None, True, "saved")
    assert task_command(arguments) == [str(Path("train.py").absolute()), "--lr", "0.1"]
    with pytest.raises(ValueError, match=r"chicle\.app runs a module"):
        script("own.module")


def test_one_more_node_is_a_job_of_its_own() -> None:
    """With the task of the run that it joins."""
    from torchx_components.chicle import join

    [role] = join("out/.run-1", "estimators.fit_task", "--C", "0.1", node="late").roles
    assert role.args[:2] == ["-m", "torchx_components.node"]
    assert role.args[-5:] == ["estimators.fit_task", "--out", str(Path("out").absolute()), "--C", "0.1"]
    with pytest.raises(ValueError, match=r"chicle\.join needs the module"):
        join("out/.run-1")


def test_options_that_cannot_be_are_refused_before_anything_is_submitted(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """By the host that submits, and not by every node later."""
    command = ["run", "-s", "local_cwd", "chicle.svm", "--train", "d", "--out", "o", "--", "--loss", "huber"]
    with pytest.raises(AssertionError, match="'huber' is none of hinge, modified_huber, squared_hinge"):
        torchx(environment, *command, cwd=tmp_path)
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_a9a_is_trained_on_two_to_three_nodes(environment: dict[str, str], tmp_path: Path) -> None:
    """SUCCEEDED; at least two members trained, which their event files prove; as accurate as LinearSVC."""
    source = real_data("a9a/a9a.gz")
    train = tmp_path / "a9a"
    with gzip.open(source) as packed, train.open("wb") as plain:
        shutil.copyfileobj(packed, plain)
    out = tmp_path / "model"
    options = ["-j", "2:3", "--train", str(train), "--out", str(out), "--", "--C", "0.01"]
    said = torchx(
        environment,
        *("run", "-s", "local_cwd", "-cfg", f"log_dir={tmp_path / 'logs'}", "--wait", "chicle.svm"),
        *options,
        cwd=tmp_path,
        limit_s=200,
    )
    assert "SUCCEEDED" in said
    members = [len(event["seconds"]) for event in read_events(out / "nodes") if event["kind"] == "iteration"]
    assert max(members) >= 2
    X, y = load_svmlight_file(str(train))
    model = ChicleSVM.load(out / "model.npz")
    for name in ("indices", "indptr"):  # the reader may make them int64, which LinearSVC does not take
        setattr(X, name, getattr(X, name).astype(np.int32))
    peer = LinearSVC(loss="hinge", C=0.01, max_iter=100_000).fit(X, y)
    assert abs(np.mean(model.predict(X) == y) - peer.score(X, y)) <= 0.003
    assert {path.name for path in (out / "nodes").glob("*.events.jsonl")} <= {
        f"node-{n}.events.jsonl" for n in range(3)
    }
    assert list((out / "nodes" / "tensorboard").glob("events.out.tfevents.*"))
    assert not list(out.glob(".run-*")), "nothing is left of the meeting place"


@pytest.mark.slow
def test_a_network_is_trained_on_two_nodes(environment: dict[str, str], tmp_path: Path) -> None:
    """SUCCEEDED; the model is one of ChicleCNNClassifier, which has learned."""
    digits = load_digits()
    train, out = tmp_path / "digits.npz", tmp_path / "model"
    X = np.kron(digits.images, np.ones((2, 2))).reshape(len(digits.target), -1).astype(np.float32)
    np.savez(train, X=X, y=digits.target)
    said = torchx(
        environment,
        *("run", "-s", "local_cwd", "-cfg", f"log_dir={tmp_path / 'logs'}", "--wait", "chicle.cnn", "-j", "2"),
        *("--train", str(train), "--out", str(out), "--", "--max_epochs", "6", "--image_shape", "16,16"),
        cwd=tmp_path,
        limit_s=200,
    )
    assert "SUCCEEDED" in said
    members = [len(event["seconds"]) for event in read_events(out / "nodes") if event["kind"] == "iteration"]
    assert max(members) == 2
    assert ChicleCNNClassifier.load(out / "model.npz").score(X, digits.target) > 0.9


@pytest.mark.slow
def test_a_run_without_its_least_number_is_joined_by_hand(environment: dict[str, str], tmp_path: Path) -> None:
    """`chicle.join` brings the second node of two; the anchor says how many it waits for."""
    X, y = write_data(tmp_path / "data.npz", rows=2000, columns=5, noise=0.0)
    out, log = tmp_path / "model", tmp_path / "anchor.log"
    command = [sys.executable, "-m", "torchx_components.anchor", "-j", "2:3", "--begin", "1"]
    command += ["--train", str(tmp_path / "data.npz"), "--out", str(out), "estimators.fit_task"]
    with log.open("wb") as output:
        anchor = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        assert comes(lambda: "1 of at least 2 nodes are here" in log.read_text(), 120), log.read_text()
        [run] = out.glob(".run-*")
        said = torchx(
            environment,
            *("run", "-s", "local_cwd", "-cfg", f"log_dir={tmp_path / 'logs'}", "--wait", "chicle.join"),
            *("--run", str(run), "--node", "late", "-j", "2:3", "--", "estimators.fit_task"),
            cwd=tmp_path,
            limit_s=200,
        )
        assert "SUCCEEDED" in said
        assert anchor.wait(timeout_s(60)) == 0, log.read_text()
    finally:
        if anchor.poll() is None:
            anchor.terminate()
            anchor.wait(timeout_s(60))
    assert ChicleSVM.load(out / "model.npz").score(X, y) > 0.9
    assert not list(out.glob(".run-*"))
