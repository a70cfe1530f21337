"""Files of every released version can be read for ever; `tests/golden/chunks/make.py` made them."""

from pathlib import Path

import numpy as np
import pytest

from chicle_elastic.chunks import layout
from chicle_elastic.chunks.folder import ChunkFolder
from chicle_elastic.chunks.headers import READABLE_VERSIONS, VERSION
from tests.chunks.samples import CHUNKS, assert_same_chunk, encoded, sample_chunk
from tests.chunks.samples import VERSION as STATE_VERSION
from tests.golden.chunks.make import LABELS, golden_rows

GOLDEN = Path(__file__).parents[1] / "golden" / "chunks"


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("version", READABLE_VERSIONS)
def test_a_golden_chunk_has_the_arrays_it_was_made_of(name: str, version: int) -> None:
    """Every kind of every version, state and its version included."""
    content = (GOLDEN / f"{name}-v{version}.bin").read_bytes()
    buffer = layout.empty_buffer(len(content))
    buffer[:] = np.frombuffer(content, np.uint8)
    assert layout.verify(buffer, where=name) == STATE_VERSION
    assert_same_chunk(layout.decode(buffer, where=name), sample_chunk(name))


@pytest.mark.parametrize("name", CHUNKS)
def test_the_present_version_writes_its_golden_bytes(name: str) -> None:
    """A change of the layout that forgets to raise the version fails here."""
    assert encoded(sample_chunk(name)).tobytes() == (GOLDEN / f"{name}-v{VERSION}.bin").read_bytes()


@pytest.mark.parametrize("version", READABLE_VERSIONS)
def test_a_golden_folder_has_the_rows_it_was_made_of(version: int) -> None:
    """The manifest of every version can be read, and its chunks hold each row once."""
    folder = ChunkFolder(GOLDEN / f"folder-v{version}")
    folder.verify()
    X, codes = golden_rows()
    assert folder.classes == LABELS
    assert sorted(np.concatenate([chunk.row_ids for chunk in folder])) == list(range(20))
    for chunk in folder:
        assert np.array_equal(chunk.rows, X[chunk.row_ids])
        assert np.array_equal(chunk.targets, codes[chunk.row_ids])
