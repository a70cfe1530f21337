"""A chunk folder at a URL is read as one on this machine."""

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.places import place_of
from chicle_elastic.chunks.views import NO_STATE
from chicle_elastic.cli.main import main as chicle
from chicle_elastic.errors import ChunkCorruptError, DataError
from chicle_elastic.ids import ChunkId
from estimators import ChicleSVM
from tests.chunks.folders import write_folder

fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install 'chicle-elastic[url]'")


def copied(folder: ChunkFolder) -> str:
    """The URL of a copy."""
    url = f"memory://{uuid.uuid4().hex}"
    assert isinstance(folder.path, Path)
    for path in folder.path.iterdir():
        (place_of(url, purpose="data") / path.name).write_bytes(path.read_bytes())  # type: ignore[operator]
    return url


@pytest.mark.parametrize("is_sparse", [False, True])
def test_it_is_the_same_folder(tmp_path: Path, is_sparse: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Chunks, labels, what `chicle inspect` says, and what is learnt."""
    there = write_folder(tmp_path / "data", is_sparse=is_sparse, has_weights=True)
    here = ChunkFolder(copied(there))
    assert here.fingerprint() == there.fingerprint()
    assert here.num_chunks == len(there.manifest.chunks) > 1
    for number in range(there.num_chunks):
        one, other = (folder.load(ChunkId(number), NO_STATE) for folder in (here, there))
        np.testing.assert_array_equal(one.row_ids, other.row_ids)
        np.testing.assert_array_equal(one.targets, other.targets)
        np.testing.assert_array_equal(here.targets(ChunkId(number)), other.targets)
    here.verify()
    given: dict[str, Any] = {"C": 0.1, "random_state": 0}
    np.testing.assert_array_equal(ChicleSVM(**given).fit(here).coef_, ChicleSVM(**given).fit(there).coef_)
    assert chicle(["inspect", str(here.path), "--verify"]) == 0
    assert str(here.path) in capsys.readouterr().out


def test_what_is_wrong_with_it_is_said(tmp_path: Path) -> None:
    """No folder; a file that is missing, is short, or was changed."""
    with pytest.raises(DataError, match="memory://nowhere is no chunk folder: there is no such folder"):
        ChunkFolder("memory://nowhere")
    folder = write_folder(tmp_path / "data")
    url = copied(folder)
    first = place_of(url, purpose="data") / folder.manifest.chunks[0].name
    content = first.read_bytes()
    first.write_bytes(content[:-8])  # type: ignore[operator]
    with pytest.raises(ChunkCorruptError, match="copy or convert the data again"):
        ChunkFolder(url)
    first.write_bytes(content[:-8] + bytes(8))  # type: ignore[operator]
    with pytest.raises(ChunkCorruptError, match=url):
        ChunkFolder(url).verify()
    first.unlink()
    with pytest.raises(ChunkCorruptError, match="is missing"):
        ChunkFolder(url)
