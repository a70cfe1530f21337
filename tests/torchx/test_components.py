"""The components of TorchX, and a whole run of one on this machine."""

import gzip
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_svmlight_file
from sklearn.svm import LinearSVC

from chicle_elastic.cluster.net.event_file import read_events
from estimators import ChicleSVM
from tests.estimators.problems import SHARED_DATA
from tests.timeouts import timeout_s

torchx_specs = pytest.importorskip("torchx.specs", reason="needs torchx")

ROOT = Path(__file__).parents[2]
TORCHX = Path(sys.executable).with_name("torchx")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell in which this checkout is installed, as pyproject.toml says it is now."""
    folder = tmp_path_factory.mktemp("installed")
    info = folder / "chicle_checkout-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chicle-checkout\nVersion: 0\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["torchx.components"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[torchx.components]", *lines]) + "\n")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PATH": os.pathsep.join([str(TORCHX.parent), os.environ["PATH"]]),
        "OMP_NUM_THREADS": "1",
    }


def torchx(environment: dict[str, str], *arguments: str, cwd: Path, limit_s: float = 60) -> str:
    """What torchx says."""
    run = subprocess.run(
        [str(TORCHX), *arguments],
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s(limit_s),
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    return run.stdout


def test_the_component_is_sound() -> None:
    """TorchX's own check of what a component may look like."""
    from torchx.specs.file_linter import validate

    import torchx_components.chicle as components

    assert not validate(str(components.__file__), "svm")


def test_own_and_other_components_are_listed(environment: dict[str, str], tmp_path: Path) -> None:
    """TorchX hides its own as soon as there are others."""
    listed = torchx(environment, "builtins", cwd=tmp_path)
    assert "chicle.svm" in listed
    assert "dist.ddp" in listed
    assert "utils.echo" in listed


@pytest.mark.parametrize(("j", "expected"), [("2:3", (2, 3)), ("3", (3, 3)), ("2:3x1", (2, 3)), ("1x1", (1, 1))])
def test_nodes_are_read_as_min_and_max(j: str, expected: tuple[int, int]) -> None:
    """Also in TorchX's own way to write them."""
    from torchx_components.chicle import parse_nodes

    assert parse_nodes(j) == expected


@pytest.mark.parametrize("j", ["", "0", "3:2", "2x4", "two", "-1:2"])
def test_numbers_of_nodes_that_cannot_be_are_refused(j: str) -> None:
    """With what to write instead."""
    from torchx_components.chicle import parse_nodes

    with pytest.raises(ValueError, match="MIN:MAX"):
        parse_nodes(j)


def test_an_anchor_and_single_replicas_make_the_job() -> None:
    """So that a scheduler can start, take away and add each node by itself."""
    from torchx_components.chicle import svm

    app = svm("data", "out", "--C", "0.1", j="2:3")
    assert [role.name for role in app.roles] == ["anchor", "node-0", "node-1", "node-2"]
    assert {role.num_replicas for role in app.roles} == {1}
    assert app.roles[1].args[-2:] == ["--C", "0.1"]
    assert not any("secret" in argument for role in app.roles for argument in role.args)


@pytest.mark.slow
def test_a9a_is_trained_on_two_to_three_nodes(environment: dict[str, str], tmp_path: Path) -> None:
    """SUCCEEDED; at least two members trained, which their event files prove; as accurate as LinearSVC."""
    source = SHARED_DATA / "a9a" / "a9a.gz"
    if not source.exists():
        pytest.skip("the file a9a.gz is not beside the checkout (../shared/data/a9a)")
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
    files = {f"node-{number}.{kind}.jsonl" for number in range(3) for kind in ("events", "recording")}
    assert {path.name for path in (out / "nodes").iterdir()} <= {"tensorboard", *files}
    assert list((out / "nodes" / "tensorboard").glob("events.out.tfevents.*"))
    assert not list(out.glob(".run-*")), "nothing is left of the meeting place"
