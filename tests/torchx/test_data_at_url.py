"""A run without a folder for its data: chunks, checkpoints and the model are at URLs of a local server of S3."""

from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks.convert import ConvertOptions, convert
from chicle_elastic.chunks.places import place_of
from estimators import ChicleSVM
from tests.harness.training import write_data
from tests.programs import run_python
from tests.runtime.checkpoint import s3_server as s3


@pytest.fixture(scope="module", autouse=True)
def _loop() -> None:
    """The event loop of fsspec, which it never closes."""
    if s3.is_installed():
        from fsspec.asyn import get_loop

        get_loop()


@pytest.mark.slow
@pytest.mark.skipif(not s3.is_installed(), reason=s3.NEEDS)
def test_nodes_read_chunks_from_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes train on them; the same objective as on the folder. A bucket that is not there ends the anchor."""
    write_data(tmp_path / "data.npz", rows=2000, columns=10, noise=1.0)
    folder = convert([tmp_path / "data.npz"], tmp_path / "chunks", ConvertOptions(max_tasks=2))
    with s3.s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.make_bucket("data")
        assert isinstance(folder.path, Path)
        for path in folder.path.iterdir():
            (place_of("s3://data/chunks", purpose="data") / path.name).write_bytes(path.read_bytes())
        run_anchor("s3://data/chunks", tmp_path / "out")
        model = ChicleSVM.load(tmp_path / "out" / "model.npz")
        assert {record.num_tasks for record in model.history_} == {2}
        here = ChicleSVM(tol=1e-6).fit(folder)
        np.testing.assert_allclose(model.objective_, here.objective_, rtol=2e-6)
        said = run_anchor("s3://nothing/chunks", tmp_path / "none", code=1)
        assert "anchor: s3://nothing/chunks is no chunk folder" in said
        assert not list((tmp_path / "none").glob(".run-*"))


def run_anchor(train: str, out: Path, *, code: int = 0) -> str:
    """The whole run, on this host."""
    command = ["-m", "torchx_components.anchor", "--members", "local", "-j", "2", "--train", train]
    ended = run_python(*command, "--out", out, "estimators.fit_task", "--tol", "1e-6", seconds=120, code=code)
    return ended.stdout + ended.stderr
